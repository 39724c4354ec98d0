"""Spending caps per call, session, agent and day, and in total, and their current status."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache

from foveate.cost.ledger import AccountBalance, Call, Category, ChargeTotal, GroupBy, Ledger
from foveate.cost.money import MAX_DOLLARS, MIN_DOLLARS, format_dollars, to_picodollars
from foveate.errors import BadOption, CapExceeded, CapUncheckable

DEFAULT_WARN_AT = Decimal("0.8")
DEFAULT_MIN_OUTPUT_TOKENS = 4_000
"""Default of `cost.min_output_tokens`: the lowest output limit set to fit a call under a cap."""

DAY_SECONDS = 86_400
_FIRST_DAY = date(1970, 1, 1)

_EMPTY_BALANCE = AccountBalance(spent=Decimal(0), reserved=Decimal(0))
_SET_PRICE_REMEDY = "add its price to `cost.prices`, or set `unknown: allow` for the cap"


class CapScope(StrEnum):
    CALL = "call"
    SESSION = "session"
    AGENT = "agent"
    DAY = "day"
    TOTAL = "total"


class UnknownPricePolicy(StrEnum):
    REJECT = "refuse"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """A spending limit in dollars, with a warning from the share `warn_at` on.

    With an `agent`, it applies to that agent only, and a day is that agent's day. Otherwise each session and
    each agent has its own limit, and day and total are shared by all agents. Days are UTC.

    Raises:
        BadOption: a negative or too large amount, or a warning share outside 0 to 1.
    """

    scope: CapScope
    dollars: Decimal
    agent: str | None = None
    warn_at: Decimal = DEFAULT_WARN_AT
    unknown: UnknownPricePolicy = UnknownPricePolicy.REJECT

    def __post_init__(self) -> None:
        try:
            is_money = to_picodollars(self.dollars) >= 0
        except OverflowError:
            is_money = False
        if not is_money:
            raise BadOption(f"a cap must be from 0 to 4,000,000 dollars, not {self.dollars}", path=("dollars",))
        if not (self.warn_at.is_finite() and 0 <= self.warn_at <= 1):
            raise BadOption(
                f"warn_at must be a share of the cap from 0 to 1, not {self.warn_at}", path=("warn_at",)
            )

    def __str__(self) -> str:
        match self.scope, self.agent:
            case ((CapScope.AGENT | CapScope.TOTAL), str(agent)):
                return f"the cap on agent {agent}"
            case CapScope.TOTAL, None:
                return "the cap on total spending"
            case CapScope.AGENT, None:
                return "the cap on an agent"
            case scope, agent:
                return f"the cap on a {scope}" + (f" of {agent}" if agent is not None else "")

    @property
    def is_shared(self) -> bool:
        """False if the limit is of one agent, session or call."""
        return self.agent is None and self.scope in (CapScope.DAY, CapScope.TOTAL)

    def applies_to(self, call: Call) -> bool:
        return self.agent in (None, call.agent)

    def find_account(self, call: Call) -> str | None:
        """Return the account of a call that the cap limits; None if it limits single calls."""
        name = (_ACCOUNTS_BY_SCOPE if self.agent is None else _SINGLE_AGENT_ACCOUNTS).get(self.scope)
        return None if name is None else name(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapWarning:
    cap: Cap
    balance: AccountBalance

    def __str__(self) -> str:
        return f"{self.cap} is {format_dollars(self.cap.dollars)}, of which {_describe_balance(self.balance)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationClaim:
    dollars: Decimal
    caps: Mapping[str, Cap]


def claim_reservation(caps: Sequence[Cap], call: Call, ceiling: Decimal | None) -> ReservationClaim | None:
    """Return what must be reserved for a call that costs at most `ceiling` (None: unknown).

    None if nothing must be: no cap limits an account of the call, or it is free.

    Raises:
        CapExceeded: the call alone costs more than a cap allows.
        CapUncheckable: its price is unknown, and a cap does not allow that.
        BadOption: `ceiling` is not an amount of dollars.
    """
    if ceiling is not None and not (ceiling.is_finite() and ceiling >= 0):
        raise BadOption(f"a cost ceiling must be 0 or more dollars, not {ceiling}")
    applicable = [cap for cap in caps if cap.applies_to(call)]
    for cap in applicable:
        if ceiling is None and cap.unknown is UnknownPricePolicy.REJECT:
            raise make_cap_uncheckable(cap, f"the price of {call.model} is unknown", _SET_PRICE_REMEDY)
        if ceiling is not None and ceiling > cap.dollars and cap.scope is CapScope.CALL:
            raise make_cap_exceeded(cap, _EMPTY_BALANCE, ceiling)
    tightest: dict[str, Cap] = {}
    for cap in sorted(applicable, key=lambda cap: cap.dollars, reverse=True):
        if account := cap.find_account(call):
            tightest[account] = cap
    if not tightest or ceiling == 0:
        return None
    # An amount too large to store exceeds every cap.
    return ReservationClaim(
        dollars=MIN_DOLLARS if ceiling is None else min(ceiling, MAX_DOLLARS), caps=tightest
    )


def find_cap_warnings(
    caps: Sequence[Cap], call: Call, ceiling: Decimal | None, balances: Mapping[str, AccountBalance]
) -> tuple[CapWarning, ...]:
    warnings = []
    for cap in caps:
        if not cap.applies_to(call):
            continue
        account = cap.find_account(call)
        if account is not None:
            balance = balances.get(account)
        else:
            balance = None if ceiling is None else AccountBalance(spent=Decimal(0), reserved=ceiling)
        if balance is None:
            continue
        if balance.spent + balance.reserved >= cap.warn_at * cap.dollars:
            warnings.append(CapWarning(cap=cap, balance=balance))
    return tuple(warnings)


def make_cap_exceeded(
    cap: Cap, balance: AccountBalance, ceiling: Decimal | None, *, output_tokens: int | None = None
) -> CapExceeded:
    """Make the error for a call that a cap has no room for; `balance` excludes the call.

    `output_tokens` is the lowest output limit that was tried, at `ceiling` dollars.
    """
    costs = "has an unknown cost" if ceiling is None else f"may cost {format_dollars(ceiling)}"
    if output_tokens is not None:
        costs += f" even if its output is limited to {output_tokens:,} tokens"
    balance_text = "" if cap.scope is CapScope.CALL else f", of which {_describe_balance(balance)}"
    return CapExceeded(
        f"this call {costs}, and {cap} is {format_dollars(cap.dollars)}{balance_text}",
        _suggest_remedy(cap, balance, ceiling),
        cap=str(cap),
        limit=cap.dollars,
        spent=balance.spent,
        reserved=balance.reserved,
        ceiling=ceiling,
        is_shared=cap.is_shared,
    )


def make_cap_uncheckable(cap: Cap, reason: str, remedy: str, *, is_outage: bool = False) -> CapUncheckable:
    """`is_outage`: the ledger cannot be reached."""
    return CapUncheckable(
        f"{cap} ({format_dollars(cap.dollars)}) cannot be checked: {reason}",
        remedy,
        cap=str(cap),
        limit=cap.dollars,
        reason=reason,
        is_outage=is_outage,
        is_shared=cap.is_shared,
    )


def list_accounts(call: Call) -> Sequence[str]:
    return (
        _agent_account(call),
        _day_account(call),
        _agent_day_account(call),
        _session_account(call),
        _total_account(call),
    )


def account_name(*, agent: str | None = None, session_id: str | None = None, day: str | None = None) -> str:
    """Return the name of the account of a session, an agent, a day, an agent's day, or of all calls."""
    if session_id is not None:
        return f"session {session_id}"
    if day is not None:
        return f"day {day}" if agent is None else f"day {day} of {agent}"
    return "total" if agent is None else f"agent {agent}"


