"""Caps: how much may be spent on a call, in a session, by an agent, in a day and in all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache

from foveate.cost.ledger import Call, Standing
from foveate.cost.money import LEAST_DOLLARS, MOST_DOLLARS, in_words, picodollars
from foveate.errors import BadOption, CapExceeded, CapUncheckable

WARN_AT = Decimal("0.8")
MIN_OUTPUT_TOKENS = 4_000
"""Default of `cost.min_output_tokens`: the lowest output limit that is set to fit a call under a cap."""

DAY_SECONDS = 86_400
_FIRST_DAY = date(1970, 1, 1)

_NOTHING = Standing(spent=Decimal(0), reserved=Decimal(0))


class Scope(StrEnum):
    """What a cap is on."""

    CALL = "call"
    SESSION = "session"
    AGENT = "agent"
    DAY = "day"
    TOTAL = "total"


class Unknown(StrEnum):
    """What becomes of a call to a model whose price is not known."""

    REFUSE = "refuse"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """At most so many dollars; from `warn_at` of them on, there is a warning.

    With an `agent` it is on that agent alone: a day is then that agent's day. Otherwise each session and each
    agent has it by itself, and a day and the total are those of all agents together. Days are those of UTC.

    Raises:
        BadOption: less than nothing, or more than can be kept; a warning below nothing or above the cap.
    """

    scope: Scope
    dollars: Decimal
    agent: str | None = None
    warn_at: Decimal = WARN_AT
    unknown: Unknown = Unknown.REFUSE

    def __post_init__(self) -> None:
        try:
            is_money = picodollars(self.dollars) >= 0
        except OverflowError:
            is_money = False
        if not is_money:
            raise BadOption(
                f"a cap is a number of dollars from 0 to four million, not {self.dollars}", path=("dollars",)
            )
        if not (self.warn_at.is_finite() and 0 <= self.warn_at <= 1):
            raise BadOption(
                f"warn_at is a share of the cap, from 0 to 1, not {self.warn_at}", path=("warn_at",)
            )

    def __str__(self) -> str:
        match self.scope, self.agent:
            case ((Scope.AGENT | Scope.TOTAL), str(agent)):
                return f"the cap on agent {agent}"
            case Scope.TOTAL, None:
                return "the cap on all that is spent"
            case Scope.AGENT, None:
                return "the cap on an agent"
            case scope, agent:
                return f"the cap on a {scope}" + (f" of {agent}" if agent is not None else "")

    @property
    def is_shared(self) -> bool:
        """Whether all agents spend what it allows, and not each its own."""
        return self.agent is None and self.scope in (Scope.DAY, Scope.TOTAL)

    def holds(self, call: Call) -> bool:
        """Whether a call is under it."""
        return self.agent in (None, call.agent)

    def account(self, call: Call) -> str | None:
        """The account of a call that it is on; None for one on the call alone."""
        name = (_ACCOUNTS if self.agent is None else _ACCOUNTS_OF_ONE).get(self.scope)
        return None if name is None else name(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """A cap that a call was let through under, and that is not far from refusing the next one."""

    cap: Cap
    standing: Standing

    def __str__(self) -> str:
        return f"{self.cap} is {in_words(self.cap.dollars)}, of which {_used(self.standing)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What has to be reserved for a call: so many dollars, under the tightest cap of each account."""

    dollars: Decimal
    caps: Mapping[str, Cap]


def claim(caps: Sequence[Cap], call: Call, ceiling: Decimal | None) -> Claim | None:
    """What has to be reserved for a call that costs at most `ceiling`, None where that is not known.

    None where nothing has to: no cap is on an account of it, or it costs nothing.

    Raises:
        CapExceeded: it alone costs more than a cap allows.
        CapUncheckable: its price is not known, and a cap does not allow that.
        BadOption: `ceiling` is no number of dollars.
    """
    if ceiling is not None and not (ceiling.is_finite() and ceiling >= 0):
        raise BadOption(f"a call costs some dollars at most, or nothing, and not {ceiling}")
    held = [cap for cap in caps if cap.holds(call)]
    for cap in held:
        if ceiling is None and cap.unknown is Unknown.REFUSE:
            raise unchecked(cap, f"the price of {call.model} is not known", _SAY_A_PRICE)
        if ceiling is not None and ceiling > cap.dollars and cap.scope is Scope.CALL:
            raise exceeded(cap, _NOTHING, ceiling)
    tightest: dict[str, Cap] = {}
    for cap in sorted(held, key=lambda cap: cap.dollars, reverse=True):
        if account := cap.account(call):
            tightest[account] = cap
    if not tightest or ceiling == 0:
        return None
    # More than can be kept is more than any cap.
    return Claim(dollars=LEAST_DOLLARS if ceiling is None else min(ceiling, MOST_DOLLARS), caps=tightest)


