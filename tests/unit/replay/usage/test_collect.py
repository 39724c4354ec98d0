"""Logs are read once, changed ones again, and what cannot be read is counted."""

import json
import os
import sqlite3
from pathlib import Path
from threading import Timer

import pytest

from foveate.cost.pricing.price_book import PriceBook
from foveate.replay.local_logs import LogPlace
from foveate.replay.recording import RecordingSource
from foveate.replay.usage.collect import CollectedUsage, LogCollector, UsageCache
from tests.support.scenarios.agent_logs import codex_meta, codex_model, codex_token_count
from tests.support.scenarios.usage_logs import claude_line, write_lines, write_opencode_database

BOOK = PriceBook()


@pytest.fixture
def place(tmp_path: Path) -> LogPlace:
    folder = tmp_path / "projects"
    for number in range(3):
        write_lines(folder / "-repo" / f"{number}.jsonl", [claude_line(message_id=f"msg_{number:020}")])
    return LogPlace(RecordingSource.CLAUDE_CODE, folder)


def collect(*places: LogPlace, cache: UsageCache | None = None, processes: int = 1) -> CollectedUsage:
    return LogCollector(places, cache or UsageCache()).collect(lambda: BOOK, processes=processes)


def refuse_prices() -> PriceBook:
    raise AssertionError("no log should have to be read")


def test_all_calls_are_found_with_their_price(place: LogPlace) -> None:
    collected = collect(place)
    assert (collected.logs, len(collected.records), collected.unreadable_lines) == (3, 3, 0)
    # $3, $0.30, $3.75, $6 and $15 per million tokens
    assert [record.picodollars for record in collected.records] == [
        10 * 3_000_000 + 2_000 * 300_000 + 100 * 3_750_000 + 200 * 6_000_000 + 5 * 15_000_000
    ] * 3


def test_a_call_in_two_files_counts_once_in_the_older_one(place: LogPlace) -> None:
    copy = write_lines(
        place.path / "-repo" / "0-copy.jsonl", [claude_line(message_id=f"msg_{1:020}", sessionId="copy")]
    )
    os.utime(copy, (2e9, 2e9))
    collected = collect(place)
    assert (collected.logs, len(collected.records)) == (4, 3)
    assert {record.session for record in collected.records} == {"session-1"}


def test_a_model_without_a_price_stays_unknown(tmp_path: Path) -> None:
    line = claude_line()
    line["message"] |= {"model": "nobody/knows-this"}
    write_lines(tmp_path / "a.jsonl", [line])
    (record,) = collect(LogPlace(RecordingSource.CLAUDE_CODE, tmp_path)).records
    assert record.picodollars is None


def test_a_cost_of_zero_in_a_log_of_pi_is_not_a_price(tmp_path: Path) -> None:
    """pi logs zero for models whose price it does not know, and for those of some subscriptions."""
    usage = {"input": 1_000, "output": 0, "cacheRead": 0, "cacheWrite": 0, "cost": {"total": 0}}
    lines = [
        {"type": "message", "id": model, "message": {"role": "assistant", "model": model, "usage": usage}}
        | {"timestamp": f"2026-06-05T10:0{minute}:00Z"}
        for minute, model in enumerate(("nobody-knows-this", "claude-sonnet-4-5"))
    ]
    write_lines(tmp_path / "a.jsonl", lines)
    records = collect(LogPlace(RecordingSource.PI, tmp_path)).records
    assert [(record.picodollars, record.has_logged_cost) for record in records] == [
        (None, False),
        (1_000 * 3_000_000, False),
    ]


@pytest.mark.parametrize(
    ("provider", "is_priced"), [("openai", True), ("foveate", True), ("ollama", False), ("lmstudio", False)]
)
def test_a_provider_that_the_user_of_codex_named_has_the_prices_of_the_models_maker(
    tmp_path: Path, provider: str, is_priced: bool
) -> None:
    meta = codex_meta()
    meta["payload"] |= {"model_provider": provider}
    count = codex_token_count(2, (1_000, 0, 0), (1_000, 0, 0))
    write_lines(tmp_path / "rollout-1.jsonl", [meta, codex_model(1, "gpt-5.1-codex"), count])

    (record,) = collect(LogPlace(RecordingSource.CODEX, tmp_path)).records
    assert record.picodollars == (1_000 * 1_250_000 if is_priced else None)


@pytest.mark.process
def test_several_processes_find_the_same(place: LogPlace) -> None:
    assert collect(place, processes=2) == collect(place)


def test_unchanged_logs_are_not_read_again(place: LogPlace, tmp_path: Path) -> None:
    file = tmp_path / "data" / "cache.msgpack"
    first = collect(place, cache=UsageCache(file, prices="1"))
    assert file.stat().st_mode & 0o777 == 0o600
    again = LogCollector([place], UsageCache(file, prices="1"))
    assert again.pending_bytes == 0
    assert again.collect(refuse_prices) == first


