"""What was done in a conversation: the files that calls were about, and the errors that came of calls."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foveate.fold.facts import said_in
from foveate.fold.rules import rules
from foveate.fold.sentences import errors_in
from foveate.values import Message, ToolCall, ToolResult
from foveate.wire import large_json

# Two calls of one tool whose arguments begin alike are two tries at the same thing.
_SAME_CHARS = 60
_ERROR_CHARS = 200
_TOOL_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchedFile:
    """A file that calls were about, and the weightiest thing that they did to it; `last` is the latest call."""

    path: str
    deed: str
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetError:
    """A line by which `tool` told of an error. `gone`: the same was tried again later, and went well."""

    text: str
    tool: str
    last: int
    gone: bool


def files_touched(messages: Sequence[Message]) -> list[TouchedFile]:
    """Every file that a call names as what it is about, the latest touched first."""
    found: dict[str, tuple[str, int]] = {}
    for place, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, ToolCall) and (deed := _deed(part.name)):
                for path in _paths(part):
                    before = found.get(path, ("", 0))[0]
                    found[path] = deed if not before or before == "read" else before, place
    touched = (TouchedFile(path=path, deed=deed, last=last) for path, (deed, last) in found.items())
    return sorted(touched, key=lambda file: (-file.last, file.path))


def _deed(tool: str) -> str:
    name = tool.lower()
    return next((deed for word, deed in rules().deeds.items() if word in name), "")


def _paths(call: ToolCall) -> Iterable[str]:
    try:
        given = large_json.loads(call.arguments)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(given, dict):
        return ()
    return [
        value
        for name, value in given.items()
        if name.lower() in rules().path_arguments and isinstance(value, str) and 0 < len(value) < 200
        if "\n" not in value
    ]


def errors_met(messages: Sequence[Message]) -> list[MetError]:
    """The errors that tools answered with, each once, the latest first."""
    asked: dict[str, tuple[str, str]] = {}
    went_well: dict[str, int] = {}
    found: dict[str, tuple[int, str, str]] = {}
    for place, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, ToolCall):
                asked[part.id or part.name] = part.name, f"{part.name} {part.arguments[:_SAME_CHARS]}"
            elif isinstance(part, ToolResult):
                tool, tried = asked.get(part.id or part.name, (part.name, ""))
                lines = _error_lines(part)
                if not lines:
                    went_well[tried] = place
                for line in lines:
                    found.pop(line, None)
                    found[line] = place, tried, " ".join(tool[:_TOOL_CHARS].split())
    return [
        MetError(text=line, tool=tool, last=place, gone=bool(tried) and went_well.get(tried, -1) > place)
        for line, (place, tried, tool) in reversed(found.items())
    ]


def _error_lines(result: ToolResult) -> list[str]:
    """What a result tells of errors; where it is one and names none, how it begins."""
    texts = [text for _, text in said_in(Message(role="tool", parts=(result,)))]
    lines = [line for text in texts for line in errors_in(text)]
    if result.is_error and not lines:
        lines = [text.strip().splitlines()[0][:_ERROR_CHARS] for text in texts if text.strip()][:1]
    return lines
