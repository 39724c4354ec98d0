"""Totals and times of `foveate usage` beside ccusage, on the same logs of Claude Code.

The recorded logs, and a larger folder generated from them: each copy has ids of its own. Every command runs in
a process of its own, in turns, with prices from its installed tables. `first` reads all logs; `again` uses the
cache of an earlier run. ccusage 20 is a native program, 18 is the last version in JavaScript.

Every difference of the totals must be explained: version 18 counts the first line of a streamed response, whose
output tokens are those of the start of the stream. The benchmark computes these to check that.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import BadData, Cell, Report, time_side_by_side
from benchmarks.recorded import DATA

FIGURES = (
    "unexplained_differences",
    "<folder>_files",
    "<folder>_mb",
    "<folder>_calls",
    "<folder>_dollars",
    "<folder>_first_seconds",
    "<folder>_again_seconds",
    "<folder>_speedup_first_<peer>",
    "<folder>_speedup_again_<peer>",
)

_MEGABYTE = 1_000_000
_MIN_BYTES, _QUICK_BYTES = 400 * _MEGABYTE, 20 * _MEGABYTE
_ROUNDS = 3
_MAX_DOLLAR_ERROR = 1e-9  # ccusage sums floats
# Version 20 of the newest release whose native programs npm had on 2026-11-18.
_PEERS = {"ccusage_20": "20.0.20", "ccusage_18": "18.0.11"}
_PEER_COMMANDS = {"ccusage_20": ["claude", "daily"], "ccusage_18": ["daily"]}
_IDS = re.compile(rb'"(msg_|req_)([0-9A-Za-z]{6})')
_COUNTS = {
    "uncached": "inputTokens",
    "output_tokens": "outputTokens",
    "written": "cacheCreationTokens",
    "read": "cacheReadTokens",
}
_Totals = Mapping[str, float]


def run(data: Path | None, *, quick: bool = False) -> Report:
    """Return totals and seconds of both, and the number of differences that are not explained."""
    logs = _read_logs(data or DATA / "sessions" / "claude_code")
    peers, problems = _install_peers()
    figures: dict[str, float] = {}
    rows: list[Mapping[str, Cell]] = []
    differences: list[Mapping[str, Cell]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, min_bytes in (("recorded", 0), ("generated", _QUICK_BYTES if quick else _MIN_BYTES)):
            home = Path(folder) / name
            files, size = _write_logs(logs, home, min_bytes)
            figures |= {f"{name}_files": files, f"{name}_mb": round(size / _MEGABYTE, 1)}
            results = _measure(name, home, peers, figures, rows)
            first_output = _sum_first_outputs(home)
            for peer in peers:
                differences += _compare(name, peer, results["foveate"], results[peer], first_output)
    figures["unexplained_differences"] = sum(not row["explanation"] for row in differences)
    for peer, problem in problems.items():
        print(f"usage: {peer} is left out: {problem}", file=sys.stderr)
    return Report(
        figures=figures,
        peers={peer: {"version": version} for peer, version in _PEERS.items() if peer in peers}
        | {peer: {"left out": problem} for peer, problem in problems.items()},
        rows=rows,
        tables={"differences": differences},
    )


def _read_logs(data: Path) -> dict[str, bytes]:
    paths = sorted(data.rglob("*.jsonl*")) if data.is_dir() else [data]
    logs = {
        path.name.removesuffix(".gz"): gzip.decompress(path.read_bytes())
        if path.suffix == ".gz"
        else path.read_bytes()
        for path in paths
    }
    if not logs:
        raise BadData(f"there are no logs (*.jsonl, *.jsonl.gz) under {data}")
    return logs


def _write_logs(logs: Mapping[str, bytes], home: Path, min_bytes: int) -> tuple[int, int]:
    """Write the logs, repeatedly with other ids until there are enough; return the number and size of files."""
    files = size = turn = 0
    while not turn or size < min_bytes:
        prefix = b"%06d" % turn
        folder = home / "claude" / "projects" / f"-home-ana-project-{turn % 50}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, log in logs.items():
            content = _IDS.sub(lambda found, new=prefix: b'"' + found[1] + new, log) if turn else log
            (folder / f"{turn}-{name}").write_bytes(content)
            files, size = files + 1, size + len(content)
        turn += 1
    return files, size


def _install_peers() -> tuple[dict[str, list[str]], dict[str, str]]:
    """Install ccusage from npm beside the other peers; return commands, and what could not be installed."""
    commands, problems = {}, {}
    node, npm = shutil.which("node"), shutil.which("npm")
    for peer, version in _PEERS.items():
        folder = Path(sys.prefix) / "npm" / f"ccusage-{version}"
        program = folder / "node_modules" / ".bin" / "ccusage"
        if node is None or npm is None:
            problems[peer] = "needs Node.js 20 or newer, with npm"
            continue
        if not program.exists():
            folder.mkdir(parents=True, exist_ok=True)
            options = ["--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error"]
            subprocess.run([npm, "install", *options, f"ccusage@{version}"], cwd=folder, check=False)
        started = program.exists() and subprocess.run([program, "--version"], capture_output=True, check=False)
        if started and started.returncode == 0:
            commands[peer] = [str(program), *_PEER_COMMANDS[peer], "--json", "--offline", "--timezone", "UTC"]
        else:
            problems[peer] = f"npm cannot install ccusage@{version}"
    return commands, problems


def _measure(
    name: str,
    home: Path,
    peers: Mapping[str, list[str]],
    figures: dict[str, float],
    rows: list[Mapping[str, Cell]],
) -> dict[str, _Totals]:
    """Run all commands in turns, and return their totals."""
    ours = [
        str(Path(sys.executable).with_name("foveate")),
        "usage",
        "--no-ledger",
        "--timezone",
        "UTC",
        "--json",
    ]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home / "claude"),
        "FOVEATE_HOME": str(home / "data"),
    }
    results: dict[str, dict[str, Any]] = {}

    def measure(contender: str, command: list[str]) -> None:
        output = subprocess.run(command, env=environment, cwd=home, capture_output=True, check=True).stdout
        results[contender] = json.loads(output)

    contenders = {"first": [*ours, "--no-cache"], "again": ours, **peers}
    timings = time_side_by_side(
        {contender: partial(measure, contender, command) for contender, command in contenders.items()},
        rounds=_ROUNDS,
    )
    rows += [
        {"folder": name, "command": contender, "round": turn, "seconds": round(seconds, 3)}
        for contender, taken in timings.seconds.items()
        for turn, seconds in enumerate(taken, start=1)
    ]
    total = results["first"]["total"]
    assert results["again"] == results["first"]
    figures |= {
        f"{name}_calls": total["calls"],
        f"{name}_dollars": float(total["dollars"]),
        f"{name}_first_seconds": round(timings.median_seconds("first"), 3),
        f"{name}_again_seconds": round(timings.median_seconds("again"), 3),
    }
    figures |= {
        f"{name}_speedup_{run}_{peer}": round(timings.speedup(run, over=peer), 2)
        for peer in peers
        for run in ("first", "again")
    }
    written = total["written_5m"] + total["written_1h"]
    all_totals: dict[str, Mapping[str, float]] = {
        peer: {ours: results[peer]["totals"][theirs] for ours, theirs in _COUNTS.items()}
        | {"dollars": results[peer]["totals"]["totalCost"]}
        for peer in peers
    }
    return {"foveate": {**total, "written": written, "dollars": float(total["dollars"])}} | all_totals


def _compare(
    name: str, peer: str, ours: _Totals, theirs: _Totals, first_output: int
) -> list[Mapping[str, Cell]]:
    """The totals that differ, each with its explanation; empty if there is none."""
    differences: list[Mapping[str, Cell]] = []
    for key in (*_COUNTS, "dollars"):
        if abs(ours[key] - theirs[key]) <= (_MAX_DOLLAR_ERROR * ours[key] if key == "dollars" else 0):
            continue
        is_explained = theirs["output_tokens"] == first_output != ours["output_tokens"] and (
            key == "output_tokens" or (key == "dollars" and _is_price_of_output(ours, theirs))
        )
        explanation = "counts the first line of a streamed response" if is_explained else ""
        row: dict[str, Cell] = {"folder": name, "peer": peer, "total": key}
        differences.append(row | {"foveate": ours[key], "theirs": theirs[key], "explanation": explanation})
    return differences


def _is_price_of_output(ours: _Totals, theirs: _Totals) -> bool:
    """Whether the dollars differ by what the other output tokens cost: $4 to $75 per million, by model."""
    tokens = ours["output_tokens"] - theirs["output_tokens"]
    return 4 <= (ours["dollars"] - theirs["dollars"]) / tokens * 1e6 <= 75


def _sum_first_outputs(home: Path) -> int:
    """The output tokens if the first line of each response counted."""
    outputs: dict[tuple[str, str], int] = {}
    for path in sorted(home.rglob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            if b'"usage":{' in line and (record := json.loads(line)).get("type") == "assistant":
                message = record["message"]
                key = message.get("id", ""), record.get("requestId", "")
                outputs.setdefault(key, message["usage"].get("output_tokens", 0))
    return sum(outputs.values())
