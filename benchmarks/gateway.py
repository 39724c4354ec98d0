"""Latency, CPU and memory that the gateway adds to a call, compared with LiteLLM's proxy and a direct call.

All talk to one provider on this machine that responds at once, in turns of about a second, so that other load
affects all alike. The provider, the gateway and the load generator are separate processes. `relay` is the
gateway's server and its connections without the engine: the lower bound. `foveate` has all mechanisms on:
prompt cache, compaction, counting, workspace cache, and two caps; one-shot calls and streams are also measured
with `foveate-usual`, the default: no compaction, no caps. CPU is the time of the gateway's processes as the
kernel counts it. On a busy machine, look at CPU and at p10, the responses of quiet moments.

- `small`: one-shot calls in Anthropic's format, 160 bytes, each a session of its own; `small chat` in OpenAI's
- `session`: an agent with 16 tools and 200 previous turns, 300 KB, each request a turn longer than the last
- `small paced`, `session paced`: the same with 10 ms between a response and the next request
- `same`: one such request, repeated
- `folded`: such a session, compacted because its window has only 100,000 tokens
- `stream`: one-shot calls with responses of 500 pieces, which the provider writes as fast as it can
- `stream paced`: one-shot calls with responses of 20 pieces, 2 ms apart like a model's, with 10 ms between a
  response and the next request; `piece` is the transit time of each. With fewer cores than processes, the first
  byte of `stream` waits for a core, since the provider is busy with later pieces; this case avoids that
- `memory`: 10,000 requests of 25 to 40 KB, of sessions of 20 turns, to a newly started gateway
- `steps`: time of each step of sequential requests, in an instrumented gateway; CPU is that of its event loop.
  The first step includes the HTTP before it, and `settle` includes writing, sending and responding. The wall
  time of `settle` is mostly the 20 ms in which charges are batched, and which no client waits for
"""

import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

from benchmarks.gateway_processes import (
    Server,
    SteppedGateway,
    foveate,
    litellm,
    relay,
    stepped_gateway,
    upstream,
)
from benchmarks.gateway_rounds import (
    LoadCase,
    LoadGenerator,
    load_generator,
    measure_memory,
    print_progress,
    rows,
    run_rounds,
    stream_rows,
)
from benchmarks.harness import BadData, Cell, Report

RELAY, OURS, PEER, WORKERS, DEFAULT = "relay", "foveate", "litellm", "foveate-2-workers", "foveate-usual"
GATEWAYS: Mapping[str, Callable[[Path, int], AbstractContextManager[Server]]] = {
    RELAY: relay,
    OURS: foveate,
    PEER: litellm,
    WORKERS: partial(foveate, name=WORKERS, workers=2),
    DEFAULT: partial(foveate, name=DEFAULT, is_default=True),
}
# A call is settled after its response; it is settled after this time.
_SHORT_PAUSE_SECONDS = 0.05
# An agent does not send its next request immediately after a response.
_PAUSE_SECONDS = 0.01
CASES = (
    LoadCase(kind="small", connections=1, seconds=1.0, others=(DEFAULT,)),
    LoadCase(kind="small", connections=1, seconds=2.0, pause_seconds=_PAUSE_SECONDS, others=(DEFAULT,)),
    LoadCase(kind="small", connections=32, seconds=1.5, others=(WORKERS, DEFAULT)),
    LoadCase(kind="small chat", connections=1, seconds=1.0, others=(DEFAULT,)),
    LoadCase(kind="small chat", connections=32, seconds=1.5, others=(DEFAULT,)),
    LoadCase(kind="session", connections=1, seconds=2.0, max_requests=40),
    LoadCase(kind="session", connections=1, seconds=2.0, max_requests=40, pause_seconds=_PAUSE_SECONDS),
    LoadCase(kind="session", connections=32, seconds=2.0, max_requests=10, others=(WORKERS,)),
    LoadCase(kind="same", connections=1, seconds=1.0),
    LoadCase(kind="folded", connections=1, seconds=2.0, max_requests=40),
    LoadCase(kind="stream", connections=1, seconds=1.0, others=(DEFAULT,)),
    LoadCase(kind="stream paced", connections=1, seconds=1.5, pause_seconds=_PAUSE_SECONDS, others=(DEFAULT,)),
    LoadCase(kind="stream", connections=32, seconds=2.0, others=(DEFAULT,)),
)
STREAMS, STEPS, MEMORY = ("stream", "stream paced"), "steps", "memory"
PARTS = (*dict.fromkeys(case.kind for case in CASES), STEPS, MEMORY)
STEP_CASES = (
    LoadCase(kind="small", connections=1, seconds=2.0, pause_seconds=_SHORT_PAUSE_SECONDS),
    LoadCase(kind="session", connections=1, seconds=4.0, max_requests=60, pause_seconds=_SHORT_PAUSE_SECONDS),
    LoadCase(kind="same", connections=1, seconds=2.0, pause_seconds=_SHORT_PAUSE_SECONDS),
    LoadCase(kind="folded", connections=1, seconds=4.0, max_requests=60, pause_seconds=_SHORT_PAUSE_SECONDS),
    LoadCase(kind="stream", connections=1, seconds=2.0, pause_seconds=_SHORT_PAUSE_SECONDS),
)
ROUNDS, QUICK_ROUNDS = 5, 1
_QUICK_SHARE = 0.4
MEMORY_REQUESTS, QUICK_MEMORY_REQUESTS = 10_000, 640
# LiteLLM would take many minutes for as many.
_MEMORY_SECONDS, _PEER_MEMORY_SECONDS, _QUICK_MEMORY_SECONDS = 600.0, 90.0, 5.0

