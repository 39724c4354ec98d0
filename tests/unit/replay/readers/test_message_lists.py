"""Plain lists of messages: every response in one is a call, without time or usage."""

import json
from pathlib import Path
from typing import Any

import pytest

from foveate.model import Format
from foveate.replay.recording import MissingPart, Recording, RecordingSource
from foveate.replay.recording_files import read_recordings

CALLED = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "list the files"},
    {"role": "assistant", "content": None, "tool_calls": [CALLED]},
    {"role": "tool", "tool_call_id": "c1", "content": "a b"},
    {"role": "assistant", "content": "two"},
]
ANTHROPIC: list[dict[str, Any]] = [
    {"role": "user", "content": "list the files"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "ls", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "a b"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "two"}]},
]
GEMINI: list[dict[str, Any]] = [
    {"role": "user", "parts": [{"text": "hi"}]},
    {"role": "model", "parts": [{"text": "ho"}]},
]


def recordings(folder: Path, *documents: Any, indent: int | None = None) -> list[Recording]:
    path = folder / "talk.json"
    path.write_text("\n".join(json.dumps(one, indent=indent) for one in documents))
    return list(read_recordings(path))


@pytest.mark.parametrize(
    ("messages", "api_format", "depths"),
    [(CHAT, Format.CHAT, [1, 3]), (ANTHROPIC, Format.ANTHROPIC, [0, 2]), (GEMINI, Format.GEMINI, [0])],
    ids=["chat", "anthropic", "gemini"],
)
@pytest.mark.parametrize("indent", [None, 2], ids=["one line", "many lines"])
def test_every_response_in_a_list_is_a_call(
    tmp_path: Path, messages: list[dict[str, Any]], api_format: Format, depths: list[int], indent: int | None
) -> None:
    (found,) = recordings(tmp_path, messages, indent=indent)

    assert (found.source, found.format) == (RecordingSource.MESSAGES, api_format)
    assert [call.last_message.depth for call in found.calls] == depths
    assert {MissingPart.USAGE, MissingPart.TIME, MissingPart.MODEL} <= found.missing
    assert (MissingPart.SYSTEM in found.missing) == (messages is not CHAT)


def test_an_object_with_messages_gives_their_envelope(tmp_path: Path) -> None:
    told = {"model": "claude-sonnet-5", "system": "be brief", "tools": [{"name": "ls"}], "messages": ANTHROPIC}
    (found,) = recordings(tmp_path, told, indent=2)

    assert found.missing == {MissingPart.USAGE, MissingPart.TIME}
    assert json.loads(found.calls[0].envelope) == {name: told[name] for name in ("model", "system", "tools")}
    assert {call.model for call in found.calls} == {"claude-sonnet-5"}


def test_lists_on_lines_of_their_own_are_separate_conversations(tmp_path: Path) -> None:
    found = recordings(tmp_path, {"messages": CHAT}, {"messages": GEMINI}, ANTHROPIC)

    assert [(one.name, len(one.calls)) for one in found] == [("talk:1", 2), ("talk:2", 1), ("talk:3", 2)]


def test_a_list_that_continues_an_earlier_one_is_the_same_conversation(tmp_path: Path) -> None:
    """Defect: earlier messages were counted once more with every list."""
    found = recordings(tmp_path, CHAT[:3], CHAT, [*CHAT, {"role": "user", "content": "x"}, CHAT[-1]], ANTHROPIC)

    assert [[call.last_message.depth for call in one.calls] for one in found] == [[1, 3, 5], [0, 2]]


def test_messages_on_lines_of_their_own_are_one_conversation(tmp_path: Path) -> None:
    (found,) = recordings(tmp_path, *CHAT)

    assert [call.last_message.depth for call in found.calls] == [1, 3]


def test_a_list_of_lists_is_several_conversations(tmp_path: Path) -> None:
    assert [len(one.calls) for one in recordings(tmp_path, [CHAT, ANTHROPIC], indent=1)] == [2, 2]


def test_training_data_sets_are_read_too(tmp_path: Path) -> None:
    told = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}
    (found,) = recordings(tmp_path, told)
    (call,) = found.calls

    assert json.loads(call.last_message.raw) == {"role": "user", "content": "hi"}
    assert json.loads(call.response) == {"role": "assistant", "content": "ho"}


def test_a_list_without_a_response_is_a_call(tmp_path: Path) -> None:
    (found,) = recordings(tmp_path, CHAT[:2])

    assert [(call.last_message.depth, call.response) for call in found.calls] == [(1, b"")]


def test_the_model_is_the_given_one_if_none_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    path.write_text(json.dumps(CHAT))
    (found,) = read_recordings(path, model="gpt-5.1")

    assert {call.model for call in found.calls} == {"gpt-5.1"}
    assert MissingPart.MODEL not in found.missing


def test_a_line_without_messages_is_reported_and_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    path.write_text(
        "\n".join((json.dumps({"messages": CHAT}), '{"messa', "7", json.dumps({"messages": ANTHROPIC})))
    )
    found = list(read_recordings(path))

    assert [len(one.calls) for one in found] == [2, 2]
    assert [(one.line, one.reason) for one in found[0].unreadable] == [
        (2, "is cut off"),
        (3, "holds no messages"),
    ]
