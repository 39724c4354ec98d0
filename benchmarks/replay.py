"""Sessions and megabytes of log replayed per second: only read, and simulated under every policy.

The logs are repeated under new names until there is enough to measure. One more is generated, a session of
2,000 calls: the cost of a call must not grow with its history. The lower bound is `json.loads` of the same
lines. Times are CPU times in one process, except in rows with a number of processes: these run like the command
and are wall times, in one process and in one per core.
"""

import gzip
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.harness import BadData, Cell, Report
from benchmarks.recorded import DATA
from foveate.cost.pricing.price_book import PriceBook
from foveate.replay.outcomes import Policy, ReplayedSession
from foveate.replay.recording import Recording
from foveate.replay.recording_files import find_files, group_sessions, read_session
from foveate.replay.run import ReplayOptions, replay_recording, replay_sessions

_Result = TypeVar("_Result")

_MEGABYTE = 1_000_000
_MIN_BYTES, _QUICK_BYTES = 24 * _MEGABYTE, 1 * _MEGABYTE
_LONG_CALLS, _QUICK_CALLS = 2_000, 300
# Prefixes of the ids of Claude Code sessions, requests and lines; a pi call is identified by its time in
# milliseconds.
_NAMES = (b'"sessionId":"', b'"requestId":"', b'"uuid":"', b'"parentUuid":"')
_SENT_AT = re.compile(rb'("timestamp":)(\d{13})')
_SETS: dict[str, tuple[Policy, ...]] = {
    "recorded": (Policy.RECORDED,),
    "without layout": (Policy.RECORDED, Policy.NONE, Policy.MARKERS, Policy.MARKERS_1H),
    "all": tuple(Policy),
}


FIGURES = (
    "sessions",
    "mb",
    "mb_per_second",
    "sessions_per_second",
    "read_mb_per_second",
    "recorded_mb_per_second",
    "long_mb_per_second",
    "long_us_per_call",
    "cores",
    "alone_mb_per_second",
    "side_by_side_mb_per_second",
    "within_3pct",
    "worst_off",
    "sessions_<format>",
    "within_3pct_<format>",
    "worst_off_<format>",
)


def run(data: Path | None, *, quick: bool = False) -> Report:
    """`mb_per_second` is of all policies, with reading; `within_3pct` is the share so near its usage.

    The figures by format are of the sessions with logged usage or a logged cost, in every format.
    """
    data_folder = data or DATA / "sessions"
    logs = _logs(data_folder)
    book = PriceBook()
    book.preload()
    with tempfile.TemporaryDirectory() as folder:
        many = _write_repeated(logs, Path(folder) / "many", _QUICK_BYTES if quick else _MIN_BYTES)
        long = _write_long(Path(folder) / "long", _QUICK_CALLS if quick else _LONG_CALLS)
        _replay(_read(long), book, tuple(Policy))  # loads vocabularies and tables
        rows = [*_measure("recorded logs", many, book), *_measure("one long session", long, book)]
        checks = _checks(many, book)
        cores = os.cpu_count() or 1
        alone, side_by_side = (_measure_wall_time(many, processes) for processes in (1, cores))
        rows += [alone, side_by_side]
    figures: dict[str, float] = {
        "sessions": float(rows[0]["sessions"] or 0),
        "mb": float(rows[0]["mb"] or 0),
        "mb_per_second": _figure(rows, "recorded logs", "all"),
        "sessions_per_second": _figure(rows, "recorded logs", "all", "sessions_per_second"),
        "read_mb_per_second": _figure(rows, "recorded logs", "read"),
        "recorded_mb_per_second": _figure(rows, "recorded logs", "recorded"),
        "long_mb_per_second": _figure(rows, "one long session", "all"),
        "long_us_per_call": _figure(rows, "one long session", "all", "us_per_call"),
        "cores": cores,
        "alone_mb_per_second": _mb_per_second(alone),
        "side_by_side_mb_per_second": _mb_per_second(side_by_side),
        "within_3pct": sum(abs(off) <= 0.03 for off in checks) / len(checks) if checks else 0.0,
        "worst_off": max(map(abs, checks), default=0.0),
    }
    figures |= _checks_by_format(data_folder, book)
    floor = _figure(rows, "recorded logs", "json.loads")
    return Report(figures=figures, peers={"json.loads": {"mb_per_second": floor}}, rows=rows)


def _logs(data: Path) -> list[bytes]:
    paths = sorted(data.rglob("*.jsonl*")) if data.is_dir() else [data]
    logs = [gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes() for path in paths]
    if not logs:
        raise BadData(f"there are no logs (*.jsonl, *.jsonl.gz) under {data}")
    return logs


def _write_repeated(logs: Sequence[bytes], folder: Path, min_bytes: int) -> Path:
    """Write the logs into a folder repeatedly under new names, each session and request distinct."""
    folder.mkdir()
    written = turn = 0
    while written < min_bytes:
        for number, log in enumerate(logs):
            content = log
            for name in _NAMES:
                content = content.replace(name, b"%s%d-" % (name, turn))
            content = _SENT_AT.sub(lambda at, later=turn: b"%s%d" % (at[1], int(at[2]) + later), content)
            (folder / f"{turn}-{number}.jsonl").write_bytes(content)
            written += len(content)
        turn += 1
    return folder


def _write_long(folder: Path, calls: int) -> Path:
    """Write one Claude Code session in which each call reads a file."""
    folder.mkdir()
    with (folder / "long.jsonl").open("w", encoding="utf-8") as file:
        for line in _long_lines(calls):
            file.write(json.dumps(line) + "\n")
    return folder


