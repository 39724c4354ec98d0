"""Spending caps per call, session, agent and day, and in total."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache

from foveate.cost.ledger import AccountBalance, Call
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
    """Policy for calls to models of unknown price."""

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
