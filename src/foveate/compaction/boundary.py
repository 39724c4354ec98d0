"""Find where to split a conversation into a head to compact and a tail to keep.

A boundary is before a user question, or before a step of the model, so that one long turn with hundreds of
steps can be split too. It never separates a tool call from its result or thinking from what follows it.

Some of the head stays: system messages, and the question of a turn that is not finished at the boundary, so
that the model can continue with it. Which question stays depends on the head alone, because the summary is
written without it. Messages that only the provider understands stay too: its own encrypted compactions, and
results of calls that it stores.

Only the structure of messages matters here: roles, tool calls, results and thinking blocks. It is cached on
each message's node in the conversation tree, so that only new messages are read.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, dropwhile

from msgspec.structs import replace

from foveate import formats
from foveate.budget.turn_structure import MessageKind, classify_message, find_turn_boundaries, is_system_message
from foveate.errors import BadOption
from foveate.formats.json_text.parse import as_text, parse_fields, parse_json, parse_object
from foveate.model import Document, Format, Message, Opaque, Part, Request, Text, Thinking, ToolCall, ToolResult

# Fields of chat completions that carry Claude's signed thinking, on OpenRouter and in LiteLLM.
# https://openrouter.ai/docs/guides/best-practices/reasoning-tokens (read November 2026)
# https://docs.litellm.ai/docs/reasoning_content (read November 2026)
_THINKING_FIELDS = ("reasoning_details", "thinking_blocks")
# In the Responses API the block is encrypted. Anthropic's contains its summary as text
# (https://platform.claude.com/docs/en/build-with-claude/compaction, read November 2026); one without text means
# that the compaction failed.
PROVIDER_COMPACTION = "compaction"
"""Kind of a block by which a provider replaces everything before it."""
_STRUCTURE_KEY, _HAS_THINKING_KEY = object(), object()
COMPACT_AT_PCT = 0.75
TAIL_KEEP_TOKENS = 20_000
MIN_TURNS_BETWEEN = 4


def read_structure(request: Request, history: formats.MessageHistory, start: int) -> list[Message]:
    """The structure of the messages from `start` on.

    Raises:
        MalformedRequest: a message cannot be read.
    """
    first = [
        strip_message_text(formats.parse_message(request.format, raw))
        for raw in request.messages[start : history.leading_system_messages]
    ]
    return first + [
        _read_message_structure(request.format, node)
        for node in history.nodes[max(0, start - history.leading_system_messages) :]
    ]


def strip_message_text(message: Message) -> Message:
    return Message(role=message.role, parts=tuple([strip_text(part) for part in message.parts]))


def has_signed_thinking(request: Request, history: formats.MessageHistory, index: int) -> bool:
    """Return whether a message contains thinking that its provider has signed.

    Raises:
        MalformedRequest: the message cannot be read.
    """
    if index < history.leading_system_messages:
        return False  # a system message
    node = history.nodes[index - history.leading_system_messages]
    has_thinking: bool | None = node.memo.get(_HAS_THINKING_KEY)
    if has_thinking is None:
        if request.format is Format.CHAT:
            message_fields = parse_fields(node.raw)
            has_thinking = any(parse_json(message_fields.get(name)) for name in _THINKING_FIELDS)
        else:
            has_thinking = any(
                isinstance(part, Thinking) for part in _read_message_structure(request.format, node).parts
            )
        node.memo[_HAS_THINKING_KEY] = has_thinking
    return has_thinking


def _read_message_structure(api_format: Format, node: formats.MessageNode) -> Message:
    structure: Message | None = node.memo.get(_STRUCTURE_KEY)
    if structure is None:
        structure = node.memo[_STRUCTURE_KEY] = strip_message_text(formats.parse_message(api_format, node.raw))
    return structure


def strip_text(part: Part) -> Part:
    """A part without its text, except a provider's compaction, whose text tells whether it is encrypted."""
    match part:
        case Text():
            return _EMPTY_TEXT
        case Thinking():
            return _EMPTY_THINKING
        case ToolCall():
            return replace(part, arguments="")
        case ToolResult():
            return replace(part, parts=())
        case Opaque() if part.kind != PROVIDER_COMPACTION:
            return Opaque(part.kind, b"")
        case Document():
            return replace(part, text="")
        case _:
            return part


_EMPTY_TEXT, _EMPTY_THINKING = Text(""), Thinking("")


def compaction_threshold_tokens(
    window_tokens: int, output_reserve: int, compact_at_pct: float = COMPACT_AT_PCT
) -> int:
    """The request size, in tokens, from which a session is compacted: a share of the input window.

    Raises:
        BadOption: `compact_at_pct` is not between 0 and 1.
    """
    if not 0 < compact_at_pct <= 1:
        raise BadOption(
            f"compact_at_pct must be a share above 0 and up to 1, not {compact_at_pct!r}",
            path=("compact_at_pct",),
        )
    return int(max(window_tokens - output_reserve, 0) * compact_at_pct)


