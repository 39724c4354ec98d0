"""How caps stand now, for the sessions, agents and days that they are on."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum

from foveate.cost.caps import DAY_SECONDS, Cap, Scope, day_of
from foveate.cost.ledger import By, Call, Category, Ledger, Standing, Sum
from foveate.cost.money import in_words

RECENT_SECONDS = 1.0 * DAY_SECONDS
"""A session is shown that had a call no longer ago."""

_AT_ONCE = 500
_NOTHING = Standing(spent=Decimal(0), reserved=Decimal(0))


class Level(StrEnum):
    """How near a cap is: it is fine, to be warned of, or refuses every call."""

    FINE = "fine"
    NEAR = "near"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What is used of a cap by whom it is on; what is not said of them is None.

    Calls of unknown price are in `standing` as what they were charged, and counted apart.
    """

    cap: Cap
    agent: str | None = None
    session_id: str | None = None
    day: str | None = None
    standing: Standing = _NOTHING
    unknown_calls: int = 0

    @property
    def left(self) -> Decimal:
        """What may still be spent; less than nothing where more was."""
        return self.cap.dollars - self.standing.spent - self.standing.reserved

    @property
    def level(self) -> Level:
        """How near the cap is."""
        if self.left <= 0:
            return Level.FULL
        used = self.standing.spent + self.standing.reserved
        return Level.NEAR if used >= self.cap.warn_at * self.cap.dollars else Level.FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A cap, and by whom how much of it is used, the most first; one on a call is used by nobody."""

    cap: Cap
    uses: tuple[Use, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Who calls: agents with their sessions of late, and how many of their calls have no known price.

    `unknown_today` is by agent too.
    """

    agents: Sequence[str] = ()
    sessions: Sequence[tuple[str, str]] = ()
    unknown_by_agent: Mapping[str, int] = field(default_factory=dict)
    unknown_today: Mapping[str, int] = field(default_factory=dict)
    unknown_by_session: Mapping[str, int] = field(default_factory=dict)


async def held(
    ledger: Ledger, caps: Sequence[Cap], *, now: float, spending: Spending | None = None
) -> list[Held]:
    """How caps stand, by what the ledger says; who calls too, where `spending` does not."""
    if spending is None:
        spending = await _spending(ledger, {cap.scope for cap in caps}, now)
    uses = [use for cap in caps for use in _uses(cap, spending, now)]
    accounts = sorted({account for use in uses if (account := _account(use, now)) is not None})
    standings: dict[str, Standing] = {}
    for start in range(0, len(accounts), _AT_ONCE):
        standings |= await ledger.standing(accounts[start : start + _AT_ONCE], now=now)
    return held_in(caps, now=now, spending=spending, standings=standings)


async def _spending(ledger: Ledger, scopes: Set[Scope], now: float) -> Spending:
    """Who calls, as far as caps of these scopes need to know it."""
    midnight = now - now % DAY_SECONDS
    ever = await ledger.sums([By.AGENT]) if scopes & {Scope.AGENT, Scope.TOTAL} else ()
    today = (
        await ledger.sums([By.AGENT], since=midnight, until=midnight + DAY_SECONDS)
        if Scope.DAY in scopes
        else ()
    )
    is_by_session = Scope.SESSION in scopes
    late = await ledger.sums([By.AGENT, By.SESSION], since=now - RECENT_SECONDS) if is_by_session else ()
    sessions = await ledger.sums([By.SESSION]) if is_by_session else ()
    return Spending(
        agents=sorted(one.group[0] for one in ever),
        sessions=[(one.group[0], one.group[1]) for one in late if one.group[1]],
        unknown_by_agent=_unknown(ever),
        unknown_today=_unknown(today),
        unknown_by_session=_unknown(sessions),
    )


def held_in(
    caps: Sequence[Cap],
    *,
    now: float,
    spending: Spending = Spending(),  # noqa: B008 - it is frozen
    standings: Mapping[str, Standing] | None = None,
) -> list[Held]:
    """How caps stand where this is known of who calls, and of accounts."""
    return [
        Held(cap=cap, uses=tuple(_most_first(_stood(_uses(cap, spending, now), standings or {}, now))))
        for cap in caps
    ]


def about(cap: Cap, agent: str | None = None, session: str | None = None, day: str | None = None) -> str:
    """On what a cap is, and on whose account, as far as that is said; `agent` and `session` as they are shown.

    Without either it is on each of them; a cap on one agent names it.
    """
    of = f" of {agent}" if agent is not None else ""
    match cap.scope:
        case Scope.CALL:
            return f"each call{of}"
        case Scope.SESSION:
            return f"each session{of}" if session is None else f"session {session}{of}"
        case Scope.DAY if day is not None:
            return f"day {day}{of}"
        case Scope.AGENT if agent is None:
            return "each agent"
        case _:
            return "all" if agent is None else f"agent {agent}"


def nearness(use: Use, write: Callable[[Decimal], str] = in_words) -> str:
    """How near a cap is, in words; `write` writes dollars."""
    if use.left < 0:
        return f"over by {write(-use.left)}"
    if use.level is Level.FULL:
        return "nothing left"
    share = (use.standing.spent + use.standing.reserved) / use.cap.dollars
    return f"{share:.0%} used" + (f", warned from {use.cap.warn_at:.0%} on" if use.level is Level.NEAR else "")


def _uses(cap: Cap, spending: Spending, now: float) -> list[Use]:
    """By whom a cap may be used, with nothing known of how much."""
    match cap.scope, cap.agent:
        case Scope.CALL, _:
            return []
        case Scope.SESSION, only:
            return [
                Use(
                    cap=cap,
                    agent=agent,
                    session_id=session_id,
                    unknown_calls=spending.unknown_by_session.get(session_id, 0),
                )
                for agent, session_id in spending.sessions
                if only in (None, agent)
            ]
        case Scope.AGENT, None:
            return [
                Use(cap=cap, agent=agent, unknown_calls=spending.unknown_by_agent.get(agent, 0))
                for agent in spending.agents
            ]
        case Scope.DAY, only:
            unknown_today = _of(spending.unknown_today, only)
            return [Use(cap=cap, agent=only, day=day_of(now), unknown_calls=unknown_today)]
        case _, only:
            return [Use(cap=cap, agent=only, unknown_calls=_of(spending.unknown_by_agent, only))]


def _unknown(sums: Iterable[Sum]) -> dict[str, int]:
    return {one.group[0]: one.unknown_calls for one in sums if one.unknown_calls}


def _of(unknown: Mapping[str, int], only: str | None) -> int:
    """Of one agent, or of all."""
    return sum(unknown.values()) if only is None else unknown.get(only, 0)


def _stood(uses: Iterable[Use], standings: Mapping[str, Standing], now: float) -> list[Use]:
    return [replace(use, standing=standings.get(_account(use, now) or "", _NOTHING)) for use in uses]


def _most_first(uses: Iterable[Use]) -> list[Use]:
    return sorted(uses, key=lambda use: (use.left, use.agent or "", use.session_id or ""))


def _account(use: Use, now: float) -> str | None:
    """The account that a call would be booked on."""
    call = Call(
        id="",
        agent=use.agent or "",
        session_id=use.session_id or "",
        provider="",
        model="",
        category=Category.MAIN,
        at=now,
    )
    return use.cap.account(call)