def near(
    caps: Sequence[Cap], call: Call, ceiling: Decimal | None, standings: Mapping[str, Standing]
) -> tuple[Near, ...]:
    """The caps to be warned of, as the accounts of a call stand with what is reserved for it."""
    found = []
    for cap in caps:
        if not cap.holds(call):
            continue
        account = cap.account(call)
        if account is not None:
            standing = standings.get(account)
        else:
            standing = None if ceiling is None else Standing(spent=Decimal(0), reserved=ceiling)
        if standing is None:
            continue
        if standing.spent + standing.reserved >= cap.warn_at * cap.dollars:
            found.append(Near(cap=cap, standing=standing))
    return tuple(found)


def exceeded(
    cap: Cap, standing: Standing, ceiling: Decimal | None, *, output_tokens: int | None = None
) -> CapExceeded:
    """What is told of a call that a cap has no room for; `standing` is without it.

    `output_tokens` is the shortest output that the call could have been limited to, at `ceiling` dollars.
    """
    costs = "costs nobody knows how much" if ceiling is None else f"may cost {in_words(ceiling)}"
    if output_tokens is not None:
        costs += f" even if its output is limited to {output_tokens:,} tokens"
    used = "" if cap.scope is Scope.CALL else f", of which {_used(standing)}"
    return CapExceeded(
        f"this call {costs}, and {cap} is {in_words(cap.dollars)}{used}",
        _remedy(cap, standing, ceiling),
        cap=str(cap),
        limit=cap.dollars,
        spent=standing.spent,
        reserved=standing.reserved,
        ceiling=ceiling,
        is_shared=cap.is_shared,
    )


def unchecked(cap: Cap, reason: str, remedy: str, *, is_outage: bool = False) -> CapUncheckable:
    """What is told of a call of which nobody can say whether a cap has room for it."""
    return CapUncheckable(
        f"{cap} ({in_words(cap.dollars)}) cannot be checked: {reason}",
        remedy,
        cap=str(cap),
        limit=cap.dollars,
        reason=reason,
        is_outage=is_outage,
        is_shared=cap.is_shared,
    )


def accounts_of(call: Call) -> Sequence[str]:
    """Every account that a call is booked on, in the order of their names."""
    return (_agent(call), _day(call), _agent_day(call), _session(call), _total(call))


def account_name(*, agent: str | None = None, session_id: str | None = None, day: str | None = None) -> str:
    """Return the name of the account of a session, an agent, a day, a day of an agent, or of all calls."""
    if session_id is not None:
        return f"session {session_id}"
    if day is not None:
        return f"day {day}" if agent is None else f"day {day} of {agent}"
    return "total" if agent is None else f"agent {agent}"


def day_of(at: float) -> str:
    """The day of UTC that a time is on, as 2026-11-15.

    Raises:
        BadOption: no calendar has it.
    """
    try:
        return _day_name(int(at // DAY_SECONDS))
    except (OverflowError, ValueError):
        raise BadOption(f"{at} seconds since 1970: that is on no day") from None


@lru_cache(maxsize=64)
def _day_name(days: int) -> str:
    return (_FIRST_DAY + timedelta(days)).isoformat()


_SAY_A_PRICE = "say its price in the configuration, or `unknown: allow` with the cap"


def _remedy(cap: Cap, standing: Standing, ceiling: Decimal | None) -> str:
    """What to do about a call that a cap has no room for."""
    smaller = "send less, ask for fewer output tokens"
    if standing.reserved and (ceiling or 0) + standing.spent <= cap.dollars:
        return "try again when calls under way are done, or raise the cap"
    match cap.scope:
        case Scope.CALL:
            return f"{smaller}, or raise the cap"
        case Scope.SESSION:
            return f"{smaller}, begin another session, or raise the cap"
        case Scope.DAY:
            return f"{smaller}, wait for the next day (UTC), or raise the cap"
        case _:
            return f"{smaller}, or raise the cap"


def _used(standing: Standing) -> str:
    spent = f"{in_words(standing.spent)} are spent"
    if not standing.reserved:
        return spent
    return f"{spent} and {in_words(standing.reserved)} reserved for calls under way"


def _session(call: Call) -> str:
    return f"session {call.session_id}"


def _agent(call: Call) -> str:
    return f"agent {call.agent}"


def _day(call: Call) -> str:
    return f"day {day_of(call.at)}"


def _agent_day(call: Call) -> str:
    return f"day {day_of(call.at)} of {call.agent}"


def _total(_: Call) -> str:
    return "total"


# The account of a call that a cap is on, by its scope: of all agents, or of each; and where it is on one alone.
_ACCOUNTS: Mapping[Scope, Callable[[Call], str]] = {
    Scope.SESSION: _session,
    Scope.AGENT: _agent,
    Scope.DAY: _day,
    Scope.TOTAL: _total,
}
_ACCOUNTS_OF_ONE = {**_ACCOUNTS, Scope.DAY: _agent_day, Scope.TOTAL: _agent}
