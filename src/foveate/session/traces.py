"""What a request's window held and what was done to it, and the small interface of who keeps that.

There are no words of the conversation in it: numbers, places, and the reasons that Foveate itself gives. One is
made for every request, so it is of msgspec's structs, which are made ten times as fast as dataclasses.

What a trace says, in words: the same in a terminal and on a page.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Protocol

import msgspec

from foveate.model import CacheUsage, Savings


class WindowSection(msgspec.Struct, frozen=True):
    """A part of a request as it went out, by its kind (`system`, `tools`, `user`, …), and its tokens."""

    name: str
    tokens: int


class TracedEdit(msgspec.Struct, frozen=True, kw_only=True):
    """One edit: the step that made it, what it does, where, why, and the tokens it saves; below 0, adds."""

    step: str
    does: str
    place: str
    reason: str
    saved_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMiss:
    """Why a request could not read what the one before it left in the cache, in words, and what that cost.

    `is_planned`: Foveate rewrote the history, and savings include what that cost.
    """

    cause: str
    where: str
    lost_tokens: int
    lost_dollars: Decimal | None = None
    is_planned: bool = False


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it was sent: what filled its window, its edits, and its `problems`: steps that failed, why.

    `tokens` is what it was counted at (None: nobody did), `exact` whether by the model's own tokenizer, and the
    sections add up to it. `window_tokens` is None where nobody knows the model's; `reserved_tokens` of it are
    for the answer. `edits` are the first ones, and `edits_left_out` how many more there were. `fold_id` is the
    fold that stands for the head of its history.
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
    fold_id: str | None = None
    broke: CacheMiss | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCharge:
    """What a request was charged, and how that compares with its cost without Foveate.

    `is_inherited`: at the price of its model's family. `is_subscription`: a list-price equivalent.
    """

    cache: CacheUsage
    output_tokens: int
    dollars: Decimal | None = None
    savings: Savings = field(default_factory=Savings)
    is_inherited: bool = False
    is_subscription: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargedTrace:
    """A trace with its bill; None where none was booked."""

    trace: Trace
    charge: TracedCharge | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSession:
    """A session with traces: how many, and when its first and its last request went out."""

    session_id: str
    agent: str
    requests: int
    first_at: float
    last_at: float
    title: str = ""
    parent_id: str | None = None


class TraceStore(Protocol):
    """Keeps traces. All that is read comes in pages, the newest first: the next one is `before` the last row.

    Raises:
        StoreUnavailable: it cannot be reached.
    """

    async def save(self, traces: Sequence[Trace], cache_misses: Sequence[tuple[str, CacheMiss]] = ()) -> None:
        """Keep these; and to requests that are kept, by their ids, that their cache broke."""

    async def get(self, request_id: str) -> ChargedTrace | None:
        """That of one request."""

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
        """Those of a time (`since` up to, not with, `until`), of an agent, of a session; `before`: (at, id)."""

    async def list_sessions(
        self, *, limit: int, since: float | None = None, agent: str | None = None
    ) -> Sequence[TracedSession]:
        """The sessions with traces, those first that were asked last."""

    async def find_ids(self, prefix: str, *, limit: int) -> tuple[list[str], list[str]]:
        """The ids, of those that begin so, of sessions and of requests with traces."""


def describe_cache_break(cache_miss: CacheMiss, why: str, lost: str = "") -> str:
    """Why and where a cache broke, and what that cost; `lost` are the dollars, as they are written there."""
    where = f", at {cache_miss.where}" if cache_miss.where else ""
    if cache_miss.is_planned:
        tokens = f"{cache_miss.lost_tokens:,} tokens written again, counted in savings"
        return f"planned rewrite: {why}{where}; {tokens}"
    cost = f", {lost}" if lost else ""
    return f"cache broke: {why}{where}; {cache_miss.lost_tokens:,} tokens paid again{cost}"
