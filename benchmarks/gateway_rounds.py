"""Load cases, the load generator and result rows of the gateway benchmark."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path

from benchmarks.gateway_load import LoadJob, LoadResult
from benchmarks.gateway_processes import Server, log_tail, resident_bytes, start_process
from benchmarks.gateway_requests import KINDS
from benchmarks.gateway_upstream import SLOW_CHUNKS, STREAMED_CHUNKS
from benchmarks.harness import BadData, Cell

DIRECT = "direct"
_PACED = " paced"

# Selects which measured times to use.
_Times = Callable[[LoadResult], Sequence[float]]
_ANSWERS: _Times = attrgetter("answer_ms")
_FIRST_BYTES: _Times = attrgetter("first_byte_ms")
_PIECES: _Times = attrgetter("piece_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCase:
    """Request kind, concurrency and seconds per round; `others` are measured in it too.

    Each connection sends only its first `most` requests, with a pause after each response.
    """

    kind: str
    connections: int
    seconds: float
    max_requests: int = 10**9
    pause_seconds: float = 0.0
    others: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name in reports."""
        return self.kind.removesuffix(_PACED) + _PACED if self.pause_seconds else self.kind


class LoadGenerator:
    """The process that sends requests."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log
        self._jobs = 0

    def measure(self, server: Server, case: LoadCase, *, seconds: float | None = None) -> LoadResult:
        """Measure one server in one case; requests differ each time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._jobs += 1
        job = LoadJob(
            port=server.port,
            kind=case.kind,
            seed=f"{time.time():.0f}.{self._jobs}",
            connections=case.connections,
            seconds=case.seconds if seconds is None else seconds,
            max_requests=case.max_requests,
            pause_seconds=case.pause_seconds,
            measured=(server.pid,),
        )
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        fields = json.loads(line) if line else {"error": f"the load generator has ended: {log_tail(self._log)}"}
        if "error" in fields:
            raise BadData(f"{server.name}, {case.kind}: {fields['error']}\n{log_tail(server.log)}")
        return LoadResult(**fields)


@contextmanager
def load_generator(folder: Path) -> Iterator[LoadGenerator]:
    """Run the load generator until the end of the block."""
    log = folder / "load.log"
    with start_process([sys.executable, "-m", "benchmarks.gateway_load"], log=log) as process:
        yield LoadGenerator(process, log)


def run_rounds(
    load: LoadGenerator, servers: Sequence[Server], case: LoadCase, count: int
) -> dict[str, list[LoadResult]]:
    """Measure each server in this many rounds, after a shorter one as warm-up."""
    found: dict[str, list[LoadResult]] = {server.name: [] for server in servers}
    order = list(servers)
    for turn in range(count + 1):
        for server in order:
            measured = load.measure(server, case, seconds=case.seconds if turn else case.seconds / 3)
            if turn:
                found[server.name].append(measured)
        order.append(order.pop(0))
    ours = ", ".join(f"{name} {_median_quantile(found[name], 0.5):.2f} ms" for name in found)
    print_progress(f"{case.name}, {case.connections} at once: {ours}")
    return found


def rows(case: LoadCase, found: Mapping[str, Sequence[LoadResult]]) -> list[dict[str, Cell]]:
    """Return the results of a case, one row per server."""
    return [_row(case, name, measured, found[DIRECT]) for name, measured in found.items()]


def _row(
    case: LoadCase, name: str, measured: Sequence[LoadResult], direct: Sequence[LoadResult]
) -> dict[str, Cell]:
    answers = sum(len(result.answer_ms) for result in measured)
    elapsed = sum(result.elapsed_seconds for result in measured)
    return {
        "case": case.name,
        "at_once": case.connections,
        "who": name,
        "p50_ms": round(_median_quantile(measured, 0.5), 3),
        "p99_ms": round(_median_quantile(measured, 0.99), 3),
        "added_p10_ms": round(_added_ms(measured, direct, 0.1), 3) if name != DIRECT else None,
        "added_p50_ms": round(_added_ms(measured, direct, 0.5), 3) if name != DIRECT else None,
        "added_p99_ms": round(_added_ms(measured, direct, 0.99), 3) if name != DIRECT else None,
        "per_second": round(answers / elapsed, 1),
        "cpu_us": round(sum(result.gateway_cpu_seconds for result in measured) / answers * 1e6, 1),
        "requests": answers,
        "load_cpu": round(sum(result.load_cpu_seconds for result in measured) / elapsed, 2),
    }


