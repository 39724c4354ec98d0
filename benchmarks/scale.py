"""Agents that 1, 2 and 8 workers serve, and the latency that they add, compared with LiteLLM's proxy.

Each agent waits 300 ms for its model and pauses for 100 ms, in sessions of ten turns that send the whole
history each time. `sqlite_2w_64a_added_p99_ms` is the 99th percentile that two workers on SQLite add for 64
agents, and `offered` is what these agents send without a gateway. `sqlite_2w_carried` is the highest number of
requests per second at which at most 100 ms are added to the 99th percentile, in the better of two tries.

`second_turn_over_others` is the mean latency of the second request of a session, divided by that of later ones,
with a model that responds at once and agents that do not pause. `new_session_over_repeated_cpu` is the CPU time
of a request that begins a session, and `new_tokens_over_repeated_cpu` that of one with 900 new tokens, each
divided by that of a repeated request. `--only sqlite-1,litellm-2` runs some of the contenders. Without it,
LiteLLM runs with at most as many workers as there are cores: with more, it needs minutes to start.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean, median

from benchmarks.agent_load import DIRECT, LoadResult, run_agents, send_in_turn, slow_provider
from benchmarks.databases import new_database, new_file, running_postgres
from benchmarks.gateway_processes import Server, cpu_seconds, foveate, litellm
from benchmarks.harness import BadData, Cell, Report

WORKERS = (1, 2, 8)
DATABASES = ("sqlite", "postgres")
PEER = "litellm"
AGENTS = 64
CONTENDERS = tuple(f"{kind}-{count}" for kind in (*DATABASES, PEER) for count in WORKERS)
# Each has three seconds of warm-up.
_SECONDS, _STEP_SECONDS, _QUICK_SECONDS = 10.0, 6.0, 7.0
# Contenders whose limit is looked for, with these numbers of agents, until too much is added.
_LIMIT_WORKERS, _LIMIT_AGENTS, _LIMIT_ADDED_MS = (1, 2), (128, 170, 226, 300, 400), 100.0
_PEER_START_SECONDS = 45.0
_UNPAUSED_AGENTS = 8
_CPU_KINDS = ("repeated", "new_session", "new_tokens")
_CPU_ROUNDS, _CPU_REQUESTS = 3, 100
# By then everything is written that belongs to the requests before.
_SETTLE_SECONDS = 0.5

FIGURES = (
    "<contender>w_<agents>a_added_p50_ms",
    "<contender>w_<agents>a_added_p99_ms",
    "<contender>w_<agents>a_cpu_us",
    "<contender>w_<agents>a_offered",
    "<contender>w_<agents>a_per_second",
    "<contender>w_carried",
    "<database>_second_turn_over_others",
    "new_session_over_repeated_cpu",
    "new_tokens_over_repeated_cpu",
    "second_turn_over_others",
)


def run(_data: Path | None, *, quick: bool = False, only: str = "") -> Report:
    """Run every contender in turn. `quick` measures for a shorter time, and looks for no limits."""
    chosen = [name.strip() for name in only.split(",") if name.strip()] or _default_contenders()
    if unknown := set(chosen) - set(CONTENDERS):
        raise BadData(f"--only takes {', '.join(CONTENDERS)}, not {', '.join(sorted(unknown))}")
    seconds = _QUICK_SECONDS if quick else _SECONDS
    rows: list[dict[str, Cell]] = []
    figures: dict[str, float] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foveate-bench-")))
        postgres = None
        if any(name.startswith("postgres") for name in chosen):
            postgres = stack.enter_context(running_postgres())
        provider = stack.enter_context(slow_provider(folder))
        direct = run_agents(provider, AGENTS, seconds)
        rows.append(_to_row(DIRECT, AGENTS, direct, direct))
        # First, since a peer with many workers keeps the machine busy for a while after its turn.
        for database in DATABASES:
            if f"{database}-1" in chosen and (database == "sqlite" or postgres is not None):
                figures[f"{database}_second_turn_over_others"] = _second_turn(database, folder, postgres)
        if "sqlite-1" in chosen:
            figures |= _compare_cpu(folder)
        for name in (each for each in CONTENDERS if each in chosen):
            if name.startswith("postgres") and postgres is None:
                continue
            workers = int(name.partition("-")[2])
            try:
                with _contender(name, folder, provider, postgres) as server:
                    found = [_measure(name, server, AGENTS, seconds, direct)]
                    if not quick and workers in _LIMIT_WORKERS and not name.startswith(PEER):
                        found += _find_limit(name, server, found, direct)
            except BadData as problem:
                if not name.startswith(PEER):
                    raise
                print(f"{name} is left out: {problem}", file=sys.stderr, flush=True)
            else:
                rows += found
    figures |= _to_figures(rows)
    if ratios := [value for name, value in figures.items() if name.endswith("second_turn_over_others")]:
        figures["second_turn_over_others"] = max(ratios)
    peers = [row for row in rows if str(row["contender"]).startswith(PEER)]
    return Report(figures=figures, peers={PEER: _to_figures(peers)}, rows=rows)


def _default_contenders() -> list[str]:
    """Return all contenders, except LiteLLM with more workers than cores."""
    cores = os.cpu_count() or 1
    left_out = [f"{PEER}-{count}" for count in WORKERS if count > cores]
    if left_out:
        print(f"{', '.join(left_out)} left out: there are only {cores} cores", file=sys.stderr, flush=True)
    return [name for name in CONTENDERS if name not in left_out]


def _to_figures(rows: Sequence[dict[str, Cell]]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for row in rows:
        key = f"{str(row['contender']).replace('-', '_')}w"
        for name in ("per_second", "offered", "added_p50_ms", "added_p99_ms", "cpu_us"):
            if row["contender"] != DIRECT:
                figures[f"{key}_{row['agents']}a_{name}"] = float(row[name] or 0)
        if "carried" in row:
            figures[f"{key}_carried"] = float(row["carried"] or 0)
    return figures


def _measure(name: str, server: Server, agents: int, seconds: float, direct: LoadResult) -> dict[str, Cell]:
    print(f"{name}, {agents} agents …", file=sys.stderr, flush=True)
    return _to_row(name, agents, run_agents(server, agents, seconds), direct)


def _to_row(name: str, agents: int, load: LoadResult, direct: LoadResult) -> dict[str, Cell]:
    return {
        "contender": name,
        "agents": agents,
        "per_second": round(load.per_second, 1),
        "offered": round(direct.per_second * agents / AGENTS, 1),
        "answered": round(load.answered_share, 4),
        "added_p50_ms": round(load.percentile_ms(0.5) - direct.percentile_ms(0.5), 1),
        "added_p99_ms": round(load.percentile_ms(0.99) - direct.percentile_ms(0.99), 1),
        "cpu_us": round(load.cpu_us),
    }


def _find_limit(
    name: str, server: Server, measured: Sequence[dict[str, Cell]], direct: LoadResult
) -> list[dict[str, Cell]]:
    """Return measurements with more and more agents, until too much is added to the 99th percentile twice.

    One pause of the machine is enough to delay 1% of the requests of a step, so a step is tried a second time.
    The last one has a number between the last that passed and the first that did not.
    """
    rows: list[dict[str, Cell]] = []
    passed = AGENTS
    for agents in _LIMIT_AGENTS:
        rows.append(_measure(name, server, agents, _STEP_SECONDS, direct))
        if not _is_carried(rows[-1]):
            rows.append(_measure(name, server, agents, _STEP_SECONDS, direct))
        if not _is_carried(rows[-1]):
            rows.append(_measure(name, server, (passed + agents) // 4 * 2, _STEP_SECONDS, direct))
            break
        passed = agents
    carried = [float(row["per_second"] or 0) for row in (*measured, *rows) if _is_carried(row)]
    rows[-1]["carried"] = max(carried, default=0.0)
    return rows


def _is_carried(row: dict[str, Cell]) -> bool:
    return float(row["added_p99_ms"] or 0) <= _LIMIT_ADDED_MS


def _second_turn(database: str, folder: Path, postgres: object | None) -> float:
    """Return the latency of second requests over that of later ones, without pauses."""
    print(f"{database}, second requests …", file=sys.stderr, flush=True)
    with (
        slow_provider(folder, 0.0) as provider,
        _contender(f"{database}-1", folder, provider, postgres, name=f"{database}-unpaused") as server,
    ):
        load = run_agents(server, _UNPAUSED_AGENTS, _STEP_SECONDS, thinking_seconds=0.0)
    second = mean(call.seconds for call in load.calls if call.turn == 1)
    return round(second / mean(call.seconds for call in load.calls if call.turn > 1), 3)


def _compare_cpu(folder: Path) -> dict[str, float]:
    """Return the CPU time of requests with something new over that of repeated ones, one kind after another."""
    print("sqlite, CPU time of new and repeated requests …", file=sys.stderr, flush=True)
    seconds: dict[str, list[float]] = {kind: [] for kind in _CPU_KINDS}
    with (
        slow_provider(folder, 0.0) as provider,
        _contender("sqlite-1", folder, provider, None, name="sqlite-cpu") as server,
    ):
        for number in range(-1, _CPU_ROUNDS):  # the first round is a warm-up
            for kind in _CPU_KINDS:
                before = cpu_seconds(server.pid)
                send_in_turn(server, kind, seed=number, count=_CPU_REQUESTS)
                time.sleep(_SETTLE_SECONDS)
                if number >= 0:
                    seconds[kind].append(cpu_seconds(server.pid) - before)
    repeated = median(seconds["repeated"])
    return {
        f"{kind}_over_repeated_cpu": round(median(seconds[kind]) / repeated, 3)
        for kind in _CPU_KINDS
        if kind != "repeated"
    }


@contextmanager
def _contender(
    contender: str, folder: Path, provider: Server, postgres: object | None, *, name: str = ""
) -> Iterator[Server]:
    kind, _, count = contender.partition("-")
    if kind == PEER:
        with litellm(folder, provider.port, workers=int(count), start_seconds=_PEER_START_SECONDS) as running:
            yield running
        return
    url = new_file(str(folder)) if kind == "sqlite" else new_database(postgres)
    with foveate(
        folder,
        provider.port,
        name=name or contender,
        workers=int(count),
        is_default=True,
        more=f"store: {{url: {json.dumps(url)}}}\n",
    ) as running:
        yield running