# Targets: the figure, the number, and whether it is a maximum or a minimum.
AIMS = (
    ("usual_small_1_added_p50_ms", 0.6, "at most"),
    ("usual_small_paced_1_added_p50_ms", 0.6, "at most"),
    ("session_1_added_p50_ms", 4.0, "at most"),
    ("session_paced_1_added_p50_ms", 4.0, "at most"),
    ("usual_stream_1_first_byte_added_p50_ms", 1.0, "at most"),
    ("usual_stream_paced_1_first_byte_added_p50_ms", 1.0, "at most"),
    ("usual_small_32_times_litellm_per_second", 40.0, "at least"),
)


FIGURES = (
    "<case>_added_p10_ms",
    "<case>_added_p50_ms",
    "<case>_added_p99_ms",
    "<case>_per_second",
    "<case>_cpu_us",
    "<case>_times_litellm_per_second",
    "<case>_times_litellm_cpu",
    "<case>_times_relay_per_second",
    "<case>_times_relay_cpu",
    "<case>_first_byte_added_p50_ms",
    "<case>_piece_added_p50_ms",
    "<case>_chunks_per_second",
    "memory_after_mb",
    "memory_growth_of_second_half_mb",
    "load_before",
    "cores",
)


def run(_data: Path | None, *, quick: bool = False, only: str = "") -> Report:
    """Run every case with every contender, round by round; `only` selects some of either by name."""
    parts, gateways = _parse_only(only)
    if not Path("/proc/self/stat").exists():
        raise BadData("the CPU time of processes is read from /proc, as Linux has it")
    load_before = os.getloadavg()[0]
    case_rows: list[dict[str, Cell]] = []
    streams: list[dict[str, Cell]] = []
    memory_rows: list[dict[str, Cell]] = []
    steps: list[dict[str, Cell]] = []
    with _exit_on_signal(), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foveate-bench-")))
        print_progress(f"starting the provider and {', '.join(gateways)}")
        provider = stack.enter_context(upstream(folder))
        servers = [stack.enter_context(GATEWAYS[name](folder, provider.port)) for name in gateways]
        load = stack.enter_context(load_generator(folder))
        for case in CASES:
            if case.kind in parts:
                extra = {WORKERS, DEFAULT}.difference(case.others)
                measured = [server for server in servers if server.name not in extra]
                case = replace(case, seconds=case.seconds * _QUICK_SHARE) if quick else case
                results = run_rounds(load, [provider, *measured], case, QUICK_ROUNDS if quick else ROUNDS)
                case_rows += rows(case, results)
                streams += stream_rows(case, results) if case.kind in STREAMS else []
        if STEPS in parts and OURS in gateways:
            with stepped_gateway(folder, provider.port) as gateway_:
                kinds = {case.kind for case in CASES}.intersection(parts) or {case.kind for case in CASES}
                cases = [case for case in STEP_CASES if case.kind in kinds]
                steps = [row for case in cases for row in _measure_steps(load, gateway_, case, quick=quick)]
        if MEMORY in parts:
            requests = QUICK_MEMORY_REQUESTS if quick else MEMORY_REQUESTS
            for name in (name for name in gateways if name not in (WORKERS, DEFAULT)):
                seconds = _PEER_MEMORY_SECONDS if name == PEER else _MEMORY_SECONDS
                seconds = _QUICK_MEMORY_SECONDS if quick else seconds
                with GATEWAYS[name](Path(tempfile.mkdtemp(dir=folder)), provider.port) as fresh:
                    memory_rows.append(measure_memory(load, fresh, requests, seconds=seconds))
    figures = _figures(case_rows, streams, memory_rows)
    tables = {"streams": streams, "where the time goes": steps, "memory": memory_rows, "aims": _aims(figures)}
    return Report(
        figures={**figures, "load_before": round(load_before, 2), "cores": os.cpu_count() or 0},
        peers={PEER: _rows_of(PEER, case_rows)} if PEER in gateways and case_rows else {},
        rows=case_rows,
        tables={name: table for name, table in tables.items() if table},
    )


