"""Eviction: which turns of a history go, so that what stays holds to a number of turns and of tokens.

A **turn** is a question and all that follows it, up to the next question. Inside a turn, a **step** is what the
model said in a row and all that follows, up to where it speaks again: its calls and their results. Neither ends
between a call and its result, however late that comes: what lies between is then one turn, or one step.

Whole turns go first, the oldest first. Of the last turn, the one under way, the question stays, and the last
step, which the model is to go on from; the steps between go, the oldest first. So what stays opens with a
question, speakers follow each other as they did before, and no call has lost its result, nor a result its call.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from itertools import pairwise
from typing import Protocol

from foveate.budget.sections import Priority
from foveate.errors import BadOption, BudgetExceeded, SectionSize
from foveate.model import Message, Opaque, Part, ToolCall, ToolResult

DEFAULT_MAX_TURNS = 40

_SYSTEM_ROLES = frozenset(("system", "developer"))
# A Responses item by which the developer hands over more tools in mid-conversation.
_ADDITIONAL_TOOLS = "additional_tools"
# Responses names the calls of the provider's own tools, and what the client answered, by such kinds:
# `computer_call` and `computer_call_output`, `mcp_approval_request` and `mcp_approval_response`.
_CALL_ENDINGS = ("_call", "_request")
_RESULT_ENDINGS = ("_output", "_response")


class HistoryLimit(StrEnum):
    """What a history has to hold to."""

    MAX_TURNS = "max_turns"
    TOKEN_BUDGET = "token_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictedMessages:
    """The places of messages that went together: a turn, or a step of the last turn.

    `before` and `after` are the tokens of everything that was there then; `reasons` are the limits that it was
    over.
    """

    messages: tuple[int, ...]
    before: int
    after: int
    reasons: tuple[HistoryLimit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """What stays of a history and what goes, in order, by places in the list of its messages."""

    kept: tuple[int, ...]
    evicted: tuple[EvictedMessages, ...]
    tokens_before: int
    tokens_after: int
    token_budget: int

    @property
    def fits(self) -> bool:
        """Whether what stays is within the budget; if not, nothing was left that may go."""
        return self.tokens_after <= self.token_budget


class EvictionListener(Protocol):
    """Who is shown what goes."""

    def on_evicted(self, messages: Sequence[Message]) -> None:
        """Take note of messages that will not be sent again; older ones were offered before."""


def evict_turns(
    messages: Sequence[Message],
    tokens: Sequence[int],
    *,
    token_budget: int,
    max_turns: int = DEFAULT_MAX_TURNS,
    listener: EvictionListener | None = None,
) -> Eviction:
    """What `evict` decides, with all that goes offered to `summariser`, the oldest first.

    Raises:
        BudgetExceeded: what may not go does not fit; then nothing was offered.
        BadOption: as for `evict`.
    """
    eviction = evict(messages, tokens, token_budget=token_budget, max_turns=max_turns)
    if not eviction.fits:
        raise _history_exceeded(messages, tokens, eviction)
    if listener is not None:
        for group in eviction.evicted:
            listener.on_evicted([messages[position] for position in group.messages])
    return eviction


def evict(
    messages: Sequence[Message], tokens: Sequence[int], *, token_budget: int, max_turns: int = DEFAULT_MAX_TURNS
) -> Eviction:
    """The least that has to go, the oldest first, for both limits to hold, or all that may go if they cannot.

    `tokens` are those of each message. System and developer messages stay, wherever they stand, and count.
    Turns that a late result holds together are one; what stands before the first question is none.

    Raises:
        BadOption: a limit that cannot be, or not one count for each message.
    """
    _check_arguments(messages, tokens, token_budget, max_turns)
    positions = [position for position, message in enumerate(messages) if not is_system_message(message)]
    outline = _TurnOutline([messages[position] for position in positions])
    total = remaining_tokens = sum(tokens)
    remaining_turns = outline.count_question_turns(outline.turns)
    evicted: list[EvictedMessages] = []
    for span in (*outline.turns[:-1], *outline.evictable_steps()):
        over = {
            HistoryLimit.MAX_TURNS: remaining_turns > max_turns,
            HistoryLimit.TOKEN_BUDGET: remaining_tokens > token_budget,
        }
        reasons = tuple(limit for limit, is_over in over.items() if is_over)
        if not reasons:
            break
        evicted_positions = tuple(positions[span.start : span.stop])
        before, remaining_tokens = (
            remaining_tokens,
            remaining_tokens - sum(tokens[position] for position in evicted_positions),
        )
        remaining_turns -= outline.count_question_turns([span])
        evicted.append(
            EvictedMessages(messages=evicted_positions, before=before, after=remaining_tokens, reasons=reasons)
        )
    all_evicted = {position for evicted_positions in evicted for position in evicted_positions.messages}
    return Eviction(
        kept=tuple(position for position in range(len(messages)) if position not in all_evicted),
        evicted=tuple(evicted),
        tokens_before=total,
        tokens_after=remaining_tokens,
        token_budget=token_budget,
    )


def count_turns(messages: Sequence[Message]) -> int:
    """How many turns a history has, as `max_turns` counts them."""
    outline = _TurnOutline([message for message in messages if not is_system_message(message)])
    return outline.count_question_turns(outline.turns)


class MessageKind(Enum):
    """What a message is in a turn."""

    QUESTION = auto()
    RESULTS = auto()
    MODEL = auto()


class _TurnOutline:
    """Where the turns of a history without its system messages begin and end, and the steps of the last one."""

    def __init__(self, history: Sequence[Message]) -> None:
        self._kinds = [classify_message(message) for message in history]
        self._is_boundary = find_turn_boundaries(history, self._kinds)
        self.turns = self._split(range(len(history)), MessageKind.QUESTION)

    def count_question_turns(self, spans: Sequence[range]) -> int:
        """How many of `spans` begin with a question."""
        return sum(self._kinds[span.start] is MessageKind.QUESTION for span in spans)

    def evictable_steps(self) -> list[range]:
        """The steps of the last turn that may go."""
        if not self.turns:
            return []
        *earlier, _ = self._split(self.turns[-1], MessageKind.MODEL)
        last_question = max(
            (position for position in self.turns[-1] if self._kinds[position] is MessageKind.QUESTION),
            default=-1,
        )
        return [
            step
            for step in earlier
            if self._kinds[step.start] is not MessageKind.QUESTION and last_question not in step
        ]

    def _split(self, span: range, opening: MessageKind) -> list[range]:
        """`span` in parts, each from where messages of kind `opening` begin; what stands before is one too."""
        if not span:
            return []
        starts = [
            position
            for position in span[1:]
            if self._opens(position, opening) and not self._opens(position - 1, opening)
        ]
        return [range(start, stop) for start, stop in pairwise((span.start, *starts, span.stop))]

    def _opens(self, position: int, opening: MessageKind) -> bool:
        return self._kinds[position] is opening and self._is_boundary[position]


def find_turn_boundaries(history: Sequence[Message], kinds: Sequence[MessageKind]) -> list[bool]:
    """Whether each message answers nothing, nor any later one, that stands before it."""
    calls: defaultdict[str, list[int]] = defaultdict(list)
    latest: dict[str, int] = {}
    last_model_message = 0
    answers_to = list(range(len(history)))
    for position, message in enumerate(history):
        for part in message.parts:
            if (call_key := _call_key(part)) is not None:
                calls[call_key].append(position)
                latest[call_key] = position
            elif (result_key := _result_key(part)) is not None:
                # The latest open one: a call that was never answered must not take the results of later ones
                # with the same name. A result without a call goes with what the model said last.
                call = (
                    calls[result_key].pop() if calls[result_key] else latest.get(result_key, last_model_message)
                )
                answers_to[position] = min(answers_to[position], call)
        if kinds[position] is MessageKind.MODEL:
            last_model_message = position
    boundaries = [False] * len(history)
    earliest = len(history)
    for position in reversed(range(len(history))):
        earliest = min(earliest, answers_to[position])
        boundaries[position] = earliest >= position
    return boundaries


def has_calls_for_all_results(messages: Sequence[Message]) -> bool:
    """Whether every result in some messages answers a call in them, whatever stands before them."""
    open_calls: Counter[str] = Counter()
    for message in messages:
        for part in message.parts:
            if (call_key := _call_key(part)) is not None:
                open_calls[call_key] += 1
            elif (result_key := _result_key(part)) is not None:
                if not open_calls[result_key]:
                    return False
                open_calls[result_key] -= 1
    return True


def is_system_message(message: Message) -> bool:
    """Whether a message stays wherever it stands: it is the developer's, and no part of any turn."""
    return message.role in _SYSTEM_ROLES or any(
        isinstance(part, Opaque) and part.kind == _ADDITIONAL_TOOLS for part in message.parts
    )