def test_a_log_that_has_grown_is_read_again(place: LogPlace, tmp_path: Path) -> None:
    file = tmp_path / "cache.msgpack"
    collect(place, cache=UsageCache(file))
    with (place.path / "-repo" / "0.jsonl").open("a") as log:
        log.write(json.dumps(claude_line(message_id="msg_new_0123456789abcdef")) + "\n")
    assert len(collect(place, cache=UsageCache(file)).records) == 4


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x82\xa7version\xa11"])
def test_a_corrupt_cache_is_ignored_and_replaced(place: LogPlace, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "cache.msgpack"
    file.write_bytes(content)
    assert len(collect(place, cache=UsageCache(file)).records) == 3
    assert LogCollector([place], UsageCache(file)).pending_bytes == 0


def test_other_prices_discard_the_cache(place: LogPlace, tmp_path: Path) -> None:
    file = tmp_path / "cache.msgpack"
    collect(place, cache=UsageCache(file, prices="old"))
    assert LogCollector([place], UsageCache(file, prices="new")).pending_bytes > 0


def test_a_deleted_log_leaves_the_cache_and_other_places_stay(place: LogPlace, tmp_path: Path) -> None:
    file = tmp_path / "cache.msgpack"
    other = LogPlace(RecordingSource.CLAUDE_CODE, tmp_path / "other")
    write_lines(other.path / "a.jsonl", [claude_line(message_id="msg_other_0123456789abcdef")])
    collect(place, other, cache=UsageCache(file))
    (place.path / "-repo" / "0.jsonl").unlink()
    (place.path / "-repo" / "1.jsonl").write_text("")
    assert len(collect(place, cache=UsageCache(file)).records) == 1
    assert "/0.jsonl" not in file.read_bytes().decode("latin-1")
    assert LogCollector([other], UsageCache(file)).pending_bytes == 0


def test_a_cache_that_cannot_be_written_does_not_matter(place: LogPlace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert len(collect(place, cache=UsageCache(tmp_path / "file" / "cache.msgpack")).records) == 3


def test_unreadable_logs_and_lines_are_counted(place: LogPlace) -> None:
    (place.path / "-repo" / "broken.jsonl").symlink_to("nowhere")
    (place.path / "-repo" / "folder.jsonl").mkdir()
    (place.path / "-repo" / "bad.jsonl").write_text('{"usage":\n')
    collected = collect(place)
    assert len(collected.records) == 3
    assert collected.unreadable_logs == [str(place.path / "-repo" / "broken.jsonl")]
    assert collected.unreadable_lines == 1


def test_a_pipe_between_logs_is_not_waited_for(place: LogPlace) -> None:
    pipe = place.path / "pipe.jsonl"
    os.mkfifo(pipe)
    closer = Timer(10, lambda: os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)))  # ends a reader that waits
    closer.start()
    try:
        collected = collect(place)
        assert closer.is_alive()
    finally:
        closer.cancel()
    assert (len(collected.records), collected.unreadable_logs) == (3, [str(pipe)])


@pytest.mark.process
@pytest.mark.parametrize("processes", [1, 2])
def test_names_of_files_need_not_be_utf_8(tmp_path: Path, processes: int) -> None:
    folder = tmp_path / "projects" / os.fsdecode(b"-\xff")
    for name in (b"\xe9.jsonl", b"\xe8.jsonl"):
        line = claude_line(message_id=f"msg_{name[0]:020}") | {"sessionId": None, "cwd": None}
        write_lines(folder / os.fsdecode(name), [line])
    place = LogPlace(RecordingSource.CLAUDE_CODE, folder.parent)
    file = tmp_path / "data" / "cache.msgpack"

    for _ in range(2):
        collected = collect(place, cache=UsageCache(file), processes=processes)
        assert [record.project for record in collected.records] == ["-\\udcff"] * 2
        assert {record.session for record in collected.records} == {"\\udce8", "\\udce9"}


def test_a_database_is_read_again_if_only_its_write_ahead_log_has_changed(tmp_path: Path) -> None:
    database = tmp_path / "opencode.db"
    write_opencode_database(database)
    place, file = LogPlace(RecordingSource.OPENCODE, database), tmp_path / "cache.msgpack"
    first = collect(place, cache=UsageCache(file))
    assert [record.has_logged_cost for record in first.records] == [True, True]
    (tmp_path / "opencode.db-wal").write_bytes(b"")
    assert LogCollector([place], UsageCache(file)).pending_bytes > 0


def test_a_damaged_database_is_reported(tmp_path: Path) -> None:
    database = tmp_path / "opencode.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE other (id TEXT)")
    connection.close()
    assert collect(LogPlace(RecordingSource.OPENCODE, database)).unreadable_logs == [str(database)]


@pytest.mark.slow
def test_ten_thousand_files_are_read(tmp_path: Path) -> None:
    for number in range(10_000):
        write_lines(
            tmp_path / str(number % 50) / f"{number}.jsonl", [claude_line(message_id=f"msg_{number:020}")]
        )
    assert len(collect(LogPlace(RecordingSource.CLAUDE_CODE, tmp_path)).records) == 10_000
