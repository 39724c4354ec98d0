"""Markers of tests: those that follow from fixtures are added, and no process starts without one."""

import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.harness import markers


class FakeItem:
    def __init__(self, *fixtures: str, **parameters: str) -> None:
        self.fixturenames = fixtures
        self.callspec = SimpleNamespace(params=parameters)
        self.markers: list[str] = []

    def add_marker(self, name: str) -> None:
        self.markers.append(name)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (FakeItem("tmp_path", "database_url", database_url="sqlite"), []),
        (FakeItem("tmp_path", "database_url", database_url="postgres"), ["postgres"]),
        (FakeItem("bare_database_url", bare_database_url="postgres"), ["postgres"]),
        (FakeItem("own_server"), ["postgres"]),
        (FakeItem("browser", "dashboard_gateway"), ["browser", "process"]),
    ],
)
def test_tests_that_use_a_database_server_or_a_browser_get_its_marker(item: Any, expected: list[str]) -> None:
    markers.add_derived_markers(item)

    assert item.markers == expected


@pytest.mark.process
def test_derived_markers_are_added_before_tests_are_selected(root: Path) -> None:
    file = "tests/contract/test_store_compaction_leases.py"
    selected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not postgres", file],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    names = [line for line in selected.splitlines() if "::" in line]
    assert names
    assert not [name for name in names if "postgres" in name]


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
