"""The texts of a message, each with who wrote it."""

from collections.abc import Iterator
from enum import IntEnum

from foveate.formats.json_text import large_json
from foveate.model import Document, Message, Part, Text, Thinking, ToolCall, ToolResult

# A short argument names something (a path, a command, a query); a longer one is text that the model wrote.
_SHORT_ARGUMENT_CHARS = 400
MODEL_ROLES = frozenset(("assistant", "model"))


class Speaker(IntEnum):
    USER = 0
    MODEL = 1
    CALL_ARGUMENT = 2
    WRITTEN_TEXT = 3
    TOOL_RESULT = 4


def message_texts(message: Message) -> Iterator[tuple[Speaker, str]]:
    speaker = (
        Speaker.MODEL
        if message.role in MODEL_ROLES
        else Speaker.TOOL_RESULT
        if message.role == "tool"
        else Speaker.USER
    )
    for part in message.parts:
        yield from _part_texts(part, speaker)


def _part_texts(part: Part, speaker: Speaker) -> Iterator[tuple[Speaker, str]]:
    match part:
        case Text():
            yield speaker, part.text
        case Thinking():
            yield Speaker.MODEL, part.text
        case Document():
            yield Speaker.TOOL_RESULT, part.text
        case ToolCall():
            for text in argument_texts(part):
                yield (
                    (Speaker.CALL_ARGUMENT if len(text) <= _SHORT_ARGUMENT_CHARS else Speaker.WRITTEN_TEXT),
                    text,
                )
        case ToolResult():
            for inner in part.parts:
                yield from _part_texts(inner, Speaker.TOOL_RESULT)
        case _:
            return


def argument_texts(call: ToolCall) -> Iterator[str]:
    """The strings and numbers in the arguments of a call; the raw text if it is not JSON."""
    try:
        arguments = large_json.loads(call.arguments)
    except (ValueError, RecursionError):
        yield call.arguments
        return
    pending = [arguments]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(reversed(value.values()))
        elif isinstance(value, list):
            pending.extend(reversed(value))
        elif isinstance(value, str):
            yield value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield str(value)
