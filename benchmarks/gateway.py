"""What the gateway adds to a call, in latency, CPU and memory, beside LiteLLM's proxy and the direct call.

All talk to one provider on this machine that answers at once, in turns of a second or so, so that a busy moment
hits all alike. Each is a process of its own: the provider, what stands before it, and the one that sends and
times. Every mechanism of Foveate is on: prompt cache, compaction, counting, workspace cache, and two caps. CPU
is that of the gateway's processes as the kernel counts it: look at it where a machine has other work to do.

- `small`: one-shot calls of 160 bytes, each a session of its own
- `session`: an agent with 16 tools and 200 turns behind it, 300 KB, each request a turn longer than the last
- `same`: one such request again and again
- `stream`: one-shot calls that are answered in 500 pieces
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.gateway_load import Job, Measured
from benchmarks.gateway_processes import Server, foveate, last, litellm, relay, started, upstream
from benchmarks.harness import BadData, Cell, Report

DIRECT, RELAY, OURS, PEER = "direct", "relay", "foveate", "litellm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is sent by how many at once, for how long in each round."""

    kind: str
    connections: int
    seconds: float
    most: int = 10**9


CASES = (
    Case(kind="small", connections=1, seconds=1.0),
    Case(kind="small", connections=32, seconds=1.5),
    Case(kind="small chat", connections=1, seconds=1.0),
    Case(kind="small chat", connections=32, seconds=1.5),
    Case(kind="session", connections=1, seconds=2.0, most=40),
    Case(kind="session", connections=32, seconds=2.0, most=40),
    Case(kind="same", connections=1, seconds=1.0),
    Case(kind="stream", connections=1, seconds=1.0),
    Case(kind="stream", connections=32, seconds=2.0),
)
GATEWAYS = {RELAY: relay, OURS: foveate, PEER: litellm}
PARTS = tuple(dict.fromkeys(case.kind for case in CASES))
ROUNDS, QUICK_ROUNDS = 5, 1


def run(_data: Path | None, *, quick: bool = False, only: str = "") -> Report:
    """Every case, every contender, round by round; `only` some of either, by their names."""
    cases, gateways = _chosen(only)
    with _running(gateways) as (load, servers):
        rounds = QUICK_ROUNDS if quick else ROUNDS
        found = {case: _rounds(load, servers, case, rounds) for case in cases}
    rows = [row for case, by_server in found.items() for row in _rows(case, by_server)]
    return Report(figures=_figures(rows), rows=rows)


def _chosen(only: str) -> tuple[list[Case], list[str]]:
    """The cases and the gateways that are measured: those that are named, all where none of either is."""
    names = {name.strip() for name in only.split(",") if name.strip()}
    if unknown := names - {*PARTS, *GATEWAYS}:
        raise BadData(f"--only: no {', '.join(sorted(unknown))}; there are: {', '.join((*PARTS, *GATEWAYS))}")
    cases = [case for case in CASES if case.kind in names] or list(CASES)
    gateways = [name for name in GATEWAYS if name in names] or list(GATEWAYS)
    return cases, gateways


@contextmanager
def _running(gateways: Sequence[str]) -> Iterator[tuple["_Load", Sequence[Server]]]:
    """Whoever sends, and all that are measured; all are gone after the block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foveate-bench-")))
        _tell(f"starting the provider and {', '.join(gateways)}")
        provider = stack.enter_context(upstream(folder))
        servers = [provider, *(stack.enter_context(GATEWAYS[name](folder, provider.port)) for name in gateways)]
        log = folder / "load.log"
        load = stack.enter_context(started([sys.executable, "-m", "benchmarks.gateway_load"], log=log))
        yield _Load(load, log), servers


class _Load:
    """The process that sends."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log
        self._jobs = 0

    def measure(self, server: Server, case: Case, *, seconds: float) -> Measured:
        """What it measures of one server in one case; no two times are the requests the same."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._jobs += 1
        job = Job(
            port=server.port,
            kind=case.kind,
            seed=f"{time.time():.0f}.{self._jobs}",
            connections=case.connections,
            seconds=seconds,
            most=case.most,
            measured=(server.pid,),
        )
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        said = json.loads(line) if line else {"error": f"whoever sends has ended: {last(self._log)}"}
        if "error" in said:
            raise BadData(f"{server.name}, {case.kind}: {said['error']}\n{last(server.log)}")
        return Measured(**said)


def _rounds(load: _Load, servers: Sequence[Server], case: Case, rounds: int) -> dict[str, list[Measured]]:
    """What was measured of each server; a first, shorter round warms up."""
    found: dict[str, list[Measured]] = {server.name: [] for server in servers}
    order = list(servers)
    for turn in range(rounds + 1):
        for server in order:
            measured = load.measure(server, case, seconds=case.seconds if turn else case.seconds / 3)
            if turn:
                found[server.name].append(measured)
        order.append(order.pop(0))
        _tell(f"{case.kind}, {case.connections} at once: {'round ' + str(turn) if turn else 'warmed up'}")
    return found


def _rows(case: Case, found: Mapping[str, Sequence[Measured]]) -> list[dict[str, Cell]]:
    direct = found[DIRECT]
    rows: list[dict[str, Cell]] = []
    for name, measured in found.items():
        answers = sum(len(one.answer_ms) for one in measured)
        elapsed = sum(one.elapsed_seconds for one in measured)
        rows.append(
            {
                "case": case.kind,
                "at_once": case.connections,
                "who": name,
                "p50_ms": _rounded(statistics.median(_p(one.answer_ms, 0.5) for one in measured)),
                "p99_ms": _rounded(statistics.median(_p(one.answer_ms, 0.99) for one in measured)),
                "added_p50_ms": None if name == DIRECT else _rounded(_added(measured, direct, 0.5)),
                "added_p99_ms": None if name == DIRECT else _rounded(_added(measured, direct, 0.99)),
                "per_second": round(answers / elapsed, 1),
                "cpu_us": round(sum(one.gateway_cpu_seconds for one in measured) / answers * 1e6, 1),
                "requests": answers,
                "load_cpu": round(sum(one.load_cpu_seconds for one in measured) / elapsed, 2),
            }
        )
    return rows


def _added(measured: Sequence[Measured], direct: Sequence[Measured], share: float) -> float:
    """How much longer it takes than the direct call; the median over rounds."""
    pairs = zip(measured, direct, strict=True)
    return statistics.median(_p(one.answer_ms, share) - _p(other.answer_ms, share) for one, other in pairs)


def _figures(rows: Sequence[Mapping[str, Cell]]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for row in rows:
        if row["who"] == OURS:
            figures[f"{row['case']}_{row['at_once']}_added_p50_ms"] = float(row["added_p50_ms"] or 0)
    return figures


def _p(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _rounded(ms: float) -> float:
    return round(ms, 3)


def _tell(said: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {said}", file=sys.stderr, flush=True)
