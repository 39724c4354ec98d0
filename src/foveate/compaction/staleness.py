"""Find tool results that the model no longer needs: superseded by a later result, or old and not used since.

A result is superseded if a later call returns the same again: the file is read again or written as a whole, the
command or the search is repeated. A result is stale if it is old and the model has not mentioned its file,
command or query since. Only results that the model can get again are cleared, so the tool must be known
(`agent_tools.toml`).
"""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from foveate.model import Image, Message, Text, ToolCall, ToolResult

CLEARED_PREFIX = "[cleared: "
DEFAULT_STALE_TURNS = 10
"""Number of later model messages after which a result that was not used again is stale."""

_TABLE = Path(__file__).with_name("agent_tools.toml")
# Clearing a shorter result frees less than it costs to change the prompt.
_MIN_CHARS = 400
# The last model messages, in which a mention counts as a use.
_RECENT_TURNS = 10
# Agents answer a repeated read with a short note that the file is unchanged; that note supersedes nothing.
_MIN_SUPERSEDING_SHARE = 0.5
_MAX_ARGUMENT_CHARS = 200
_MAX_LINE_CHARS = 120
_MAX_NAME_CHARS = 64
_MODEL_ROLES = frozenset(("assistant", "model"))
_MCP_SEPARATOR = "__"


class ToolKind(StrEnum):
    READ = "read"
    WRITE = "write"
    SEARCH = "search"
    LIST = "list"
    RUN = "run"
    FETCH = "fetch"


