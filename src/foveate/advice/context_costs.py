"""What each part of the context cost: every token of every request, at the price that it was charged.

A provider reads a prompt from the cache up to some token, writes what follows, and charges the rest as uncached
input. So the price of a token follows from its position. A session of 2,000 requests carries its first tool
result 2,000 times; the price of a range of pieces is therefore kept as a difference array, which takes the same
time for a request whatever its length.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

from foveate.advice.call_rates import InputRates
from foveate.compaction.staleness import ToolKind, ToolUse, describe_call
from foveate.model import CacheUsage, Format, Message, Part, Text, Thinking, ToolCall, ToolResult
from foveate.replay.simulator.history_edits import MessageReader
from foveate.replay.simulator.message_sizes import divide_tokens
from foveate.replay.simulator.prompts import HistoryNode
from foveate.replay.simulator.reconstruct import ReconstructedCall

OLD_REQUESTS = 20
"""A tool result is old if it was first sent this many requests ago."""

# Histories that are extended in turn, for example by sub-agents. Others are read again from their start.
_MAX_OPEN_HISTORIES = 16
_CHARGED_COLUMNS = ("read", "written", "uncached")
_SYSTEM_ROLES = frozenset(("system", "developer"))


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
        """Charge the tokens from `start` to `end` at this rate."""
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
