"""The log: one line per request, without secrets, and without delaying requests."""

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

from foveate.engine.redaction import redact_keys
from foveate.engine.request import AppliedEdit, StepFailure
from foveate.gateway.observability import access_log
from foveate.gateway.observability.access_log import AccessRecord, LogWriter, format_line, record_to_json
from foveate.model import Area, CacheBreakpoint, Place
from tests.support.harness.example_limits import limit_examples

BREAKPOINT = CacheBreakpoint(place=Place(Area.MESSAGES, 0, 0), reason="it pays")
RECORD = AccessRecord(
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
    applied_edits=(AppliedEdit("cache", BREAKPOINT), AppliedEdit("cache", BREAKPOINT)),
    problems=(StepFailure("fold", "StoreUnavailable: gone"),),
)


def write_log(*records: AccessRecord, as_json: bool = False, colours: bool = False) -> str:
    output = io.BytesIO()
    writer = LogWriter(output, as_json=as_json, colours=colours)
    for record in records:
        writer.put(record)
    writer.close()
    return output.getvalue().decode()


def test_a_line_has_all_fields_of_a_request() -> None:
    line = write_log(RECORD)

    for value in ("200", "ana", "claude-opus-4-5", "in    12,345", "read    11,000", "written    1,200",
                 "out     512", "$0.012346", "+   0.6 ms", "1,500 ms", "req_1", "session sess_1",
                 "edits cache 2", "without fold (StoreUnavailable: gone)"):  # fmt: skip
        assert value in line
    assert line.count("\n") == 1


def test_columns_are_aligned_even_with_long_names_and_without_usage() -> None:
    without_usage = AccessRecord(
        at=0.0, id="req_1", method="GET", path="/v1/models", agent="x" * 99, status=404, total_seconds=0.1,
        added_seconds=None,
    )  # fmt: skip

    first, second = format_line(RECORD), format_line(without_usage)

    assert first.index("req_1") == second.index("req_1")
    assert "GET /v1/models" in second


def test_long_names_are_cached_only_as_far_as_they_are_shown() -> None:
    """Regression: thousands of complete names were cached, and a URL can have 256 KB."""
    tracemalloc.start()
    try:
        for number in range(20):
            long = f"{number} {'x' * 1_000_000}"
            format_line(replace(RECORD, path=long, session=long, model=""))
            record_to_json(replace(RECORD, model=long))
        del long
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held_bytes < 1_000_000


def test_json_lines_have_the_same_data() -> None:
    (line,) = write_log(RECORD, as_json=True).splitlines()

    fields = json.loads(line)
    assert fields["at"] == "2027-01-15T08:00:00.250Z"
    assert (fields["id"], fields["agent"], fields["session"], fields["model"]) == (
        "req_1",
        "ana",
        "sess_1",
        "claude-opus-4-5",
    )
    assert (fields["status"], fields["dollars"], fields["added_ms"], fields["ms"]) == (
        200,
        "0.0123456",
        0.6,
        1500.0,
    )
    assert [fields[f"{kind}_tokens"] for kind in ("input", "read", "written", "output")] == [
        12345,
        11000,
        1200,
        512,
    ]
    assert fields["edits"] == {"cache": 2}
    assert fields["problems"] == [{"step": "fold", "reason": "StoreUnavailable: gone"}]


def test_colours_are_used_only_if_enabled() -> None:
    assert "\x1b[" in write_log(RECORD, colours=True)
    assert "\x1b[" not in write_log(RECORD)


@pytest.mark.slow
@settings(max_examples=limit_examples(50))
@given(st.text(alphabet=st.characters(categories=("L", "Cc", "Cs", "Zl", "Zp")), max_size=30), st.booleans())
def test_no_name_of_a_client_breaks_a_line_or_affects_a_terminal(name: str, as_json: bool) -> None:
    record = AccessRecord(
        at=0.0, id="req_1", method="GET", path=name, agent=name, session=name, model=name, status=200,
        total_seconds=0.0, error_reason=name, error_code="x",
    )  # fmt: skip

    line = write_log(record, as_json=as_json)

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
def test_texts_that_look_like_keys_are_redacted(text: str) -> None:
    redacted = redact_keys(f"it said {text} there")

    assert "[key]" in redacted
    for secret in ("abcdef", "whatever1", "secret1"):
        assert secret not in redacted


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    before = logging.getLogger("foveate").level
    yield logging.getLogger("foveate.of a test")
    writer = access_log.current_writer()
    logging.getLogger().removeHandler(writer)
    writer.close()
    logging.getLogger("foveate").setLevel(before)


