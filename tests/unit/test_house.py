"""What the project promises of itself: its locks, its commands, its benchmarks, its tests."""

import json
import os
import re
import runpy
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from benchmarks.harness import (
    Benchmark,
    Report,
    Timings,
    as_json,
    as_text,
    discover,
    undeclared_figures,
)
from tests.support.harness import network_guard

ROOT = Path(__file__).parents[2]
LOCKS = {"requirements.lock": "dev", "requirements-bench.lock": "bench"}
IMAGE_LOCKS = ("requirements-runtime.lock", "requirements-build.lock")
COMMANDS = ("run", "test", "bench", ".ci/run", "tools/lock")
INDEX_ADDRESS = re.compile(r"pythonhosted\.org|pypi\.org|https?://\S*/simple\b|index-url\s*=")


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def required(group: str) -> list[Requirement]:
    content = pyproject()
    return [
        Requirement(line) for line in content["project"]["dependencies"] + content["dependency-groups"][group]
    ]


def pins(lock: str) -> dict[str, list[Version]]:
    """The versions that a lock file pins, by name; several where it differs by platform."""
    found: dict[str, list[Version]] = {}
    for line in (ROOT / lock).read_text(encoding="utf-8").splitlines():
        if pin := re.match(r"([a-z0-9.-]+)==([^ ]+)", line):
            found.setdefault(pin[1], []).append(Version(pin[2]))
    return found


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout, so there are no tracked files to look through")
    paths = (ROOT / name for name in listing.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_all_that_the_project_requires(lock: str) -> None:
    pinned = pins(lock)
    for requirement in required(LOCKS[lock]):
        versions = pinned.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement.name} is not in {lock}: run tools/lock"
        for version in versions:
            assert version in requirement.specifier, f"{lock} has {requirement.name} {version}"


@pytest.mark.parametrize("lock", [*LOCKS, *IMAGE_LOCKS])
def test_a_lock_was_made_from_the_requirements_of_today(lock: str) -> None:
    digest = runpy.run_path(str(ROOT / "tools" / "lock_inputs.py"))["digest"]
    today = digest((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert f"\n# inputs: sha256:{today}\n" in (ROOT / lock).read_text(encoding="utf-8"), (
        f"{lock} was made from other requirements: run tools/lock"
    )


def test_removing_a_requirement_makes_the_locks_stale() -> None:
    digest = runpy.run_path(str(ROOT / "tools" / "lock_inputs.py"))["digest"]
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    without = re.sub(r'\n    "blake3[^"]*",', "", text)

    assert without != text
    assert digest(without) != digest(text)


@pytest.mark.parametrize("lock", [*LOCKS, *IMAGE_LOCKS])
def test_every_pin_of_a_lock_has_a_hash(lock: str) -> None:
    text = (ROOT / lock).read_text(encoding="utf-8")
    for entry in re.split(r"\n(?=[a-z0-9])", text)[1:]:
        assert "--hash=sha256:" in entry


def test_benchmarks_measure_the_product_with_the_versions_it_is_tested_with() -> None:
    tested, measured = (pins(lock) for lock in LOCKS)
    for line in pyproject()["project"]["dependencies"]:
        name = canonicalize_name(Requirement(line).name)
        assert measured[name] == tested[name]


@pytest.mark.process
def test_no_file_names_the_address_of_a_package_index() -> None:
    for path in tracked_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        found = INDEX_ADDRESS.search(text)
        assert not found, f"{path.relative_to(ROOT)} names {found}"


@pytest.mark.process
def test_there_is_no_lock_file_that_holds_addresses() -> None:
    assert not [path for path in tracked_files() if path.name in {"uv.lock", "poetry.lock"}]


@pytest.mark.process
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_can_be_executed_and_is_posix_shell(command: str) -> None:
    path = ROOT / command

    assert os.access(path, os.X_OK)
    assert path.read_text(encoding="utf-8").startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n", str(path)], check=True)


@pytest.mark.process
def test_the_setup_that_the_commands_share_is_posix_shell() -> None:
    subprocess.run(["sh", "-n", str(ROOT / "tools" / "setup.sh")], check=True)


@pytest.mark.process
def test_every_benchmark_is_listed_with_what_it_measures() -> None:
    listing = subprocess.run(
        [sys.executable, "-m", "benchmarks"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    modules = [
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if "\ndef run(" in path.read_text(encoding="utf-8")
    ]

    assert modules
    for module in modules:
        name = module.replace("_", "-")
        assert re.search(rf"^{name}  +\S", listing, re.MULTILINE), f"{name} is not in:\n{listing}"


@pytest.mark.process
def test_an_unknown_benchmark_is_refused_with_the_names_there_are() -> None:
    refusal = subprocess.run(
        [sys.executable, "-m", "benchmarks", "nonsense"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert refusal.returncode == 2
    assert "import-time" in refusal.stderr
    assert not refusal.stdout


@pytest.mark.process
def test_a_benchmark_prints_one_json_object_whatever_its_peers_print(tmp_path: Path) -> None:
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
    finished = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(finished.stdout) == {
        "bench": "noisy",
        "figures": {"ms": 1.5},
        "peers": {"other": {"ms": 3}},
        "rows": [{"ms": 1.5}],
    }
    for noise in ("a peer", "a library in C", "a process"):
        assert noise in finished.stderr


def test_a_report_without_peers_and_rows_can_be_read_and_parsed() -> None:
    report = Report(figures={"exact_share": 0.975, "requests": 1790})

    assert "1,790" in as_text("bare", report)
    assert json.loads(as_json("bare", report))["rows"] == []


def test_a_figure_that_its_benchmark_does_not_declare_is_found() -> None:
    benchmark = Benchmark(name="b", module="b", measures="", figures=("load_before", "<size>_ms"))
    report = Report(figures={"load_before": 1, "1mb_ms": 2, "_ms": 3, "load": 4})

    assert undeclared_figures(benchmark, report) == ["_ms", "load"]


def test_a_figure_that_is_not_a_number_is_not_printed_as_json() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        as_json("broken", Report(figures={"share": float("nan")}))


def test_a_speedup_is_the_median_of_what_ran_side_by_side() -> None:
    timings = Timings({"ours": [1.0, 1.0, 10.0], "theirs": [2.0, 3.0, 40.0]})

    assert timings.speedup("ours", over="theirs") == 3.0
    assert timings.median_seconds("theirs") == 3.0
    assert timings.difference_seconds("theirs", over="ours") == 2.0


def test_finding_the_benchmarks_imports_none_of_them() -> None:
    before = set(sys.modules)
    found = discover()

    assert "import-time" in found
    assert not {benchmark.module for benchmark in found.values()} & (set(sys.modules) - before)


def test_a_test_that_reaches_for_another_machine_is_stopped() -> None:
    with socket.socket() as outward, pytest.raises(network_guard.NotLoopback, match=r"192\.0\.2\.1"):
        outward.connect(("192.0.2.1", 80))
    with pytest.raises(network_guard.NotLoopback, match="loopback only"):
        socket.getaddrinfo("example.org", 80)

    assert len(network_guard.ATTEMPTS) == 2
    network_guard.ATTEMPTS.clear()


def test_a_test_may_reach_its_own_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(("localhost", address[1]), timeout=5):
            pass
