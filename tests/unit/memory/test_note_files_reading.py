import os
from pathlib import Path

import pytest

from foveate.errors import UnreadableInput
from foveate.memory.note_files import FileState, InvalidUtf8, decode_text, is_settled, read_stable
from tests.support.scenarios.note_folders import load_library, opened_files, write_files

SECOND_NS = 1_000_000_000


def make_file_state(time_ns: int) -> FileState:
    return FileState(device=1, inode=2, size_bytes=3, modified_ns=0, changed_ns=time_ns)


def test_a_file_is_read_completely_with_its_state(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_bytes(b"\xff\0text\r\n")
    content_and_state = read_stable(str(path))

    assert content_and_state == (b"\xff\0text\r\n", FileState.from_stat(path.stat()))


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.md")

    with pytest.raises(UnreadableInput, match="is not a file"):
        read_stable(str(tmp_path / "a.md"))


def test_a_removed_file_is_reported_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match=r"a\.md: No such file"):
        read_stable(str(tmp_path / "a.md"))


def test_descriptors_are_closed(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"a.md": "text"}) / "a.md"
    before = [number for number in range(256) if is_descriptor_open(number)]
    read_stable(str(path))
    with pytest.raises(UnreadableInput, match="is not a file"):
        read_stable(str(tmp_path))

    assert [number for number in range(256) if is_descriptor_open(number)] == before


def is_descriptor_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", ""),
        ("\ufeffBOM\r\n\0\N{EURO SIGN}".encode(), "\ufeffBOM\r\n\0\N{EURO SIGN}"),
        (b"abc\xe9def", InvalidUtf8(3, is_truncated=False)),
        (b"abc\xff", InvalidUtf8(3, is_truncated=False)),
        (b"abc\xe2\x82", InvalidUtf8(3, is_truncated=True)),
        (b"a\xe9bc\xe2\x82", InvalidUtf8(1, is_truncated=False)),
        (b"\xff\xfea\0", InvalidUtf8(0, is_truncated=False)),
        (b"\xed\xa0\x80", InvalidUtf8(0, is_truncated=False)),
    ],
)
def test_invalid_utf_8_is_reported_with_its_position(data: bytes, expected: str | InvalidUtf8) -> None:
    assert decode_text(data) == expected


@pytest.mark.parametrize(
    ("changed_ns", "read_ns", "expected"),
    [
        (SECOND_NS + 1, SECOND_NS + 1, False),
        (SECOND_NS + 1, SECOND_NS + 10_000_000, False),
        (SECOND_NS + 1, SECOND_NS + 100_000_000, True),
        (SECOND_NS + 1, SECOND_NS - 1, False),  # a server whose clock is ahead
        (SECOND_NS, 2 * SECOND_NS, False),  # a clock of whole seconds
        (SECOND_NS, 4 * SECOND_NS, True),
    ],
)
def test_a_file_read_within_a_clock_tick_of_its_change_is_not_settled(
    changed_ns: int, read_ns: int, expected: bool
) -> None:
    assert is_settled(make_file_state(changed_ns), read_ns) == expected


def test_a_file_that_is_not_settled_is_read_again(tmp_path: Path) -> None:
    def is_opened_again(turn: int) -> bool:
        library = load_library(write_files(tmp_path / str(turn), {"a.md": "text"}))
        with opened_files() as opened:
            changes = library.refresh()
        assert changes.read == ()
        return bool(opened)

    # On a busy machine more than a tick can pass before the read.
    assert any(is_opened_again(turn) for turn in range(100))