def stream_rows(case: LoadCase, found: Mapping[str, Sequence[LoadResult]]) -> list[dict[str, Cell]]:
    """Return times to first byte, the rate of pieces, and their transit times.

    Transit times are known for slow streams only: in fast ones, most pieces wait for those before them.
    """
    table: list[dict[str, Cell]] = []
    is_slow = KINDS[case.kind].is_slow
    for name, measured in found.items():
        answers = sum(len(result.first_byte_ms) for result in measured)
        elapsed = sum(result.elapsed_seconds for result in measured)
        direct = found[DIRECT] if name != DIRECT else None
        table.append(
            {
                "case": case.name,
                "at_once": case.connections,
                "who": name,
                **_delays("first_byte", measured, direct, _FIRST_BYTES),
                **(_delays("piece", measured, direct, _PIECES) if is_slow else {}),
                "chunks_per_second": round(answers * (SLOW_CHUNKS if is_slow else STREAMED_CHUNKS) / elapsed),
                "answer_kb": round(sum(result.answer_bytes for result in measured) / answers / 1e3, 1),
            }
        )
    return table


def _delays(
    prefix: str, measured: Sequence[LoadResult], direct: Sequence[LoadResult] | None, read_times: _Times
) -> dict[str, Cell]:
    row: dict[str, Cell] = {}
    for share, name in ((0.5, "p50_ms"), (0.99, "p99_ms")):
        row[f"{prefix}_{name}"] = round(_median_quantile(measured, share, read_times), 3)
        row[f"{prefix}_added_{name}"] = (
            None if direct is None else round(_added_ms(measured, direct, share, read_times), 3)
        )
    return row


def _median_quantile(measured: Sequence[LoadResult], share: float, read_times: _Times = _ANSWERS) -> float:
    """Return the median over rounds of a quantile."""
    return statistics.median(_quantile(read_times(result), share) for result in measured)


def _added_ms(
    measured: Sequence[LoadResult], direct: Sequence[LoadResult], share: float, read_times: _Times = _ANSWERS
) -> float:
    """Return the extra time over a direct call; the median over rounds, since other load affects both."""
    pairs = zip(measured, direct, strict=True)
    return statistics.median(
        _quantile(read_times(result), share) - _quantile(read_times(other), share) for result, other in pairs
    )


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure_memory(load: LoadGenerator, server: Server, requests: int, *, seconds: float) -> dict[str, Cell]:
    """Measure a server's memory before, midway through and after requests of many sessions, 16 at once.

    A server that is too slow for all of them is measured after as many as time permits.
    """
    case = LoadCase(kind="many", connections=16, seconds=seconds / 2, max_requests=requests // 32)
    before = resident_bytes(server.pid)
    first = load.measure(server, case)
    half = resident_bytes(server.pid)
    second = load.measure(server, case)
    after = resident_bytes(server.pid)
    done = len(first.answer_ms), len(first.answer_ms) + len(second.answer_ms)
    print_progress(f"memory, {server.name}: {after / 1e6:.0f} MB after {done[1]} requests")
    return {
        "who": server.name,
        "requests": done[1],
        "before_mb": round(before / 1e6, 1),
        "half_way_mb": round(half / 1e6, 1),
        "after_mb": round(after / 1e6, 1),
        "growth_of_second_half_mb": round((after - half) / 1e6, 1),
        "bytes_a_request": round((after - half) / max(1, done[1] - done[0])),
        "cpu_us": round(second.gateway_cpu_seconds / max(1, done[1] - done[0]) * 1e6, 1),
    }


def print_progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
