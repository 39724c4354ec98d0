"""`foveate count` as a user calls it: in this process where that will do, otherwise in its own."""

import base64
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import foveate
from foveate.cli import main
from tests.llama import LlamaServer

COMMAND = [sys.executable, "-m", "foveate"]
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "NO_COLOR")
WITHOUT_KEYS = {name: value for name, value in os.environ.items() if name not in KEYS}
ESCAPE = "\x1b"

CHAT = {
    "model": "gpt-4o",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}],
}
REQUESTS: dict[str, dict[str, Any]] = {
    "openai-chat": CHAT,
    "openai-responses": {"model": "gpt-4o", "instructions": "Be brief.", "input": "Hello!"},
    "anthropic": {
        "model": "claude-sonnet-4-5",
        "max_tokens": 10,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "Hello!"}],
    },
    "gemini": {"model": "models/gemini-2.5-pro", "contents": [{"role": "user", "parts": [{"text": "Hello!"}]}]},
    "bedrock": {
        "modelId": "anthropic.claude-sonnet-4-5",
        "messages": [{"role": "user", "content": [{"text": "Hello!"}]}],
    },
}


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> dict[str, str]:
        """The table's rows by their name."""
        lines = [line.rsplit(maxsplit=1) for line in self.out.splitlines()]
        return {line[0].strip(): line[1] for line in lines if len(line) == 2}


def finished(process: "subprocess.CompletedProcess[bytes]") -> Outcome:
    return Outcome(process.returncode, process.stdout.decode(), process.stderr.decode())