class ClearingReason(StrEnum):
    SUPERSEDED = "superseded"
    STALE = "stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """A call of a known tool: its main argument, and a key that equal calls share."""

    kind: ToolKind
    name: str
    argument: str
    is_partial: bool
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearableResult:
    """A result that can be cleared: part `part` of message `message`. `turns` is the number of later model
    messages.
    """

    message: int
    part: int
    reason: ClearingReason
    turns: int
    placeholder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToolTable:
    kinds: Mapping[str, ToolKind]
    command_tools: frozenset[str]
    command_argument: str
    command_kinds: Mapping[str, ToolKind]
    main_arguments: Sequence[str]
    range_arguments: frozenset[str]
    ignored_arguments: frozenset[str]


@cache
def _load_table() -> _ToolTable:
    table = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    commands, arguments = dict(table["commands"]), table["arguments"]
    tools, argument = commands.pop("tools"), commands.pop("argument")
    return _ToolTable(
        kinds={name: ToolKind(kind) for kind, names in table["names"].items() for name in names},
        command_tools=frozenset(tools),
        command_argument=argument,
        command_kinds={name: ToolKind(kind) for kind, names in commands.items() for name in names},
        main_arguments=arguments["main"],
        range_arguments=frozenset(arguments["range"]),
        ignored_arguments=frozenset(arguments["ignored"]),
    )


def describe_call(call: ToolCall) -> ToolUse | None:
    """Describe a call whose result can be had again; None for all other calls."""
    table = _load_table()
    name = call.name.rpartition(_MCP_SEPARATOR)[2].lower()
    arguments = _parse_arguments(call.arguments)
    kind = table.kinds.get(name)
    if name in table.command_tools:
        kind = table.command_kinds.get(str(arguments.get(table.command_argument)))
    main = next((argument for argument in table.main_arguments if arguments.get(argument)), None)
    if name in table.command_tools:
        main = next((argument for argument in ("path",) if arguments.get(argument)), None)
    if kind is None or main is None:
        return None
    argument = _argument_text(arguments[main])
    relevant = {key: value for key, value in arguments.items() if key not in table.ignored_arguments}
    is_partial = any(relevant.get(key) for key in table.range_arguments)
    return ToolUse(
        kind=kind,
        name=call.name,
        argument=argument,
        is_partial=is_partial,
        key=json.dumps([name, relevant], sort_keys=True, default=str),
    )


def _parse_arguments(arguments: str) -> Mapping[str, Any]:
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _argument_text(value: object) -> str:
    if isinstance(value, list):  # Codex passes commands as lists, after the shell and its options
        words = [str(word) for word in value]
        return words[-1] if words[:1] and words[0] in ("bash", "sh", "zsh", "powershell") else " ".join(words)
    return str(value)


def find_clearable_results(
    messages: Sequence[Message], *, stale_turns: int = DEFAULT_STALE_TURNS
) -> list[ClearableResult]:
    """Find superseded and stale results, in order.

    Results that follow the last model message are new and never cleared, and neither are errors, unless the
    same call succeeded later.
    """
    model_messages = [index for index, message in enumerate(messages) if message.role in _MODEL_ROLES]
    if not model_messages:
        return []
    recent = _authored_texts(messages[index] for index in model_messages[-_RECENT_TURNS:])
    later = _LaterResults()
    clearable = []
    for result in reversed(_find_results(messages, model_messages)):
        reason = None
        if result.index < model_messages[-1] and result.can_be_cleared:
            if later.supersede(result):
                reason = ClearingReason.SUPERSEDED
            elif result.turns >= stale_turns and not result.part.is_error and not _is_used(result.use, recent):
                reason = ClearingReason.STALE
        if reason is not None:
            clearable.append(
                ClearableResult(
                    message=result.index,
                    part=result.part_index,
                    reason=reason,
                    turns=result.turns,
                    placeholder=placeholder_text(result.use, result.text),
                )
            )
        later.add(result)
    return clearable[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _FoundResult:
    index: int
    part_index: int
    part: ToolResult
    use: ToolUse
    text: str
    turns: int

    @property
    def can_be_cleared(self) -> bool:
        return (
            self.use.kind is not ToolKind.WRITE
            and all(isinstance(part, Text | Image) for part in self.part.parts)
            and (len(self.text) >= _MIN_CHARS or any(isinstance(part, Image) for part in self.part.parts))
            and not self.text.startswith(CLEARED_PREFIX)
        )


class _LaterResults:
    """The results after some message: the longest of each call and of each file, and the files written."""

    def __init__(self) -> None:
        self._chars_by_call: dict[str, int] = {}
        self._chars_by_file: dict[str, int] = {}
        self._written_files: set[str] = set()

    def add(self, result: _FoundResult) -> None:
        if result.part.is_error or result.text.startswith(CLEARED_PREFIX):
            return
        use, chars = result.use, len(result.text)
        if use.kind is ToolKind.WRITE:  # the call contains the whole file
            self._written_files.add(use.argument)
            return
        self._chars_by_call[use.key] = max(chars, self._chars_by_call.get(use.key, 0))
        if use.kind is ToolKind.READ and not use.is_partial:
            self._chars_by_file[use.argument] = max(chars, self._chars_by_file.get(use.argument, 0))

    def supersede(self, result: _FoundResult) -> bool:
        use = result.use
        is_read = use.kind is ToolKind.READ
        if is_read and use.argument in self._written_files:
            return True
        chars = max(
            self._chars_by_call.get(use.key, -1), self._chars_by_file.get(use.argument, -1) if is_read else -1
        )
        needed = 0.0 if result.part.is_error else _MIN_SUPERSEDING_SHARE * len(result.text)
        return chars >= needed


def _find_results(messages: Sequence[Message], model_messages: Sequence[int]) -> list[_FoundResult]:
    """The results of known tools, with the number of model messages after each."""
    uses: dict[str, ToolUse | None] = {}
    results = []
    turns = len(model_messages)
    for index, message in enumerate(messages):
        turns -= message.role in _MODEL_ROLES
        for part_index, part in enumerate(message.parts):
            if isinstance(part, ToolCall):
                uses[part.id or part.name] = describe_call(part)
            elif isinstance(part, ToolResult):
                use = uses.get(part.id or part.name)
                if use is not None:
                    text = result_text(part)
                    results.append(
                        _FoundResult(
                            index=index, part_index=part_index, part=part, use=use, text=text, turns=turns
                        )
                    )
    return results


def result_text(result: ToolResult) -> str:
    return "\n".join(part.text for part in result.parts if isinstance(part, Text))


def _authored_texts(messages: Iterable[Message]) -> list[str]:
    return [
        part.text if isinstance(part, Text) else part.arguments
        for message in messages
        for part in message.parts
        if isinstance(part, Text | ToolCall)
    ]


def _is_used(use: ToolUse, texts: Sequence[str]) -> bool:
    """Return whether the file, command or query of a call is mentioned."""
    words = use.argument if use.kind is ToolKind.RUN else use.argument.rstrip("/").rpartition("/")[2]
    escaped = json.dumps(words)[1:-1]  # as it stands in the arguments of a call
    return any(words in text or escaped in text for text in texts)


def placeholder_text(use: ToolUse | None, text: str) -> str:
    """The text that replaces a result: tool, main argument, size and first line.

    It depends on the call and the result alone, so that its bytes are the same in every later request.
    """
    what = "tool output"
    if use is not None:
        what = f"{_to_line(use.name, _MAX_NAME_CHARS)} {_to_line(use.argument, _MAX_ARGUMENT_CHARS)}".rstrip()
    first_line = next((line for line in text.splitlines() if line.strip()), "")
    start = f"; it began: {_to_line(first_line, _MAX_LINE_CHARS)}" if first_line else ""
    return f"{CLEARED_PREFIX}{len(text):,} characters of {what}{start}]"


def _to_line(text: str, max_chars: int) -> str:
    line = " ".join(text[: 2 * max_chars].split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"
