"""`--forks`: tests in forks of the process that collected them have the same outcomes as in one process."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.harness.forked_workers import sort_files

OUTCOMES = {
    "test_first.py": """
import os, pytest

@pytest.fixture(scope="module", autouse=True)
def shared():
    with open("shared", "a") as log: log.write("set up\\n")
    yield
    with open("shared", "a") as log: log.write("torn down\\n")

def test_passes(tmp_path): (tmp_path / "a").touch()
def test_fails():
    print("what it printed")
    assert 1 == 2
@pytest.mark.skip(reason="not today")
def test_is_skipped(): pass
@pytest.mark.xfail(strict=True)
def test_fails_as_expected(): assert 0
""",
    "test_second.py": """
import pytest

@pytest.fixture
def broken():
    raise ValueError("no fixture")

def test_has_no_fixture(broken): pass
@pytest.mark.parametrize("number", range(20))
def test_passes(number): pass
""",
}
CRASH = "import os\ndef test_before(): pass\ndef test_crashes(): os._exit(3)\ndef test_after(): pass\n"


def command(*arguments: str) -> list[str]:
    options = ["-p", "tests.support.harness.forked_workers", "-p", "no:cacheprovider", "--color=no"]
    return [sys.executable, "-m", "pytest", *options, *arguments]


def environment(root: Path, temporary: Path) -> dict[str, str]:
    own = {"PYTHONPATH": str(root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TMPDIR": str(temporary)}
    return {**os.environ, **own}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "temporary").mkdir()
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = process\n")
    return folder


def run_pytest(project: Path, root: Path, files: Mapping[str, str], *arguments: str) -> tuple[int, str]:
    for name, text in files.items():
        (project / name).write_text(text, encoding="utf-8")
    temporary = project.parent / "temporary"
    result = subprocess.run(
        command(*arguments),
        cwd=project,
        env=environment(root, temporary),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert not list(temporary.glob("foveate-forks-*"))
    return result.returncode, result.stdout


def sorted_summary(output: str) -> list[str]:
    """Outcomes and causes of failures without what differs from run to run: order and time."""
    lines = [re.sub(r" in [\d.]+s", "", line) for line in output.splitlines()]
    kept = ("FAILED", "ERROR ", "SKIPPED", "XFAIL", "E  ", "what it printed", "===")
    return sorted(line for line in lines if line.startswith(kept))


@pytest.mark.process
def test_forks_report_what_one_process_reports(project: Path, root: Path) -> None:
    plain_code, plain = run_pytest(project, root, OUTCOMES, "-ra")
    (project / "shared").unlink()
    code, output = run_pytest(project, root, OUTCOMES, "-ra", "--forks", "3")

    assert code == plain_code == 1
    assert sorted_summary(output) == sorted_summary(plain)
    assert "what it printed" in output
    assert "1 failed, 21 passed, 1 skipped, 1 xfailed, 1 error" in output
    assert (project / "shared").read_text() == "set up\ntorn down\n"


@pytest.mark.process
@pytest.mark.parametrize("workers", ["1", "2"])
def test_only_a_test_that_ends_its_process_fails(project: Path, root: Path, workers: str) -> None:
    slow = "def test(): __import__('time').sleep(0.5)"
    files = {"test_crash.py": CRASH, "test_slow.py": slow}
    code, output = run_pytest(project, root, files, "-rA", "--forks", workers)

    assert code == 1
    assert "FAILED test_crash.py::test_crashes - the worker ended with code 3" in output
    assert "PASSED test_crash.py::test_after" in output
    assert "1 failed, 3 passed" in output


@pytest.mark.process
def test_tests_that_fail_beside_others_run_again_alone(project: Path, root: Path) -> None:
    """Only the second outcome counts, and how they failed at first is still shown."""
    late = """
import os, pathlib, pytest
def fails_once(name):
    if not pathlib.Path(name).exists():
        pathlib.Path(name).touch()
        return True
