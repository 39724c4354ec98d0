"""Targets of tool calls: which call returns a newer version of an earlier result."""

import json

import pytest

from foveate.advice.tool_calls import CallTarget, call_target
from foveate.model import Format, ToolCall


def target(arguments: object, name: str = "read") -> CallTarget:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return call_target(ToolCall(name=name, arguments=text, format=Format.ANTHROPIC))


@pytest.mark.parametrize(
    ("later", "earlier", "expected"),
    [
        ({"file_path": "a"}, {"file_path": "a", "offset": 1}, True),
        ({"file_path": "a", "offset": 1}, {"file_path": "a", "offset": 1}, True),
        ({"file_path": "a", "offset": 2}, {"file_path": "a", "offset": 1}, False),
        ({"file_path": "a", "offset": None}, {"file_path": "a"}, True),
        ({"command": "ls"}, {"command": "ls", "timeout": 9}, True),
        ({"command": "ls"}, {"command": "ls -l"}, False),
        ({"pattern": "x", "path": "."}, {"path": ".", "pattern": "x"}, True),
        ({"pattern": "x", "path": "."}, {"pattern": "y", "path": "."}, False),
        ("not json", "not json", True),
        ("not json", "{", False),
        ([1], [1], True),
    ],
)
def test_a_call_supersedes_the_same_call_and_parts_of_the_same_file(
    later: object, earlier: object, expected: bool
) -> None:
    assert target(later).supersedes(target(earlier)) is expected


def test_a_call_of_another_tool_supersedes_nothing() -> None:
    assert not target({"path": "a"}, "read").supersedes(target({"path": "a"}, "list"))


def test_deeply_nested_arguments_are_a_target() -> None:
    nested = "[" * 100_000

    assert target(nested).supersedes(target(nested))
