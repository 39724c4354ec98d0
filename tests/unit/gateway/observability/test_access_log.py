"""The log: one line a request, nothing secret in it, and nobody waits for it."""

import errno
import io
import json
import logging
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from foveate.engine.options import redact_keys
from foveate.engine.request import AppliedEdit, StepFailure
from foveate.gateway.observability import access_log
from foveate.gateway.observability.access_log import AccessRecord, LogWriter, format_line, record_to_json
from foveate.model import Area, CacheBreakpoint, Place
from tests.support.harness.example_limits import limit_examples

MARK = CacheBreakpoint(place=Place(Area.MESSAGES, 0, 0), reason="it pays")
TOLD = AccessRecord(
    at=1_800_000_000.25,
    id="req_1",
    method="POST",
    path="/v1/messages",
    agent="ana",
    session="sess_1",
    provider="anthropic",
    model="claude-opus-4-5",
    status=200,
    input_tokens=12_345,
    read_tokens=11_000,
    written_tokens=1_200,
    output_tokens=512,
    dollars=Decimal("0.0123456"),
    added_seconds=0.0006,
    total_seconds=1.5,
    has_usage=True,
    applied_edits=(AppliedEdit("cache", MARK), AppliedEdit("cache", MARK)),
    problems=(StepFailure("fold", "StoreUnavailable: gone"),),
)


def written(*told: AccessRecord, as_json: bool = False, colours: bool = False) -> str:
    output = io.BytesIO()
    writer = LogWriter(output, as_json=as_json, colours=colours)
    for one in told:
        writer.put(one)
    writer.close()
    return output.getvalue().decode()


def test_a_line_has_all_that_is_asked_of_a_request() -> None:
    line = written(TOLD)

    for said in ("200", "ana", "claude-opus-4-5", "in    12,345", "read    11,000", "written    1,200",
                 "out     512", "$0.012346", "+   0.6 ms", "1,500 ms", "req_1", "session sess_1",
                 "edits cache 2", "without fold (StoreUnavailable: gone)"):  # fmt: skip
        assert said in line
    assert line.count("\n") == 1


def test_lines_stand_below_each_other_also_where_names_are_long_and_nothing_was_billed() -> None:
    other = AccessRecord(
        at=0.0, id="req_1", method="GET", path="/v1/models", agent="x" * 99, status=404, total_seconds=0.1,
        added_seconds=None,
    )  # fmt: skip

    one, two = format_line(TOLD), format_line(other)

    assert one.index("req_1") == two.index("req_1")
    assert "GET /v1/models" in two


def test_of_long_names_no_more_is_remembered_than_is_shown() -> None:
    """Defect: thousands of them were, whole, and an address may have 256 KB."""
    tracemalloc.start()
    try:
        for number in range(20):
            long = f"{number} {'x' * 1_000_000}"
            format_line(replace(TOLD, path=long, session=long, model=""))
            record_to_json(replace(TOLD, model=long))
        del long
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held_bytes < 1_000_000


def test_json_has_the_same_as_an_object_a_line() -> None:
    (line,) = written(TOLD, as_json=True).splitlines()

    said = json.loads(line)
    assert said["at"] == "2027-01-15T08:00:00.250Z"
    assert (said["id"], said["agent"], said["session"], said["model"]) == (
        "req_1",
        "ana",
        "sess_1",
        "claude-opus-4-5",
    )
    assert (said["status"], said["dollars"], said["added_ms"], said["ms"]) == (200, "0.0123456", 0.6, 1500.0)
    assert [said[f"{kind}_tokens"] for kind in ("input", "read", "written", "output")] == [
        12345,
        11000,
        1200,
        512,
    ]
    assert said["edits"] == {"cache": 2}
    assert said["problems"] == [{"step": "fold", "reason": "StoreUnavailable: gone"}]


def test_colours_are_only_where_they_are_wanted() -> None:
    assert "\x1b[" in written(TOLD, colours=True)
    assert "\x1b[" not in written(TOLD)


@pytest.mark.slow
@settings(max_examples=limit_examples(50))
@given(st.text(alphabet=st.characters(categories=("L", "Cc", "Cs", "Zl", "Zp")), max_size=30), st.booleans())
def test_no_name_that_a_client_sends_breaks_a_line_or_disturbs_a_terminal(name: str, as_json: bool) -> None:
    told = AccessRecord(
        at=0.0, id="req_1", method="GET", path=name, agent=name, session=name, model=name, status=200,
        total_seconds=0.0, error_reason=name, error_code="x",
    )  # fmt: skip

    line = written(told, as_json=as_json)

    assert line.endswith("\n")
    assert len(line.splitlines()) == 1
    assert line[:-1].isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "Bearer abcdef123456",
        "sk-ant-api03-abcdef",
        "fov-abcdefgh",
        "https://x/v1?key=AIzaabcdefgh",
        "AIzaSyabcdefghij",
        "api_key=whatever1",
        "postgresql://me:secret1@host/db",
    ],
)
def test_what_looks_like_a_key_is_left_out_of_any_line(text: str) -> None:
    shown = redact_keys(f"it said {text} there")

    assert "[key]" in shown
    for secret in ("abcdef", "whatever1", "secret1"):
        assert secret not in shown


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    before = logging.getLogger("foveate").level
    yield logging.getLogger("foveate.of a test")
    writer = access_log.current_writer()
    logging.getLogger().removeHandler(writer)
    writer.close()
    logging.getLogger("foveate").setLevel(before)