def is_compaction_due(
    tokens: int,
    *,
    threshold_tokens: int,
    turns_since_compaction: int | None = None,
    min_turns_between: int = MIN_TURNS_BETWEEN,
) -> bool:
    """Return whether a request is large enough to compact, and the last compaction long enough ago.

    `turns_since_compaction` counts model turns; None means that the session was never compacted. Without the
    pause, a compaction that frees little would be repeated at every step.
    """
    has_cooled_down = turns_since_compaction is None or turns_since_compaction >= min_turns_between
    return tokens >= threshold_tokens and has_cooled_down


def find_boundary(
    messages: Sequence[Message],
    tokens: Sequence[int],
    *,
    tail_keep_tokens: int = TAIL_KEEP_TOKENS,
    threshold_tokens: int,
    compacted_messages: int = 0,
) -> int | None:
    """Return how many messages the head has; None if the conversation cannot be split.

    The tail is the shortest that has `tail_keep_tokens`, or half the threshold if that is less. If a step is so
    long that the tail would exceed half the threshold, the tail starts after that step. `compacted_messages`
    are in the head already; only a longer head counts.

    Raises:
        BadOption: `tokens` does not have one count per message.
    """
    if len(messages) != len(tokens):
        raise BadOption(f"tokens must have one number per message: {len(messages)}, not {len(tokens)}")
    structure = TurnStructure(messages)
    later_cuts = [cut for cut in structure.cut_points() if cut > compacted_messages]
    # A later cut replaces everything that an earlier one does.
    cuts = list(
        dropwhile(
            lambda cut: not structure.replaced_messages(cut, compacted_messages=compacted_messages), later_cuts
        )
    )
    half_threshold_tokens = threshold_tokens // 2
    keep_tokens = min(tail_keep_tokens, half_threshold_tokens)
    tokens_before = [0, *accumulate(tokens)]
    tail_tokens = {cut: tokens_before[-1] - tokens_before[cut] for cut in cuts}
    long_enough = [cut for cut in cuts if tail_tokens[cut] >= keep_tokens]
    if not long_enough:
        return None
    latest = long_enough[-1]
    shorter = cuts[len(long_enough) :]
    return shorter[0] if shorter and tail_tokens[latest] > half_threshold_tokens else latest


def continues_stored(request: Request) -> bool:
    """Return whether the request continues a conversation that the provider stores.

    Nothing may be removed from such a request, because it answers messages that it does not contain.
    """
    return request.continues_stored_conversation


def provider_summary_text(part: Part) -> str:
    """The summary in a provider's own compaction block; empty if it is encrypted."""
    if not isinstance(part, Opaque) or part.kind != PROVIDER_COMPACTION:
        return ""
    return as_text(parse_object(part.raw).get("content"))


def _is_encrypted_compaction(part: Part) -> bool:
    return isinstance(part, Opaque) and part.kind == PROVIDER_COMPACTION and not provider_summary_text(part)


def _find_turn_indexes(messages: Sequence[Message]) -> list[int]:
    """Indexes of the messages that belong to a turn.

    Excluded are system messages, encrypted compactions of a provider, and tool results before the first message
    of the model: their calls are stored by the provider, which requires the results.
    """
    indexes: list[int] = []
    follows_model = False
    for index, message in enumerate(messages):
        if is_system_message(message) or (message.parts and all(map(_is_encrypted_compaction, message.parts))):
            continue
        kind = classify_message(message)
        follows_model = follows_model or kind is MessageKind.MODEL
        if follows_model or kind is not MessageKind.RESULTS:
            indexes.append(index)
    return indexes


