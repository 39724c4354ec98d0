import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.errors import BadOption
from foveate.memory.log_tail import LogTail, log_limit_lines, read_log_tail, read_tail
from foveate.memory.privacy import Gate

KB = 1024
GATE = Gate()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "agent.log"


def test_the_twenty_newest_lines_are_shown_oldest_first(log: Path) -> None:
    log.write_text("".join(f"line {number}\n" for number in range(100)), encoding="utf-8")

    assert read_log_tail(log, gate=GATE) == LogTail(tuple(f"line {number}" for number in range(80, 100)))


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", ()),
        (b"\n", ("",)),
        (b"one", ("one",)),
        (b"one\ntwo\nthr", ("two", "thr")),
        (b"one\r\ntwo\r\n", ("one", "two")),
        (b"one\n\n", ("one", "")),
        (b"10%\r20%\n", ("10%\r20%",)),
        ("a\u2028b\x85c\n".encode(), ("a\u2028b\x85c",)),
        (b"caf\xe9\n", ("caf\ufffd",)),
    ],
)
def test_only_lf_and_crlf_end_a_line(log: Path, data: bytes, lines: tuple[str, ...]) -> None:
    log.write_bytes(data)

    assert read_log_tail(log, 2, gate=GATE) == LogTail(lines)


def test_a_limit_of_zero_gives_no_lines(log: Path) -> None:
    log.write_bytes(b"one\n")

    assert read_log_tail(log, 0, gate=GATE) == LogTail()


@pytest.mark.slow
@given(
    lines=st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\n\r")).map(lambda line: line * 9000)
    ),
    limit=st.integers(1, 5),
    ends_with_newline=st.booleans(),
)
def test_the_newest_lines_are_complete_whatever_the_block_boundaries(
    lines: list[str], limit: int, ends_with_newline: bool
) -> None:
    data = "\n".join([*lines, ""] if ends_with_newline else lines).encode()
    expected = lines[:-1] if not ends_with_newline and lines and not lines[-1] else lines

    tail = read_tail(lambda start, size: data[start : start + size], len(data), limit, name="log")

    if sum(len(line.encode()) + 1 for line in expected[-limit:]) < KB * KB:
        assert tail == LogTail(tuple(expected[-limit:]))


