"""`foveate demo` as a user runs it: without network or key, and with consistent numbers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import WITHOUT_KEYS, on_terminal

pytestmark = pytest.mark.process

COMMAND = [sys.executable, "-m", "foveate", "demo"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> "tuple[subprocess.CompletedProcess[str], Path, float]":
    folder = tmp_path_factory.mktemp("demo")
    began = time.monotonic()
    done = subprocess.run(
        [*COMMAND, "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**WITHOUT_KEYS, "FOVEATE_HOME": str(folder / "home"), "TMPDIR": str(folder)},
    )
    return done, folder, time.monotonic() - began


def test_foveate_answers_every_turn_for_less_and_the_direct_session_ends_early(
    demo: "tuple[subprocess.CompletedProcess[str], Path, float]",
) -> None:
    done, _, took = demo
    assert (done.returncode, done.stderr) == (0, "")
    shown = json.loads(done.stdout)
    off, usual, on = shown["off"], shown["usual"], shown["on"]

    assert shown["is_bundled"]
    assert (off["failed"], usual["failed"], on["failed"]) == (0, 0, 0)
    assert on["answered"] == on["requests"] == shown["requests"]
    assert off["answered"] + off["refused"] == shown["requests"]
    assert shown["overflows_prevented"] == off["refused"] > 0
    assert on["folds"] >= 1
    assert on["hit_ratio"] > 0.7 > off["hit_ratio"] == 0
    assert on["largest_context"] <= shown["window_tokens"]
    assert usual["answered"] == off["answered"]
    assert usual["hit_ratio"] > 0.7
    assert usual["edits"] == 0
    assert float(usual["dollars_per_answer"]) < 0.5 * float(off["dollars_per_answer"])
    assert float(on["dollars_per_answer"]) < float(usual["dollars_per_answer"])
    assert took < 180, "a minute on a machine that has nothing else to do"


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
        COMMAND,
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
    shown = on_terminal("demo", "--session", str(path), env={**WITHOUT_KEYS, "TERM": "xterm", "NO_COLOR": "1"})

    assert "replaying without a cache, request 1 of 3" in shown
    assert "1 of 1" in shown
    assert "\x1b[1m" not in shown


def test_progress_fits_in_one_line_of_a_narrow_terminal(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    path.write_text(json.dumps({"model": "claude-sonnet-4-5", "messages": messages}))
    shown = on_terminal("demo", "--session", str(path), env={**WITHOUT_KEYS, "TERM": "xterm", "COLUMNS": "40"})

    assert "\x1b[K1/3" in shown
    assert "replaying" not in shown
