"""Targets of tool calls. A later call with the same target supersedes a result: a file is read again, a command
is run again.
"""

from collections.abc import Mapping
from typing import NamedTuple

from foveate.errors import MalformedRequest
from foveate.formats.json_text.parse import as_dict, parse_json, to_json
from foveate.model import ToolCall

_PATH_ARGUMENTS = ("file_path", "filePath", "path", "absolute_path", "target_file", "filename", "notebook_path")
_RANGE_ARGUMENTS = frozenset(
    ("offset", "limit", "start_line", "end_line", "startLine", "endLine", "view_range", "line_range", "lines")
)
# Texts about a call that differ each time, and limits that do not change what it returns.
_IGNORED_ARGUMENTS = frozenset(("description", "explanation", "justification", "timeout", "timeout_ms"))


class CallTarget(NamedTuple):
    """What a tool call asks for: the same `subject` and `extent` give a newer version of the same result.

    `extent` is the range of a file; a call without one supersedes all results of its subject.
    """

    tool: str
    subject: bytes
    extent: bytes = b""

    def supersedes(self, earlier: "CallTarget") -> bool:
        same_subject = self.tool == earlier.tool and self.subject == earlier.subject
        return same_subject and (not self.extent or self.extent == earlier.extent)


def call_target(call: ToolCall) -> CallTarget:
    try:
        arguments = as_dict(parse_json(call.arguments.encode("utf-8", "replace")))
    except (MalformedRequest, RecursionError):
        return CallTarget(call.name, call.arguments.encode("utf-8", "replace"))
    arguments = {name: value for name, value in arguments.items() if name not in _IGNORED_ARGUMENTS}
    path = next((name for name in _PATH_ARGUMENTS if isinstance(arguments.get(name), str)), None)
    if path is None or not arguments.keys() <= _RANGE_ARGUMENTS | {path}:
        return CallTarget(call.name, _canonical(arguments))
    extent = {name: value for name, value in arguments.items() if name != path and value is not None}
    subject = arguments[path].encode("utf-8", "replace")
    return CallTarget(call.name, subject, _canonical(extent) if extent else b"")


def _canonical(arguments: Mapping[str, object]) -> bytes:
    return to_json(dict(sorted(arguments.items())))
