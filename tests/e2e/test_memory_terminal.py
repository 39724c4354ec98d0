"""`foveate memory` on terminals and pipes: control sequences in notes never reach a terminal."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.commands import ESCAPE, WITHOUT_KEYS, Outcome, on_terminal, spawn
from tests.support.processes.forked_commands import COMMAND

pytestmark = pytest.mark.process

COLOUR = re.compile(r"\x1b\[\d+m")
COMMANDS = ("render", "query", "outline")
ODD = """\
* TODO Red \x1b[31malert\x9b0m\u202e :a:
:PROPERTIES:
:ID: od\x1bd
:END:
A\ttab, a bell\x07 and \x1b]0;owned\x07 a title.
"""


@pytest.fixture
def odd_notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "odd\x1b[5m.org").write_text(ODD, encoding="utf-8")
    return folder


@pytest.fixture
def many_notes(tmp_path: Path) -> Path:
    """5,000 nodes with 200 KB of output, more than a pipe buffers."""
    folder = tmp_path / "many"
    folder.mkdir()
    for file in range(5):
        notes = "".join(f"* Note {number} of file {file}\nSome text.\n" for number in range(1000))
        (folder / f"{file}.org").write_text(notes, encoding="utf-8")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_control_characters_in_notes_cannot_reach_a_terminal(odd_notes: Path, command: str) -> None:
    output = on_terminal("memory", command, str(odd_notes), env={"NO_COLOR": "1"})

    assert r"Red \x1b[31malert\x9b0m\u202e" in output
    assert r"od\x1bd" in output
    assert all(line.isprintable() for line in output.splitlines())


def test_tabs_become_spaces_on_a_terminal_and_stay_in_a_pipe(run: Any, odd_notes: Path) -> None:
    output = on_terminal("memory", "render", str(odd_notes), "--focus", "od\x1bd", env={"NO_COLOR": "1"})

    assert "A       tab, a bell\\x07 and" in output
    assert "A\ttab, a bell\x07 and" in run("memory", "render", odd_notes).out


@pytest.mark.parametrize("command", ["query", "outline"])
def test_lines_are_plain_in_a_pipe_too(run: Any, odd_notes: Path, command: str) -> None:
    outcome = run("memory", command, odd_notes)

    assert all(line.isprintable() for line in (outcome.out + outcome.err).splitlines())
    assert r"odd\x1b[5m.org" in outcome.out or "odd" in outcome.out


def test_problems_of_odd_file_names_cannot_reach_a_terminal(run: Any, odd_notes: Path) -> None:
    next(odd_notes.iterdir()).write_bytes(b"\xff")
    outcome = run("memory", "outline", odd_notes)

    assert all(line.isprintable() for line in outcome.err.splitlines())
    assert "is not UTF-8" in outcome.err


@pytest.mark.parametrize("command", ["query", "outline"])
def test_colours_are_only_for_terminals_that_support_them(many_notes: Path, command: str) -> None:
    file = str(many_notes / "1.org")

    assert COLOUR.search(on_terminal("memory", command, file))
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert not COLOUR.search(on_terminal("memory", command, file, env=env))
    assert ESCAPE not in spawn("memory", command, file, env={"TERM": "xterm"}).out


@pytest.mark.parametrize("command", ["query", "outline", "query --json", "outline --json", "render"])
def test_a_closed_pipe_is_not_an_error(many_notes: Path, command: str) -> None:
    subcommand, *options = command.split()
    script = f'"$@" memory {subcommand} "{many_notes}" {" ".join(options)}'
    line = f"{script} 2>/dev/null | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}"

    assert spawn(command=["bash", "-c", line, "bash", *COMMAND]) == Outcome(0, "", "")


def test_an_outline_stops_counting_after_a_closed_pipe(many_notes: Path) -> None:
    """Tokens of a file are counted when its line is written, so `| head` need not wait for all files."""
    with subprocess.Popen(
        [*COMMAND, "memory", "outline", many_notes],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=WITHOUT_KEYS,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline().decode()
        process.stdout.close()
        rest = process.stderr.read()
        code = process.wait(60)

    assert re.match(r"0  <<\w+>>  0\.org  1,001 nodes, [\d,]+ tokens\n", first)
    assert (code, rest) == (0, b"")


@pytest.mark.parametrize("command", ["render", "query", "outline", "outline --json"])
@pytest.mark.parametrize(
    ("redirection", "message"), [(">/dev/full", "No space left on device"), (">&-", "is closed")]
)
def test_a_failed_write_is_one_line_and_exit_code_1(
    root: Path, command: str, redirection: str, message: str
) -> None:
    subcommand, *options = command.split()
    line = f'"$@" memory {subcommand} "{root}/examples/notes" {" ".join(options)} {redirection}'
    outcome = spawn(command=["sh", "-c", line, "sh", *COMMAND])

    assert outcome == Outcome(1, "", f"foveate: standard output: {message}\n")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_an_unwritable_standard_error_does_not_stop_the_output(root: Path, redirection: str) -> None:
    line = f'"$@" memory render "{root}/examples/notes" missing {redirection}'
    outcome = spawn(command=["sh", "-c", line, "sh", *COMMAND])

    assert outcome.code == 1
    assert "The garden" in outcome.out


def test_a_narrow_encoding_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "naïve.md").write_text("# Café\n\n7 °C\n", encoding="utf-8")
    for command in COMMANDS:
        outcome = spawn("memory", command, tmp_path, env={"PYTHONIOENCODING": "ascii"})

        assert outcome.code == 0
        assert "Caf\\xe9" in outcome.out


def test_a_file_name_that_is_not_utf_8_is_shown(run: Any, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.org"
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123  # a Path takes no bytes
        file.write("* Menu\n")
    for command in COMMANDS:
        outcome = spawn("memory", command, tmp_path)
        as_json = run("memory", command, tmp_path, "--json")

        assert outcome.code == 0
        assert "Menu" in outcome.out
        assert json.loads(as_json.out)["problems"] == []


@pytest.fixture
def slow_notes(tmp_path: Path) -> Path:
    """More nodes than are read within a second."""
    notes = "".join(
        f"* Note {number}\nSome text that is long enough to take a while.\n" for number in range(20_000)
    )
    for file in range(3):
        (tmp_path / f"{file}.org").write_text(notes, encoding="utf-8")
    return tmp_path


def test_control_c_ends_the_command_with_130_and_no_traceback(slow_notes: Path) -> None:
    script = (
        "import os, signal, sys, threading\n"
        "from foveate.__main__ import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in the background
        f"sys.argv = ['foveate', 'memory', 'render', {str(slow_notes)!r}, '--query', 'a while']\n"
        "threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "main()\n"
    )
    outcome = spawn(command=[sys.executable, "-c", script])

    assert outcome == Outcome(130, "", "")


def test_a_slow_command_shows_progress(slow_notes: Path) -> None:
    output = on_terminal("memory", "render", str(slow_notes), "--query", "a while", env={"NO_COLOR": "1"})

    assert re.search(r"foveate: (reading the memory|rendering)… \d+ s\r +\r", output)


def test_a_wrong_command_gives_no_traceback(run: Any) -> None:
    outcome = run("memory", "recall", "notes")

    assert outcome.code == 2
    assert "No such command 'recall'" in outcome.err
