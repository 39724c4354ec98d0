"""`foveate demo` as a user runs it: without network or key, and with consistent numbers."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.commands import WITHOUT_KEYS, on_terminal
from tests.support.processes.forked_commands import COMMAND

pytestmark = pytest.mark.process

DEMO = [*COMMAND, "demo"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> "tuple[subprocess.CompletedProcess[str], Path, float]":
    folder = tmp_path_factory.mktemp("demo")
    started_at = time.monotonic()
    process = subprocess.run(
        [*DEMO, "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**WITHOUT_KEYS, "FOVEATE_HOME": str(folder / "home"), "TMPDIR": str(folder)},
    )
    return process, folder, time.monotonic() - started_at


def test_foveate_answers_every_turn_for_less_and_the_direct_session_ends_early(
    demo: "tuple[subprocess.CompletedProcess[str], Path, float]",
) -> None:
    process, _, elapsed_seconds = demo
    assert (process.returncode, process.stderr) == (0, "")
    report = json.loads(process.stdout)
    direct, default, optimized = report["off"], report["usual"], report["on"]

    assert report["is_bundled"]
    assert (direct["failed"], default["failed"], optimized["failed"]) == (0, 0, 0)
    assert optimized["answered"] == optimized["requests"] == report["requests"]
    assert direct["answered"] + direct["refused"] == report["requests"]
    assert report["overflows_prevented"] == direct["refused"] > 0
    assert optimized["folds"] >= 1
    assert optimized["hit_ratio"] > 0.7 > direct["hit_ratio"] == 0
    assert optimized["largest_context"] <= report["window_tokens"]
    assert default["answered"] == direct["answered"]
    assert default["hit_ratio"] > 0.7
    assert default["edits"] == 0
    assert float(default["dollars_per_answer"]) < 0.5 * float(direct["dollars_per_answer"])
    assert float(optimized["dollars_per_answer"]) < float(default["dollars_per_answer"])
    assert elapsed_seconds < 180, "a minute on a machine that has nothing else to do"


def test_no_files_are_left_over(demo: "tuple[subprocess.CompletedProcess[str], Path, float]") -> None:
    _, folder, _ = demo

    assert not list(folder.iterdir())


def test_the_recording_is_small_and_can_be_replayed() -> None:
    from foveate.cli.demo import _BUNDLED_RECORDING
    from foveate.replay.recording_files import read_recordings

    (recording,) = read_recordings(_BUNDLED_RECORDING)
    assert len(recording.calls) >= 20
    assert _BUNDLED_RECORDING.stat().st_size < 100_000


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--session", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--session", "pyproject.toml"], "is not a recording of a known format"),
        (["--window", "7"], "--window"),
    ],
)
def test_invalid_arguments_are_reported(run: Any, arguments: list[str], reason: str) -> None:
    outcome = run("demo", *arguments)

    assert outcome.code == 2
    assert reason in outcome.err


def test_ctrl_c_ends_the_demo_and_leaves_no_files(tmp_path: Path) -> None:
    process = subprocess.Popen(
        DEMO,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**WITHOUT_KEYS, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.iterdir()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert (out, "Traceback" in err) == ("", False)
    assert not list(tmp_path.iterdir())


def test_a_terminal_shows_progress_and_no_colours_if_disabled(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    path.write_text(json.dumps({"model": "claude-sonnet-4-5", "system": "Be brief.", "messages": messages}))
    screen = on_terminal("demo", "--session", str(path), env={**WITHOUT_KEYS, "TERM": "xterm", "NO_COLOR": "1"})

    assert "replaying without a cache, request 1 of 3" in screen
    assert "1 of 1" in screen
    assert "\x1b[1m" not in screen


def test_progress_fits_in_one_line_of_a_narrow_terminal(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    path.write_text(json.dumps({"model": "claude-sonnet-4-5", "messages": messages}))
    screen = on_terminal("demo", "--session", str(path), env={**WITHOUT_KEYS, "TERM": "xterm", "COLUMNS": "40"})

    assert "\x1b[K1/3" in screen
    assert "replaying" not in screen
