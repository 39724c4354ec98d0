"""Load that one, two, four and eight workers sustain, on both databases, compared with LiteLLM's proxy.

48 agents each wait 300 ms for their model and pause for 100 ms, in sessions of ten turns that send the whole
history each time. `direct` is the same load without a gateway. A figure such as `sqlite_4_share` is the share
of that load that four workers on SQLite sustain, and `sqlite_4_p99_times_direct` is the factor by which the
99th percentile is longer. `--only direct,sqlite-4` runs some of the contenders.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.agent_load import DIRECT, run_agents, slow_provider
from benchmarks.databases import new_database, new_file, running_postgres
from benchmarks.gateway_processes import Server, foveate, litellm
from benchmarks.harness import BadData, Cell, Report

AGENTS = 48
SECONDS, QUICK_SECONDS = 25.0, 8.0
WORKERS = (1, 2, 4, 8)
PEER = "litellm"
CONTENDERS = (DIRECT, *(f"{kind}-{count}" for kind in ("sqlite", "postgres") for count in WORKERS), PEER)

FIGURES = (
    "<contender>_cpu_ms",
    "<contender>_p50_ms",
    "<contender>_p99_ms",
    "<contender>_p99_times_direct",
    "<contender>_per_second",
    "<contender>_share",
)


def run(_data: Path | None, *, quick: bool = False, only: str = "") -> Report:
    """Run every contender in turn; `only` selects some by name."""
    chosen = [name.strip() for name in only.split(",") if name.strip()] or list(CONTENDERS)
    if unknown := set(chosen) - set(CONTENDERS):
        raise BadData(f"--only takes {', '.join(CONTENDERS)}, not {', '.join(sorted(unknown))}")
    rows: list[dict[str, Cell]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foveate-bench-")))
        server = None
        if any(name.startswith("postgres") for name in chosen):
            server = stack.enter_context(running_postgres())
        with slow_provider(folder) as provider:
            for name in [DIRECT, *(other for other in CONTENDERS if other in chosen and other != DIRECT)]:
                if name.startswith("postgres") and server is None:
                    continue
                print(f"{name} …", file=sys.stderr, flush=True)
                with _contender(name, folder, provider, server) as contender:
                    rows.append(_measure(name, contender, QUICK_SECONDS if quick else SECONDS))
    direct = rows[0]
    figures: dict[str, float] = {}
    for row in rows:
        key = str(row["contender"]).replace("-", "_")
        row["share"] = round(float(row["per_second"] or 0) / float(direct["per_second"] or 1), 4)
        row["p99_times_direct"] = round(float(row["p99_ms"] or 0) / float(direct["p99_ms"] or 1), 3)
        names = ("per_second", "share", "p50_ms", "p99_ms", "p99_times_direct", "cpu_ms")
        figures |= {f"{key}_{name}": float(row[name] or 0) for name in names}
    return Report(figures=figures, peers={PEER: _peer(rows)}, rows=rows)


def _peer(rows: Sequence[dict[str, Cell]]) -> dict[str, object]:
    found = [row for row in rows if row["contender"] == PEER]
    return {name: value for name, value in found[0].items() if name != "contender"} if found else {}


@contextmanager
def _contender(name: str, folder: Path, provider: Server, postgres: object | None) -> Iterator[Server]:
    kind, _, count = name.partition("-")
    if name == DIRECT:
        yield provider
    elif name == PEER:
        with litellm(folder, provider.port) as running:
            yield running
    else:
        url = new_file(str(folder)) if kind == "sqlite" else new_database(postgres)
        more = f"store: {{url: {json.dumps(url)}}}\n"
        workers = int(count)
        with foveate(folder, provider.port, name=name, workers=workers, is_default=True, more=more) as running:
            yield running


def _measure(name: str, server: Server, seconds: float) -> dict[str, Cell]:
    load = run_agents(server, AGENTS, seconds)
    return {
        "contender": name,
        "per_second": round(load.per_second, 1),
        "answered": round(load.answered_share, 4),
        "p50_ms": round(load.percentile_ms(0.5), 1),
        "p99_ms": round(load.percentile_ms(0.99), 1),
        "cpu_ms": round(load.cpu_us / 1e3, 2),
    }