def classify_message(message: Message) -> MessageKind:
    """What a message is, of those that are no system messages."""
    if message.parts and all(_result_key(part) is not None for part in message.parts):
        return MessageKind.RESULTS
    return MessageKind.QUESTION if message.role == "user" else MessageKind.MODEL


def _call_key(part: Part) -> str | None:
    """What the result of a call is known by: its id, or its name where the format has no ids."""
    match part:
        case ToolCall():
            return part.id or part.name
        case Opaque() if part.kind.endswith(_CALL_ENDINGS):
            return part.kind.rpartition("_")[0]
        case _:
            return None


def _result_key(part: Part) -> str | None:
    """What the call of a result is known by."""
    match part:
        case ToolResult():
            return part.id or part.name
        case Opaque() if part.kind.endswith(_RESULT_ENDINGS):
            return part.kind.rpartition("_")[0].removesuffix("_call")
        case _:
            return None


def _check_arguments(
    messages: Sequence[Message], tokens: Sequence[int], token_budget: int, max_turns: int
) -> None:
    if len(messages) != len(tokens):
        raise BadOption(f"tokens has one number for each message: {len(messages)}, not {len(tokens)}")
    if not _is_whole_number(max_turns, at_least=1):
        raise BadOption(f"max_turns is a number of turns, 1 or more, not {max_turns!r}", path=("max_turns",))
    if not _is_whole_number(token_budget, at_least=0):
        raise BadOption(
            f"token_budget is a number of tokens, 0 or more, not {token_budget!r}", path=("token_budget",)
        )


def _is_whole_number(value: object, *, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def _history_exceeded(messages: Sequence[Message], tokens: Sequence[int], eviction: Eviction) -> BudgetExceeded:
    system = sum(tokens[position] for position, message in enumerate(messages) if is_system_message(message))
    history = eviction.tokens_after - system
    return BudgetExceeded(
        f"the history does not fit: its budget is {eviction.token_budget} tokens, and what may not go has "
        f"{eviction.tokens_after}",
        "give it a larger budget or shorten these",
        limit_tokens=eviction.token_budget,
        tokens=eviction.tokens_after,
        sections=(
            SectionSize("system", Priority.REQUIRED, system, system),
            SectionSize("history", Priority.HIGH, eviction.tokens_before - system, history),
        ),
    )