def test_only_the_end_of_a_long_log_is_read() -> None:
    size = 10**15
    read_sizes = []

    def read_block(_start: int, length: int) -> bytes:
        read_sizes.append(length)
        return b"a line of a very long log\n" * (length // 26 + 1)

    assert len(read_tail(read_block, size, 20, name="log").lines) == 20
    assert sum(read_sizes) <= 64 * KB


def test_a_file_with_a_gigabyte_before_its_last_lines_is_read_from_the_end(log: Path) -> None:
    with log.open("wb") as file:
        file.truncate(1_000_000_000)  # a sparse file
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast but one\nlast\n")

    assert read_log_tail(log, 2, gate=GATE) == LogTail(("last but one", "last"))


def test_only_the_end_of_an_endless_line_is_read(log: Path) -> None:
    log.write_bytes("ä".encode() * 2_000_000 + b"x\nlast\n")

    tail = read_log_tail(log, gate=GATE)

    assert tail.lines[1] == "last"
    assert 500 * KB < len(tail.lines[0]) <= 1024 * KB
    assert set(tail.lines[0]) == {"ä", "x"}, "no half of a character is left"
    assert tail.warnings == (f"{log}: the lines are very long, so the oldest one may be incomplete",)


def test_a_missing_file_gives_no_lines_and_a_warning(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")

    assert read_log_tail(tmp_path / "gone.log", gate=GATE) == LogTail(
        warnings=(f"{tmp_path / 'gone.log'}: No such file or directory",)
    )
    assert read_log_tail(tmp_path, gate=GATE).warnings == (f"{tmp_path}: is not a file",)
    assert read_log_tail(tmp_path / "pipe", gate=GATE).warnings == (f"{tmp_path / 'pipe'}: is not a file",)
    assert "loop" in read_log_tail(tmp_path / "loop", gate=GATE).warnings[0]
    assert read_log_tail("a\0b", gate=GATE).warnings == ("'a\\x00b': no file can have this name",)
    assert read_log_tail("a\ud800b", gate=GATE).lines == ()


def test_a_log_truncated_while_it_is_read_gives_no_lines_and_a_warning() -> None:
    tail = read_tail(lambda _start, _size: b"", 5000, 20, name="agent.log")

    assert tail == LogTail(warnings=("agent.log: shrank while it was read",))


@pytest.mark.parametrize(
    ("environment", "limit"),
    [
        ({}, 20),
        ({"CONTEXT_LOG_LIMIT": " "}, 20),
        ({"CONTEXT_LOG_LIMIT": "5"}, 5),
        ({"CONTEXT_LOG_LIMIT": '"0"'}, 0),
    ],
)
def test_the_environment_sets_the_number_of_lines(environment: dict[str, str], limit: int) -> None:
    assert log_limit_lines(environment) == limit


@pytest.mark.parametrize("setting", ["many", "-1", "1.5", "9" * 5000])
def test_an_invalid_number_of_lines_is_an_error_that_names_the_variable(setting: str) -> None:
    with pytest.raises(
        BadOption, match="CONTEXT_LOG_LIMIT must be a whole number of lines, 0 or more, not"
    ) as caught:
        log_limit_lines({"CONTEXT_LOG_LIMIT": setting})

    assert len(str(caught.value)) < 150


def test_a_negative_number_of_lines_is_rejected(log: Path) -> None:
    with pytest.raises(BadOption, match="limit_lines must be a number of lines, 0 or more, not -1"):
        read_log_tail(log, -1, gate=GATE)


@pytest.mark.parametrize(
    ("name", "heading", "private"),
    [
        ("log.org", "* %s", " :private:"),
        ("log.ORG_ARCHIVE", "* %s", " :private:"),
        ("log.md", "# %s", " #private"),
        ("log.Markdown", "# %s", " #private"),
        ("log.org.1", "* %s", " :private:"),
        ("log.md.old~", "# %s", " :private:"),
    ],
)
def test_only_public_lines_of_a_log_in_notes_are_shown(
    tmp_path: Path, name: str, heading: str, private: str
) -> None:
    log = tmp_path / name
    text = f"{heading % 'Monday'}\r\nrain\r\n{heading % ('Bank' + private)}\r\nsecret\r\n"
    log.write_text(f"{text}{heading % 'Tuesday'}\nsun\n", encoding="utf-8", newline="")
    (tmp_path / "link").symlink_to(log)

    for path in (log, str(log), tmp_path / "link"):
        assert read_log_tail(path, 3, gate=GATE) == LogTail(("rain", heading % "Tuesday", "sun"))
    assert read_log_tail(log, gate=Gate.with_tags(["x"], base=["y"])).lines[-3:] == (
        "secret",
        heading % "Tuesday",
        "sun",
    )


def test_a_privacy_tag_far_above_hides_the_newest_lines(tmp_path: Path) -> None:
    log = tmp_path / "log.org"
    log.write_bytes(b"* A\nshown\n* Bank :private:\n" + b"secret\n" * 200_000)

    assert read_log_tail(log, gate=GATE) == LogTail(("* A", "shown"))
    log.write_bytes(b"#+FILETAGS: :private:\n" + log.read_bytes())
    assert read_log_tail(log, gate=GATE) == LogTail()


def test_notes_that_are_too_large_or_not_utf_8_give_no_lines_and_a_warning(tmp_path: Path) -> None:
    large, utf16, truncated = tmp_path / "large.org", tmp_path / "other.md", tmp_path / "cut.md"
    with large.open("wb") as file:
        file.truncate(64 * KB * KB + 1)
    utf16.write_bytes("# A :private:\nsecret\n".encode("utf-16"))
    truncated.write_bytes("# A\nb\u00e4".encode()[:-1])

    assert read_log_tail(large, gate=GATE) == LogTail(
        warnings=(f"{large}: larger than 67,108,864 bytes, the limit for notes",)
    )
    assert read_log_tail(utf16, gate=GATE) == LogTail(warnings=(f"{utf16}: not UTF-8 from byte 0 on",))
    assert read_log_tail(truncated, gate=GATE) == LogTail(("# A", "b\ufffd"))


def test_a_log_that_is_not_notes_is_shown_unchanged(tmp_path: Path) -> None:
    log = tmp_path / "example.org.log"
    log.write_bytes(b"* A :private:\nshown\n")

    assert read_log_tail(log, gate=GATE) == LogTail(("* A :private:", "shown"))
