"""`./bench`: its list of benchmarks, its reports, and its timings."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness import (
    Benchmark,
    Report,
    Timings,
    as_json,
    as_text,
    discover,
    undeclared_figures,
)

ROOT = Path(__file__).parents[2]


@pytest.mark.process
def test_every_benchmark_is_listed_with_its_description() -> None:
    listing = subprocess.run(
        [sys.executable, "-m", "benchmarks"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    sources = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py")}
    modules = {module: text for module, text in sources.items() if "\ndef run(" in text}

    assert modules
    for module, text in modules.items():
        declared = re.search(r'^NAME = "(.*)"$', text, re.MULTILINE)
        name = declared[1] if declared else module.replace("_", "-")
        assert re.search(rf"^{name}  +\S", listing, re.MULTILINE), f"{name} is not in:\n{listing}"


@pytest.mark.process
def test_an_unknown_benchmark_is_rejected_with_the_known_names() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks", "nonsense"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 2
    assert "import-time" in result.stderr
    assert not result.stdout


@pytest.mark.process
def test_a_benchmark_prints_one_json_object_although_its_peers_print(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(
        "import os, subprocess\n"
        "from benchmarks.harness import Report\n"
        "def run(data):\n"
        "    print('a peer')\n"
        "    os.write(1, b'a library in C')\n"
        "    subprocess.run(['echo', 'a process'])\n"
        "    return Report(figures={'ms': 1.5}, peers={'other': {'ms': 3}}, rows=[{'ms': 1.5}])\n",
        encoding="utf-8",
    )
    code = (
        "from benchmarks.harness import Benchmark, as_json\n"
        "benchmark = Benchmark(name='noisy', module='noisy', measures='')\n"
        "print(as_json('noisy', benchmark.run(None)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(result.stdout) == {
        "bench": "noisy",
        "figures": {"ms": 1.5},
        "peers": {"other": {"ms": 3}},
        "rows": [{"ms": 1.5}],
    }
    for noise in ("a peer", "a library in C", "a process"):
        assert noise in result.stderr


def test_a_report_without_peers_and_rows_can_be_printed_and_parsed() -> None:
    report = Report(figures={"exact_share": 0.975, "requests": 1790})

    assert "1,790" in as_text("bare", report)
    assert json.loads(as_json("bare", report))["rows"] == []


def test_an_undeclared_figure_is_found() -> None:
    benchmark = Benchmark(name="b", module="b", measures="", figures=("load_before", "<size>_ms"))
    report = Report(figures={"load_before": 1, "1mb_ms": 2, "_ms": 3, "load": 4})

    assert undeclared_figures(benchmark, report) == ["_ms", "load"]


def test_a_figure_that_is_not_a_number_is_not_printed_as_json() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        as_json("broken", Report(figures={"share": float("nan")}))


def test_a_speedup_is_the_median_of_simultaneous_runs() -> None:
    timings = Timings({"ours": [1.0, 1.0, 10.0], "theirs": [2.0, 3.0, 40.0]})

    assert timings.speedup("ours", over="theirs") == 3.0
    assert timings.median_seconds("theirs") == 3.0
    assert timings.difference_seconds("theirs", over="ours") == 2.0


def test_discovery_imports_no_benchmark() -> None:
    before = set(sys.modules)
    benchmarks = discover()

    assert "import-time" in benchmarks
    assert not {benchmark.module for benchmark in benchmarks.values()} & (set(sys.modules) - before)
