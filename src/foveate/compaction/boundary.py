"""Where a history is cut into a head that is folded and a tail that stays as it came.

A cut stands before a question, or before a step: where the model begins to speak, so that one long turn of
hundreds of steps can be cut as well. It never stands between a call and its result, however late that comes,
nor between a thought and what it led to.

Of the head, two things stay: what the developer says (system messages), wherever it stands, and, where the head
ends inside a turn, the question of that turn, so that the model goes on from what it was asked. That is told by
the head alone: a summary is made without this question, so it must stay whoever speaks next. And what stands
with the provider stays: what it has folded and sealed, and results of calls that it stores.

What folds look at in the messages that stay: who speaks, calls, answers and thinks, without what is said.

It is noted with each message in the tree of conversations, so that of one that grows by a turn a turn is read.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, dropwhile

from msgspec.structs import replace

from foveate import formats
from foveate.budget.evict import MessageKind, classify_message, find_turn_boundaries, is_system_message
from foveate.errors import BadOption
from foveate.formats.json_text.parse import as_text, parse_fields, parse_json, parse_object
from foveate.model import Document, Format, Message, Opaque, Part, Request, Text, Thinking, ToolCall, ToolResult

# Where chat completions carry the signed thoughts of Claude: at OpenRouter and in LiteLLM.
# https://openrouter.ai/docs/guides/best-practices/reasoning-tokens (read November 2026)
# https://docs.litellm.ai/docs/reasoning_content (read November 2026)
_THINKING_FIELDS = ("reasoning_details", "thinking_blocks")
# That of the Responses format only OpenAI can read; Anthropic's has its summary in plain words
# (https://platform.claude.com/docs/en/build-with-claude/compaction, read November 2026), and one without words
# did not come about.
PROVIDER_COMPACTION = "compaction"
"""A block by which a provider stands for all before it."""
# Under these it is noted.
_STRUCTURE_KEY, _HAS_THINKING_KEY = object(), object()


def read_structure(request: Request, trail: formats.MessageHistory, start: int) -> list[Message]:
    """The messages of a request with that trail from `start` on.

    Raises:
        MalformedRequest: one cannot be read.
    """
    first = [
        strip_message_text(formats.parse_message(request.format, raw))
        for raw in request.messages[start : trail.leading_system_messages]
    ]
    return first + [
        _read_message_structure(request.format, link)
        for link in trail.nodes[max(0, start - trail.leading_system_messages) :]
    ]


def strip_message_text(message: Message) -> Message:
    """A message without what it says."""
    return Message(role=message.role, parts=tuple([strip_text(part) for part in message.parts]))


def has_signed_thinking(request: Request, trail: formats.MessageHistory, index: int) -> bool:
    """Whether there are thoughts in a message that its provider has signed.

    Raises:
        MalformedRequest: it cannot be read.
    """
    if index < trail.leading_system_messages:
        return False  # the developer's
    link = trail.nodes[index - trail.leading_system_messages]
    known: bool | None = link.memo.get(_HAS_THINKING_KEY)
    if known is None:
        if request.format is Format.CHAT:
            message_fields = parse_fields(link.raw)
            known = any(parse_json(message_fields.get(name)) for name in _THINKING_FIELDS)
        else:
            known = any(
                isinstance(part, Thinking) for part in _read_message_structure(request.format, link).parts
            )
        link.memo[_HAS_THINKING_KEY] = known
    return known


def _read_message_structure(api_format: Format, link: formats.MessageNode) -> Message:
    known: Message | None = link.memo.get(_STRUCTURE_KEY)
    if known is None:
        known = link.memo[_STRUCTURE_KEY] = strip_message_text(formats.parse_message(api_format, link.raw))
    return known


def strip_text(part: Part) -> Part:
    """A part without what it says; of what a provider has folded, that matters."""
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


COMPACT_AT_PCT = 0.75
TAIL_KEEP_TOKENS = 20_000
MIN_TURNS_BETWEEN = 4


def compaction_threshold_tokens(
    window_tokens: int, output_reserve: int, compact_at_pct: float = COMPACT_AT_PCT
) -> int:
    """How many tokens a request must have for its head to be folded: a share of what the answer leaves.

    Raises:
        BadOption: a share that is not between 0 and 1.
    """
    if not 0 < compact_at_pct <= 1:
        raise BadOption(
            f"compact_at_pct is a share, more than 0 and at most 1, not {compact_at_pct!r}",
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
    """Whether a request of so many tokens, as it is sent, is one to fold.

    `turns_since_fold` is how often the model has spoken since this session was last folded, None where it never
    was. A fold that made little room must not be repeated at each step.
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
    """How many messages the head has; None where there is no place to cut.

    `tokens` are those of each message. The tail keeps at least `tail_keep_tokens`, or half of what triggers
    where that is less, and is the shortest that does. Where a step is so long that this would be more than half
    of what triggers, the tail begins after that step. `beyond` is how many messages are folded already: only
    more than these make a new fold.

    Raises:
        BadOption: not one count for each message.
    """
    if len(messages) != len(tokens):
        raise BadOption(f"tokens has one number for each message: {len(messages)}, not {len(tokens)}")
    structure = TurnStructure(messages)
    later_cuts = [cut for cut in structure.cut_points() if cut > compacted_messages]
    # Of what a cut folds, a later one folds all.
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
    """Whether turns that the provider stores come before the messages of a request.

    Nothing of such a request may be folded or left out: what it answers is not there to be seen.
    """
    return request.continues_stored_conversation


def provider_summary_text(part: Part) -> str:
    """The summary that a provider has made of all before `part`, as far as it can be read."""
    if not isinstance(part, Opaque) or part.kind != PROVIDER_COMPACTION:
        return ""
    return as_text(parse_object(part.raw).get("content"))


