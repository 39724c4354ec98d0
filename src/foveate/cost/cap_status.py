"""Current status of caps, for the sessions, agents and days that they apply to."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum

from foveate.cost.caps import DAY_SECONDS, Cap, CapScope, utc_day
from foveate.cost.ledger import AccountBalance, Call, Category, ChargeTotal, GroupBy, Ledger
from foveate.cost.money import format_dollars

RECENT_SECONDS = 1.0 * DAY_SECONDS
"""Sessions without a call in this time are not shown."""

_BATCH_ACCOUNTS = 500
_EMPTY_BALANCE = AccountBalance(spent=Decimal(0), reserved=Decimal(0))


class CapLevel(StrEnum):
    """From `near` on, calls get a warning; `full` rejects every call."""

    FINE = "fine"
    NEAR = "near"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapUse:
    """Use of a cap by one session, agent or day; dimensions that do not apply are None.

    Calls of unknown price are in `balance` with what they were charged, and are also counted.
    """

    cap: Cap
    agent: str | None = None
    session_id: str | None = None
    day: str | None = None
    balance: AccountBalance = _EMPTY_BALANCE
    unknown_calls: int = 0

    @property
    def remaining(self) -> Decimal:
        """Dollars left; negative if more was spent."""
        return self.cap.dollars - self.balance.spent - self.balance.reserved

    @property
    def level(self) -> CapLevel:
        if self.remaining <= 0:
            return CapLevel.FULL
        used = self.balance.spent + self.balance.reserved
        return CapLevel.NEAR if used >= self.cap.warn_at * self.cap.dollars else CapLevel.FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class CapStatus:
    """A cap and its uses, the fullest first. A cap on single calls has none."""

    cap: Cap
    uses: tuple[CapUse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerSummary:
    """`unknown_by_agent`, `unknown_today` (by agent) and `unknown_by_session` count calls of unknown price."""

    agents: Sequence[str] = ()
    sessions: Sequence[tuple[str, str]] = ()
    unknown_by_agent: Mapping[str, int] = field(default_factory=dict)
    unknown_today: Mapping[str, int] = field(default_factory=dict)
    unknown_by_session: Mapping[str, int] = field(default_factory=dict)


async def read_cap_status(
    ledger: Ledger, caps: Sequence[Cap], *, now: float, callers: CallerSummary | None = None
) -> list[CapStatus]:
    if callers is None:
        callers = await _read_callers(ledger, {cap.scope for cap in caps}, now)
    uses = [use for cap in caps for use in _list_uses(cap, callers, now)]
    accounts = sorted({account for use in uses if (account := _find_account(use, now)) is not None})
    balances: dict[str, AccountBalance] = {}
    for start in range(0, len(accounts), _BATCH_ACCOUNTS):
        balances |= await ledger.get_balances(accounts[start : start + _BATCH_ACCOUNTS], now=now)
    return compute_cap_status(caps, now=now, callers=callers, balances=balances)


async def _read_callers(ledger: Ledger, scopes: Set[CapScope], now: float) -> CallerSummary:
    midnight = now - now % DAY_SECONDS
    all_time = await ledger.sum_charges([GroupBy.AGENT]) if scopes & {CapScope.AGENT, CapScope.TOTAL} else ()
    today = (
        await ledger.sum_charges([GroupBy.AGENT], since=midnight, until=midnight + DAY_SECONDS)
        if CapScope.DAY in scopes
        else ()
    )
    is_by_session = CapScope.SESSION in scopes
    recent = (
        await ledger.sum_charges([GroupBy.AGENT, GroupBy.SESSION], since=now - RECENT_SECONDS)
        if is_by_session
        else ()
    )
    sessions = await ledger.sum_charges([GroupBy.SESSION]) if is_by_session else ()
    return CallerSummary(
        agents=sorted(total.group[0] for total in all_time),
        sessions=[(total.group[0], total.group[1]) for total in recent if total.group[1]],
        unknown_by_agent=_count_unknown_by_group(all_time),
        unknown_today=_count_unknown_by_group(today),
        unknown_by_session=_count_unknown_by_group(sessions),
    )


def compute_cap_status(
    caps: Sequence[Cap],
    *,
    now: float,
    callers: CallerSummary = CallerSummary(),  # noqa: B008 - it is frozen
    balances: Mapping[str, AccountBalance] | None = None,
) -> list[CapStatus]:
    return [
        CapStatus(
            cap=cap,
            uses=tuple(_sort_by_remaining(_with_balances(_list_uses(cap, callers, now), balances or {}, now))),
        )
        for cap in caps
    ]


def describe_cap(cap: Cap, agent: str | None = None, session: str | None = None, day: str | None = None) -> str:
    """Describe what a cap applies to, and whose account it is, if given.

    Without agent and session it applies to each of them.
    """
    agent_suffix = f" of {agent}" if agent is not None else ""
    match cap.scope:
        case CapScope.CALL:
            return f"each call{agent_suffix}"
        case CapScope.SESSION:
            return f"each session{agent_suffix}" if session is None else f"session {session}{agent_suffix}"
        case CapScope.DAY if day is not None:
            return f"day {day}{agent_suffix}"
        case CapScope.AGENT if agent is None:
            return "each agent"
        case _:
            return "all" if agent is None else f"agent {agent}"


def describe_cap_use(use: CapUse, write: Callable[[Decimal], str] = format_dollars) -> str:
    if use.remaining < 0:
        return f"over by {write(-use.remaining)}"
    if use.level is CapLevel.FULL:
        return "nothing left"
    share = (use.balance.spent + use.balance.reserved) / use.cap.dollars
    return f"{share:.0%} used" + (
        f", warns from {use.cap.warn_at:.0%} on" if use.level is CapLevel.NEAR else ""
    )


def _list_uses(cap: Cap, callers: CallerSummary, now: float) -> list[CapUse]:
    match cap.scope, cap.agent:
        case CapScope.CALL, _:
            return []
        case CapScope.SESSION, only:
            return [
                CapUse(
                    cap=cap,
                    agent=agent,
                    session_id=session_id,
                    unknown_calls=callers.unknown_by_session.get(session_id, 0),
                )
                for agent, session_id in callers.sessions
                if only in (None, agent)
            ]
        case CapScope.AGENT, None:
            return [
                CapUse(cap=cap, agent=agent, unknown_calls=callers.unknown_by_agent.get(agent, 0))
                for agent in callers.agents
            ]
        case CapScope.DAY, only:
            unknown_today = _count_unknown(callers.unknown_today, only)
            return [CapUse(cap=cap, agent=only, day=utc_day(now), unknown_calls=unknown_today)]
        case _, only:
            return [CapUse(cap=cap, agent=only, unknown_calls=_count_unknown(callers.unknown_by_agent, only))]


def _count_unknown_by_group(sums: Iterable[ChargeTotal]) -> dict[str, int]:
    return {total.group[0]: total.unknown_calls for total in sums if total.unknown_calls}


def _count_unknown(unknown: Mapping[str, int], agent: str | None) -> int:
    return sum(unknown.values()) if agent is None else unknown.get(agent, 0)


def _with_balances(uses: Iterable[CapUse], balances: Mapping[str, AccountBalance], now: float) -> list[CapUse]:
    return [replace(use, balance=balances.get(_find_account(use, now) or "", _EMPTY_BALANCE)) for use in uses]


def _sort_by_remaining(uses: Iterable[CapUse]) -> list[CapUse]:
    return sorted(uses, key=lambda use: (use.remaining, use.agent or "", use.session_id or ""))


def _find_account(use: CapUse, now: float) -> str | None:
    call = Call(
        id="",
        agent=use.agent or "",
        session_id=use.session_id or "",
        provider="",
        model="",
        category=Category.MAIN,
        at=now,
    )
    return use.cap.find_account(call)
