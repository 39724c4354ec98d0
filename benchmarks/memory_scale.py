"""Load, render and reload times and bytes per node of memories of 1k to 100k nodes, compared with peers.

Each size is measured in a separate process with new notes: the first render includes embedding all of them,
later ones do not. The real notes of worg are also loaded in full.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import memory_generated
from benchmarks.harness import BadData, Cell, Report
from benchmarks.memory_sets import WORG, read_archive
from benchmarks.recorded import DATA
from foveate.memory.memory import Memory

SIZES = (1_000, 10_000, 100_000)
_MAX_SIZE = SIZES[-1]
_TRACED = 10_000
_MAX_SECONDS = 300
# Exponent that still counts as linear.
_LINEAR_EXPONENT = 1.1
_GROWING = (
    "load",
    "first_render",
    "render_query",
    "render_long_query",
    "render_focus",
    "render_both",
    "render_neither",
    "refresh_unchanged",
    "new_text_found",
)

Trial = Mapping[str, Any]


FIGURES = (
    "<measure>_ms_<nodes>",
    "bytes_a_node_beside_text_<nodes>",
    "bytes_a_node_beside_text_loaded_<nodes>",
    "bytes_a_node_beside_text_after_changes_<nodes>",
    "bytes_a_node_of_text_<nodes>",
    "nodes_<nodes>",
    "problems_<nodes>",
    "new_text_found_<nodes>",
    "others_read_again_<nodes>",
    "growth_exponent_<what>",
    "traced_bytes_a_node_beside_text",
    "traced_load_bytes_a_node_beside_text",
    "worg_files",
    "worg_documents",
    "worg_nodes",
    "worg_problems",
    "worg_load_ms",
    "cores",
    "load_before",
)


def run(data: Path | None) -> Report:
    """Return seconds, bytes and exponents; the targets are rows."""
    load = os.getloadavg()[0]
    words = memory_generated.vocabulary(data)
    ours: dict[int, Trial] = {}
    peers: dict[str, dict[str, object]] = {"bm25s": {}, "orgparse_and_markdown_it": {}}
    traced: Trial = {}
    for nodes in SIZES:
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as home:
            size = memory_generated.write(Path(folder), nodes, words)
            ours[nodes] = {
                **_trial("ours", folder, home),
                **_trial("ours_kept", folder, home),
                "text_bytes": size,
            }
            if nodes == _TRACED:
                traced = {**_trial("ours_traced", folder, home), "text_bytes": size}
            for peer, kind in {"bm25s": "bm25s", "orgparse_and_markdown_it": "parsers"}.items():
                peers[peer] |= {
                    f"{name}_{nodes}": _round(value) for name, value in _trial(kind, folder, home).items()
                }
    figures: dict[str, float] = {
        **{name: value for nodes in SIZES for name, value in _figures(nodes, ours[nodes])},
        **{f"growth_exponent_{name}": _exponent(ours, f"{name}_seconds") for name in _GROWING},
        "traced_bytes_a_node_beside_text": (traced["traced_bytes"] - traced["text_bytes"]) / traced["nodes"],
        "traced_load_bytes_a_node_beside_text": (traced["traced_load_bytes"] - traced["text_bytes"])
        / traced["nodes"],
        **_worg((data or DATA) / WORG),
        "cores": os.cpu_count() or 1,
        "load_before": load,
    }
    figures = {name: round(value, 4) for name, value in figures.items()}
    return Report(
        figures=figures,
        peers=peers,
        rows=[
            *({"size": nodes, **{k: _round(v) for k, v in ours[nodes].items()}} for nodes in SIZES),
            *_aims(figures),
        ],
    )


def _trial(kind: str, folder: str, home: str) -> dict[str, Any]:
    """Return the result of a separate process.

    Raises:
        BadData: it failed, or took too long.
    """
    command = [sys.executable, "-P", "-m", "benchmarks.memory_trial", kind, folder]
    try:
        finished = subprocess.run(
            command,
            env=os.environ | {"FOVEATE_HOME": home},
            stdout=subprocess.PIPE,
            check=True,
            timeout=_MAX_SECONDS,
        )
    except subprocess.SubprocessError as error:
        raise BadData(f"the trial {kind} came to nothing: {error}") from None
    found: dict[str, Any] = json.loads(finished.stdout)
    return found


def _figures(nodes: int, trial: Trial) -> Iterator[tuple[str, float]]:
    for name, value in trial.items():
        if name.endswith("_seconds"):
            yield f"{name.removesuffix('_seconds')}_ms_{nodes}", value * 1000
    overhead_bytes = trial["resident_bytes"] - trial["text_bytes"]
    yield f"bytes_a_node_beside_text_{nodes}", overhead_bytes / trial["nodes"]
    yield (
        f"bytes_a_node_beside_text_loaded_{nodes}",
        (trial["resident_load_bytes"] - trial["text_bytes"]) / nodes,
    )
    yield (
        f"bytes_a_node_beside_text_after_changes_{nodes}",
        (trial["resident_end_bytes"] - trial["text_bytes"]) / nodes,
    )
    yield f"bytes_a_node_of_text_{nodes}", trial["text_bytes"] / trial["nodes"]
    yield f"nodes_{nodes}", trial["nodes"]
    yield f"problems_{nodes}", trial["problems"]
    yield f"new_text_found_{nodes}", float(trial["new_text_found"])
    yield f"others_read_again_{nodes}", trial["others_read_again"]


def _exponent(trials: Mapping[int, Trial], name: str) -> float:
    """Return the exponent of growth with the number of nodes, fitted over all sizes."""
    points = [(math.log(nodes), math.log(max(trial[name], 1e-6))) for nodes, trial in trials.items()]
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def _worg(path: Path) -> dict[str, float]:
    """Load all of the real notes."""
    files = [(name, content) for name, _, content in read_archive(path) if name.endswith(".org")]
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files:
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_bytes(content)
        began = time.perf_counter()
        memory = Memory.load(folder)
        seconds = time.perf_counter() - began
        for problem in memory.problems:
            print(f"worg: {problem}", file=sys.stderr)
        return {
            "worg_files": len(files),
            "worg_documents": len({id(node.document) for node in memory.nodes}),
            "worg_nodes": len(memory.nodes),
            "worg_problems": len(memory.problems),
            "worg_load_ms": seconds * 1000,
        }


def _aims(figures: Mapping[str, float]) -> list[dict[str, Cell]]:
    maximums: dict[str, float] = {
        **{
            f"render_{kind}_ms_{_MAX_SIZE}": 50.0
            for kind in ("query", "long_query", "focus", "both", "neither")
        },
        f"new_text_found_ms_{_MAX_SIZE}": 200.0,
        f"new_text_found_most_ms_{_MAX_SIZE}": 200.0,
        f"others_read_again_{_MAX_SIZE}": 0.0,
        f"bytes_a_node_beside_text_{_MAX_SIZE}": 4096.0,
        **{f"growth_exponent_{name}": _LINEAR_EXPONENT for name in _GROWING},
    }
    minimums = {f"new_text_found_{_MAX_SIZE}": 1.0, "worg_documents": figures["worg_files"]}
    met = {
        **{f"{name} at most {maximum}": figures[name] <= maximum for name, maximum in maximums.items()},
        **{f"{name} at least {minimum}": figures[name] >= minimum for name, minimum in minimums.items()},
    }
    return [{"aim": aim, "met": is_met} for aim, is_met in met.items()]


def _round(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value
