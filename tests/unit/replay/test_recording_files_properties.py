"""Reading fails only with documented errors, and a cut or unknown line loses only itself."""

import gzip
import json
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from foveate.errors import StoreUnavailable, UnreadableInput
from foveate.replay.recording import RecordedCall, Recording, RecordingSource
from foveate.replay.recording_files import peek_file, read_recordings
from tests.support.scenarios.agent_logs import CODEX, GEMINI_CLI, OPENCODE, OPENHANDS, QWEN_CODE, TAU_BENCH
from tests.support.scenarios.claude_code_log import SESSION, answer, line, text

_LIMITED_SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
_FILE_SOURCES = [source for source in RecordingSource if source is not RecordingSource.STORE]

PI: list[Any] = [
    {"type": "session", "id": "x", "timestamp": "2026-01-05T10:00:00Z"},
    {"type": "message", "id": "1", "parentId": None, "message": {"role": "user", "content": "hi"}},
    {
        "type": "message",
        "id": "2",
        "parentId": "1",
        "message": {"role": "assistant", "content": [text("ho")], "usage": {"input": 5, "output": 2}},
    },
]
USER = {"role": "user", "content": "hi"}
BODIES: list[Any] = [
    {"model": "gpt-5.1", "messages": [USER], "temperature": 0},
    {
        "request": {"model": "gpt-5.1", "messages": [USER, {"role": "assistant", "content": "ho"}, USER]},
        "usage": {},
    },
]
LISTS: list[Any] = [{"messages": [USER, {"role": "assistant", "content": "ho"}]}] * 2
RUNS: list[Any] = [{"history": [USER, {"role": "assistant", "content": "ho"}], "info": {"model_stats": {}}}] * 2
LOGS: dict[RecordingSource, Sequence[Any]] = {
    RecordingSource.CLAUDE_CODE: SESSION,
    RecordingSource.PI: PI,
    RecordingSource.REQUESTS: BODIES,
    RecordingSource.MESSAGES: LISTS,
    RecordingSource.SWE_AGENT: RUNS,
    RecordingSource.CODEX: CODEX,
    RecordingSource.GEMINI_CLI: GEMINI_CLI,
    RecordingSource.QWEN_CODE: QWEN_CODE,
    RecordingSource.OPENCODE: [OPENCODE],
    RecordingSource.OPENHANDS: OPENHANDS,
    RecordingSource.TAU_BENCH: TAU_BENCH,
}
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "message", "role", "content", "usage", "id", "uuid", "text"]), inner
        )
    ),
    max_leaves=8,
)


def dump_lines(lines: Sequence[Any]) -> bytes:
    return b"\n".join(json.dumps(entry).encode() for entry in lines) + b"\n"


def read_content(content: bytes, source: RecordingSource | None = None) -> list[Recording]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        path.write_bytes(content)
        return list(read_recordings(path, source=source))


def read_calls(content: bytes, source: RecordingSource) -> list[RecordedCall]:
    return [call for recording in read_content(content, source) for call in recording.calls]


def summarize(call: RecordedCall) -> tuple[Any, ...]:
    return call.model, call.usage, [message.raw for message in call.last_message.history()], call.response


@given(st.binary(max_size=300), st.sampled_from(_FILE_SOURCES))
@_LIMITED_SETTINGS
def test_no_bytes_make_reading_fail_with_an_undocumented_error(content: bytes, source: RecordingSource) -> None:
    read_content(content, source)
    read_content(gzip.compress(content), source)
    with suppress(UnreadableInput, StoreUnavailable):
        read_content(content)


@pytest.mark.slow
@given(st.sampled_from(_FILE_SOURCES), st.data())
@_LIMITED_SETTINGS
def test_no_odd_value_anywhere_in_a_log_makes_reading_fail(
    source: RecordingSource, data: st.DataObject
) -> None:
    lines = [json.loads(json.dumps(line)) for line in LOGS[source]]
    for _ in range(data.draw(st.integers(1, 4))):
        value: Any = data.draw(st.sampled_from(lines))
        while isinstance(value, dict) and value:
            key = data.draw(st.sampled_from(sorted(value)))
            if isinstance(value[key], dict) and data.draw(st.booleans()):
                value = value[key]
                continue
            value[key] = data.draw(_VALUES)
            break
    for call in read_calls(dump_lines(lines), source):
        summarize(call)