def _long_lines(calls: int) -> Iterator[dict[str, object]]:
    parent, number, known = None, 0, 15_000
    text = "def total(lines):\n    return sum(line.amount for line in lines)\n" * 20

    def line(kind: str, message: Mapping[str, object], at: int, **more: object) -> dict[str, object]:
        nonlocal parent, number
        number += 1
        record = {
            "parentUuid": parent,
            "uuid": f"u{number}",
            "sessionId": "long",
            "type": kind,
            "message": message,
        }
        parent = f"u{number}"
        return record | {"timestamp": f"2026-11-02T{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}.000Z"} | more

    yield line("user", {"role": "user", "content": "Read every file, and tell me what is in it."}, 0)
    for call in range(calls):
        use = {"type": "tool_use", "id": f"t{call}", "name": "Read", "input": {"file_path": f"src/{call}.py"}}
        new = 15_000 if not call else 700
        usage = {
            "input_tokens": 4,
            "cache_creation_input_tokens": new,
            "cache_read_input_tokens": known if call else 0,
            "output_tokens": 60,
        }
        known += new if call else 0
        answer = {"role": "assistant", "model": "claude-sonnet-4-6", "content": [use], "usage": usage}
        yield line("assistant", answer | {"stop_reason": "tool_use"}, 20 * call + 5, requestId=f"r{call}")
        result = {"type": "tool_result", "tool_use_id": f"t{call}", "content": f"# {call}\n{text}"}
        yield line("user", {"role": "user", "content": [result]}, 20 * call + 8)


def _measure(name: str, folder: Path, book: PriceBook) -> Iterator[dict[str, Cell]]:
    files = find_files([folder]).files
    size = sum(path.stat().st_size for path in files)
    recordings, seconds = _time_call(lambda: _read(folder))
    calls = sum(len(recording.calls) for recording in recordings)

    def row(what: str, took: float) -> dict[str, Cell]:
        return {
            "of": name,
            "what": what,
            "sessions": len(recordings),
            "calls": calls,
            "mb": size / _MEGABYTE,
            "mb_per_second": size / _MEGABYTE / took,
            "sessions_per_second": len(recordings) / took,
            "us_per_call": took / max(calls, 1) * 1e6,
        }

    _, floor = _time_call(lambda: [json.loads(line) for path in files for line in path.open("rb")])
    yield row("json.loads", floor)
    yield row("read", seconds)
    for what, policies in _SETS.items():
        took = seconds + _time_call(lambda chosen=policies: _replay(recordings, book, chosen))[1]
        yield row(what, took)


def _read(folder: Path) -> list[Recording]:
    read, _ = group_sessions(find_files([folder]).files)
    return [recording for session in read for recording in read_session(session)]


def _replay(
    recordings: Sequence[Recording], book: PriceBook, policies: tuple[Policy, ...]
) -> list[ReplayedSession]:
    options = ReplayOptions(policies=policies)
    return [replay_recording(recording, book, options) for recording in recordings]


def _measure_wall_time(folder: Path, processes: int) -> dict[str, Cell]:
    """Replay all policies like the command, in this many processes, and measure wall time."""
    files = find_files([folder]).files
    size = sum(path.stat().st_size for path in files)
    started = time.perf_counter()
    done = list(replay_sessions(group_sessions(files)[0], ReplayOptions(), processes=processes))
    took = time.perf_counter() - started
    replayed = [item for session in done for item in session.replayed]
    calls = sum(item.calls for item in replayed)
    return {
        "of": "recorded logs",
        "what": f"all, in {processes} process{'es' * (processes != 1)}",
        "sessions": len(replayed),
        "calls": calls,
        "mb": size / _MEGABYTE,
        "mb_per_second": size / _MEGABYTE / took,
        "sessions_per_second": len(replayed) / took,
        "us_per_call": took / max(calls, 1) * 1e6,
    }


def _mb_per_second(row: Mapping[str, Cell]) -> float:
    value = row["mb_per_second"]
    assert isinstance(value, float)
    return value


def _checks(folder: Path, book: PriceBook) -> list[float]:
    """Return each session's deviation from its usage, in the first round."""
    files = find_files([folder]).files
    read, _ = group_sessions([path for path in files if path.name.startswith("0-")])
    recordings = [recording for session in read for recording in read_session(session)]
    replayed = _replay(recordings, book, (Policy.RECORDED,))
    return [item.check.relative_error for item in replayed if item.check.relative_error is not None]


def _checks_by_format(folder: Path, book: PriceBook) -> dict[str, float]:
    """Return the deviation of the sessions of each format from the logged usage."""
    by_format: dict[str, list[float]] = {}
    for session in group_sessions(find_files([folder]).files)[0]:
        recordings = read_session(session) if session.source is not None else []
        for item in _replay(recordings, book, (Policy.RECORDED,)):
            if item.check.relative_error is not None:
                by_format.setdefault(item.source.replace("-", "_"), []).append(item.check.relative_error)
    figures: dict[str, float] = {}
    for name, offs in sorted(by_format.items()):
        figures[f"sessions_{name}"] = len(offs)
        figures[f"within_3pct_{name}"] = sum(abs(off) <= 0.03 for off in offs) / len(offs)
        figures[f"worst_off_{name}"] = max(map(abs, offs))
    return figures


def _time_call(work: Callable[[], _Result]) -> tuple[_Result, float]:
    started = time.process_time()
    result = work()
    return result, time.process_time() - started


def _figure(rows: Sequence[dict[str, Cell]], of: str, what: str, name: str = "mb_per_second") -> float:
    value = next(row[name] for row in rows if row["of"] == of and row["what"] == what)
    assert isinstance(value, float)
    return value
