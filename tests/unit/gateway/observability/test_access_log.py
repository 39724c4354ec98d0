"""The log: one line per request, without secrets, and without delaying requests."""

import errno
import io
import json
import logging
import os
import re
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
from rich.cells import cell_len

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


def make_log_record(record: AccessRecord) -> logging.LogRecord:
    return logging.LogRecord("foveate.requests", logging.INFO, "", 0, record, None, None)


def write_log(*records: AccessRecord | logging.LogRecord, as_json: bool = False, colours: bool = False) -> str:
    output = io.BytesIO()
    writer = LogWriter(output, as_json=as_json, colours=colours)
    for record in records:
        writer.handle(make_log_record(record) if isinstance(record, AccessRecord) else record)
    writer.close()
    return output.getvalue().decode()


def test_a_line_has_the_main_fields_of_a_request() -> None:
    line = write_log(replace(RECORD, id="req_6f3a91c2", problems=(), session="0123456789abcdef"))

    assert re.match(r"\d\d:\d\d:\d\d 200 1\.5s ana ", line)
    assert line.endswith(
        " ana     01234567 claude-opus-4-5    12k in  11k cached  512 out $0.0123 req_6f3a91\n"
    )


def make_edit(step: str) -> AppliedEdit:
    return AppliedEdit(step, BREAKPOINT)


@pytest.mark.parametrize(
    ("record", "end"),
    [
        (
            replace(RECORD, problems=(), applied_edits=(make_edit("fold"), make_edit("cache"))),
            "$0.0123 compacted",
        ),
        (replace(RECORD, problems=(), dollars=None, is_broken=True), "$? interrupted"),
        (replace(RECORD, has_usage=False), "claude-opus-4-5   req_1 compaction failed: StoreUnavailable: gone"),
        (
            replace(RECORD, has_usage=False, problems=(), status=529),
            "claude-opus-4-5   req_1 error from anthropic",
        ),
        (
            replace(RECORD, has_usage=False, problems=(), status=429, error_code="cap", error_reason="spent"),
            "claude-opus-4-5   req_1 cap: spent",
        ),
        (
            replace(RECORD, has_usage=False, problems=(), status=0),
            "claude-opus-4-5   req_1 client disconnected",
        ),
        (replace(RECORD, has_usage=False, problems=(), model=""), " sess_1   POST /v1/messages req_1"),
    ],
)
def test_a_line_ends_with_what_is_special_about_the_request(record: AccessRecord, end: str) -> None:
    assert format_line(record).endswith(end)
    assert (" 499 " in format_line(record)) == (record.status == 0)


def test_columns_are_aligned_with_long_names() -> None:
    long = "x" * 99

    first = format_line(replace(RECORD, problems=()))
    second = format_line(replace(RECORD, agent=long, session=long, model=long, problems=()))

    assert first.index("cached") == second.index("cached")


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5 "),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5 "),
        ("openrouter/anthropic/claude-opus-4-5", "claude-opus-4-5 "),
        ("gpt-5-mini-2025-08-07", "gpt-5-mini "),
        ("gpt-4.1", "gpt-4.1 "),
        ("some-model-with-a-long-name", "some-mod…ong-name "),
    ],
)
def test_long_model_names_keep_what_distinguishes_them(model: str, shown: str) -> None:
    assert f" sess_1   {shown}" in format_line(replace(RECORD, model=model, problems=()))


NAMES = st.text(alphabet=st.characters(categories=("L", "N", "P", "So")), max_size=300)
COUNTS = st.integers(0, 10**18)


@settings(max_examples=limit_examples(100))
@given(NAMES, NAMES, NAMES, NAMES, COUNTS, COUNTS, st.booleans(), st.sampled_from((0, 200, 429)))
def test_a_line_is_at_most_100_columns_wide(
    agent: str, session: str, model: str, reason: str, tokens: int, dollars: int, has_usage: bool, status: int
) -> None:
    record = replace(
        RECORD,
        agent=agent,
        session=session,
        model=model,
        path=reason,
        status=status,
        total_seconds=dollars / 7,
        input_tokens=tokens,
        read_tokens=tokens,
        output_tokens=tokens,
        dollars=Decimal(dollars),
        has_usage=has_usage,
        applied_edits=(make_edit("fold"), make_edit("room")),
        problems=(StepFailure("fold", reason),),
        error_code=reason[:20],
        error_reason=reason,
    )

    assert cell_len(format_line(record)) <= 100


def test_messages_have_a_short_form_for_terminals() -> None:
    record = logging.LogRecord("foveate", logging.INFO, "", 0, "the complete message", None, None)
    record.short_message = "short: " + "x" * 200

    short, complete = write_log(record), json.loads(write_log(record, as_json=True))

    assert re.fullmatch(r"\d\d:\d\d:\d\d short: x+…\n", short)
    assert len(short) == 101
    assert complete["message"] == "the complete message"


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