def test_is_late(): assert not fails_once("late"), "too late"
def test_crashes_once():
    if fails_once("crashed"): os._exit(3)
def test_always_fails(): assert 1 == 2
@pytest.fixture
def broken_once():
    yield
    assert not fails_once("broken"), "not torn down"
def test_breaks_at_the_end(broken_once): pass
"""
    code, output = run_pytest(project, root, {"test_late.py": late}, "-ra", "--forks=2", "--again-alone=5")

    assert code == 1
    assert "1 failed, 3 passed, 4 failed beside others" in output
    assert "FAILED test_late.py::test_always_fails" in output
    assert "FAILED test_late.py::test_is_late" not in output
    assert "AssertionError: too late" in output
    assert "AssertionError: not torn down" in output
    assert "the worker ended with code 3" in output


@pytest.mark.process
def test_only_as_many_failed_tests_as_allowed_run_again(project: Path, root: Path) -> None:
    many = "import pytest\n@pytest.mark.parametrize('n', range(9))\ndef test(n): assert n < 3\n"
    code, output = run_pytest(project, root, {"test_many.py": many}, "--forks=2", "--again-alone=2")

    assert code == 1
    assert "6 failed, 3 passed, 2 failed beside others" in output


@pytest.mark.process
def test_no_further_tests_start_after_the_first_failure_if_asked(project: Path, root: Path) -> None:
    many = "import pytest\n@pytest.mark.parametrize('n', range(50))\ndef test(n): assert n != 3\n"
    code, output = run_pytest(project, root, {"test_many.py": many}, "-x", "--forks", "2")

    assert code == 1
    assert re.search(r"1 failed, [3-5] passed", output)


@pytest.mark.process
def test_a_module_that_cannot_be_imported_stops_the_run(project: Path, root: Path) -> None:
    code, output = run_pytest(project, root, {**OUTCOMES, "test_broken.py": "import missing"}, "--forks", "2")

    assert code == 2
    assert "Interrupted: 1 error during collection" in output


@pytest.mark.process
def test_an_error_of_a_worker_itself_fails_the_run(project: Path, root: Path) -> None:
    hook = """
def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):
        raise RuntimeError("not finished")
"""
    code, output = run_pytest(
        project, root, {"conftest.py": hook, "test_it.py": "def test(): pass"}, "--forks=1"
    )

    assert code == 1
    assert "a worker ended with code 1" in output


@pytest.mark.process
def test_ctrl_c_tears_fixtures_down_and_ends_all_workers(project: Path, root: Path) -> None:
    waits = """
import pytest, time
from pathlib import Path

@pytest.fixture
def file():
    yield
    Path("started").unlink()

def test_waits(file):
    Path("started").touch()
    time.sleep(60)
"""
    (project / "test_waits.py").write_text(waits)
    with subprocess.Popen(
        command("--forks", "2"),
        cwd=project,
        env=environment(root, project.parent / "temporary"),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while not (project / "started").exists():
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=30)  # ends only when no worker has its output open

    assert process.returncode == 2
    assert "KeyboardInterrupt" in output
    assert not (project / "started").exists()


def test_files_are_sorted_by_what_their_tests_do() -> None:
    def make_item(file: str, *markers: str) -> pytest.Item:
        marks = [SimpleNamespace(name=name) for name in markers]
        return cast("pytest.Item", SimpleNamespace(path=Path(file), iter_markers=lambda: marks))

    items = [
        make_item("test_quick.py", "parametrize"),
        make_item("test_slow.py"),
        make_item("test_store.py", "postgres"),
        make_item("test_slow.py", "slow"),
        make_item("test_serve.py", "slow", "process"),
    ]

    assert {kind: list(files) for kind, files in sort_files(items).items()} == {
        "waiting": [[4], [2]],
        "busy": [[1, 3]],
        "quick": [[0]],
    }