@given(st.sampled_from(_FILE_SOURCES), st.floats(0, 1))
@example(RecordingSource.CODEX, 0.451171875)
@_LIMITED_SETTINGS
def test_a_cut_log_loses_at_most_the_call_of_its_last_line(source: RecordingSource, share: float) -> None:
    """A line without its line break is complete too, and belongs to the last response of the log."""
    content = dump_lines(LOGS[source])
    cut_offset = round(share * len(content))
    lines = content[:cut_offset].count(b"\n") + content.startswith(b"\n", cut_offset)
    complete_lines = dump_lines(LOGS[source][:lines])
    expected, actual = read_calls(complete_lines, source), read_calls(content[:cut_offset], source)

    assert [summarize(call) for call in actual][: len(expected)] == [summarize(call) for call in expected]


@pytest.mark.slow
@given(st.sampled_from(_FILE_SOURCES), st.lists(st.tuples(st.integers(0, 9), _VALUES), max_size=4))
@example(RecordingSource.CODEX, [(0, None)])
@_LIMITED_SETTINGS
def test_unknown_lines_change_nothing(source: RecordingSource, unknown_lines: list[tuple[int, Any]]) -> None:
    lines = list(LOGS[source])
    for position, payload in unknown_lines:
        lines.insert(min(position, len(lines)), {"type": "never-heard-of", "payload": payload})

    assert [summarize(call) for call in read_calls(dump_lines(lines), source)] == [
        summarize(call) for call in read_calls(dump_lines(LOGS[source]), source)
    ]


@given(st.lists(st.sampled_from("uar"), min_size=1, max_size=30), st.data())
@_LIMITED_SETTINGS
def test_any_tree_of_lines_is_read_and_each_history_is_a_path_to_the_root(
    kinds: list[str], data: st.DataObject
) -> None:
    """Parents may come anywhere, even after their children, be missing, or form a cycle."""
    entry_ids = [f"n{number}" for number in range(len(kinds))]
    lines = []
    for number, kind in enumerate(kinds):
        parent = data.draw(st.sampled_from([*entry_ids, None, "gone"]))
        if kind == "u":
            lines.append(line("user", entry_ids[number], parent, number, text(f"said {number}")))
        else:
            request = f"r{data.draw(st.integers(0, 5))}" if kind == "r" else f"r-{number}"
            lines.append(answer(entry_ids[number], parent, number, request, 9, 9, text(f"told {number}")))
    recorded_calls = read_calls(dump_lines(lines), RecordingSource.CLAUDE_CODE)

    assert len({call.id for call in recorded_calls}) == len(recorded_calls)
    for call in recorded_calls:
        history = call.last_message.history()
        assert [message.depth for message in history] == list(range(len(history)))


@pytest.mark.slow
def test_no_depth_of_nesting_makes_reading_fail() -> None:
    """Regression: JSON that could just be decoded was too deep to be encoded again in a nested call."""
    for depth in range(100, 1_300, 60):
        nested_json = b"[" * depth + b"]" * depth
        for source, lines in LOGS.items():
            content = dump_lines(lines).replace(b'"hi"', nested_json).replace(b'"ho"', nested_json)
            for call in read_calls(content, source):
                summarize(call)


@pytest.mark.slow
def test_a_long_session_is_read_in_time_that_grows_with_it(tmp_path: Path) -> None:
    """2,000 turns, each with an agent's own line in between; the shared history is stored once."""
    lines: list[Any] = []
    parent = None
    for turn in range(2_000):
        lines.append(line("user", f"u{turn}", parent, 0, text("x" * 50)))
        lines.append({"type": "progress", "uuid": f"p{turn}", "parentUuid": f"u{turn}", "sessionId": "s"})
        lines.append(answer(f"a{turn}", f"p{turn}", 1, f"r{turn}", 9, 9, text("y" * 50)))
        parent = f"a{turn}"
    path = tmp_path / "log.jsonl"
    path.write_bytes(dump_lines(lines))
    (recording,) = read_recordings(path)

    assert peek_file(path).source is RecordingSource.CLAUDE_CODE
    assert [call.last_message.depth for call in recording.calls[:3]] == [0, 2, 4]
    assert (
        len(
            {message for call in recording.calls for message in (call.last_message, call.last_message.previous)}
        )
        == 2 * 2_000
    )
