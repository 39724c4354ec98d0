"""The structure of a history: kinds of messages, turns, and the steps in them.

A **turn** is a user message and everything up to the next one. Inside a turn, a **step** is what the model
produces in a row and everything up to where it continues: its calls and their results. Neither ends between a
call and its result, however late the result comes.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from enum import Enum, auto
from itertools import pairwise

from foveate.model import SYSTEM_ROLES, Message, Opaque, Part, ToolCall, ToolResult

# A Responses item with which the developer adds tools in mid-conversation.
_ADDITIONAL_TOOLS = "additional_tools"
# A Responses item by which the provider replaces earlier items with encrypted content.
_PROVIDER_COMPACTION = "compaction"
# Endings of item types in Responses for calls of the provider's tools and the client's results: `computer_call`
# and `computer_call_output`, `mcp_approval_request` and `mcp_approval_response`.
_CALL_ENDINGS = ("_call", "_request")
_RESULT_ENDINGS = ("_output", "_response")


class MessageKind(Enum):
    QUESTION = auto()
    RESULTS = auto()
    MODEL = auto()


class TurnOutline:
    def __init__(self, history: Sequence[Message]) -> None:
        self._history = history
        self._kinds = [classify_message(message) for message in history]
        self._is_boundary = find_turn_boundaries(history, self._kinds)
        self.turns = self._split(range(len(history)), MessageKind.QUESTION)
        questions = (at for at in reversed(range(len(history))) if self._kinds[at] is MessageKind.QUESTION)
        self._last_question = next(questions, -1)

    def count_question_turns(self, spans: Sequence[range]) -> int:
        return sum(self._kinds[span.start] is MessageKind.QUESTION for span in spans)

    def evictable_steps(self) -> list[range]:
        """Steps of the last turn without the user's message, and without the last step."""
        if not self.turns:
            return []
        *earlier, _ = self._split(self.turns[-1], MessageKind.MODEL)
        return [step for step in earlier if not self._has_question(step)]

    def finished_answer(self) -> range | None:
        """The last step, if it answers the user's message and neither calls tools nor has their results."""
        if not self.turns or self._kinds[self.turns[-1].start] is not MessageKind.QUESTION:
            return None
        last = self._split(self.turns[-1], MessageKind.MODEL)[-1]
        ends_with_model = self._kinds[last[-1]] is MessageKind.MODEL
        has_calls = any(_call_key(part) for position in last for part in self._history[position].parts)
        return last if ends_with_model and not has_calls and not self._has_question(last) else None

    def _has_question(self, step: range) -> bool:
        """Return whether a step of the last turn starts with a user message, or contains the last one."""
        return self._kinds[step.start] is MessageKind.QUESTION or self._last_question in step

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


def count_turns(messages: Sequence[Message]) -> int:
    outline = TurnOutline([message for message in messages if not is_system_message(message)])
    return outline.count_question_turns(outline.turns)


def find_turn_boundaries(history: Sequence[Message], kinds: Sequence[MessageKind]) -> list[bool]:
    """True for each message from which on no result answers a call before it."""
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
    """System messages always stay: they are the developer's and not part of a turn."""
    return message.role in SYSTEM_ROLES or any(
        isinstance(part, Opaque) and part.kind == _ADDITIONAL_TOOLS for part in message.parts
    )


def is_encrypted_compaction(message: Message) -> bool:
    """Return whether a message is a provider's own compaction, which stands for everything before it."""
    return bool(message.parts) and all(
        isinstance(part, Opaque) and part.kind == _PROVIDER_COMPACTION for part in message.parts
    )


def classify_message(message: Message) -> MessageKind:
    if message.parts and all(_result_key(part) is not None for part in message.parts):
        return MessageKind.RESULTS
    return MessageKind.QUESTION if message.role == "user" else MessageKind.MODEL


def _call_key(part: Part) -> str | None:
    """Key that connects a call with its result: the id, or the name if the format has no ids."""
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