def test_requests_and_messages_are_written_in_the_order_of_their_calls() -> None:
    messages = [
        logging.LogRecord("foveate", logging.WARNING, "", 0, "%d of %d", (number, 3), None)
        for number in range(3)
    ]
    records = [each for message in messages for each in (message, RECORD)]

    lines = [json.loads(line) for line in write_log(*records, as_json=True).splitlines()]

    assert [line.get("message", line["logger"]) for line in lines] == [
        "0 of 3",
        "foveate.requests",
        "1 of 3",
        "foveate.requests",
        "2 of 3",
        "foveate.requests",
    ]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_file_name_that_is_not_unicode_does_not_end_the_log(as_json: bool) -> None:
    """Regression: JSON cannot contain unpaired surrogates, and the exception ended the thread that writes."""
    record = logging.LogRecord("foveate", logging.WARNING, "", 0, "%s is missing", ("b\udce4r.org",), None)

    first, second = write_log(record, RECORD, as_json=as_json).splitlines()

    assert r"b\udce4r.org is missing" in (json.loads(first)["message"] if as_json else first)
    assert "claude-opus-4-5" in second


def test_a_message_with_wrong_arguments_fails_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.LogRecord("foveate", logging.WARNING, "", 0, "%d of %d", (1,), None)

    (line,) = write_log(record, RECORD).splitlines()

    assert "claude-opus-4-5" in line
    assert "not enough arguments for format string" in capsys.readouterr().err


def test_other_handlers_see_requests_as_text_without_keys() -> None:
    text = make_log_record(replace(RECORD, model="", has_usage=False, path="/v1?key=AIzaabcdefgh")).getMessage()

    assert "POST /v1?key=[key]" in text
    assert "AIza" not in text


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
            writer.handle(make_log_record(RECORD))
        assert time.perf_counter() - started < 20

        chunks: list[bytes] = []
        reader = threading.Thread(
            target=lambda: chunks.extend(iter(lambda: os.read(read_end.fileno(), 65536), b""))
        )
        reader.start()
        deadline = time.monotonic() + 30
        while b"log lines were lost" not in b"".join(chunks) and time.monotonic() < deadline:
            writer.handle(make_log_record(RECORD))
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


def test_lines_are_written_together_in_atomic_chunks() -> None:
    output = RecordingStream()
    writer = LogWriter(output, as_json=False, colours=False)
    for _ in range(200):
        writer.handle(make_log_record(RECORD))
    writer.close()

    assert 3 < len(output.chunk_sizes) < 100
    assert max(output.chunk_sizes) <= 4096
    assert output.getvalue().count(b"\n") == 200


def test_a_log_without_a_reader_ends_quietly() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with os.fdopen(write_fd, "wb", buffering=0) as pipe:
        writer = LogWriter(pipe, as_json=False, colours=False)
        writer.handle(make_log_record(RECORD))
        writer.close()


@pytest.mark.slow
def test_a_log_that_nobody_reads_does_not_prevent_the_end_of_the_process() -> None:
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd, "rb") as read_end, os.fdopen(write_fd, "wb", buffering=0) as pipe:
        writer = LogWriter(pipe, as_json=False, colours=False)
        for _ in range(2000):  # more than the unread pipe takes
            writer.handle(make_log_record(RECORD))
        started = time.perf_counter()
        writer.close()
        writer.close()
        assert time.perf_counter() - started < 20

        reader = threading.Thread(target=lambda: list(iter(lambda: os.read(read_end.fileno(), 65536), b"")))
        reader.start()
        writer.close()
        pipe.close()
        reader.join(10)


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
    output: Any = io.BufferedWriter(disk, 64) if is_buffered else disk
    writer = LogWriter(output, as_json=False, colours=False)
    writer.handle(make_log_record(RECORD))
    wait_until(lambda: writer.problem == "No space left on device" and writer.lost_lines == 1)

    disk.is_full = False
    writer.handle(make_log_record(RECORD))
    writer.close()

    assert [b"claude-opus-4-5" in line for line in disk.content.splitlines()] == [True, False]
    assert b"1 log lines were lost" in disk.content
    assert (writer.problem, writer.lost_lines) == ("", 1)


def test_lines_for_a_log_without_a_reader_are_counted_as_lost() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with os.fdopen(write_fd, "wb", buffering=0) as pipe:
        writer = LogWriter(pipe, as_json=False, colours=False)
        writer.handle(make_log_record(RECORD))
        wait_until(lambda: writer.problem == "its reader has closed it")
        writer.handle(make_log_record(RECORD))

        assert writer.lost_lines == 2
        writer.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_json_record_always_has_the_same_keys() -> None:
    minimal = AccessRecord(at=0.0, id="r", method="GET", path="/", agent="a", status=0, total_seconds=0.0)

    assert record_to_json(minimal).keys() == record_to_json(RECORD).keys()
