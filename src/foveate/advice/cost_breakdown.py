"""Where the money of recorded calls went: the parts of the context, cache misses and price tiers.

A provider reads a prompt from the cache up to some token, writes what follows, and charges the rest as uncached
input. So the price of a token follows from its position. A session of 2,000 requests carries its first tool
result 2,000 times; the price of a range of pieces is therefore kept as a difference array, which takes the same
time for a request whatever its length.

The causes of misses are those that the gateway reports. A recording shows less than a request, though: if a
call read less than its messages explain, only its usage tells from where on the prompt was different.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

from foveate.compaction.staleness import ToolKind, ToolUse, describe_call
from foveate.cost.pricing.rates import TokenKind
from foveate.model import Area, CacheUsage, Format, Message, Part, Text, Thinking, ToolCall, ToolResult
from foveate.prompt_cache.misses.causes import MissCause, describe_cause
from foveate.prompt_cache.misses.explain import NoMiss, explain_miss
from foveate.prompt_cache.misses.snapshot import RequestSnapshot
from foveate.prompt_cache.prompt.parameters import CacheParameter
from foveate.prompt_cache.rules import CachingMode
from foveate.replay.outcomes import CallRates
from foveate.replay.simulator.history_edits import MessageReader
from foveate.replay.simulator.message_sizes import divide_tokens
from foveate.replay.simulator.prompts import HistoryNode, build_prompt, build_tail, with_breakpoints
from foveate.replay.simulator.reconstruct import (
    ReconstructedCall,
    UsageFinding,
    recorded_breakpoints,
    tolerance_tokens,
)

OLD_REQUESTS = 20
"""A tool result is old if it was first sent this many requests ago."""

# Histories that are extended in turn, for example by sub-agents. Others are read again from their start.
_MAX_OPEN_HISTORIES = 16
_CHARGED_COLUMNS = ("read", "written", "uncached")
_SYSTEM_ROLES = frozenset(("system", "developer"))
PREAMBLE_CHANGED = "preamble_changed"
_OWN_DESCRIPTIONS = {
    PREAMBLE_CHANGED: "the system prompt or a tool changed, as the usage shows",
    MissCause.UNEXPLAINED: "not in the log: a changed system prompt or tool, or an eviction",
    MissCause.OTHER_CONVERSATION: "the client started a new conversation, or compacted it",
}
# As in `explain_miss`: reading this share of what was cached is not a miss.
_MIN_READ_SHARE = 0.8


class InputRates(NamedTuple):
    """Dollars per input token of a call, by how the cache was used."""

    read: float
    written_1h: float
    written_5m: float
    uncached: float

    def dollars(self, usage: CacheUsage) -> float:
        return self.read * usage.read + self.fresh_dollars(usage)

    def fresh_dollars(self, usage: CacheUsage) -> float:
        """The cost of everything that was not read from the cache."""
        return (
            self.written_1h * usage.written_1h
            + self.written_5m * usage.written_5m
            + self.uncached * usage.uncached
        )


def input_rates(rates: CallRates, input_tokens: int) -> InputRates:
    """The rates of a call with this many input tokens. Writes without a rate are those of a free cache."""
    uncached = _rate(rates, TokenKind.UNCACHED, input_tokens, 0.0)
    return InputRates(
        read=_rate(rates, TokenKind.READ, input_tokens, uncached),
        written_1h=_rate(rates, TokenKind.WRITTEN_1H, input_tokens, uncached),
        written_5m=_rate(rates, TokenKind.WRITTEN_5M, input_tokens, uncached),
        uncached=uncached,
    )


def output_dollars(rates: CallRates, input_tokens: int, output_tokens: int, reasoning_tokens: int) -> float:
    output = _rate(rates, TokenKind.OUTPUT, input_tokens, 0.0)
    reasoning = min(reasoning_tokens, output_tokens)
    reasoning_rate = _rate(rates, TokenKind.REASONING, input_tokens, output)
    return output * (output_tokens - reasoning) + reasoning_rate * reasoning


def price_step_excess(
    rates: CallRates, usage: CacheUsage, output_tokens: int, reasoning_tokens: int
) -> float | None:
    """What a call cost more than at the lowest price tier; None if its input is within that."""
    size = usage.input_tokens
    if not rates.price_steps or size <= rates.price_steps[0]:
        return None
    actual, lowest = (
        input_rates(rates, tokens).dollars(usage)
        + output_dollars(rates, tokens, output_tokens, reasoning_tokens)
        for tokens in (size, 0)
    )
    return actual - lowest


def _rate(rates: CallRates, kind: TokenKind, input_tokens: int, default: float) -> float:
    rate = rates.rates.by_kind.get(kind)
    return float(rate.at(input_tokens)) if rate is not None else default


class PartKind(StrEnum):
    PREAMBLE = "system prompt and tools"
    USER = "user messages"
    ASSISTANT = "responses, sent again"
    TOOL = "tool"
    OUTPUT = "output"


class ContextPart(NamedTuple):
    kind: PartKind
    tool: str = ""


@dataclass(slots=True)
class PartCost:
    """Dollars of a part of the context, by how the cache was used.

    Of `read`, `old_read` are results first sent at least `OLD_REQUESTS` requests before. `superseded` is what
    results cost, at any price, after a later call had returned a newer version of them.
    """

    read: float = 0.0
    written: float = 0.0
    uncached: float = 0.0
    output: float = 0.0
    old_read: float = 0.0
    superseded: float = 0.0

    @property
    def dollars(self) -> float:
        return self.read + self.written + self.uncached + self.output

    def add(self, other: "PartCost") -> None:
        self.read += other.read
        self.written += other.written
        self.uncached += other.uncached
        self.output += other.output
        self.old_read += other.old_read
        self.superseded += other.superseded


class ContextCosts:
    """Sums the cost of the calls of one recording, in order, by part of the context."""

    def __init__(self, api_format: Format) -> None:
        self._reader = MessageReader(api_format)
        self._histories: OrderedDict[int, tuple[HistoryNode, _History]] = OrderedDict()
        self._requests: dict[str, int] = {}
        self._first_requests: dict[int, int] = {}  # by id of a recorded message
        self._costs: dict[ContextPart, PartCost] = {}

    def add_call(
        self, call: ReconstructedCall, usage: CacheUsage, rates: InputRates, output_dollars: float
    ) -> None:
        name = call.call.conversation
        request = self._requests[name] = self._requests.get(name, 0) + 1
        history = self._extend_history(call.last_node, request)
        self._cost(ContextPart(PartKind.OUTPUT)).output += output_dollars
        counted, total = call.input_tokens, usage.input_tokens
        if not counted or not total:
            return
        scale = counted / total  # a few totals shrink by a little that no message explains
        preamble_tokens = call.preamble.tokens
        preamble, start = self._cost(ContextPart(PartKind.PREAMBLE)), 0.0
        for column, tokens, rate in (
            ("read", usage.read, rates.read),
            ("written", usage.written_1h, rates.written_1h),
            ("written", usage.written_5m, rates.written_5m),
            ("uncached", usage.uncached, rates.uncached),
        ):
            end = start + tokens * scale
            in_preamble = max(min(end, preamble_tokens) - start, 0.0)
            setattr(preamble, column, getattr(preamble, column) + in_preamble * rate / scale)
            history.charge(
                column,
                max(start - preamble_tokens, 0.0),
                end - preamble_tokens,
                rate / scale,
                old_before=request - OLD_REQUESTS,
            )
            start = end

    def costs(self) -> dict[ContextPart, PartCost]:
        """The cost of each part; ends the sum."""
        while self._histories:
            self._close_history(self._histories.popitem()[1][1])
        return self._costs

    def _cost(self, part: ContextPart) -> PartCost:
        return self._costs.setdefault(part, PartCost())

    def _extend_history(self, last: HistoryNode, request: int) -> "_History":
        new = []
        node: HistoryNode | None = last
        while node is not None and id(node) not in self._histories:
            new.append(node)
            node = node.previous
        history = self._histories.pop(id(node))[1] if node is not None else _History()
        for new_node in reversed(new):
            message = new_node.message
            first_request = (
                request if message is None else self._first_requests.setdefault(id(message), request)
            )
            history.append(new_node, self._reader.read(new_node), first_request)
        self._histories[id(last)] = last, history
        if len(self._histories) > _MAX_OPEN_HISTORIES:
            self._close_history(self._histories.popitem(last=False)[1][1])
        return history

    def _close_history(self, history: "_History") -> None:
        for part, cost in history.costs():
            self._cost(part).add(cost)


class _Weights:
    """Dollars per token of each piece, as differences between neighbours."""

    def __init__(self) -> None:
        self.differences = [0.0]

    def add(self, first: int, end: int, rate: float) -> None:
        self.differences[first] += rate
        self.differences[end] -= rate

    def at(self, piece: int) -> float:
        return sum(self.differences[: piece + 1])


class _History:
    """The messages of one line of history as pieces, and what was charged for each."""

    def __init__(self) -> None:
        self._parts: list[ContextPart] = []
        self._tokens: list[int] = []
        self._ends: list[int] = []
        self._first_requests: list[int] = []
        self._weights = {column: _Weights() for column in (*_CHARGED_COLUMNS, "old_read")}
        self._tools: dict[str, str] = {}  # by id of the call
        self._uses: dict[str, ToolUse | None] = {}
        # The newest results by tool and main argument: how each was asked for, and its piece.
        self._current_results: dict[tuple[str, str], dict[ToolUse, int]] = {}
        # Superseded pieces, with what had been charged for a token of them before.
        self._superseded: list[tuple[int, float]] = []

    def append(self, node: HistoryNode, message: Message, first_request: int) -> None:
        for part, tokens in _divide_message(node, message):
            context_part = self._classify(part, message.role)
            if isinstance(part, ToolResult) and (use := self._uses.get(part.id)) is not None:
                self._supersede(use, len(self._tokens))
            self._parts.append(context_part)
            self._tokens.append(tokens)
            self._ends.append((self._ends[-1] if self._ends else 0) + tokens)
            self._first_requests.append(
                max(first_request, self._first_requests[-1] if self._first_requests else 0)
            )
            for weights in self._weights.values():
                weights.differences.append(0.0)

    def charge(self, column: str, start: float, end: float, rate: float, *, old_before: int) -> None:
        self._add_range(self._weights[column], start, end, rate)
        if column == "read":
            old = bisect_right(self._first_requests, old_before)
            old_end = self._ends[old - 1] if old else 0
            self._add_range(self._weights["old_read"], start, min(end, old_end), rate)

    def costs(self) -> Iterator[tuple[ContextPart, PartCost]]:
        columns = {column: list(accumulate(weights.differences)) for column, weights in self._weights.items()}
        for piece, (part, tokens) in enumerate(zip(self._parts, self._tokens, strict=True)):
            yield part, PartCost(**{column: rates[piece] * tokens for column, rates in columns.items()})
        for piece, before in self._superseded:
            total = sum(columns[column][piece] for column in _CHARGED_COLUMNS)
            yield self._parts[piece], PartCost(superseded=(total - before) * self._tokens[piece])

    def _classify(self, part: Part, role: str) -> ContextPart:
        match part:
            case ToolCall():
                self._tools[part.id], self._uses[part.id] = part.name, describe_call(part)
                return ContextPart(PartKind.TOOL, part.name)
            case ToolResult():
                return ContextPart(PartKind.TOOL, part.name or self._tools.get(part.id, ""))
        if role in _SYSTEM_ROLES:
            return ContextPart(PartKind.PREAMBLE)
        is_response = role in ("assistant", "model")
        return ContextPart(PartKind.ASSISTANT if is_response else PartKind.USER)

    def _supersede(self, use: ToolUse, piece: int) -> None:
        """Record a result that is about to be appended as this piece."""
        results = self._current_results.setdefault((use.name, use.argument), {})
        for earlier in [earlier for earlier in results if _returns_the_same(use, earlier)]:
            replaced = results.pop(earlier)
            self._superseded.append((replaced, self._total_at(replaced)))
        results[use] = piece

    def _total_at(self, piece: int) -> float:
        return sum(self._weights[column].at(piece) for column in _CHARGED_COLUMNS)

    def _add_range(self, weights: _Weights, start: float, end: float, rate: float) -> None:
        end = min(end, self._ends[-1] if self._ends else 0)
        if end <= start:
            return
        first, last = bisect_right(self._ends, start), bisect_left(self._ends, end)
        if first == last:
            weights.add(first, first + 1, rate * (end - start) / self._tokens[first])
            return
        last_start = self._ends[last] - self._tokens[last]
        weights.add(first, first + 1, rate * (self._ends[first] - start) / self._tokens[first])
        weights.add(first + 1, last, rate)
        weights.add(last, last + 1, rate * (end - last_start) / self._tokens[last])


def _returns_the_same(later: ToolUse, earlier: ToolUse) -> bool:
    """Return whether a call repeats an earlier one, or reads the whole of a file of which that read a part."""
    return later.key == earlier.key or (later.kind is ToolKind.READ and not later.is_partial)


def _divide_message(node: HistoryNode, message: Message) -> list[tuple[Part, int]]:
    """The parts of a message with their tokens. Pieces are the same blocks, unless some were dropped."""
    parts: Sequence[Part] = message.parts
    if len(parts) != len(node.pieces):
        parts = [part for part in parts if not isinstance(part, Thinking)]
    if len(parts) == len(node.pieces):
        return [(part, piece.tokens) for part, piece in zip(parts, node.pieces, strict=True)]
    if not message.parts:
        return [(Text(""), node.tokens)]
    sizes = divide_tokens(node.tokens, [len(str(part)) for part in message.parts])
    return list(zip(message.parts, sizes, strict=True))


def describe_recorded_cause(cause: str) -> str:
    return _OWN_DESCRIPTIONS.get(cause) or describe_cause(cause)


@dataclass(slots=True)
class MissCost:
    misses: int = 0
    tokens: int = 0
    dollars: float = 0.0

    def add(self, other: "MissCost") -> None:
        self.misses += other.misses
        self.tokens += other.tokens
        self.dollars += other.dollars


class MissCosts:
    """Sums the cost of cache misses by cause, for the calls of one recording in order.

    A miss costs the difference between what its tokens were charged at and the price of reading them.
    """

    def __init__(self, api_format: Format) -> None:
        self.by_cause: dict[str, MissCost] = {}
        self._api_format = api_format
        self._previous: dict[str, tuple[ReconstructedCall, CacheUsage]] = {}

    def add_call(self, call: ReconstructedCall, usage: CacheUsage, rates: InputRates) -> None:
        previous = self._previous.get(call.call.conversation)
        self._previous[call.call.conversation] = call, usage
        if previous is None or call.rules.caching is CachingMode.NONE:
            return
        found = self._find_miss(*previous, call, usage)
        if found is None:
            return
        cause, lost_tokens = found
        fresh_tokens = usage.input_tokens - usage.read
        lost_tokens = min(lost_tokens, fresh_tokens)
        if lost_tokens <= 0:
            return
        fresh_rate = rates.fresh_dollars(usage) / fresh_tokens
        dollars = lost_tokens * max(fresh_rate - rates.read, 0.0)
        self.by_cause.setdefault(cause, MissCost()).add(MissCost(misses=1, tokens=lost_tokens, dollars=dollars))

    def _find_miss(
        self,
        previous: ReconstructedCall,
        previous_usage: CacheUsage,
        call: ReconstructedCall,
        usage: CacheUsage,
    ) -> tuple[str, int] | None:
        if call.finding is UsageFinding.PREFIX_CHANGED:
            tolerance = tolerance_tokens(usage, call.rules)
            is_in_preamble = tolerance < usage.read < call.preamble.tokens - tolerance
            cause = PREAMBLE_CHANGED if is_in_preamble else MissCause.UNEXPLAINED
            return cause, call.expected.read - usage.read
        cached_tokens = (
            previous_usage.input_tokens
            if call.rules.caching is not CachingMode.BREAKPOINTS
            else previous_usage.input_tokens - previous_usage.uncached
        )
        if usage.read >= _MIN_READ_SHARE * min(cached_tokens, usage.input_tokens):
            return None
        gap_seconds = call.call.at - previous.call.at if call.call.at and previous.call.at else None
        explained = explain_miss(
            self._take_snapshot(previous),
            self._take_snapshot(call),
            call.rules,
            gap_seconds=gap_seconds,
            usage=usage,
        )
        return None if isinstance(explained, NoMiss) else (explained.cause, explained.lost_tokens)

    def _take_snapshot(self, call: ReconstructedCall) -> RequestSnapshot:
        tail = build_tail(call.preamble, call.last_node, lookback_positions=call.rules.lookback_positions)
        prompt = build_prompt(tail, call.full_nodes)
        roles = {
            piece.place.index: node.role
            for node in call.last_node.path()
            for piece in node.pieces
            if piece.place is not None
        }
        thinking = CacheParameter(
            name="thinking", area=Area.MESSAGES, json_text='"enabled"' if call.call.has_thinking else ""
        )
        return RequestSnapshot(
            format=self._api_format,
            prompt=with_breakpoints(prompt, recorded_breakpoints(call, prompt)),
            cache_parameters=(thinking,),
            roles=tuple(roles.get(index, "") for index in range(max(roles, default=-1) + 1)) or ("",),
            lengths_bytes=(0,) * len(prompt.pieces),
        )


@dataclass(slots=True, kw_only=True)
class CostBreakdown:
    """`tier_calls` exceeded a price tier, which cost `tier_dollars` more."""

    dollars: float = 0.0
    parts: dict[ContextPart, PartCost] = field(default_factory=dict)
    misses: dict[str, MissCost] = field(default_factory=dict)
    tier_calls: int = 0
    tier_dollars: float = 0.0

    def add(self, other: "CostBreakdown") -> None:
        self.dollars += other.dollars
        for part, cost in other.parts.items():
            self.parts.setdefault(part, PartCost()).add(cost)
        for cause, miss in other.misses.items():
            self.misses.setdefault(cause, MissCost()).add(miss)
        self.tier_calls += other.tier_calls
        self.tier_dollars += other.tier_dollars