class TurnStructure:
    def __init__(self, messages: Sequence[Message]) -> None:
        self._turn_indexes = _find_turn_indexes(messages)
        history = [messages[index] for index in self._turn_indexes]
        self._kinds = [classify_message(message) for message in history]
        self._is_safe_boundary = find_turn_boundaries(history, self._kinds)

    @property
    def turn_indexes(self) -> Sequence[int]:
        return self._turn_indexes

    def cut_points(self) -> list[int]:
        return [
            self._turn_indexes[number]
            for number in range(1, len(self._turn_indexes))
            if self._is_cut_position(number)
        ]

    def is_cut_point(self, index: int) -> bool:
        """Return whether a tail may start here; system messages before its first turn message belong to it."""
        return 0 < self._position(index) < len(self._turn_indexes) and self._is_cut_position(
            self._position(index)
        )

    def open_question(self, cut: int) -> tuple[int, ...]:
        """Indexes of the question that is still open at the end of the head, which stays in the request.

        If the model spoke last, no question is open.
        """
        number = self._position(cut)
        if not number or self._kinds[number - 1] is MessageKind.MODEL:
            return ()
        last = next((other for other in reversed(range(number)) if self._is_question(other)), None)
        return () if last is None else tuple(self._turn_indexes[other] for other in self._question_run(last))

    def replaced_messages(self, cut: int, *, compacted_messages: int = 0) -> tuple[int, ...]:
        """Indexes that compacting the head replaces, beyond those that `compacted_messages` already cover."""
        replaced = self._replaced_before(cut)
        replaced_before = set(self._replaced_before(compacted_messages)) if compacted_messages else set()
        return tuple(index for index in replaced if index not in replaced_before)

    def is_next_from_model(self, index: int) -> bool:
        number = self._position(index)
        return number < len(self._kinds) and self._kinds[number] is MessageKind.MODEL

    def follows_user(self, index: int) -> bool:
        number = self._position(index)
        return number > 0 and self._kinds[number - 1] is not MessageKind.MODEL

    def kind_before(self, cut: int) -> MessageKind:
        """The kind of the last message of the head. A question that also answers calls counts as results."""
        number = self._position(cut) - 1
        if self._kinds[number] is MessageKind.QUESTION and not self._is_safe_boundary[number]:
            return MessageKind.RESULTS
        return self._kinds[number]

    def last_turn_start(self) -> int:
        questions = (number for number in reversed(range(len(self._turn_indexes))) if self._is_question(number))
        return self._turn_indexes[self._question_run(next(questions, 0)).start] if self._turn_indexes else 0

    def _question_run(self, last: int) -> range:
        first = last
        while first and self._is_question(first - 1):
            first -= 1
        return range(first, last + 1)

    def _replaced_before(self, cut: int) -> tuple[int, ...]:
        open_question = self.open_question(cut)
        return tuple(index for index in self._turn_indexes if index < cut and index not in open_question)

    def _is_cut_position(self, number: int) -> bool:
        if self._kinds[number] is MessageKind.QUESTION:
            return self._is_question(number) and not self._is_question(number - 1)
        # Consecutive model messages stay together: a call must not be sent without the thinking before it.
        is_step_start = (
            self._kinds[number] is MessageKind.MODEL and self._kinds[number - 1] is not MessageKind.MODEL
        )
        return is_step_start and self._is_safe_boundary[number]

    def _is_question(self, number: int) -> bool:
        return self._kinds[number] is MessageKind.QUESTION and self._is_safe_boundary[number]

    def _position(self, index: int) -> int:
        return bisect_left(self._turn_indexes, index)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedHead:
    """Properties of a head that decide what may follow it, without its text.

    `turn_indexes` are the messages of its turns, `open_question` those of an unanswered question at its end.
    `stub_messages` replace it for checks of a tail: its calls and results, and who spoke last.
    """

    turn_indexes: tuple[int, ...]
    open_question: tuple[int, ...]
    stub_messages: tuple[Message, ...]

    def join_tail(self, tail: Sequence[Message]) -> "HeadReplacement | None":
        """Return what a compaction of the head replaces; None if `tail` cannot follow the head."""
        structure, cut = TurnStructure([*self.stub_messages, *tail]), len(self.stub_messages)
        if not structure.is_cut_point(cut):
            return None
        replaced = tuple(index for index in self.turn_indexes if index not in self.open_question)
        if not replaced:
            return None
        return HeadReplacement(
            kept_indexes=self.open_question,
            replaced_indexes=replaced,
            is_next_from_model=structure.is_next_from_model(cut),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadReplacement:
    kept_indexes: tuple[int, ...]
    replaced_indexes: tuple[int, ...]
    is_next_from_model: bool


def describe_head(messages: Sequence[Message]) -> CompactedHead:
    cut = len(messages)
    structure = TurnStructure(messages)
    turn_indexes = tuple(structure.turn_indexes)
    if not turn_indexes:
        return CompactedHead(turn_indexes=(), open_question=(), stub_messages=())
    calls = tuple(
        strip_text(part)
        for index in turn_indexes
        for part in messages[index].parts
        if _belongs_to_tool_call(part)
    )
    calls_message = Message(role="assistant", parts=calls)
    return CompactedHead(
        turn_indexes=turn_indexes,
        open_question=structure.open_question(cut),
        stub_messages=(calls_message, _LAST_MESSAGES[structure.kind_before(cut)]),
    )


_LAST_MESSAGES = {
    MessageKind.QUESTION: Message(role="user", parts=(Text(""),)),
    MessageKind.MODEL: Message(role="assistant", parts=(Text(""),)),
    MessageKind.RESULTS: Message(role="tool", parts=(ToolResult(parts=(), name="what the head ended with"),)),
}


def _belongs_to_tool_call(part: Part) -> bool:
    is_unknown = isinstance(part, Opaque) and part.kind != PROVIDER_COMPACTION
    return is_unknown or isinstance(part, ToolCall | ToolResult)