def spawn(
    *arguments: str | Path, stdin: bytes = b"", env: dict[str, str] | None = None, command: Sequence[str] = ()
) -> Outcome:
    """Run the command in a process of its own."""
    return finished(
        subprocess.run(
            [*(command or COMMAND), *map(str, arguments)],
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
            env=WITHOUT_KEYS | (env or {}),
        )
    )


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command in this process."""

    def call(*arguments: str | Path) -> Outcome:
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        code = exit_.value.code
        return Outcome(code if isinstance(code, int) else 0, shown.out, shown.err)

    return call


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("How many tokens is this?", encoding="utf-8")
    return path


def write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_help_shows_the_commands_and_version_the_version(run: Any) -> None:
    for arguments in (["--help"], ["-h"]):
        assert "count" in run(*arguments).out
    assert "--request" in run("count", "--help").out
    assert re.fullmatch(r"foveate \d+\.\d+\.\d+\n", run("--version").out)


def test_a_file_has_a_row_and_there_is_a_total(run: Any, text_file: Path) -> None:
    outcome = run("count", text_file)

    assert outcome.code == 0
    assert outcome.rows[str(text_file)] == outcome.rows["total"] == "6"
    assert outcome.out.endswith("gpt-4o, offline: exact\n")
    assert not outcome.err


def test_several_files_have_a_row_each_also_where_one_comes_twice(run: Any, tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", "one two three"), write(tmp_path / "two", "four")
    shown = json.loads(run("count", "--json", one, two, one).out)

    assert [part["name"] for part in shown["parts"]] == [str(one), str(two), str(one)]
    assert [part["tokens"] for part in shown["parts"]] == [3, 1, 3]
    assert shown["total"] == {"tokens": 7, "exact": True, "upper": 7}


def test_standard_input_is_counted_where_no_file_is_named_or_a_dash() -> None:
    for arguments in ((), ("-",)):
        outcome = spawn("count", *arguments, stdin="naïve ☕\n".encode())

        assert outcome.code == 0
        assert outcome.rows["-"] == str(foveate.count("naïve ☕\n").tokens)


def test_an_empty_file_is_nothing(run: Any, tmp_path: Path) -> None:
    outcome = run("count", "--json", write(tmp_path / "empty", ""))

    assert json.loads(outcome.out)["total"] == {"tokens": 0, "exact": True, "upper": 0}


def test_one_unreadable_file_is_told_and_the_rest_is_counted(run: Any, text_file: Path) -> None:
    outcome = run("count", text_file.with_name("missing"), text_file)

    assert outcome.code == 1
    assert outcome.err == f"foveate: {text_file.with_name('missing')}: No such file or directory\n"
    assert outcome.rows["total"] == "6"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is binary, not text"),
        (b"caf\xe9", "is not UTF-8 (byte 3)"),
        (None, "Is a directory"),
    ],
    ids=["binary", "Latin-1", "directory"],
)
def test_a_file_that_is_no_text_is_one_line_and_exit_code_2(
    run: Any, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "file"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    outcome = run("count", path)

    assert (outcome.code, outcome.out, outcome.err) == (2, "", f"foveate: {path}: {reason}\n")


def test_a_name_that_is_no_utf_8_is_shown_all_the_same(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9"
    Path(os.fsdecode(path)).write_text("one two", encoding="utf-8")
    outcome = finished(subprocess.run([*COMMAND, "count", path], capture_output=True, timeout=60, check=False))

    assert outcome.code == 0
    assert "caf�" in outcome.out


@pytest.mark.parametrize("body", REQUESTS.values(), ids=REQUESTS)
def test_a_request_of_any_format_is_broken_down(run: Any, tmp_path: Path, body: dict[str, Any]) -> None:
    outcome = run("count", "--json", "--request", write(tmp_path / "request.json", body))
    shown = json.loads(outcome.out)
    counted = foveate.count_request(body)

    assert outcome.code == 0
    assert shown["model"] == counted.model
    assert shown["total"]["tokens"] == counted.total.tokens
    assert sum(part["tokens"] for part in shown["parts"]) == counted.total.tokens
    names = [part["name"] for part in shown["parts"]]
    assert names[:2] + names[-2:] == ["system", "tools", "images", "overhead"]


def test_a_request_can_come_from_standard_input_for_another_model() -> None:
    outcome = spawn("count", "--request", "-", "--model", "gpt-4", "--json", stdin=json.dumps(CHAT).encode())

    assert json.loads(outcome.out)["model"] == "gpt-4"


def test_json_is_the_promised_object_and_no_more(run: Any, tmp_path: Path, text_file: Path) -> None:
    request = run("count", "--json", "-r", write(tmp_path / "r", CHAT))
    texts = run("count", "--json", text_file)

    assert json.loads(texts.out) == {
        "model": "gpt-4o",
        "backend": "offline",
        "total": {"tokens": 6, "exact": True, "upper": 6},
        "parts": [{"name": str(text_file), "tokens": 6, "exact": True}],
    }
    assert list(json.loads(request.out)) == ["model", "backend", "total", "parts"]
    assert json.loads(request.out)["parts"][2] == {"name": "messages[0]", "tokens": 7, "exact": True}
    assert request.out.count("\n") == texts.out.count("\n") == 1


def test_what_a_request_does_not_show_is_named(run: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "r", {"model": "gpt-4o", "input": "go on", "previous_response_id": "resp_1"})

    assert json.loads(run("count", "--json", "-r", path).out)["unexplained"]
    assert "cannot be seen from here" in run("count", "-r", path).out


def test_a_table_shows_who_speaks_and_hides_what_is_not_there(run: Any, tmp_path: Path) -> None:
    rows = run("count", "-r", write(tmp_path / "r", CHAT)).rows

    assert list(rows)[1:5] == ["messages[0] system", "messages[1] user", "overhead", "total"]
    assert rows.keys().isdisjoint({"system", "tools", "images"})


def test_an_estimate_is_marked_and_has_a_bound(run: Any, text_file: Path) -> None:
    for model in ("claude-sonnet-4-5", "a-model-of-next-year"):
        outcome = run("count", text_file, "-m", model)
        shown = json.loads(run("count", text_file, "-m", model, "--json").out)

        assert outcome.rows["total"].startswith("~")
        assert "at most" in outcome.out
        assert not shown["total"]["exact"]
        assert shown["total"]["upper"] > shown["total"]["tokens"]
        assert shown["backend"] == "estimate"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("no JSON {", "is not JSON"),
        ("[]", "not an object"),
        ('{"prompt": "hello"}', "no messages in the request"),
        ("", "is not JSON"),
        ("[" * 100_000, "not"),
    ],
)
def test_a_request_that_is_none_is_one_line_and_exit_code_2(
    run: Any, tmp_path: Path, content: str, said: str
) -> None:
    outcome = run("count", "--request", write(tmp_path / "r", content))

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("foveate: ")
    assert outcome.err.count("\n") == 1
    assert said in outcome.err


def test_tiktoken_is_a_backend_and_magic_is_none(run: Any, text_file: Path) -> None:
    known, unknown = (run("count", text_file, "--backend", name) for name in ("tiktoken", "magic"))

    assert known.rows["total"] == "6"
    assert (unknown.code, unknown.err.count("\n")) == (2, 1)
    assert "there is no backend 'magic'; choose one of auto, offline" in unknown.err


def test_a_backend_that_needs_a_key_says_where_it_is_looked_for(text_file: Path) -> None:
    outcome = spawn("count", text_file, "--backend", "anthropic_api")

    assert outcome == Outcome(2, "", "foveate: --backend anthropic_api needs an API key in ANTHROPIC_API_KEY\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--backend", "endpoint"),
        ("--endpoint", "localhost:8080"),
        ("--timeout", "nan"),
        ("--timeout", "1e308"),
        ("--timeout", "inf"),
        ("--endpoint", ""),
        ("--endpoint", " "),
        ("--endpoint", "http://127.0.0.1:9", "--backend", "offline"),
        ("--endpoint", "http://127.0.0.1:9", "--backend", "estimate"),
        ("--tokenizer", "missing.json", "--backend", "estimate"),
        ("--tokenizer", "mis\0sing.json"),
        ("--request", "other.json"),
        ("--tokenizer", "missing.json"),
    ],
    ids=lambda arguments: " ".join(arguments).replace("\0", "NUL"),
)
def test_options_that_cannot_be_are_one_line_and_exit_code_2(
    run: Any, text_file: Path, arguments: tuple[str, ...]
) -> None:
    outcome = run("count", text_file, *arguments)

    assert outcome.code == 2
    assert re.fullmatch(r"foveate: .+\n", outcome.err)
    assert not outcome.out


def test_a_server_of_ones_own_counts_for_its_model(
    run: Any, text_file: Path, tmp_path: Path, llama_server: LlamaServer
) -> None:
    there = ("--endpoint", llama_server.base_url, "--timeout", "20", "--json")
    text = json.loads(run("count", text_file, *there).out)
    whole = json.loads(run("count", "-r", write(tmp_path / "r", CHAT), *there).out)

    assert (text["backend"], text["total"]["exact"]) == ("endpoint", True)
    assert (whole["backend"], whole["total"]["exact"]) == ("endpoint", True)
    assert whole["parts"] == []


def test_a_server_that_does_not_answer_is_told_and_the_count_comes_all_the_same(
    run: Any, text_file: Path
) -> None:
    outcome = run("count", text_file, "--endpoint", "http://127.0.0.1:9")

    assert outcome.code == 0
    assert outcome.rows["total"] == "~6"
    assert outcome.err == (
        "foveate: http://127.0.0.1:9/tokenize: no connection (Connection refused); counted here instead\n"
    )


def test_a_users_own_vocabulary_is_counted_with(run: Any, text_file: Path, tmp_path: Path) -> None:
    ranks = tmp_path / "bytes-cl100k.tiktoken"
    ranks.write_bytes(b"\n".join(base64.b64encode(bytes([i])) + b" %d" % i for i in range(256)))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    for vocabulary in (ranks, tmp_path / "tokenizer.json"):
        shown = json.loads(run("count", text_file, "--tokenizer", vocabulary, "--json").out)
        size = text_file.stat().st_size
        assert shown["total"] == {"tokens": size, "exact": True, "upper": size}


@pytest.mark.parametrize("content", ["", "not a tokenizer", "{}", '{"model": {"type": "BPE"}}', "{" * 1000])
def test_a_broken_vocabulary_is_one_line_and_exit_code_2(
    run: Any, text_file: Path, tmp_path: Path, content: str
) -> None:
    outcome = run("count", text_file, "--tokenizer", write(tmp_path / "tokenizer.json", content))

    assert outcome.code == 2
    assert re.fullmatch(r"foveate: .*tokenizer\.json: .+\n", outcome.err)


def on_terminal(*arguments: str, env: dict[str, str] | None = None) -> str:
    """What the command shows on a terminal, standard error included."""
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        env=WITHOUT_KEYS | {"TERM": "xterm"} | (env or {}),
    ) as process:
        os.close(terminal)
        shown = b""
        while select.select([controller], [], [], 60)[0]:
            try:
                shown += os.read(controller, 4096)
            except OSError:  # the other side is closed
                break
        process.wait(60)
    os.close(controller)
    return shown.decode()


def test_colours_are_for_terminals_that_want_them(text_file: Path) -> None:
    assert ESCAPE in on_terminal("count", str(text_file))
    assert ESCAPE not in on_terminal("count", str(text_file), env={"NO_COLOR": "1"})
    assert ESCAPE not in spawn("count", text_file, env={"TERM": "xterm"}).out


def test_a_person_is_told_when_counting_takes_long(text_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        shown = on_terminal("count", str(text_file), "--endpoint", url, "--timeout", "1.5")

    assert "counting …\r\x1b[K" in shown
    assert "no answer within 1.5 s" in shown


def test_a_reader_that_has_gone_is_no_error(text_file: Path) -> None:
    for command in ("count", "--json"), ("count",):
        line = f'"$@" {" ".join(command)} "{text_file}" | head -0; exit ${{PIPESTATUS[0]}}'
        outcome = spawn(command=["bash", "-c", line, "bash", *COMMAND])

        assert outcome == Outcome(0, "", "")


def test_control_c_ends_it_with_130_and_no_traceback() -> None:
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "count"], stdin=terminal, stderr=subprocess.PIPE, env=WITHOUT_KEYS
    ) as process:
        assert process.stderr is not None
        assert b"end with Ctrl-D" in process.stderr.readline()
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


def test_a_narrow_encoding_is_no_error(tmp_path: Path) -> None:
    path = write(tmp_path / "naïve.txt", "one two")
    outcome = spawn("count", path, env={"PYTHONIOENCODING": "ascii"})

    assert outcome.code == 0
    assert "na\\xefve.txt" in outcome.out


def test_a_wrong_option_is_no_traceback(run: Any) -> None:
    outcome = run("count", "--nonsense")

    assert outcome.code == 2
    assert "No such option" in outcome.err


@pytest.mark.parametrize("arguments", ["count", "count --json", "--version", "--help"])
def test_an_output_that_takes_no_more_is_one_line_and_exit_code_1(text_file: Path, arguments: str) -> None:
    """A full disk was once a traceback, and its exit code 120."""
    files = f'"{text_file}"' if "count" in arguments else ""
    outcome = spawn(command=["sh", "-c", f'"$@" {arguments} {files} >/dev/full', "sh", *COMMAND])

    assert outcome == Outcome(1, "", "foveate: standard output: No space left on device\n")


@pytest.mark.parametrize("arguments", ["count", "count --json"])
def test_a_closed_output_is_one_line_and_exit_code_1(text_file: Path, arguments: str) -> None:
    """It was once an AttributeError of the colours."""
    outcome = spawn(command=["sh", "-c", f'"$@" {arguments} "{text_file}" >&-', "sh", *COMMAND])

    assert outcome == Outcome(1, "", "foveate: standard output: is closed\n")


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_where_notes_cannot_be_written_the_rest_is_counted_all_the_same(text_file: Path, where: str) -> None:
    outcome = spawn(command=["sh", "-c", f'"$@" count "{text_file}" missing {where}', "sh", *COMMAND])

    assert outcome.code == 1
    assert outcome.rows["total"] == "6"


def test_what_a_request_says_cannot_reach_the_terminal(run: Any, tmp_path: Path) -> None:
    """A line end in a role once broke the table, and an escape coloured the rest of the session."""
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


def test_a_name_in_a_note_cannot_reach_the_terminal_either(run: Any, tmp_path: Path) -> None:
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
def test_with_json_an_error_is_an_object_beside_its_line(
    run: Any, text_file: Path, arguments: tuple[str, ...], code: str
) -> None:
    """`code` was promised to whoever reads JSON, who got nothing."""
    files = (text_file,) if arguments[0] in ("--backend", "--tokenizer") else ()
    outcome = run("count", "--json", *arguments, *files)
    error = json.loads(outcome.out)["error"]

    assert outcome.code == 2
    assert error["code"] == code
    assert outcome.err.splitlines()[-1] == f"foveate: {error['message']}"


def test_a_backend_that_does_not_count_texts_says_so(text_file: Path) -> None:
    """The count was once made here without a word."""
    outcome = spawn("count", text_file, "--backend", "openai_api", env={"OPENAI_API_KEY": "sk-none"})

    assert outcome.code == 0
    assert outcome.rows["total"] == "6"
    assert outcome.err == (
        "foveate: https://api.openai.com: it counts Responses requests only; counted here instead\n"
    )
