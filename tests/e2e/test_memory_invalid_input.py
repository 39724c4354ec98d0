"""`foveate memory` with invalid input: a clear message, and everything else works."""

import json
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

import foveate
from tests.support.processes.commands import Outcome, spawn
from tests.support.processes.forked_commands import COMMAND

GOOD = "* Good\n:PROPERTIES:\n:ID: good\n:END:\nThe rest still works.\n"


_CAPABILITIES = "-dac_override,-dac_read_search"
WITHOUT_CAPABILITIES = ["setpriv", f"--bounding-set={_CAPABILITIES}", f"--inh-caps={_CAPABILITIES}"]
"""Prefix of a command that lets root read only what other users may read."""


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "good.org").write_text(GOOD, encoding="utf-8")
    return folder


def is_good_node_shown(outcome: Outcome, *, problem_count: int = 1) -> bool:
    """Check that the good node is shown, and that each problem has a line above the summary."""
    *problem_lines, summary = outcome.err.splitlines()
    return (
        outcome.code == 0
        and "The rest still works." in outcome.out
        and len(problem_lines) == problem_count
        and all(line.startswith("foveate: ") for line in problem_lines)
        and " tokens, gpt-4o, exact; " in summary
        and " nodes: " in summary
    )


def test_a_file_that_is_not_utf_8_is_reported_with_the_byte(run: Any, notes: Path) -> None:
    (notes / "latin.md").write_bytes("# Caf\xe9\n".encode("latin-1"))
    outcome = run("memory", "render", notes)

    assert is_good_node_shown(outcome)
    assert f"{notes}/latin.md: is not UTF-8 (byte 5)" in outcome.err
    assert "Caf" not in outcome.out


def test_json_output_includes_the_problems(run: Any, notes: Path) -> None:
    (notes / "latin.md").write_bytes(b"# Caf\xe9\n")
    for command in ("render", "query", "outline"):
        outcome = run("memory", command, notes, "--json")

        assert (outcome.code, outcome.err) == (0, "")
        assert json.loads(outcome.out)["problems"] == [
            {"path": f"{notes}/latin.md", "reason": "is not UTF-8 (byte 5)"}
        ]


def test_a_cycle_of_links_terminates(run: Any, notes: Path) -> None:
    (notes / "below").mkdir()
    (notes / "below" / "again").symlink_to(notes)
    (notes / "one").symlink_to(notes / "two")
    (notes / "two").symlink_to(notes / "one")
    outcome = run("memory", "render", notes)

    assert "The rest still works." in outcome.out
    assert outcome.out.count("good") == run("memory", "render", notes / "good.org").out.count("good")
    assert f"{notes}/below/again: is a link to a folder that contains it" in outcome.err
    assert outcome.code == 0


def test_two_nodes_with_one_id_are_both_shown_and_reported(run: Any, notes: Path) -> None:
    (notes / "other.org").write_text(GOOD.replace("Good", "Other"), encoding="utf-8")
    outcome = run("memory", "render", notes)

    assert is_good_node_shown(outcome)
    assert f"{notes}/other.org: 'Other' has the same id, good, as 'Good' in" in outcome.err
    assert "** Good <<good>>" in outcome.out
    assert "** Other <<" in outcome.out
    report = json.loads(run("memory", "render", notes, "--focus", "good", "--json").out)
    assert [node["title"] for node in report["nodes"] if node["id"] == "good"] == ["Good"]


@pytest.mark.parametrize("option", ["--focus", "--scope"])
def test_an_unknown_node_is_one_line_and_exit_code_2(run: Any, notes: Path, option: str) -> None:
    outcome = run("memory", "render", notes, option, "nobody", "--json")
    error = json.loads(outcome.out)["error"]

    assert outcome.code == 2
    assert outcome.err == f"foveate: {error['message']}\n"
    assert error["code"] == "bad_option"
    assert "'nobody'" in error["message"]


def test_a_focus_outside_the_scope_is_one_line(run: Any, notes: Path) -> None:
    (notes / "other.org").write_text("* Other\n", encoding="utf-8")
    outcome = run("memory", "render", notes, "--focus", "good", "--scope", "Other")

    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "good" in outcome.err


def test_an_ambiguous_title_lists_the_ids(run: Any, notes: Path) -> None:
    (notes / "other.org").write_text("* Good\n", encoding="utf-8")
    outcome = run("memory", "render", notes, "--focus", "Good")

    assert (outcome.code, outcome.out) == (2, "")
    assert "2 nodes have the title 'Good'" in outcome.err
    assert "good, " in outcome.err


