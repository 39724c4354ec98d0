"""Traces: what filled the window of a request and how it was edited, and the interface of their store.

A trace contains no text of the conversation: only numbers, places, and reasons that Foveate gives. One is
created for every request, so most are msgspec structs, which are created ten times as fast as dataclasses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Protocol

import msgspec

from foveate.model import CacheUsage, Savings


class WindowSection(msgspec.Struct, frozen=True):
    """Tokens of one kind of content in a sent request (`system`, `tools`, `user`, …)."""

    name: str
    tokens: int


class TracedEdit(msgspec.Struct, frozen=True, kw_only=True):
    """`saved_tokens` are negative if the edit adds some."""

    step: str
    does: str
    place: str
    reason: str
    saved_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMiss:
    """Cause and cost of a cache miss.

    `is_planned`: Foveate rewrote the history, and savings include the cost.
    """

    cause: str
    where: str
    lost_tokens: int
    lost_dollars: Decimal | None = None
    is_planned: bool = False


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A request as sent: what filled its window, its edits, and its `problems`: steps that failed, and why.

    `tokens` is its count (None: not counted), `exact` if by the model's own tokenizer; the sections add up to
    it. `window_tokens` is None for an unknown model; `reserved_tokens` of it are for the response. `edits` are
    the first ones, `edits_left_out` how many more there were. `compaction_id` is the compaction that replaces
    the start of its history.
    """

    id: str
    agent: str
    session_id: str
    provider: str
    model: str
    at: float
    status: int
    tokens: int | None = None
    exact: bool = False
    window_tokens: int | None = None
    reserved_tokens: int = 0
    added_seconds: float = 0.0
    sections: tuple[WindowSection, ...] = ()
    edits: tuple[TracedEdit, ...] = ()
    edits_left_out: int = 0
    problems: tuple[tuple[str, str], ...] = ()
    compaction_id: str | None = msgspec.field(default=None, name="fold_id")
    cache_miss: CacheMiss | None = msgspec.field(default=None, name="broke")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCharge:
    """Charge of a request, and its comparison with the cost without Foveate.

    `is_inherited`: at the price of the model's family. `is_subscription`: a list-price equivalent.
    """

    cache: CacheUsage
    output_tokens: int
    dollars: Decimal | None = None
    savings: Savings = field(default_factory=Savings)
    is_inherited: bool = False
    is_subscription: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargedTrace:
    trace: Trace
    charge: TracedCharge | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSession:
    session_id: str
    agent: str
    requests: int
    first_at: float
    last_at: float
    title: str = ""
    parent_id: str | None = None


class TraceStore(Protocol):
    """Stores traces. Results come in pages, newest first: the next page is `before` the last row.

    Raises:
        StoreUnavailable: it cannot be reached.
    """

    async def save(self, traces: Sequence[Trace], cache_misses: Sequence[tuple[str, CacheMiss]] = ()) -> None:
        """Store traces, and add cache misses to stored traces by request id."""

    async def get(self, request_id: str) -> ChargedTrace | None: ...

    async def list_traces(
        self,
        *,
        limit: int,
        before: tuple[float, str] | None = None,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> Sequence[ChargedTrace]:
        """Return traces from `since` to `until`, exclusive, of an agent and a session; `before`: (at, id)."""

    async def list_sessions(
        self, *, limit: int, since: float | None = None, agent: str | None = None
    ) -> Sequence[TracedSession]: ...

    async def find_ids(self, prefix: str, *, limit: int) -> tuple[list[str], list[str]]: ...


# Steps and actions are stored under short names; these are the names for people.
_STEP_LABELS = {
    "fold": "compaction",
    "turns": "turn limit",
    "count": "token count",
    "room": "overflow",
    "thoughts": "thinking",
    "tools": "tool order",
    "cache": "prompt cache",
    "trail": "sent messages",
    "cost": "spending caps",
    "pings": "keep-alive",
    "book": "recording charges",
    "keep": "store",
    "note": "preparing charges",
}
_ACTION_LABELS = {"mark": "breakpoint", "unmark": "remove breakpoint", "cut": "shorten", "drop": "remove"}


def describe_step(step: str) -> str:
    """Return the name of a step for people: `compaction` for `fold`."""
    return _STEP_LABELS.get(step, step)


def describe_action(action: str) -> str:
    """Return the action of an edit for people: `breakpoint 5m` for `mark 5m`."""
    verb, blank, ttl = action.partition(" ")
    return f"{_ACTION_LABELS.get(verb, verb)}{blank}{ttl}"


def describe_cache_miss(cache_miss: CacheMiss, cause: str, lost_dollars: str = "") -> str:
    place_text = f", at {cache_miss.where}" if cache_miss.where else ""
    if cache_miss.is_planned:
        tokens = f"{cache_miss.lost_tokens:,} tokens written again, included in savings"
        return f"planned rewrite: {cause}{place_text}; {tokens}"
    cost = f", {lost_dollars}" if lost_dollars else ""
    return f"cache miss: {cause}{place_text}; {cache_miss.lost_tokens:,} tokens paid again{cost}"
