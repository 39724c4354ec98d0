"""`./test`: the checks it runs for its arguments, and its output when some fail."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

TOOLS = ("ruff", "pyrefly", "lint-imports", "mkdocs", "pytest")
CORES = os.cpu_count() or 1
FORKS = "pytest -p tests.support.harness.forked_workers --again-alone 10 --forks"
PARALLEL = f"{FORKS} {4 * CORES}"


@pytest.fixture
def checkout(tmp_path: Path, root: Path) -> Path:
    """A project whose tools print how they were called and fail if `FAIL` names them."""
    shutil.copy(root / "test", tmp_path / "test")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "setup.sh").write_text("prepare() { :; }\n")
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in TOOLS:
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*"\ncase "$FAIL" in *{name}*) exit 1 ;; esac\n')
        (folder / name).chmod(0o755)
    return tmp_path


def run(checkout: Path, *arguments: str, fail: str = "", **environment: str) -> tuple[int, list[str]]:
    """Exit code and output of `./test`, without empty lines and without the names and times of its checks."""
    result = subprocess.run(
        [checkout / "test", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "FAIL": fail, **environment},
    )
    return result.returncode, [
        line for line in result.stdout.splitlines() if line and not line.startswith("== ")
    ]


def test_without_arguments_everything_is_checked(checkout: Path) -> None:
    code, lines = run(checkout)

    assert code == 0
    assert [line.split()[0] for line in lines] == [
        *("ruff", "ruff", "lint-imports", "pytest", "pyrefly", "mkdocs", "all")
    ]
    assert PARALLEL in lines


def test_coverage_is_measured_only_on_request(checkout: Path) -> None:
    code, lines = run(checkout, "--coverage")

    assert code == 0
    assert [line.split()[0] for line in lines] == [
        *("ruff", "ruff", "lint-imports", "pytest", "pyrefly", "mkdocs", "all")
    ]
    assert f"pytest -n {4 * CORES} --dist worksteal --cov" in lines


def test_other_systems_than_linux_do_not_fork_workers(checkout: Path) -> None:
    (checkout / ".venv" / "bin" / "uname").write_text("#!/bin/sh\necho Darwin\n")
    (checkout / ".venv" / "bin" / "uname").chmod(0o755)

    assert f"pytest -n {4 * CORES} --dist worksteal" in run(checkout)[1]


def test_the_fast_run_checks_code_and_runs_quick_tests(checkout: Path) -> None:
    code, lines = run(checkout, "--fast")

    assert code == 0
    assert [line.split()[0] for line in lines] == ["ruff", "ruff", "lint-imports", "pytest", "pyrefly", "all"]
    (tests,) = [line for line in lines if line.startswith("pytest ")]
    assert tests.startswith(f"{FORKS} {CORES} ")
    assert " --hypothesis-profile quick " in tests
    assert " -m not slow and not process and " in tests
    assert "tests/e2e" not in tests


@pytest.mark.parametrize("mode", [(), ("--fast",), ("--coverage",)])
def test_all_checks_run_when_some_fail_and_the_failed_ones_are_listed(
    checkout: Path, mode: tuple[str, ...]
) -> None:
    code, lines = run(checkout, *mode, fail="lint-imports pyrefly")

    assert code == 1
    assert any(line.startswith("pytest ") for line in lines)
    assert lines[-1] == "failed: layers, types"


def test_failing_tests_fail_the_run(checkout: Path) -> None:
    code, lines = run(checkout, fail="pytest")

    assert code == 1
    assert lines[-1] == "failed: tests"


def test_other_arguments_go_to_pytest_alone(checkout: Path) -> None:
    assert run(checkout, "tests/unit", "-k", "lock") == (0, ["pytest tests/unit -k lock"])
    assert run(checkout, "tests/unit", fail="pytest")[0] == 1


def test_durations_are_reported_by_a_plugin(checkout: Path) -> None:
    plugin = "-p tests.support.harness.durations"

    assert run(checkout, "--durations", "tests/unit") == (0, [f"pytest {plugin} tests/unit"])
    assert run(checkout, "--durations") == (0, [f"{PARALLEL} {plugin}"])
    assert run(checkout, "--durations", fail="pytest")[0] == 1


def test_help_lists_the_forms_of_the_command(checkout: Path) -> None:
    code, lines = run(checkout, "--help")

    assert code == 0
    assert [line.split()[:2] for line in lines][1:4] == [
        ["./test", "--fast"],
        ["./test", "--coverage"],
        ["./test", "--durations"],
    ]
