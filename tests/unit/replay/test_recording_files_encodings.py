"""A recording is read the same in every notation: lines, pretty-printed, compressed, UTF-16."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from foveate.model import CacheUsage
from foveate.replay.recording import Recording, RecordingSource
from foveate.replay.recording_files import peek_file, read_recordings
from tests.support.scenarios.claude_code_log import SESSION

LINES = [json.loads(json.dumps(one)) for one in SESSION]
PLAIN = "".join(json.dumps(one) + "\n" for one in LINES)
PRETTY = "".join(json.dumps(one, indent=2) + "\n" for one in LINES)
WAYS: dict[str, Callable[[], bytes]] = {
    "UTF-16, as PowerShell writes it": lambda: PLAIN.encode("utf-16"),
    "UTF-16, the other way round": lambda: b"\xfe\xff" + PLAIN.encode("utf-16-be"),
    "UTF-8 with a mark, and line ends of Windows": lambda: (
        b"\xef\xbb\xbf" + PLAIN.replace("\n", "\r\n").encode()
    ),
    "one list in a line": lambda: json.dumps(LINES).encode(),
    "one list over many lines": lambda: json.dumps(LINES, indent=1).encode(),
    "documents over many lines, as jq prints them": lambda: PRETTY.encode(),
}


def usages(one: Recording) -> list[tuple[CacheUsage, int]]:
    return [(call.usage.cache, call.usage.output_tokens) for call in one.calls if call.usage is not None]


@pytest.mark.parametrize("way", WAYS)
def test_a_log_is_read_the_same_in_every_notation(tmp_path: Path, way: str) -> None:
    plain, other = tmp_path / "plain.jsonl", tmp_path / "other.jsonl"
    plain.write_text(PLAIN)
    other.write_bytes(WAYS[way]())
    (expected,), (one,) = read_recordings(plain), read_recordings(other)

    assert usages(expected)
    assert usages(one) == usages(expected)
    assert [len(call.last_message.history()) for call in one.calls] == [
        len(call.last_message.history()) for call in expected.calls
    ]
    assert not one.unreadable


def test_a_cut_log_printed_by_jq_is_reported_by_the_first_line_of_its_last_document(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_text(PRETTY[: PRETTY.rindex("\n}") - 5])
    (one,) = read_recordings(path)

    assert peek_file(path).source is RecordingSource.CLAUDE_CODE
    last = PRETTY[: PRETTY.rindex("\n{\n")].count("\n") + 2
    assert [(broken.line, broken.reason) for broken in one.unreadable] == [(last, "is cut off")]


def test_a_list_that_is_cut_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(LINES)[:-20])
    (one,) = read_recordings(path, source=RecordingSource.CLAUDE_CODE)

    assert not one.calls
    assert [broken.line for broken in one.unreadable] == [1]
