"""`foveate assemble` with invalid or oversized input: a one-line error, an exit code, and the numbers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.commands import Outcome, spawn, write

SECTIONS = [
    {"name": "rules", "text": "Answer in one word.", "priority": "required"},
    {"name": "log", "items": ["started the engine", "waiting for word"], "priority": "low"},
]


@pytest.fixture
def sections(tmp_path: Path) -> Path:
    return write(tmp_path / "sections.json", SECTIONS)


def test_required_sections_that_do_not_fit_exit_with_code_3_and_the_numbers(
    run: Any, sections: Path, tmp_path: Path
) -> None:
    budget = write(tmp_path / "small.yaml", "total_tokens: 3\n")
    outcome = run("assemble", "--sections", sections, "--budget", budget)

    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (3, "", 1)
    assert "takes 5 tokens, but the limit is 3" in outcome.err
    for numbers in ("rules (required) 5", "log (low) 7"):
        assert numbers in outcome.err


def test_the_json_error_has_the_numbers(run: Any, sections: Path, tmp_path: Path) -> None:
    budget = write(tmp_path / "small.yaml", "total_tokens: 3\n")
    outcome = run("assemble", "--sections", sections, "--budget", budget, "--json")
    error = json.loads(outcome.out)["error"]

    assert outcome.code == 3
    assert outcome.err == f"foveate: {error['message']}\n"
    assert list(error) == ["code", "message", "limit_tokens", "tokens", "sections"]
    assert (error["code"], error["limit_tokens"], error["tokens"]) == ("budget_exceeded", 3, 5)
    assert error["sections"] == [
        {"name": "rules", "priority": "required", "before": 5, "after": 5},
        {"name": "log", "priority": "low", "before": 7, "after": 7},
    ]


def test_the_error_line_names_the_largest_of_many_sections_and_json_names_all(run: Any, tmp_path: Path) -> None:
    """Regression: the line had thousands of characters."""
    sections_file = write(
        tmp_path / "sections.json",
        [{"name": f"part {i}", "text": "one " * (i + 1), "priority": "required"} for i in range(200)],
    )
    outcome = run("assemble", "--sections", sections_file, "--total-tokens", "3", "--json")
    error = json.loads(outcome.out)["error"]

    assert (outcome.code, outcome.err.count("\n")) == (3, 1)
    assert outcome.err.startswith(
        f"foveate: the required content takes {error['tokens']:,} tokens, but the limit is 3: part 199 ("
    )
    assert " and 188 more; raise the limit, or give a required section a cap" in outcome.err
    assert re.findall(r"part (\d+) ", outcome.err) == [str(i) for i in range(199, 187, -1)]
    assert len(error["sections"]) == 200
    assert all(f"part {i} (" in error["message"] for i in range(200))


@pytest.mark.parametrize("count", [12, 13])
def test_the_error_line_names_all_of_a_dozen_sections(run: Any, tmp_path: Path, count: int) -> None:
    sections_file = write(
        tmp_path / "sections.json",
        [{"name": f"part {i}", "text": "one two", "priority": "required"} for i in range(count)],
    )
    outcome = run("assemble", "--sections", sections_file, "--total-tokens", "3", "--json")

    assert outcome.err.count("part ") == 12
    assert (outcome.err == f"foveate: {json.loads(outcome.out)['error']['message']}\n") == (count == 12)
    assert (" and 1 more; " in outcome.err) == (count == 13)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "{path}: No such file or directory"),
        (b"", "{path}: is empty"),
        (b"\x89PNG\0", "{path}: is binary, not text"),
        (b"- name: a\n  text: caf\xe9\n", "{path}: is not UTF-8 (byte 21)"),
        (b"- name: a\n  text: x\n- name: [\n", "{path}:4: "),
        (
            b"- name: a\n  text: x\n- name: a\n  text: y\n",
            "{path}:3: section 2: section 1 has the same name 'a'",
        ),
        (b"- name: a\n  text: x\n  prioritty: low\n", "{path}:3: section 1: "),
        (b"name: a\n", "{path}:1: sections must be a list"),
    ],
    ids=["missing", "empty", "binary", "Latin-1", "not YAML", "duplicate name", "unknown key", "not a list"],
)
def test_invalid_sections_are_reported_in_one_line_with_exit_code_2(
    run: Any, tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "sections.yaml"
    if content is not None:
        path.write_bytes(content)
    outcome = run("assemble", "--sections", path)

    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert outcome.err.startswith("foveate: " + message.format(path=path))


def test_an_empty_folder_is_reported_in_one_line_with_exit_code_2(run: Any, tmp_path: Path) -> None:
    outcome = run("assemble", "--sections", tmp_path)

    assert outcome == Outcome(2, "", f"foveate: {tmp_path}: contains no section files\n")


def test_the_error_for_an_unknown_budget_mentions_files_and_ladders(run: Any, sections: Path) -> None:
    outcome = run("assemble", "--sections", sections, "--budget", "progresive")

    assert outcome == Outcome(
        2,
        "",
        "foveate: progresive: No such file or directory, and it is not a ladder (truncate_low_priority, "
        "drop_low_priority, progressive)\n",
    )


def test_the_error_for_an_invalid_budget_names_the_line(run: Any, sections: Path, tmp_path: Path) -> None:
    budget = write(tmp_path / "budget.yaml", "total_tokens: 100\nsections:\n  log: {priority: urgent}\n")
    outcome = run("assemble", "--sections", sections, "--budget", budget, "--json")

    assert outcome.code == 2
    assert outcome.err.startswith(f"foveate: {budget}:3: ")
    assert json.loads(outcome.out)["error"]["code"] == "bad_setting"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sections", ""), "--sections needs a file name"),
        (("--budget", ""), "--budget needs a file name"),
        (("--output", ""), "--output needs a file name"),
        (("--output", "-", "--json"), "--json already prints the prompt"),
        (("--sections", "-", "--budget", "-"), "only one of --sections and --budget can be standard input"),
        (("--total-tokens", "0"), "--total-tokens takes a number of tokens, 1 or more, not 0"),
        (("--total-tokens", "-5"), "--total-tokens takes a number of tokens, 1 or more, not -5"),
        (("--sections", "a\0b"), "embedded null byte"),
        (("--sections", "/dev/null/sections"), "/dev/null/sections: Not a directory"),
        (("--budget", "/dev/null/budget"), "/dev/null/budget: Not a directory"),
        (("--tokenizer", "missing.json"), "missing.json: "),
    ],
    ids=lambda value: " ".join(value).replace("\0", "NUL") if isinstance(value, tuple) else None,
)
def test_invalid_options_are_reported_in_one_line_with_exit_code_2(
    run: Any, sections: Path, arguments: tuple[str, ...], message: str
) -> None:
    outcome = run("assemble", "--sections", sections, *arguments)

    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert message in outcome.err


@pytest.mark.process
def test_the_error_for_an_invalid_budget_on_standard_input_names_the_line(sections: Path) -> None:
    content = b"total_tokens: 100\nsections:\n  log: {priority: urgent}\n"
    outcome = spawn("assemble", "--sections", sections, "--budget", "-", stdin=content)

    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert outcome.err.startswith("foveate: standard input:3: ")


@pytest.mark.process
def test_an_invalid_number_in_the_environment_is_reported_in_one_line(sections: Path) -> None:
    outcome = spawn("assemble", "--sections", sections, env={"CONTEXT_MAX_TOKENS": "plenty"})

    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "CONTEXT_MAX_TOKENS" in outcome.err


def test_the_sections_argument_is_required(run: Any) -> None:
    outcome = run("assemble")

    assert outcome.code == 2
    assert "--sections" in outcome.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no/prompt.txt", "nothing was changed"),
        ("loop", "nothing was changed"),
        ("a\0b", "embedded null byte"),
    ],
    ids=["missing folder", "link to itself", "null byte"],
)
def test_a_failed_write_of_the_prompt_is_reported_in_one_line_with_exit_code_1(
    run: Any, sections: Path, tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    outcome = run("assemble", "--sections", sections, "--output", tmp_path / name)

    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert message in outcome.err
