"""Folds of recorded histories: where a head would have been cut, and what stands in its place from there on.

The words of a summary cannot be known, since nobody asked for it; its size can: it is what a fold allows it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from foveate import formats
from foveate.budget.evict import MessageKind, is_system_message
from foveate.compaction.boundary import TurnStructure, find_boundary
from foveate.compaction.plan import CompactionOptions, compute_summary_limit, max_summary_tokens
from foveate.errors import MalformedRequest
from foveate.model import Area, Format, Message, Place, Text, ToolCall, ToolResult
from foveate.prompt_cache.prompt.cached_prompt import PromptPiece, compute_digest
from foveate.replay.simulator.history import THINKING_KINDS, HistoryNode, append_node, reattach_node

# What goes around a summary when it is sent: its heading, and the model's word that it has read it.
_SUMMARY_HEADING_TOKENS, _SUMMARY_REPLY_TOKENS = 40, 12
# What is said after a conversation to have it summed up, beside the facts that are to be named.
_INSTRUCTION_TOKENS = 400
_FACTS_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedCompaction:
    """A head that was folded up to `cut`, and what stands in its place, `base`.

    `summary_tokens` are those of the summary. Of the head, `stays` are what is part of no turn, `question` that
    of the turn which is under way at its end, and `ends_with` says with what it ends. `seen_depth` is how long
    the history was then: on models that bind thoughts to what was before them, those up to there are left out.
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
        """`last` behind the summary; None where the head that was folded does not stand before it."""
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
            )  # the first is held, so that no other has its id
        return previous

    @property
    def instruction_tokens(self) -> int:
        """Those of what a model is told to have the summary written."""
        return _INSTRUCTION_TOKENS + int(self.summary_tokens * _FACTS_SHARE)


class MessageReader:
    """Messages of a recording, each read once, for those who cut between them."""

    def __init__(self, api_format: Format) -> None:
        self._spoken = api_format
        self._messages: dict[int, Message] = {}

    def read(self, node: HistoryNode) -> Message:
        """What stands there."""
        recorded = node.message
        if recorded is None:
            return Message(role=node.role, parts=(Text(""),))
        found = self._messages.get(id(recorded))
        if found is None:
            try:
                found = formats.parse_message(self._spoken, recorded.raw)
            except MalformedRequest:
                found = Message(role=recorded.role, parts=(Text(""),))
            self._messages[id(recorded)] = found
        return found


class _CompactedHead(NamedTuple):
    """A head that was folded, as far as the next fold looks at it: so its length does not matter.

    `before` are messages and their tokens in its place, `stretches` what stands there where something does.
    """

    messages: tuple[tuple[Message, int], ...]
    nodes: tuple[HistoryNode | None, ...]
    kept_nodes: tuple[HistoryNode, ...]
    replaced_tokens: int


_NO_HEAD = _CompactedHead((), (), (), 0)
_ASSISTANT_PLACEHOLDER = Message(role="assistant", parts=(Text(""),))
_RESULT_PLACEHOLDER = Message(role="tool", parts=(ToolResult(parts=(), name="what the head ended with"),))


def _make_head(
    earlier: SimulatedCompaction, last: HistoryNode, end: HistoryNode, messages: MessageReader
) -> _CompactedHead:
    """The head of an `earlier` fold, which ends at `there` on the way to `last`.

    Something that the model said stands in it, so that late results have something to answer.
    """
    kept_nodes = tuple(_current_nodes(last, earlier.kept_nodes))
    question = tuple(_current_nodes(last, earlier.question_nodes))
    asked = tuple((messages.read(node), node.tokens) for node in question)
    head_messages: tuple[tuple[Message, int], ...]
    nodes: tuple[HistoryNode | None, ...]
    if earlier.ends_with is MessageKind.RESULTS:
        head_messages, nodes = (
            (*asked, (_ASSISTANT_PLACEHOLDER, 0), (_RESULT_PLACEHOLDER, 0)),
            (*question, None, None),
        )
    else:
        head_messages, nodes = ((_ASSISTANT_PLACEHOLDER, 0), *asked), (None, *question)
    kept_tokens = sum(node.tokens for node in (*kept_nodes, *question))
    return _CompactedHead(head_messages, nodes, kept_nodes, end.end_tokens - kept_tokens)


def _has_all_tool_calls(messages: Iterable[Message]) -> bool:
    """Whether all results in these messages are those of calls that stand there too."""
    asked, answered = set(), set()
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                asked.add(part.id or part.name)
            elif isinstance(part, ToolResult):
                answered.add(part.id or part.name)
    return answered <= asked


def _current_nodes(last: HistoryNode, nodes: Sequence[HistoryNode]) -> Iterator[HistoryNode]:
    """The same messages as they stand now: bills may have told that they weigh something else."""
    return (found for node in nodes if (found := last.ancestor_at(node.depth)) is not None)


def simulate_compaction(
    last_node: HistoryNode,
    reader: MessageReader,
    *,
    trigger_tokens: int,
    options: CompactionOptions,
    earlier: SimulatedCompaction | None,
    drops_thinking: bool,
) -> SimulatedCompaction | None:
    """The fold of the history that ends with `last`; None where there is no place to cut.

    What an `earlier` fold of it has replaced is not looked at again, unless something there is answered late.
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
    asked, compacted = history.open_question(place), set(history.replaced_messages(place))
    new_tokens = sum(tokens[at] for at in history.replaced_messages(place, compacted_messages=head_size))
    summary_tokens = compute_summary_limit(
        head.replaced_tokens + sum(tokens[at] for at in compacted),
        new_tokens + (earlier.summary_tokens if earlier is not None else 0),
        max_tokens=max_summary_tokens(trigger_tokens),
        was_compacted=earlier is not None,
    )
    last_compacted = nodes[place - 1]
    assert last_compacted is not None  # only what stands behind the head is cut
    question = tuple(node for at in asked if (node := nodes[at]) is not None)
    others = [at for at in range(place) if at not in compacted and at not in asked]
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
    """What stands for a head: the developer's words, the summary and a reply to it, the question that stays."""
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
