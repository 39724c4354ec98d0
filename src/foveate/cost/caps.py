"""Caps: how much may be spent on a call, in a session, by an agent, in a day and in all."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum

from foveate.cost.ledger import Call

WARN_AT = Decimal("0.8")


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
    """

    scope: Scope
    dollars: Decimal
    agent: str | None = None
    warn_at: Decimal = WARN_AT
    unknown: Unknown = Unknown.REFUSE

    def holds(self, call: Call) -> bool:
        """Whether a call is under it."""
        return self.agent in (None, call.agent)

    def account(self, call: Call) -> str | None:
        """The account of a call that it is on; None for one on the call alone."""
        match self.scope:
            case Scope.CALL:
                return None
            case Scope.SESSION:
                return _session(call)
            case Scope.AGENT:
                return _agent(call)
            case Scope.DAY:
                return _day(call) if self.agent is None else _agent_day(call)
            case Scope.TOTAL:
                return _TOTAL if self.agent is None else _agent(call)


_TOTAL = "total"


def accounts_of(call: Call) -> Sequence[str]:
    """Every account that a call is booked on, in the order of their names."""
    return sorted((_session(call), _agent(call), _day(call), _agent_day(call), _TOTAL))


def day_of(at: float) -> str:
    """The day of UTC that a time is on, as 2026-11-15."""
    return datetime.fromtimestamp(at, UTC).date().isoformat()


def _session(call: Call) -> str:
    return f"session {call.session_id}"


def _agent(call: Call) -> str:
    return f"agent {call.agent}"


def _day(call: Call) -> str:
    return f"day {day_of(call.at)}"


def _agent_day(call: Call) -> str:
    return f"day {day_of(call.at)} of {call.agent}"
