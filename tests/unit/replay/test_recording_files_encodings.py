"""A recording is read the same in every notation: lines, pretty-printed, compressed, UTF-16."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from foveate.model import CacheUsage
from foveate.replay.recording import Recording, RecordingSource
from foveate.replay.recording_files import peek_file, read_recordings
from tests.support.scenarios.claude_code_log import SESSION

LINES = [json.loads(json.dumps(line)) for line in SESSION]
PLAIN = "".join(json.dumps(line) + "\n" for line in LINES)
PRETTY = "".join(json.dumps(line, indent=2) + "\n" for line in LINES)
ENCODERS: dict[str, Callable[[], bytes]] = {
    "UTF-16, as PowerShell writes it": lambda: PLAIN.encode("utf-16"),
    "UTF-16, big-endian": lambda: b"\xfe\xff" + PLAIN.encode("utf-16-be"),
    "UTF-8 with a byte order mark and CRLF": lambda: b"\xef\xbb\xbf" + PLAIN.replace("\n", "\r\n").encode(),
    "one list on one line": lambda: json.dumps(LINES).encode(),
    "one list on many lines": lambda: json.dumps(LINES, indent=1).encode(),
    "documents on many lines, as jq prints them": lambda: PRETTY.encode(),
}


def cache_usages(recording: Recording) -> list[tuple[CacheUsage, int]]:
    return [(call.usage.cache, call.usage.output_tokens) for call in recording.calls if call.usage is not None]


@pytest.mark.parametrize("encoding", ENCODERS)
def test_a_log_is_read_the_same_in_every_notation(tmp_path: Path, encoding: str) -> None:
    plain, other = tmp_path / "plain.jsonl", tmp_path / "other.jsonl"
    plain.write_text(PLAIN)
    other.write_bytes(ENCODERS[encoding]())
    (expected,), (recording,) = read_recordings(plain), read_recordings(other)

    assert cache_usages(expected)
    assert cache_usages(recording) == cache_usages(expected)
    assert [len(call.last_message.history()) for call in recording.calls] == [
        len(call.last_message.history()) for call in expected.calls
    ]
    assert not recording.unreadable


def test_a_cut_log_printed_by_jq_is_reported_by_the_first_line_of_its_last_document(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_text(PRETTY[: PRETTY.rindex("\n}") - 5])
    (recording,) = read_recordings(path)

    assert peek_file(path).source is RecordingSource.CLAUDE_CODE
    last_line = PRETTY[: PRETTY.rindex("\n{\n")].count("\n") + 2
    assert [(problem.line, problem.reason) for problem in recording.unreadable] == [(last_line, "is truncated")]


def test_a_list_that_is_cut_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(LINES)[:-20])
    (recording,) = read_recordings(path, source=RecordingSource.CLAUDE_CODE)

    assert not recording.calls
    assert [problem.line for problem in recording.unreadable] == [1]
