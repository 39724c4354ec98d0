"""How near caps are, as `foveate cost caps` shows them, from totals: however many calls there were."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from foveate.cost.caps import DAY_SECONDS, Cap, Scope
from foveate.cost.held import RECENT_SECONDS, Held, Level, Spending, Use, about, held, nearness
from foveate.session.totals import Order, Per
from foveate.store import Store
from foveate.web.words import counted, money, short

MOST_USES = 5
"""So many that are nearest to a cap are shown of each."""
_MOST_SESSIONS = 20
_MOST_AGENTS = 200
_SHARED = (Scope.DAY, Scope.TOTAL)
_LONGEST_NAME, _LONGEST_ID = 40, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class CapRow:
    """A cap on somebody: how much of it is used, and what is said of that."""

    about: str
    said: str
    limit: Decimal
    session_id: str | None = None
    use: Use | None = None

    @property
    def share(self) -> float:
        """The part of it that is used, for a bar."""
        if self.use is None or not self.limit:
            return 0.0
        return float(min(Decimal(1), 1 - max(Decimal(0), self.use.left) / self.limit))

    @property
    def level(self) -> Level:
        """How near it is."""
        return Level.FINE if self.use is None else self.use.level


async def cap_rows(store: Store, caps: Sequence[Cap], *, now: float) -> list[CapRow]:
    """Every cap with those who are nearest to it."""
    if not caps:
        return []
    spending = await _spending(store, caps, {cap.agent for cap in caps if cap.scope is Scope.SESSION}, now)
    return [row for one in await held(store.ledger, caps, now=now, spending=spending) for row in _rows(one)]


async def cap_rows_of(
    store: Store, caps: Sequence[Cap], agent: str, *, now: float, shows_shared: bool = True
) -> list[CapRow]:
    """The caps that hold for an agent: those on it alone and on its sessions, and those on each or on all.

    Unless `shows_shared`, caps on all agents together have only their limits: their use is that of others too.
    """
    applying = [cap for cap in caps if cap.agent in (None, agent)]
    shared = [] if shows_shared else [cap for cap in applying if cap.agent is None and cap.scope in _SHARED]
    rows = [CapRow(about=about(cap), said="shared by all agents", limit=cap.dollars) for cap in shared]
    holding = [cap for cap in applying if cap not in shared]
    if not holding:
        return rows
    is_by_session = any(cap.scope is Scope.SESSION for cap in holding)
    spending = await _spending(store, holding, {agent} if is_by_session else set(), now)
    found = await held(store.ledger, holding, now=now, spending=replace(spending, agents=[agent]))
    return [row for one in found for row in _rows(one)] + rows


async def _spending(store: Store, caps: Sequence[Cap], session_agents: set[str | None], now: float) -> Spending:
    """Who calls: of many agents those that spent most, and such sessions of these agents (None: of all)."""
    scopes = {cap.scope for cap in caps}
    ever = await store.totals.totals([Per.AGENT]) if scopes & {Scope.AGENT, Scope.TOTAL} else ()
    midnight = now - now % DAY_SECONDS
    today = await store.totals.totals([Per.AGENT], since=midnight) if Scope.DAY in scopes else ()
    late = {
        one.session_id: one
        for agent in session_agents
        for one in await store.totals.sessions(
            limit=_MOST_SESSIONS, order=Order.DEAREST, since=now - RECENT_SECONDS, agent=agent
        )
    }
    spent = sorted(ever, key=lambda one: -one[1].dollars)
    return Spending(
        agents=sorted(group[0] for group, _ in spent[:_MOST_AGENTS]),
        sessions=[(one.agent, one.session_id) for one in late.values()],
        unknown_by_agent={group[0]: totals.unpriced for group, totals in ever if totals.unpriced},
        unknown_today={group[0]: totals.unpriced for group, totals in today if totals.unpriced},
        unknown_by_session={
            one.session_id: one.totals.unpriced for one in late.values() if one.totals.unpriced
        },
    )


def _rows(one: Held) -> list[CapRow]:
    cap = one.cap
    if not one.uses:
        said = "holds each call by itself" if cap.scope is Scope.CALL else "nobody has called of late"
        return [CapRow(about=about(cap, _name(cap.agent)), said=said, limit=cap.dollars)]
    rows = [
        CapRow(
            about=about(cap, _name(use.agent), _name(use.session_id, _LONGEST_ID), use.day),
            said=nearness(use, money),
            limit=cap.dollars,
            session_id=use.session_id,
            use=use,
        )
        for use in one.uses[:MOST_USES]
    ]
    more = len(one.uses) - MOST_USES
    if more > 0:
        are_all = len(one.uses) < (_MOST_SESSIONS if cap.scope is Scope.SESSION else _MOST_AGENTS)
        said = f"{'' if are_all else 'at least '}{counted(more, f'more {cap.scope}')}, farther from it"
        rows.append(CapRow(about=about(cap, _name(cap.agent)), said=said, limit=cap.dollars))
    return rows


def _name(name: str | None, most: int = _LONGEST_NAME) -> str | None:
    return None if name is None else short(name, most)