def test_a_focus_whose_title_does_not_fit_is_exit_code_3_with_numbers(run: Any, notes: Path) -> None:
    outcome = run("memory", "render", notes, "--focus", "good", "--limit-tokens", "2", "--json")
    error = json.loads(outcome.out)["error"]

    assert outcome.code == 3
    assert (error["code"], error["limit_tokens"]) == ("budget_exceeded", 2)
    assert error["tokens"] > 2
    assert outcome.err == f"foveate: {error['message']}\n"


@pytest.mark.parametrize("suffix", ["org", "md"])
def test_a_heading_40_levels_deep_is_shown_with_its_ancestors(run: Any, notes: Path, suffix: str) -> None:
    """Markdown has six levels, of which the first is the title of the file."""
    heading_prefix, deepest, below_file = ("*", 40, 1) if suffix == "org" else ("#", 6, 0)
    deep = "".join(
        f"{heading_prefix * level} Level {level}\nText {level}.\n" for level in range(1, deepest + 1)
    )
    (notes / f"deep.{suffix}").write_text(deep, encoding="utf-8")
    outcome = run("memory", "render", notes, "--focus", f"Level {deepest}")
    lines = outcome.out.splitlines()

    assert outcome.code == 0
    assert f"Text {deepest}." in lines
    for level in range(1, deepest + 1):
        shown = rf"{re.escape(heading_prefix)}{{{level + below_file}}} Level {level}(?: |$)"
        assert any(re.match(shown, line) for line in lines)
    outline = run("memory", "outline", notes).out.splitlines()
    assert any(line.startswith(f"{'  ' * (deepest - 1 + below_file)}Level {deepest}  <<") for line in outline)


def test_a_heading_2000_levels_deep_gives_no_traceback(run: Any, notes: Path) -> None:
    deep = "".join(f"{'*' * level} Level {level}\n" for level in range(1, 2001))
    (notes / "deep.org").write_text(deep, encoding="utf-8")
    for command in ("render", "query", "outline"):
        assert run("memory", command, notes, "--json").code == 0
    outcome = run("memory", "render", notes, "--focus", "Level 2000", "--limit-tokens", "300")

    assert outcome.code == 0
    assert "Level 2000" in outcome.out


def test_a_file_of_50_mb_is_read_like_any_other(run: Any, notes: Path) -> None:
    """In one format: tests of the library read a file of this size in each."""
    line = "The river was high again and nobody could cross it before the evening came.\n"
    chapters = [f"* Chapter {number}\n{line * 6600}" for number in range(100)]
    chapters[70] += "A heron stood on the weir.\n"
    large = notes / "large.org"
    large.write_text("".join(chapters), encoding="utf-8")
    assert large.stat().st_size > 50_000_000
    outcome = run("memory", "render", notes, "--query", "heron on the weir", "--limit-tokens", "500")

    assert outcome.code == 0
    assert "A heron stood on the weir." in outcome.out
    assert foveate.count(outcome.out.rstrip("\n")).tokens <= 500
    assert outcome.err.count("\n") == 1


@pytest.mark.process
def test_an_unreadable_folder_is_reported(notes: Path) -> None:
    unreadable = notes / "closed"
    unreadable.mkdir()
    (unreadable / "never.org").write_text("* Never\n", encoding="utf-8")
    unreadable.chmod(0)
    command = COMMAND
    if os.access(unreadable, os.R_OK):
        if not shutil.which(WITHOUT_CAPABILITIES[0]):
            unreadable.chmod(stat.S_IRWXU)
            pytest.skip("whoever runs this may read every folder, and there is no setpriv to give that up")
        command = [*WITHOUT_CAPABILITIES, *COMMAND]
    try:
        inside_notes = spawn("memory", "render", notes, command=command)
        as_argument = spawn("memory", "render", unreadable, notes, command=command)
    finally:
        unreadable.chmod(stat.S_IRWXU)

    assert is_good_node_shown(inside_notes)
    assert is_good_node_shown(as_argument)
    for outcome in (inside_notes, as_argument):
        assert f"{unreadable}: Permission denied" in outcome.err