def utc_day(at: float) -> str:
    """Return the UTC day of a time, as 2026-11-15.

    Raises:
        BadOption: it is outside of the calendar.
    """
    try:
        return _day_name(int(at // DAY_SECONDS))
    except (OverflowError, ValueError):
        raise BadOption(f"{at} seconds since 1970 is not a valid date") from None


@lru_cache(maxsize=64)
def _day_name(days: int) -> str:
    return (_FIRST_DAY + timedelta(days)).isoformat()


def _suggest_remedy(cap: Cap, balance: AccountBalance, ceiling: Decimal | None) -> str:
    smaller = "send less input, request fewer output tokens"
    if balance.reserved and (ceiling or 0) + balance.spent <= cap.dollars:
        return "try again when running calls are finished, or raise the cap"
    match cap.scope:
        case CapScope.CALL:
            return f"{smaller}, or raise the cap"
        case CapScope.SESSION:
            return f"{smaller}, start another session, or raise the cap"
        case CapScope.DAY:
            return f"{smaller}, wait for the next day (UTC), or raise the cap"
        case _:
            return f"{smaller}, or raise the cap"


def _describe_balance(balance: AccountBalance) -> str:
    spent = f"{format_dollars(balance.spent)} is spent"
    if not balance.reserved:
        return spent
    return f"{spent} and {format_dollars(balance.reserved)} is reserved for running calls"


def _session_account(call: Call) -> str:
    return f"session {call.session_id}"


def _agent_account(call: Call) -> str:
    return f"agent {call.agent}"


def _day_account(call: Call) -> str:
    return f"day {utc_day(call.at)}"


def _agent_day_account(call: Call) -> str:
    return f"day {utc_day(call.at)} of {call.agent}"


def _total_account(_: Call) -> str:
    return "total"


# The account that a cap limits, by scope: for all agents, or for a single one.
_ACCOUNTS_BY_SCOPE: Mapping[CapScope, Callable[[Call], str]] = {
    CapScope.SESSION: _session_account,
    CapScope.AGENT: _agent_account,
    CapScope.DAY: _day_account,
    CapScope.TOTAL: _total_account,
}
_SINGLE_AGENT_ACCOUNTS = {
    **_ACCOUNTS_BY_SCOPE,
    CapScope.DAY: _agent_day_account,
    CapScope.TOTAL: _agent_account,
}


RECENT_SECONDS = 1.0 * DAY_SECONDS
"""Sessions without a call in this time are not shown."""

_BATCH_ACCOUNTS = 500


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
