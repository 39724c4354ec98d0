"""Simulated edits of recorded histories: compactions, and tool results truncated before they are first sent.

The text of a summary is unknown, since no model was asked for it. Its size is assumed to be the limit for
summaries.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from foveate import formats
from foveate.budget.turn_structure import MessageKind, is_system_message
from foveate.compaction.boundary import TurnStructure, find_boundary
from foveate.compaction.plan import CompactionOptions, compute_summary_limit, max_summary_tokens
from foveate.compaction.tool_results import result_limit_tokens
from foveate.errors import MalformedRequest
from foveate.model import Area, Format, Message, Place, Text, ToolCall, ToolResult
from foveate.prompt_cache.prompt.cached_prompt import PromptPiece, compute_digest
from foveate.replay.simulator.prompts import (
    THINKING_KINDS,
    TOOL_RESULT_KINDS,
    HistoryNode,
    append_node,
    reattach_node,
)
from foveate.replay.simulator.reconstruct import ExternalEntry, ReconstructedCall

# Sent with a summary: its heading, and a confirmation in the assistant's role.
_SUMMARY_HEADING_TOKENS, _SUMMARY_REPLY_TOKENS = 40, 12
# The instruction to write the summary, without the facts to include.
_INSTRUCTION_TOKENS = 400
_FACTS_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedCompaction:
    """A head of a history up to `last_compacted`, and its `replacement`.

    Of the head, `kept_nodes` belong to no turn, `question_nodes` to the turn in progress at its end, and
    `ends_with` tells what it ends with. `seen_depth` is the length of the history at that time: on models
    that bind thinking to what precedes it, thinking up to there is dropped.
    """

    last_compacted: HistoryNode
    replacement: HistoryNode
    summary_tokens: int
    kept_nodes: tuple[HistoryNode, ...]
    question_nodes: tuple[HistoryNode, ...]
    ends_with: MessageKind
    seen_depth: int
    drops_thinking: bool
    _reattached: dict[int, tuple[HistoryNode, HistoryNode]] = field(default_factory=dict)

    def apply(self, last_node: HistoryNode) -> HistoryNode | None:
        ancestor = last_node.ancestor_at(self.last_compacted.depth)
        if ancestor is None or ancestor is last_node or ancestor.message is not self.last_compacted.message:
            return None
        new = []
        node: HistoryNode | None = last_node
        while node is not None and node is not ancestor and id(node) not in self._reattached:
            new.append(node)
            node = node.previous
        previous = (
            self._reattached[id(node)][1] if node is not None and node is not ancestor else self.replacement
        )
        for new_node in reversed(new):
            pieces = None
            if self.drops_thinking and new_node.depth <= self.seen_depth:
                pieces = [piece for piece in new_node.pieces if piece.kind not in THINKING_KINDS]
            previous = reattach_node(previous, new_node, pieces)
            self._reattached[id(new_node)] = (
                new_node,
                previous,
            )  # holds the original node, so that its id cannot be reused
        return previous

    @property
    def instruction_tokens(self) -> int:
        return _INSTRUCTION_TOKENS + int(self.summary_tokens * _FACTS_SHARE)


class MessageReader:
    """Parses the messages of a recording, each one once."""

    def __init__(self, api_format: Format) -> None:
        self._api_format = api_format
        self._messages: dict[int, Message] = {}

    def read(self, node: HistoryNode) -> Message:
        recorded = node.message
        if recorded is None:
            return Message(role=node.role, parts=(Text(""),))
        message = self._messages.get(id(recorded))
        if message is None:
            try:
                message = formats.parse_message(self._api_format, recorded.raw)
            except MalformedRequest:
                message = Message(role=recorded.role, parts=(Text(""),))
            self._messages[id(recorded)] = message
        return message


class _SimulatedHead(NamedTuple):
    """A compacted head as the next compaction sees it, independent of its length.

    `messages` with their tokens stand for it; `nodes` are their nodes, None for placeholders.
    """

    messages: tuple[tuple[Message, int], ...]
    nodes: tuple[HistoryNode | None, ...]
    kept_nodes: tuple[HistoryNode, ...]
    replaced_tokens: int


_NO_HEAD = _SimulatedHead((), (), (), 0)
_ASSISTANT_PLACEHOLDER = Message(role="assistant", parts=(Text(""),))
_RESULT_PLACEHOLDER = Message(role="tool", parts=(ToolResult(parts=(), name="what the head ended with"),))


def _make_head(
    earlier: SimulatedCompaction, last: HistoryNode, end: HistoryNode, messages: MessageReader
) -> _SimulatedHead:
    """The head of an `earlier` compaction, which ends at `end` in the history of `last`.

    It contains an assistant message, so that late tool results have something to refer to.
    """
    kept_nodes = tuple(_current_nodes(last, earlier.kept_nodes))
    question = tuple(_current_nodes(last, earlier.question_nodes))
    question_messages = tuple((messages.read(node), node.tokens) for node in question)
    head_messages: tuple[tuple[Message, int], ...]
    nodes: tuple[HistoryNode | None, ...]
    if earlier.ends_with is MessageKind.RESULTS:
        head_messages, nodes = (
            (*question_messages, (_ASSISTANT_PLACEHOLDER, 0), (_RESULT_PLACEHOLDER, 0)),
            (*question, None, None),
        )
    else:
        head_messages, nodes = ((_ASSISTANT_PLACEHOLDER, 0), *question_messages), (None, *question)
    kept_tokens = sum(node.tokens for node in (*kept_nodes, *question))
    return _SimulatedHead(head_messages, nodes, kept_nodes, end.end_tokens - kept_tokens)


def _has_all_tool_calls(messages: Iterable[Message]) -> bool:
    call_ids, result_ids = set(), set()
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                call_ids.add(part.id or part.name)
            elif isinstance(part, ToolResult):
                result_ids.add(part.id or part.name)
    return result_ids <= call_ids


def _current_nodes(last: HistoryNode, nodes: Sequence[HistoryNode]) -> Iterator[HistoryNode]:
    """The same messages in the current history: their sizes may have been corrected by usage."""
    return (current for node in nodes if (current := last.ancestor_at(node.depth)) is not None)


def simulate_compaction(
    last_node: HistoryNode,
    reader: MessageReader,
    *,
    trigger_tokens: int,
    options: CompactionOptions,
    earlier: SimulatedCompaction | None,
    drops_thinking: bool,
) -> SimulatedCompaction | None:
    """Compact the history that ends with `last_node`; None if there is no place to cut.

    The part replaced by an `earlier` compaction is not read again, unless a later tool result refers to it.
    """
    earlier_end = last_node.ancestor_at(earlier.last_compacted.depth) if earlier is not None else None
    head, path = _NO_HEAD, last_node.path(after=earlier_end)
    if earlier is not None and earlier_end is not None:
        if _has_all_tool_calls(map(reader.read, path)):
            head = _make_head(earlier, last_node, earlier_end, reader)
        else:
            path = last_node.path()
    nodes = (*head.nodes, *path)
    messages = [message for message, _ in head.messages] + [reader.read(node) for node in path]
    tokens = [size for _, size in head.messages] + [node.tokens for node in path]
    head_size = len(nodes) - (last_node.depth - earlier_end.depth) if earlier_end is not None else 0
    place = find_boundary(
        messages,
        tokens,
        tail_keep_tokens=options.tail_keep_tokens,
        threshold_tokens=trigger_tokens,
        compacted_messages=head_size,
    )
    if place is None or not place:
        return None
    history = TurnStructure(messages)
    questions, compacted = history.open_question(place), set(history.replaced_messages(place))
    new_tokens = sum(tokens[at] for at in history.replaced_messages(place, compacted_messages=head_size))
    summary_tokens = compute_summary_limit(
        head.replaced_tokens + sum(tokens[at] for at in compacted),
        new_tokens + (earlier.summary_tokens if earlier is not None else 0),
        max_tokens=max_summary_tokens(trigger_tokens),
        was_compacted=earlier is not None,
    )
    last_compacted = nodes[place - 1]
    assert last_compacted is not None  # the cut is always after the head
    question = tuple(node for at in questions if (node := nodes[at]) is not None)
    others = [at for at in range(place) if at not in compacted and at not in questions]
    kept_nodes = (*head.kept_nodes, *(node for at in others if (node := nodes[at]) is not None))
    return SimulatedCompaction(
        last_compacted=last_compacted,
        replacement=_build_replacement(kept_nodes, question, reader.read, last_compacted, summary_tokens),
        summary_tokens=summary_tokens,
        kept_nodes=kept_nodes,
        question_nodes=question,
        ends_with=history.kind_before(place),
        seen_depth=last_node.depth,
        drops_thinking=drops_thinking,
    )


def _build_replacement(
    kept_nodes: Sequence[HistoryNode],
    question: Sequence[HistoryNode],
    read_message: Callable[[HistoryNode], Message],
    cut: HistoryNode,
    summary_tokens: int,
) -> HistoryNode:
    """The replacement of a head: system messages, the summary with a reply, and the question that is kept."""
    previous: HistoryNode | None = None
    system_nodes = [node for node in kept_nodes if is_system_message(read_message(node))]
    for node in system_nodes:
        previous = reattach_node(previous, node)
    for role, tokens in (
        ("user", summary_tokens + _SUMMARY_HEADING_TOKENS),
        ("assistant", _SUMMARY_REPLY_TOKENS),
    ):
        piece = PromptPiece(
            digest=compute_digest(b"summary\0" + role.encode() + cut.key),
            tokens=tokens,
            kind="text",
            area=Area.MESSAGES,
            place=Place(Area.MESSAGES, -2 if role == "user" else -3, 0),
        )
        previous = append_node(previous, (piece,), role=role)
    for node in sorted((*kept_nodes, *question), key=attrgetter("depth")):
        if node not in system_nodes:
            previous = reattach_node(previous, node)
    assert previous is not None
    return previous


_RESULT_KINDS = TOOL_RESULT_KINDS | {"functionResponse", "function_response", "function_call_output"}
_RESULT_ROLE = "tool"


class ResultTruncation:
    """Limits every tool result of a session to a share of the context window."""

    def __init__(self, tool_result_max_pct: float) -> None:
        self._max_pct = tool_result_max_pct
        # By limit and node. Holds the original node, so that its id cannot be reused.
        self._truncated: dict[tuple[int, int], tuple[HistoryNode, HistoryNode]] = {}

    def apply(self, call: ReconstructedCall, window_tokens: int | None) -> ReconstructedCall:
        if window_tokens is None:
            return call
        limit = result_limit_tokens(window_tokens, self._max_pct)
        last = self._truncate(call.last_node, limit)
        if last is call.last_node:
            return call
        entry = call.external_entry
        if entry is not None and entry.node is not None:
            entry = ExternalEntry(node=self._truncate(entry.node, limit))
        return replace(call, last_node=last, external_entry=entry)

    def _truncate(self, last: HistoryNode, limit: int) -> HistoryNode:
        new = []
        node: HistoryNode | None = last
        while node is not None and (limit, id(node)) not in self._truncated:
            new.append(node)
            node = node.previous
        previous = self._truncated[limit, id(node)][1] if node is not None else None
        for new_node in reversed(new):
            pieces = [_limit_piece(new_node, piece, limit) for piece in new_node.pieces]
            is_same = previous is new_node.previous and all(
                piece is original for piece, original in zip(pieces, new_node.pieces, strict=True)
            )
            previous = new_node if is_same else reattach_node(previous, new_node, pieces)
            self._truncated[limit, id(new_node)] = new_node, previous
        assert previous is not None
        return previous


def _limit_piece(node: HistoryNode, piece: PromptPiece, limit: int) -> PromptPiece:
    is_result = piece.kind in _RESULT_KINDS or node.role == _RESULT_ROLE
    return replace(piece, tokens=limit) if is_result and piece.tokens > limit else piece