def _parse_only(only: str) -> tuple[Sequence[str], Sequence[str]]:
    """Return the selected parts and gateways; all of either if none of it is named."""
    names = {name.strip() for name in only.split(",") if name.strip()}
    if unknown := names - {*PARTS, *GATEWAYS}:
        raise BadData(f"--only: no {', '.join(sorted(unknown))}; there are: {', '.join((*PARTS, *GATEWAYS))}")
    parts = [name for name in PARTS if name in names] or PARTS
    gateways = [name for name in GATEWAYS if name in names] or list(GATEWAYS)
    return parts, gateways


@contextmanager
def _exit_on_signal() -> Iterator[None]:
    """Let SIGTERM end the block like Ctrl-C, so that no process remains."""

    def end(_number: int, _frame: FrameType | None) -> None:
        sys.exit(143)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _measure_steps(
    load: LoadGenerator, stepped: SteppedGateway, case: LoadCase, *, quick: bool
) -> Iterator[dict[str, Cell]]:
    """Measure each step of sequential requests."""
    seconds = case.seconds * _QUICK_SHARE if quick else case.seconds
    load.measure(stepped.server, case, seconds=seconds / 4)
    time.sleep(_SHORT_PAUSE_SECONDS)
    stepped.read_durations()
    load.measure(stepped.server, case, seconds=seconds)
    time.sleep(_SHORT_PAUSE_SECONDS)
    durations = stepped.read_durations()
    medians = {part: statistics.median(ms for ms, _ in pairs) for part, pairs in durations.items()}
    for part, pairs in durations.items():
        cpu = [ms for _, ms in pairs if ms is not None]
        yield {
            "case": case.kind,
            "part": part,
            "p50_us": round(medians[part] * 1e3, 1),
            "mean_us": round(statistics.fmean(ms for ms, _ in pairs) * 1e3, 1),
            "share": round(medians[part] / (sum(medians.values()) or 1), 3),
            "loop_cpu_p50_us": round(statistics.median(cpu) * 1e3, 1) if cpu else None,
            "requests": len(pairs),
        }
    print_progress(f"steps of {case.kind}: {sum(medians.values()):.2f} ms")


def _figures(
    case_rows: Sequence[Mapping[str, Cell]],
    streams: Sequence[Mapping[str, Cell]],
    memory_rows: Sequence[Mapping[str, Cell]],
) -> dict[str, float]:
    """Return the main figures."""
    by_case = {(_case_name(row), row["who"]): row for row in case_rows}
    prefixes = {OURS: "", DEFAULT: "usual_"}
    figures = {
        **_rows_of(OURS, case_rows),
        **{f"usual_{name}": value for name, value in _rows_of(DEFAULT, case_rows).items()},
    }
    for (case, contender), row in by_case.items():
        if contender not in prefixes:
            continue
        for other, times in ((PEER, "times_litellm"), (RELAY, "times_relay")):
            if (theirs := by_case.get((case, other))) is not None:
                figures[f"{prefixes[str(contender)]}{case}_{times}_per_second"] = _ratio(
                    row, theirs, "per_second"
                )
                figures[f"{prefixes[str(contender)]}{case}_{times}_cpu"] = _ratio(row, theirs, "cpu_us")
    for row in streams:
        if row["who"] in prefixes:
            for key in ("first_byte_added_p50_ms", "piece_added_p50_ms", "chunks_per_second"):
                if key in row:
                    figures[f"{prefixes[str(row['who'])]}{_case_name(row)}_{key}"] = float(row[key] or 0)
    for row in memory_rows:
        if row["who"] == OURS:
            figures["memory_after_mb"] = float(row["after_mb"] or 0)
            figures["memory_growth_of_second_half_mb"] = float(row["growth_of_second_half_mb"] or 0)
    return figures


def _rows_of(contender: str, case_rows: Sequence[Mapping[str, Cell]]) -> dict[str, float]:
    """Return the measurements of one contender."""
    return {
        f"{_case_name(row)}_{key}": float(row[key] or 0)
        for row in case_rows
        if row["who"] == contender
        for key in ("added_p10_ms", "added_p50_ms", "added_p99_ms", "per_second", "cpu_us")
    }


def _case_name(row: Mapping[str, Cell]) -> str:
    return f"{str(row['case']).replace(' ', '_')}_{row['at_once']}"


def _ratio(ours: Mapping[str, Cell], theirs: Mapping[str, Cell], key: str) -> float:
    return round(float(ours[key] or 0) / (float(theirs[key] or 0) or 1), 3)


def _aims(figures: Mapping[str, float]) -> list[dict[str, Cell]]:
    """Return each target and the measured value."""
    return [
        {
            "aim": name,
            "aimed": f"{which} {number:g}",
            "measured": figures[name],
            "measured_by_aimed": round(figures[name] / number, 2),
            "is_met": figures[name] <= number if which == "at most" else figures[name] >= number,
        }
        for name, number, which in AIMS
        if name in figures
    ]