def test_what_modules_tell_goes_there_too_with_where_it_failed(root: logging.Logger) -> None:
    output = io.BytesIO()
    writer = access_log.start_writer(as_json=False, level="info", output=output)

    root.info("of %s", "ana\x1b[31m")
    root.debug("not this")
    try:
        raise ValueError("sk-abcdefghijk")
    except ValueError:
        root.exception("failed with Bearer abcdefghijk")
    writer.close()

    said = output.getvalue().decode()
    assert "info    of a test: of ana\\x1b[31m" in said
    assert "not this" not in said
    assert "error   of a test: failed with Bearer [key]" in said
    assert "ValueError: [key]" in said
    assert "abcdefghijk" not in said


def test_who_writes_is_not_waited_for_and_what_is_lost_is_told() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as read, os.fdopen(writing, "wb", buffering=0) as pipe:
        writer = LogWriter(pipe, as_json=False, colours=False, max_waiting=2000)
        started = time.perf_counter()
        for _ in range(6000):  # more than the pipe takes, which nobody reads yet
            writer.put(TOLD)
        assert time.perf_counter() - started < 20

        said: list[bytes] = []
        reader = threading.Thread(target=lambda: said.extend(iter(lambda: os.read(read.fileno(), 65536), b"")))
        reader.start()
        deadline = time.monotonic() + 10
        while b"lines of the log are lost" not in b"".join(said) and time.monotonic() < deadline:
            writer.put(TOLD)
            time.sleep(0.05)
        writer.close()
        pipe.close()
        reader.join(10)

    assert b"lines of the log are lost" in b"".join(said)


class Written(io.BytesIO):
    """Remembers every piece that was written at once."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[int] = []

    def flush(self) -> None:
        self.pieces.append(self.tell() - sum(self.pieces))


def test_lines_are_written_in_pieces_that_no_other_process_comes_between() -> None:
    output = Written()
    writer = LogWriter(output, as_json=False, colours=False)
    for _ in range(100):
        writer.put(TOLD)
    writer.close()

    assert len(output.pieces) > 3
    assert max(output.pieces) <= 4096
    assert output.getvalue().count(b"\n") == 100


def test_a_log_that_nobody_reads_any_longer_ends_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as pipe:
        writer = LogWriter(pipe, as_json=False, colours=False)
        writer.put(TOLD)
        writer.close()


class Disk(io.RawIOBase):
    """A file on a disk that may be full, written without a buffer."""

    def __init__(self) -> None:
        self.is_full = True
        self.kept = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.kept += bytes(data)
        return len(data)


@pytest.mark.parametrize("is_buffered", [False, True])
def test_a_log_that_found_no_room_goes_on_once_there_is_and_says_how_much_is_lost(is_buffered: bool) -> None:
    """Defect: after one failed write, on a full disk, the log was silent to the end of the process."""
    disk = Disk()
    output = io.BufferedWriter(disk, 64) if is_buffered else disk
    writer = LogWriter(output, as_json=False, colours=False)  # type: ignore[arg-type]
    writer.put(TOLD)
    waited_for(lambda: writer.problem == "No space left on device" and writer.lost == 1)

    disk.is_full = False
    writer.put(TOLD)
    writer.close()

    assert [b"req_1" in line for line in disk.kept.splitlines()] == [True, False]
    assert b"1 lines of the log are lost" in disk.kept
    assert (writer.problem, writer.lost) == ("", 1)


def test_what_is_put_into_a_log_that_nobody_reads_is_counted() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as pipe:
        writer = LogWriter(pipe, as_json=False, colours=False)
        writer.put(TOLD)
        waited_for(lambda: writer.problem == "nobody reads it any longer")
        writer.put(TOLD)

        assert writer.lost == 2
        writer.close()


def waited_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_object_always_has_the_same_keys() -> None:
    little = AccessRecord(at=0.0, id="r", method="GET", path="/", agent="a", status=0, total_seconds=0.0)

    assert record_to_json(little).keys() == record_to_json(TOLD).keys()
