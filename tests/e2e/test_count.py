"""`foveate count` as a user runs it, in this process or, if necessary, in its own."""

import base64
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import foveate
from tests.support.processes.commands import Outcome, spawn, to_outcome, write
from tests.support.processes.forked_commands import COMMAND
from tests.support.scenarios.hello_requests import CHAT, REQUESTS
from tests.support.servers.llama import LlamaServer


def test_help_lists_the_commands_and_version_prints_the_version(run: Any) -> None:
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


def test_each_file_has_a_row_even_if_named_twice(run: Any, tmp_path: Path) -> None:
    first_file, second_file = write(tmp_path / "one", "one two three"), write(tmp_path / "two", "four")
    output = json.loads(run("count", "--json", first_file, second_file, first_file).out)

    assert [part["name"] for part in output["parts"]] == [str(first_file), str(second_file), str(first_file)]
    assert [part["tokens"] for part in output["parts"]] == [3, 1, 3]
    assert output["total"] == {"tokens": 7, "exact": True, "upper": 7}


@pytest.mark.process
def test_standard_input_is_counted_for_a_dash_or_without_a_file() -> None:
    for arguments in ((), ("-",)):
        outcome = spawn("count", *arguments, stdin="naïve ☕\n".encode())

        assert outcome.code == 0
        assert outcome.rows["-"] == str(foveate.count("naïve ☕\n").tokens)


def test_an_empty_file_has_zero_tokens(run: Any, tmp_path: Path) -> None:
    outcome = run("count", "--json", write(tmp_path / "empty", ""))

    assert json.loads(outcome.out)["total"] == {"tokens": 0, "exact": True, "upper": 0}