def _is_encrypted_compaction(part: Part) -> bool:
    return isinstance(part, Opaque) and part.kind == PROVIDER_COMPACTION and not provider_summary_text(part)


def _find_turn_indexes(messages: Sequence[Message]) -> list[int]:
    """The places of all messages that are part of a turn.

    The developer's are not, nor what a provider has folded and sealed. Nor are results before the model has
    said anything: the provider stores their calls, and misses them.
    """
    indexes: list[int] = []
    has_spoken = False
    for index, message in enumerate(messages):
        if is_system_message(message) or (message.parts and all(map(_is_encrypted_compaction, message.parts))):
            continue
        kind = classify_message(message)
        has_spoken = has_spoken or kind is MessageKind.MODEL
        if has_spoken or kind is not MessageKind.RESULTS:
            indexes.append(index)
    return indexes


class TurnStructure:
    """A conversation, as far as cuts look at it; all places are places in the list of its messages."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._turn_indexes = _find_turn_indexes(messages)
        history = [messages[place] for place in self._turn_indexes]
        self._kinds = [classify_message(message) for message in history]
        self._is_safe_boundary = find_turn_boundaries(history, self._kinds)

    @property
    def turn_indexes(self) -> Sequence[int]:
        """All that are part of a turn: no system messages, and nothing that only the provider understands."""
        return self._turn_indexes

    def cut_points(self) -> list[int]:
        """Where a tail may begin."""
        return [
            self._turn_indexes[number]
            for number in range(1, len(self._turn_indexes))
            if self._is_cut_position(number)
        ]

    def is_cut_point(self, index: int) -> bool:
        """Whether a tail may begin there; system messages before its first word belong to it."""
        return 0 < self._position(index) < len(self._turn_indexes) and self._is_cut_position(
            self._position(index)
        )

    def open_question(self, cut: int) -> tuple[int, ...]:
        """What stays of the head: the question of the turn that is under way at its end.

        Where the model had the last word, no turn is: only a question can follow.
        """
        number = self._position(cut)
        if not number or self._kinds[number - 1] is MessageKind.MODEL:
            return ()
        last = next((other for other in reversed(range(number)) if self._is_question(other)), None)
        return () if last is None else tuple(self._turn_indexes[other] for other in self._question_run(last))

    def replaced_messages(self, cut: int, *, compacted_messages: int = 0) -> tuple[int, ...]:
        """What a fold of the head replaces, of what one of the first `beyond` messages has not replaced."""
        replaced = self._replaced_before(cut)
        replaced_before = set(self._replaced_before(compacted_messages)) if compacted_messages else set()
        return tuple(index for index in replaced if index not in replaced_before)

    def is_next_from_model(self, index: int) -> bool:
        """Whether the first from `place` on that is no system message is something that the model says."""
        number = self._position(index)
        return number < len(self._kinds) and self._kinds[number] is MessageKind.MODEL

    def follows_user(self, index: int) -> bool:
        """Whether the last before `place` that is no system message is the user's, or a tool's."""
        number = self._position(index)
        return number > 0 and self._kinds[number - 1] is not MessageKind.MODEL

    def kind_before(self, cut: int) -> MessageKind:
        """What the head ends with; a question that answers calls as well counts as their results."""
        number = self._position(cut) - 1
        if self._kinds[number] is MessageKind.QUESTION and not self._is_safe_boundary[number]:
            return MessageKind.RESULTS
        return self._kinds[number]

    def last_turn_start(self) -> int:
        """Where the last turn begins: with the last question, or with the first message where there is none."""
        asked = (number for number in reversed(range(len(self._turn_indexes))) if self._is_question(number))
        return self._turn_indexes[self._question_run(next(asked, 0)).start] if self._turn_indexes else 0

    def _question_run(self, last: int) -> range:
        """The questions in a row of which `last` is the last."""
        first = last
        while first and self._is_question(first - 1):
            first -= 1
        return range(first, last + 1)

    def _replaced_before(self, cut: int) -> tuple[int, ...]:
        kept = self.open_question(cut)
        return tuple(index for index in self._turn_indexes if index < cut and index not in kept)

    def _is_cut_position(self, number: int) -> bool:
        if self._kinds[number] is MessageKind.QUESTION:
            return self._is_question(number) and not self._is_question(number - 1)
        # What the model says in a row stays together: a call may not be sent without the thought it came from.
        begins = self._kinds[number] is MessageKind.MODEL and self._kinds[number - 1] is not MessageKind.MODEL
        return begins and self._is_safe_boundary[number]

    def _is_question(self, number: int) -> bool:
        return self._kinds[number] is MessageKind.QUESTION and self._is_safe_boundary[number]

    def _position(self, index: int) -> int:
        """Which of the spoken messages is the first from `place` on."""
        return bisect_left(self._turn_indexes, index)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedHead:
    """What has to be known of a head to tell what may follow it; none of its text.

    `spoken` are the places of all that are part of a turn, `question` those of the question that is under way
    at its end. `bridge` stands for it before a tail: its calls and results, and who spoke last.
    """

    turn_indexes: tuple[int, ...]
    open_question: tuple[int, ...]
    stub_messages: tuple[Message, ...]

    def join_tail(self, tail: Sequence[Message]) -> "HeadReplacement | None":
        """What a fold of the head replaces before `tail`; None where that cannot follow it."""
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
    """Where a head and a tail meet: what stays of the head, what is replaced, and whether the model goes on."""

    kept_indexes: tuple[int, ...]
    replaced_indexes: tuple[int, ...]
    is_next_from_model: bool


def describe_head(messages: Sequence[Message]) -> CompactedHead:
    """What has to be known of a head that is made of `messages`."""
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