def test_a_broken_link_and_a_pipe_are_reported(run: Any, notes: Path) -> None:
    (notes / "gone.org").symlink_to(notes / "nowhere.org")
    os.mkfifo(notes / "pipe.org")
    outcome = run("memory", "render", notes)

    assert is_good_node_shown(outcome, problem_count=2)
    assert f"{notes}/gone.org: " in outcome.err
    assert f"{notes}/pipe.org: " in outcome.err


@pytest.mark.parametrize("command", ["render", "query", "outline"])
def test_an_empty_folder_is_an_empty_memory_with_a_message(run: Any, tmp_path: Path, command: str) -> None:
    outcome = run("memory", command, tmp_path)

    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.splitlines()[0] == (
        "foveate: the memory is empty: the paths contain no Org or Markdown notes that may be shown"
    )


@pytest.mark.parametrize("command", ["render", "query", "outline"])
def test_a_missing_path_is_one_line_and_exit_code_2(run: Any, tmp_path: Path, command: str) -> None:
    outcome = run("memory", command, tmp_path / "missing")

    assert outcome == Outcome(2, "", f"foveate: {tmp_path}/missing: No such file or directory\n")


def test_of_several_paths_the_existing_are_read_and_the_exit_code_is_1(
    run: Any, notes: Path, tmp_path: Path
) -> None:
    outcome = run("memory", "render", tmp_path / "missing", notes, tmp_path / "missing too")
    report = json.loads(run("memory", "query", tmp_path / "missing", notes, "--json").out)

    assert outcome.code == 1
    assert "The rest still works." in outcome.out
    assert outcome.err.splitlines()[:2] == [
        f"foveate: {tmp_path}/missing: No such file or directory",
        f"foveate: {tmp_path}/missing too: No such file or directory",
    ]
    assert report["problems"] == [{"path": f"{tmp_path}/missing", "reason": "No such file or directory"}]


def test_ten_of_hundreds_of_problems_are_printed_and_json_has_all(run: Any, notes: Path) -> None:
    for number in range(200):
        (notes / f"{number:03}.md").write_bytes(b"\xff")
    outcome = run("memory", "query", notes)
    report = json.loads(run("memory", "query", notes, "--json").out)

    assert outcome.err.splitlines()[10] == "foveate: … and 190 more; --json lists all"
    assert len(outcome.err.splitlines()) == 12
    assert len(report["problems"]) == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("render", "--limit-tokens", "0"),
            "--limit-tokens takes a number of tokens, 1 or more, or none, not '0'",
        ),
        (
            ("render", "--limit-tokens", "-5"),
            "--limit-tokens takes a number of tokens, 1 or more, or none, not '-5'",
        ),
        (("render", "--limit-tokens", "many"), "1 or more, or none, not 'many'"),
        (("render", "--limit-tokens", "9" * 5000), "1 or more, or none, not '999"),
        (("render", "--format", "html"), "format must be one of auto, org, markdown, not 'html'"),
        (("render", "--private", ""), "a privacy tag must be one word, not ''"),
        (("query", "--private", " :: "), "a privacy tag must be one word, not ' :: '"),
        (("query", "--tag", ""), "tag must not be empty"),
        (("query", "--text", " "), "text must not be empty"),
        (("query", "--since", "yesterday"), "since must be a date (2026-11-01), "),
        (("query", "--since", "2026-11-02", "--until", "2026-11-01"), "since ("),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_invalid_options_are_one_line_and_exit_code_2(
    run: Any, notes: Path, arguments: tuple[str, ...], message: str
) -> None:
    command, *options = arguments
    outcome = run("memory", command, notes, *options)

    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert message in outcome.err


def test_an_invalid_threshold_in_the_environment_is_one_line(
    run: Any, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTEXT_SEMANTIC_THRESHOLD", "much")
    outcome = run("memory", "render", notes)

    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "CONTEXT_SEMANTIC_THRESHOLD must be a number from 0 to 1, not 'much'" in outcome.err


@pytest.mark.process
def test_an_unusable_vector_cache_is_reported_and_everything_works(root: Path) -> None:
    arguments = ("memory", "render", root / "examples" / "notes", "--query", "watering")
    with_cache, without_cache = spawn(*arguments), spawn(*arguments, env={"FOVEATE_HOME": "/dev/null/\x1b[31m"})

    assert (without_cache.code, without_cache.out) == (0, with_cache.out)
    assert without_cache.err.splitlines()[-1].startswith(
        "foveate: /dev/null/\\x1b[31m/vectors.sqlite: vectors are not cached ("
    )
    assert "not kept" not in with_cache.err