def test_an_unreadable_file_is_reported_and_the_others_are_counted(run: Any, text_file: Path) -> None:
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
def test_a_binary_file_is_reported_in_one_line_with_exit_code_2(
    run: Any, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "file"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    outcome = run("count", path)

    assert (outcome.code, outcome.out, outcome.err) == (2, "", f"foveate: {path}: {reason}\n")


@pytest.mark.process
def test_a_file_name_that_is_not_utf_8_is_shown(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9"
    Path(os.fsdecode(path)).write_text("one two", encoding="utf-8")
    outcome = to_outcome(
        subprocess.run([*COMMAND, "count", path], capture_output=True, timeout=60, check=False)
    )

    assert outcome.code == 0
    assert "caf�" in outcome.out


@pytest.mark.parametrize("body", REQUESTS.values(), ids=REQUESTS)
def test_a_request_of_any_format_is_broken_down(run: Any, tmp_path: Path, body: dict[str, Any]) -> None:
    outcome = run("count", "--json", "--request", write(tmp_path / "request.json", body))
    output = json.loads(outcome.out)
    count = foveate.count_request(body)

    assert outcome.code == 0
    assert output["model"] == count.model
    assert output["total"]["tokens"] == count.total.tokens
    assert sum(part["tokens"] for part in output["parts"]) == count.total.tokens
    names = [part["name"] for part in output["parts"]]
    assert names[:2] + names[-2:] == ["system", "tools", "images", "overhead"]


@pytest.mark.process
def test_a_request_on_standard_input_can_be_counted_for_another_model() -> None:
    outcome = spawn("count", "--request", "-", "--model", "gpt-4", "--json", stdin=json.dumps(CHAT).encode())

    assert json.loads(outcome.out)["model"] == "gpt-4"


def test_json_output_has_exactly_the_documented_keys(run: Any, tmp_path: Path, text_file: Path) -> None:
    request = run("count", "--json", "-r", write(tmp_path / "r", CHAT))
    outcome = run("count", "--json", text_file)

    assert json.loads(outcome.out) == {
        "model": "gpt-4o",
        "backend": "offline",
        "total": {"tokens": 6, "exact": True, "upper": 6},
        "parts": [{"name": str(text_file), "tokens": 6, "exact": True}],
    }
    assert list(json.loads(request.out)) == ["model", "backend", "total", "parts"]
    assert json.loads(request.out)["parts"][2] == {"name": "messages[0]", "tokens": 7, "exact": True}
    assert request.out.count("\n") == outcome.out.count("\n") == 1


def test_uncounted_parts_of_a_request_are_named(run: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "r", {"model": "gpt-4o", "input": "go on", "previous_response_id": "resp_1"})

    assert json.loads(run("count", "--json", "-r", path).out)["unexplained"]
    output = run("count", "-r", path).out
    assert output.endswith("not included: input that the provider adds for previous_response_id\n")


def test_a_table_shows_roles_and_hides_empty_rows(run: Any, tmp_path: Path) -> None:
    rows = run("count", "-r", write(tmp_path / "r", CHAT)).rows

    assert list(rows)[1:5] == ["messages[0] system", "messages[1] user", "overhead", "total"]
    assert rows.keys().isdisjoint({"system", "tools", "images"})


def test_an_estimate_is_labelled_and_has_an_upper_bound(run: Any, text_file: Path) -> None:
    for model in ("claude-sonnet-4-5", "a-model-of-next-year"):
        outcome = run("count", text_file, "-m", model)
        output = json.loads(run("count", text_file, "-m", model, "--json").out)

        assert outcome.rows["total"].startswith("~")
        assert "at most" in outcome.out
        assert not output["total"]["exact"]
        assert output["total"]["upper"] > output["total"]["tokens"]
        assert output["backend"] == "estimate"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no JSON {", "is not JSON"),
        ("[]", "not an object"),
        ('{"prompt": "hello"}', "no messages in the request"),
        ("", "is not JSON"),
        ("[" * 100_000, "not"),
    ],
)
def test_an_invalid_request_is_reported_in_one_line_with_exit_code_2(
    run: Any, tmp_path: Path, content: str, message: str
) -> None:
    outcome = run("count", "--request", write(tmp_path / "r", content))

    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("foveate: ")
    assert outcome.err.count("\n") == 1
    assert message in outcome.err


def test_an_unknown_backend_is_rejected(run: Any, text_file: Path) -> None:
    known, unknown = (run("count", text_file, "--backend", name) for name in ("tiktoken", "magic"))

    assert known.rows["total"] == "6"
    assert (unknown.code, unknown.err.count("\n")) == (2, 1)
    assert "unknown backend 'magic'; use one of auto, offline" in unknown.err


@pytest.mark.process
def test_a_missing_backend_key_is_reported_with_its_variable(text_file: Path) -> None:
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
def test_invalid_options_are_reported_in_one_line_with_exit_code_2(
    run: Any, text_file: Path, arguments: tuple[str, ...]
) -> None:
    outcome = run("count", text_file, *arguments)

    assert outcome.code == 2
    assert re.fullmatch(r"foveate: .+\n", outcome.err)
    assert not outcome.out


@pytest.mark.process
def test_a_local_server_counts_for_its_model(
    run: Any, text_file: Path, tmp_path: Path, llama_server: LlamaServer
) -> None:
    options = ("--endpoint", llama_server.base_url, "--timeout", "20", "--json")
    text = json.loads(run("count", text_file, *options).out)
    request_report = json.loads(run("count", "-r", write(tmp_path / "r", CHAT), *options).out)

    assert (text["backend"], text["total"]["exact"]) == ("endpoint", True)
    assert (request_report["backend"], request_report["total"]["exact"]) == ("endpoint", True)
    assert request_report["parts"] == []


def test_an_unreachable_server_is_reported_and_the_count_is_still_printed(run: Any, text_file: Path) -> None:
    outcome = run("count", text_file, "--endpoint", "http://127.0.0.1:9")

    assert outcome.code == 0
    assert outcome.rows["total"] == "~6"
    assert outcome.err == (
        "foveate: http://127.0.0.1:9/tokenize: connection failed (Connection refused);"
        " counted offline instead\n"
    )


def test_a_custom_vocabulary_is_used_for_counting(run: Any, text_file: Path, tmp_path: Path) -> None:
    ranks = tmp_path / "bytes-cl100k.tiktoken"
    ranks.write_bytes(b"\n".join(base64.b64encode(bytes([i])) + b" %d" % i for i in range(256)))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    for vocabulary in (ranks, tmp_path / "tokenizer.json"):
        output = json.loads(run("count", text_file, "--tokenizer", vocabulary, "--json").out)
        size = text_file.stat().st_size
        assert output["total"] == {"tokens": size, "exact": True, "upper": size}


@pytest.mark.parametrize("content", ["", "not a tokenizer", "{}", '{"model": {"type": "BPE"}}', "{" * 1000])
def test_a_broken_vocabulary_is_reported_in_one_line_with_exit_code_2(
    run: Any, text_file: Path, tmp_path: Path, content: str
) -> None:
    outcome = run("count", text_file, "--tokenizer", write(tmp_path / "tokenizer.json", content))

    assert outcome.code == 2
    assert re.fullmatch(r"foveate: .*tokenizer\.json: .+\n", outcome.err)
