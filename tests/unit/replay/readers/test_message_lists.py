"""Plain lists of messages: every response in one is a call, without time or usage."""

import json
from pathlib import Path
from typing import Any

import pytest

from foveate.model import Format
from foveate.replay.recording import MissingPart, Recording, RecordingSource
from foveate.replay.recording_files import read_recordings

TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "list the files"},
    {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
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


def write_and_read(folder: Path, *documents: Any, indent: int | None = None) -> list[Recording]:
    path = folder / "messages.json"
    path.write_text("\n".join(json.dumps(document, indent=indent) for document in documents))
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
    (recording,) = write_and_read(tmp_path, messages, indent=indent)

    assert (recording.source, recording.format) == (RecordingSource.MESSAGES, api_format)
    assert [call.last_message.depth for call in recording.calls] == depths
    assert {MissingPart.USAGE, MissingPart.TIME, MissingPart.MODEL} <= recording.missing
    assert (MissingPart.SYSTEM in recording.missing) == (messages is not CHAT)


def test_an_object_with_messages_gives_their_envelope(tmp_path: Path) -> None:
    document = {
        "model": "claude-sonnet-5",
        "system": "be brief",
        "tools": [{"name": "ls"}],
        "messages": ANTHROPIC,
    }
    (recording,) = write_and_read(tmp_path, document, indent=2)

    assert recording.missing == {MissingPart.USAGE, MissingPart.TIME}
    assert json.loads(recording.calls[0].envelope) == {
        name: document[name] for name in ("model", "system", "tools")
    }
    assert {call.model for call in recording.calls} == {"claude-sonnet-5"}


def test_lists_on_lines_of_their_own_are_separate_conversations(tmp_path: Path) -> None:
    recordings = write_and_read(tmp_path, {"messages": CHAT}, {"messages": GEMINI}, ANTHROPIC)

    assert [(recording.name, len(recording.calls)) for recording in recordings] == [
        ("messages:1", 2),
        ("messages:2", 1),
        ("messages:3", 2),
    ]


def test_a_list_that_continues_an_earlier_one_is_the_same_conversation(tmp_path: Path) -> None:
    """Regression: earlier messages were counted once more with every list."""
    recordings = write_and_read(
        tmp_path, CHAT[:3], CHAT, [*CHAT, {"role": "user", "content": "x"}, CHAT[-1]], ANTHROPIC
    )

    assert [[call.last_message.depth for call in recording.calls] for recording in recordings] == [
        [1, 3, 5],
        [0, 2],
    ]


def test_messages_on_lines_of_their_own_are_one_conversation(tmp_path: Path) -> None:
    (recording,) = write_and_read(tmp_path, *CHAT)

    assert [call.last_message.depth for call in recording.calls] == [1, 3]


def test_a_list_of_lists_is_several_conversations(tmp_path: Path) -> None:
    assert [len(recording.calls) for recording in write_and_read(tmp_path, [CHAT, ANTHROPIC], indent=1)] == [
        2,
        2,
    ]


def test_training_data_sets_are_read_too(tmp_path: Path) -> None:
    document = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}
    (recording,) = write_and_read(tmp_path, document)
    (call,) = recording.calls

    assert json.loads(call.last_message.raw) == {"role": "user", "content": "hi"}
    assert json.loads(call.response) == {"role": "assistant", "content": "ho"}


def test_a_list_without_a_response_is_a_call(tmp_path: Path) -> None:
    (recording,) = write_and_read(tmp_path, CHAT[:2])

    assert [(call.last_message.depth, call.response) for call in recording.calls] == [(1, b"")]


def test_the_model_is_the_given_one_if_none_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "messages.json"
    path.write_text(json.dumps(CHAT))
    (recording,) = read_recordings(path, model="gpt-5.1")

    assert {call.model for call in recording.calls} == {"gpt-5.1"}
    assert MissingPart.MODEL not in recording.missing


def test_a_line_without_messages_is_reported_and_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "lists.jsonl"
    path.write_text(
        "\n".join((json.dumps({"messages": CHAT}), '{"messa', "7", json.dumps({"messages": ANTHROPIC})))
    )
    recordings = list(read_recordings(path))

    assert [len(recording.calls) for recording in recordings] == [2, 2]
    assert [(problem.line, problem.reason) for problem in recordings[0].unreadable] == [
        (2, "is truncated"),
        (3, "contains no messages"),
    ]
