"""What was done in a conversation: the files that calls were about, and the errors that came of calls."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foveate.fold.facts import message_texts
from foveate.fold.rules import rules
from foveate.fold.sentences import find_error_lines
from foveate.values import Message, ToolCall, ToolResult
from foveate.wire import large_json

# Two calls of one tool whose arguments begin alike are two tries at the same thing.
_SAME_CALL_CHARS = 60
_MAX_ERROR_CHARS = 200
_MAX_TOOL_NAME_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedFile:
    """A file that calls were about, and the weightiest thing that they did to it; `last` is the latest call."""

    path: str
    action: str
    last_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolError:
    """A line by which `tool` told of an error. `gone`: the same was tried again later, and went well."""

    text: str
    tool: str
    last_index: int
    is_resolved: bool


def find_touched_files(messages: Sequence[Message]) -> list[TouchedFile]:
    """Every file that a call names as what it is about, the latest touched first."""
    found: dict[str, tuple[str, int]] = {}
    for index, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, ToolCall) and (action := _file_action(part.name)):
                for path in _path_arguments(part):
                    before = found.get(path, ("", 0))[0]
                    found[path] = action if not before or before == "read" else before, index
    touched = (TouchedFile(path=path, action=action, last_index=last) for path, (action, last) in found.items())
    return sorted(touched, key=lambda file: (-file.last_index, file.path))


def _file_action(tool: str) -> str:
    name = tool.lower()
    return next((action for word, action in rules().file_actions.items() if word in name), "")


def _path_arguments(call: ToolCall) -> Iterable[str]:
    try:
        arguments = large_json.loads(call.arguments)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(arguments, dict):
        return ()
    return [
        value
        for name, value in arguments.items()
        if name.lower() in rules().path_arguments and isinstance(value, str) and 0 < len(value) < 200
        if "\n" not in value
    ]


def find_tool_errors(messages: Sequence[Message]) -> list[ToolError]:
    """The errors that tools answered with, each once, the latest first."""
    calls: dict[str, tuple[str, str]] = {}
    succeeded_at: dict[str, int] = {}
    found: dict[str, tuple[int, str, str]] = {}
    for index, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, ToolCall):
                calls[part.id or part.name] = part.name, f"{part.name} {part.arguments[:_SAME_CALL_CHARS]}"
            elif isinstance(part, ToolResult):
                tool, call_key = calls.get(part.id or part.name, (part.name, ""))
                lines = _error_lines(part)
                if not lines:
                    succeeded_at[call_key] = index
                for line in lines:
                    found.pop(line, None)
                    found[line] = index, call_key, " ".join(tool[:_MAX_TOOL_NAME_CHARS].split())
    return [
        ToolError(
            text=line,
            tool=tool,
            last_index=index,
            is_resolved=bool(call_key) and succeeded_at.get(call_key, -1) > index,
        )
        for line, (index, call_key, tool) in reversed(found.items())
    ]


def _error_lines(result: ToolResult) -> list[str]:
    """What a result tells of errors; where it is one and names none, how it begins."""
    texts = [text for _, text in message_texts(Message(role="tool", parts=(result,)))]
    lines = [line for text in texts for line in find_error_lines(text)]
    if result.is_error and not lines:
        lines = [text.strip().splitlines()[0][:_MAX_ERROR_CHARS] for text in texts if text.strip()][:1]
    return lines
