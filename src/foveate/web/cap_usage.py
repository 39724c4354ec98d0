"""Usage of spending caps, computed from totals, so that it does not depend on the number of calls."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from foveate.cost.cap_status import (
    RECENT_SECONDS,
    CallerSummary,
    CapLevel,
    CapStatus,
    CapUse,
    describe_cap,
    describe_cap_use,
    read_cap_status,
)
from foveate.cost.caps import DAY_SECONDS, Cap, CapScope
from foveate.session.rollups import SessionOrder, TotalsGroup
from foveate.store import Store
from foveate.web.formatting import format_count, format_money, shorten

MAX_USES = 5
"""Rows per cap."""
_MAX_SESSIONS = 20
_MAX_AGENTS = 200
_SHARED_SCOPES = (CapScope.DAY, CapScope.TOTAL)
_MAX_NAME_CHARS, _MAX_ID_CHARS = 40, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class CapUsageRow:
    """A cap for one agent, session or day, and how much of it is used."""

    about: str
    text: str
    limit: Decimal
    session_id: str | None = None
    use: CapUse | None = None

    @property
    def share(self) -> float:
        """The used share, for a bar."""
        if self.use is None or not self.limit:
            return 0.0
        return float(min(Decimal(1), 1 - max(Decimal(0), self.use.remaining) / self.limit))

    @property
    def level(self) -> CapLevel:
        return CapLevel.FINE if self.use is None else self.use.level


async def list_cap_usage(store: Store, caps: Sequence[Cap], *, now: float) -> list[CapUsageRow]:
    """List every cap with the agents or sessions that are closest to it."""
    if not caps:
        return []
    spending = await _load_spending(
        store, caps, {cap.agent for cap in caps if cap.scope is CapScope.SESSION}, now
    )
    return [
        row
        for cap_usage in await read_cap_status(store.ledger, caps, now=now, callers=spending)
        for row in _build_rows(cap_usage)
    ]


async def list_agent_cap_usage(
    store: Store, caps: Sequence[Cap], agent: str, *, now: float, shows_shared: bool = True
) -> list[CapUsageRow]:
    """List the caps that apply to an agent.

    Unless `shows_shared`, caps on all agents together show only their limits, since others use them too.
    """
    applying = [cap for cap in caps if cap.agent in (None, agent)]
    shared = (
        [] if shows_shared else [cap for cap in applying if cap.agent is None and cap.scope in _SHARED_SCOPES]
    )
    rows = [
        CapUsageRow(about=describe_cap(cap), text="shared by all agents", limit=cap.dollars) for cap in shared
    ]
    own_caps = [cap for cap in applying if cap not in shared]
    if not own_caps:
        return rows
    is_by_session = any(cap.scope is CapScope.SESSION for cap in own_caps)
    spending = await _load_spending(store, own_caps, {agent} if is_by_session else set(), now)
    usages = await read_cap_status(store.ledger, own_caps, now=now, callers=replace(spending, agents=[agent]))
    return [row for cap_usage in usages for row in _build_rows(cap_usage)] + rows


async def _load_spending(
    store: Store, caps: Sequence[Cap], session_agents: set[str | None], now: float
) -> CallerSummary:
    """Load who spends: the agents that spent most, and sessions of `session_agents` (None: of all)."""
    scopes = {cap.scope for cap in caps}
    all_time = (
        await store.totals.sum_totals([TotalsGroup.AGENT]) if scopes & {CapScope.AGENT, CapScope.TOTAL} else ()
    )
    midnight = now - now % DAY_SECONDS
    today = await store.totals.sum_totals([TotalsGroup.AGENT], since=midnight) if CapScope.DAY in scopes else ()
    recent = {
        entry.session_id: entry
        for agent in session_agents
        for entry in await store.totals.list_sessions(
            limit=_MAX_SESSIONS, order=SessionOrder.DEAREST, since=now - RECENT_SECONDS, agent=agent
        )
    }
    by_cost = sorted(all_time, key=lambda entry: -entry[1].dollars)
    return CallerSummary(
        agents=sorted(group[0] for group, _ in by_cost[:_MAX_AGENTS]),
        sessions=[(entry.agent, entry.session_id) for entry in recent.values()],
        unknown_by_agent={group[0]: totals.unpriced for group, totals in all_time if totals.unpriced},
        unknown_today={group[0]: totals.unpriced for group, totals in today if totals.unpriced},
        unknown_by_session={
            entry.session_id: entry.totals.unpriced for entry in recent.values() if entry.totals.unpriced
        },
    )


def _build_rows(cap_usage: CapStatus) -> list[CapUsageRow]:
    cap = cap_usage.cap
    if not cap_usage.uses:
        text = "holds each call by itself" if cap.scope is CapScope.CALL else "nobody has called of late"
        return [CapUsageRow(about=describe_cap(cap, _shorten_name(cap.agent)), text=text, limit=cap.dollars)]
    rows = [
        CapUsageRow(
            about=describe_cap(
                cap, _shorten_name(use.agent), _shorten_name(use.session_id, _MAX_ID_CHARS), use.day
            ),
            text=describe_cap_use(use, format_money),
            limit=cap.dollars,
            session_id=use.session_id,
            use=use,
        )
        for use in cap_usage.uses[:MAX_USES]
    ]
    more = len(cap_usage.uses) - MAX_USES
    if more > 0:
        are_all = len(cap_usage.uses) < (_MAX_SESSIONS if cap.scope is CapScope.SESSION else _MAX_AGENTS)
        text = f"{'' if are_all else 'at least '}{format_count(more, f'more {cap.scope}')}, farther from it"
        rows.append(
            CapUsageRow(about=describe_cap(cap, _shorten_name(cap.agent)), text=text, limit=cap.dollars)
        )
    return rows


def _shorten_name(name: str | None, max_chars: int = _MAX_NAME_CHARS) -> str | None:
    return None if name is None else shorten(name, max_chars)
