"""Eviction of turns, so that a history stays within a number of turns and of tokens.

A **turn** is a user message and everything up to the next one. Inside a turn, a **step** is what the model
produces in a row and everything up to where it continues: its calls and their results. Neither ends between a
call and its result, however late the result comes.

Whole turns are evicted first, oldest first. Of the last turn, the user message stays, and the last step, from
which the model continues; the steps in between are evicted, oldest first. So the rest begins with a user
message, roles alternate as before, and every call keeps its result and every result its call.
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
# A Responses item with which the developer adds tools in mid-conversation.
_ADDITIONAL_TOOLS = "additional_tools"
# Endings of item types in Responses for calls of the provider's tools and the client's results: `computer_call`
# and `computer_call_output`, `mcp_approval_request` and `mcp_approval_response`.
_CALL_ENDINGS = ("_call", "_request")
_RESULT_ENDINGS = ("_output", "_response")


class HistoryLimit(StrEnum):
    """Limits of a history."""

    MAX_TURNS = "max_turns"
    TOKEN_BUDGET = "token_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictedMessages:
    """Positions of messages that are evicted together: a turn, or a step of the last turn.

    `before` and `after` are the tokens of the whole history; `reasons` are the limits that it exceeded.
    """

    messages: tuple[int, ...]
    before: int
    after: int
    reasons: tuple[HistoryLimit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """Positions of the messages that stay and of those that are evicted, in order."""

    kept: tuple[int, ...]
    evicted: tuple[EvictedMessages, ...]
    tokens_before: int
    tokens_after: int
    token_budget: int

    @property
    def fits(self) -> bool:
        """Whether the rest is within the budget. If not, nothing else may be evicted."""
        return self.tokens_after <= self.token_budget


class EvictionListener(Protocol):
    """Receives evicted messages."""

    def on_evicted(self, messages: Sequence[Message]) -> None:
        """Called with messages that will not be sent again, oldest first."""


def evict_turns(
    messages: Sequence[Message],
    tokens: Sequence[int],
    *,
    token_budget: int,
    max_turns: int = DEFAULT_MAX_TURNS,
    listener: EvictionListener | None = None,
) -> Eviction:
    """Evict turns, and pass the evicted messages to `listener`, oldest first.

    Raises:
        BudgetExceeded: what may not be evicted does not fit; the listener is not called then.
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
    """Evict as little as possible, oldest first, to satisfy both limits, or everything possible if they cannot
    be.

    `tokens` has the count of each message. System and developer messages always stay, and count. Turns that a
    late result connects count as one; messages before the first user message are not a turn.

    Raises:
        BadOption: an invalid limit, or not one count per message.
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
    """Count the turns of a history, as `max_turns` does."""
    outline = _TurnOutline([message for message in messages if not is_system_message(message)])
    return outline.count_question_turns(outline.turns)


class MessageKind(Enum):
    """Role of a message in a turn."""

    QUESTION = auto()
    RESULTS = auto()
    MODEL = auto()


class _TurnOutline:
    """The turns of a history without system messages, and the steps of the last turn."""

    def __init__(self, history: Sequence[Message]) -> None:
        self._kinds = [classify_message(message) for message in history]
        self._is_boundary = find_turn_boundaries(history, self._kinds)
        self.turns = self._split(range(len(history)), MessageKind.QUESTION)

    def count_question_turns(self, spans: Sequence[range]) -> int:
        """Number of `spans` that begin with a user message."""
        return sum(self._kinds[span.start] is MessageKind.QUESTION for span in spans)

    def evictable_steps(self) -> list[range]:
        """Steps of the last turn that may be evicted."""
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
        """Split `span` before messages of kind `opening`. What precedes the first of them is a part too."""
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
    """For each message: whether neither it nor a later message has a result for an earlier call."""
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
                # The latest open call: a call that never got a result must not take the results of later calls
                # with the same name. A result without a call belongs to the last model message.
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
    """Whether every result in the messages has its call among them."""
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
    """Whether a message always stays, because it is the developer's and not part of a turn."""
    return message.role in _SYSTEM_ROLES or any(
        isinstance(part, Opaque) and part.kind == _ADDITIONAL_TOOLS for part in message.parts
    )


def classify_message(message: Message) -> MessageKind:
    """Return the kind of a message that is not a system message."""
    if message.parts and all(_result_key(part) is not None for part in message.parts):
        return MessageKind.RESULTS
    return MessageKind.QUESTION if message.role == "user" else MessageKind.MODEL


def _call_key(part: Part) -> str | None:
    """What connects a call with its result: the id, or the name if the format has no ids."""
    match part:
        case ToolCall():
            return part.id or part.name
        case Opaque() if part.kind.endswith(_CALL_ENDINGS):
            return part.kind.rpartition("_")[0]
        case _:
            return None


def _result_key(part: Part) -> str | None:
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