def test_records_of_modules_are_written_with_their_traceback(logger: logging.Logger) -> None:
    output = io.BytesIO()
    writer = access_log.start_writer(as_json=False, level="info", output=output)

    logger.info("of %s", "ana\x1b[31m")
    logger.debug("not this")
    try:
        raise ValueError("sk-abcdefghijk")
    except ValueError:
        logger.exception("failed with Bearer abcdefghijk")
    writer.close()

    text = output.getvalue().decode()
    assert "info    of a test: of ana\\x1b[31m" in text
    assert "not this" not in text
    assert "error   of a test: failed with Bearer [key]" in text
    assert "ValueError: [key]" in text
    assert "abcdefghijk" not in text


def test_a_slow_output_blocks_nobody_and_lost_lines_are_reported() -> None:
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd, "rb") as read_end, os.fdopen(write_fd, "wb", buffering=0) as pipe:
        writer = LogWriter(pipe, as_json=False, colours=False, max_waiting=2000)
        started = time.perf_counter()
        for _ in range(6000):  # more than the unread pipe takes
            writer.put(RECORD)
        assert time.perf_counter() - started < 20

        chunks: list[bytes] = []
        reader = threading.Thread(
            target=lambda: chunks.extend(iter(lambda: os.read(read_end.fileno(), 65536), b""))
        )
        reader.start()
        deadline = time.monotonic() + 10
        while b"log lines were lost" not in b"".join(chunks) and time.monotonic() < deadline:
            writer.put(RECORD)
            time.sleep(0.05)
        writer.close()
        pipe.close()
        reader.join(10)

    assert b"log lines were lost" in b"".join(chunks)


class RecordingStream(io.BytesIO):
    """Records the size of every flushed chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.chunk_sizes: list[int] = []

    def flush(self) -> None:
        self.chunk_sizes.append(self.tell() - sum(self.chunk_sizes))


def test_lines_are_written_in_atomic_chunks() -> None:
    output = RecordingStream()
    writer = LogWriter(output, as_json=False, colours=False)
    for _ in range(100):
        writer.put(RECORD)
    writer.close()

    assert len(output.chunk_sizes) > 3
    assert max(output.chunk_sizes) <= 4096
    assert output.getvalue().count(b"\n") == 100


def test_a_log_without_a_reader_ends_quietly() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with os.fdopen(write_fd, "wb", buffering=0) as pipe:
        writer = LogWriter(pipe, as_json=False, colours=False)
        writer.put(RECORD)
        writer.close()


class Disk(io.RawIOBase):
    """An unbuffered file on a disk that may be full."""

    def __init__(self) -> None:
        self.is_full = True
        self.content = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.content += bytes(data)
        return len(data)


@pytest.mark.parametrize("is_buffered", [False, True])
def test_a_log_on_a_full_disk_recovers_and_reports_lost_lines(is_buffered: bool) -> None:
    """Regression: after one failed write on a full disk, the process never logged again."""
    disk = Disk()
    output = io.BufferedWriter(disk, 64) if is_buffered else disk
    writer = LogWriter(output, as_json=False, colours=False)  # type: ignore[arg-type]
    writer.put(RECORD)
    wait_until(lambda: writer.problem == "No space left on device" and writer.lost_lines == 1)

    disk.is_full = False
    writer.put(RECORD)
    writer.close()

    assert [b"req_1" in line for line in disk.content.splitlines()] == [True, False]
    assert b"1 log lines were lost" in disk.content
    assert (writer.problem, writer.lost_lines) == ("", 1)


def test_lines_for_a_log_without_a_reader_are_counted_as_lost() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with os.fdopen(write_fd, "wb", buffering=0) as pipe:
        writer = LogWriter(pipe, as_json=False, colours=False)
        writer.put(RECORD)
        wait_until(lambda: writer.problem == "its reader has closed it")
        writer.put(RECORD)

        assert writer.lost_lines == 2
        writer.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_json_record_always_has_the_same_keys() -> None:
    minimal = AccessRecord(at=0.0, id="r", method="GET", path="/", agent="a", status=0, total_seconds=0.0)

    assert record_to_json(minimal).keys() == record_to_json(RECORD).keys()
