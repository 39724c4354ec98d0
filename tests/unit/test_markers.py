"""Markers of tests: those that follow from fixtures are added, and no process starts without one."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.harness import markers


@pytest.mark.process
def test_tests_that_use_a_database_server_or_a_browser_have_its_marker(root: Path) -> None:
    both_databases = "tests/contract/test_store_compaction_leases.py"
    own_server, browser = "tests/e2e/test_cost_faults_postgres.py", "tests/e2e/test_web_accessibility.py"
    files = (both_databases, own_server, browser)
    without_marker = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not postgres and not browser", *files],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    names = [line for line in without_marker.splitlines() if "::" in line]
    assert names
    assert all(name.startswith(both_databases) and "postgres" not in name for name in names)


def test_a_test_that_starts_a_process_without_a_marker_fails(request: pytest.FixtureRequest) -> None:
    subprocess.run(["true"], check=True)
    with pytest.raises(pytest.fail.Exception, match=r"no pytest\.mark\.process and started .*true"):
        markers.require_process_marker(request.node)

    markers.forget_processes()
    markers.require_process_marker(request.node)


@pytest.mark.process
def test_a_test_with_the_marker_may_start_processes(request: pytest.FixtureRequest) -> None:
    subprocess.run(["true"], check=True)

    markers.require_process_marker(request.node)


def test_every_tier_is_registered_and_left_out_by_the_fast_run(root: Path) -> None:
    options = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"][
        "ini_options"
    ]
    expression = " and ".join(f"not {name}" for name in markers.TIERS)

    assert [marker.split(":")[0] for marker in options["markers"]] == list(markers.TIERS)
    assert f"-m '{expression}'" in (root / "test").read_text(encoding="utf-8")
