"""Commands on terminals, pipes and closed files: never a traceback, never a stray escape."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from tests.support.processes.commands import ESCAPE, WITHOUT_KEYS, Outcome, on_terminal, spawn, write
from tests.support.processes.forked_commands import COMMAND

pytestmark = pytest.mark.process

SECTIONS = [
    {"name": "rules", "text": "Answer in one word.", "priority": "required"},
    {"name": "📚 本棚 the shelf", "text": "one two " * 40, "priority": "low"},
]


@pytest.fixture
def sections_file(tmp_path: Path) -> Path:
    return write(tmp_path / "sections.json", SECTIONS)


def test_colours_are_only_for_terminals_that_support_them(text_file: Path) -> None:
    assert ESCAPE in on_terminal("count", str(text_file))
    assert ESCAPE not in on_terminal("count", str(text_file), env={"NO_COLOR": "1"})
    assert ESCAPE not in spawn("count", text_file, env={"TERM": "xterm"}).out


def test_a_terminal_shows_progress_when_counting_takes_long(text_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        url = f"http://127.0.0.1:{silent_server.getsockname()[1]}"
        output = on_terminal("count", str(text_file), "--endpoint", url, "--timeout", "1.5")

    assert "counting tokens… 1 s\r  " in output
    assert "no response within 1.5 s" in output


def test_a_closed_pipe_is_not_an_error(text_file: Path) -> None:
    for command in ("count", "--json"), ("count",):
        line = f'"$@" {" ".join(command)} "{text_file}" | head -0; exit ${{PIPESTATUS[0]}}'
        outcome = spawn(command=["bash", "-c", line, "bash", *COMMAND])

        assert outcome == Outcome(0, "", "")


def test_control_c_ends_the_command_with_130_and_no_traceback() -> None:
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "count"], stdin=terminal, stderr=subprocess.PIPE, env=WITHOUT_KEYS
    ) as process:
        assert process.stderr is not None
        assert b"press Ctrl-D to end" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
        rest = process.stderr.read()
    os.close(controller)
    os.close(terminal)

    assert code == 130
    assert b"Traceback" not in rest


def test_a_closed_standard_input_is_one_line() -> None:
    outcome = spawn(command=["sh", "-c", '"$@" count <&-', "sh", *COMMAND])

    assert outcome == Outcome(2, "", "foveate: standard input: is closed\n")


def test_a_narrow_encoding_is_not_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "naïve.txt", "one two")
    outcome = spawn("count", path, env={"PYTHONIOENCODING": "ascii"})

    assert outcome.code == 0
    assert "na\\xefve.txt" in outcome.out


def test_an_invalid_option_gives_no_traceback(run: Any) -> None:
    outcome = run("count", "--nonsense")

    assert outcome.code == 2
    assert "No such option" in outcome.err


@pytest.mark.parametrize("arguments", ["count", "count --json", "--version", "--help"])
def test_a_full_output_is_one_line_and_exit_code_1(text_file: Path, arguments: str) -> None:
    """Regression: a full disk caused a traceback and exit code 120."""
    files = f'"{text_file}"' if "count" in arguments else ""
    outcome = spawn(command=["sh", "-c", f'"$@" {arguments} {files} >/dev/full', "sh", *COMMAND])

    assert outcome == Outcome(1, "", "foveate: standard output: No space left on device\n")


@pytest.mark.parametrize("arguments", ["count", "count --json"])
def test_a_closed_output_is_one_line_and_exit_code_1(text_file: Path, arguments: str) -> None:
    """Regression: the colours raised an AttributeError."""
    outcome = spawn(command=["sh", "-c", f'"$@" {arguments} "{text_file}" >&-', "sh", *COMMAND])

    assert outcome == Outcome(1, "", "foveate: standard output: is closed\n")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_counting_continues_if_standard_error_cannot_be_written(text_file: Path, redirection: str) -> None:
    outcome = spawn(command=["sh", "-c", f'"$@" count "{text_file}" missing {redirection}', "sh", *COMMAND])

    assert outcome.code == 1
    assert outcome.rows["total"] == "6"


def test_control_characters_in_a_request_cannot_reach_the_terminal(run: Any, tmp_path: Path) -> None:
    """Regression: a line end in a role broke the table, and an escape coloured the rest of the session."""
    body = {
        "model": "gpt\x1b]0;owned\x07\n-4o",
        "messages": [{"role": "user\n\x1b[31m\x9b0m\u202e", "content": "Hello!"}],
    }
    outcome = run("count", "-r", write(tmp_path / "r", body))

    assert outcome.code == 0
    assert all(line.isprintable() for line in outcome.out.splitlines())
    assert len(outcome.out.splitlines()) == 5
    assert r"messages[0] user\n\x1b[31m\x9b0m\u202e" in outcome.out
    assert r"gpt\x1b]0;owned\x07\n-4o" in outcome.out


def test_control_characters_in_a_file_name_cannot_reach_the_terminal(run: Any, tmp_path: Path) -> None:
    outcome = run("count", tmp_path / "missing\x1b[31m")

    assert outcome.err == f"foveate: {tmp_path}/missing\\x1b[31m: No such file or directory\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("missing",), "unreadable_input"),
        (("missing", "missing too"), "unreadable_input"),
        (("--request", "/dev/null"), "malformed_request"),
        (("--backend", "magic"), "bad_option"),
        (("--tokenizer", "missing"), "bad_vocabulary"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_an_error_with_json_is_also_an_object(
    run: Any, text_file: Path, arguments: tuple[str, ...], code: str
) -> None:
    """Regression: readers of JSON got no error object."""
    files = (text_file,) if arguments[0] in ("--backend", "--tokenizer") else ()
    outcome = run("count", "--json", *arguments, *files)
    error = json.loads(outcome.out)["error"]

    assert outcome.code == 2
    assert error["code"] == code
    assert outcome.err.splitlines()[-1] == f"foveate: {error['message']}"


def test_a_backend_that_cannot_count_texts_is_reported(text_file: Path) -> None:
    """Regression: the text was counted locally without a message."""
    outcome = spawn("count", text_file, "--backend", "openai_api", env={"OPENAI_API_KEY": "sk-none"})

    assert outcome.code == 0
    assert outcome.rows["total"] == "6"
    assert outcome.err == (
        "foveate: https://api.openai.com: it counts Responses requests only; counted offline instead\n"
    )


@pytest.mark.parametrize(("columns", "width"), [(0, 80), (40, 40), (60, 60)])
def test_a_picture_is_as_wide_as_the_terminal(sections_file: Path, columns: int, width: int) -> None:
    env = {"CONTEXT_MAX_TOKENS": "40", "NO_COLOR": "1"}
    output = on_terminal("assemble", "--sections", str(sections_file), "--explain", env=env, columns=columns)
    lines = output.splitlines()
    (row,) = [line for line in lines if line.endswith("truncated")]

    assert width - 3 <= cell_len(row) <= max(map(cell_len, lines)) <= width
    assert row.startswith("📚 本棚" if columns > 40 else "📚")  # a long name is shortened in the middle


def test_columns_in_the_environment_take_precedence(sections_file: Path) -> None:
    def widest_line(**env: str) -> int:
        without_notes = {"CONTEXT_MAX_TOKENS": "4000", "NO_COLOR": "1"}
        output = on_terminal("assemble", "--sections", str(sections_file), env=env | without_notes, columns=60)
        return max(map(cell_len, output.splitlines()))

    assert widest_line(COLUMNS="75") > 60
    assert widest_line(COLUMNS="no number") <= 60
    assert widest_line(COLUMNS="9" * 5000) <= 60


def test_a_picture_has_colours_only_for_terminals_that_support_them(sections_file: Path) -> None:
    assert ESCAPE in on_terminal("assemble", "--sections", str(sections_file))
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert ESCAPE not in on_terminal("assemble", "--sections", str(sections_file), env=env)
    assert ESCAPE not in spawn("assemble", "--sections", sections_file, env={"TERM": "xterm"}).out


def test_a_prompt_on_a_terminal_ends_its_line_before_the_picture(sections_file: Path) -> None:
    output = on_terminal("assemble", "--sections", str(sections_file), "-o", "-", env={"NO_COLOR": "1"})

    assert re.search(r"one two \r\n\d+ of 128,000 tokens", output)


def test_a_picture_is_drawn_in_ascii_if_blocks_cannot_be_shown(sections_file: Path) -> None:
    output = spawn("assemble", "--sections", sections_file, env={"PYTHONIOENCODING": "ascii"}).out

    assert "##" in output
    assert "\\U0001f4da" in output
    assert output.isascii()


def test_control_characters_in_a_model_name_cannot_reach_the_terminal(run: Any, sections_file: Path) -> None:
    outcome = run("assemble", "--sections", sections_file, "--model", "gpt\x1b]0;owned\x07\n-4o")

    assert outcome.code == 0
    assert r"gpt\x1b]0;owned\x07\n-4o" in outcome.out
    assert all(line.isprintable() for line in outcome.out.splitlines())


@pytest.mark.parametrize("options", ["", "--json", "--output -"])
def test_a_prompt_that_cannot_be_written_is_one_line_and_exit_code_1(sections_file: Path, options: str) -> None:
    line = f'"$@" assemble --sections "{sections_file}" {options}'
    full = spawn(command=["sh", "-c", f"{line} >/dev/full", "sh", *COMMAND])
    closed = spawn(command=["sh", "-c", f"{line} >&-", "sh", *COMMAND])

    assert full == Outcome(1, "", "foveate: standard output: No space left on device\n")
    assert closed == Outcome(1, "", "foveate: standard output: is closed\n")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_a_picture_that_cannot_be_shown_is_not_an_error(sections_file: Path, redirection: str) -> None:
    line = f'"$@" assemble --sections "{sections_file}" --output - {redirection}'
    outcome = spawn(command=["sh", "-c", line, "sh", *COMMAND])

    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("Answer in one word.")


@pytest.mark.parametrize("options", ["", "--json", "--output -"])
def test_a_closed_pipe_for_the_prompt_is_not_an_error(sections_file: Path, options: str) -> None:
    line = (
        f'"$@" assemble --sections "{sections_file}" {options} 2>/dev/null | head -0; exit ${{PIPESTATUS[0]}}'
    )

    assert spawn(command=["bash", "-c", line, "bash", *COMMAND]) == Outcome(0, "", "")


def test_reading_sections_from_a_terminal_ends_with_control_c() -> None:
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "assemble", "--sections", "-"], stdin=terminal, stderr=subprocess.PIPE, env=WITHOUT_KEYS
    ) as process:
        assert process.stderr is not None
        assert b"press Ctrl-D to end" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
        rest = process.stderr.read()
    os.close(controller)
    os.close(terminal)

    assert (code, b"Traceback" in rest) == (130, False)


def test_a_closed_standard_input_for_sections_is_one_line() -> None:
    outcome = spawn(command=["sh", "-c", '"$@" assemble --sections - <&-', "sh", *COMMAND])

    assert outcome == Outcome(2, "", "foveate: standard input: is closed\n")
