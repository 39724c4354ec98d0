"""Output files of `foveate assemble`: inputs are never overwritten, and failures write nothing."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.commands import Outcome, spawn, write
from tests.support.processes.forked_commands import COMMAND

SECTIONS = [{"name": "rules", "text": "Answer in one word."}]


@pytest.fixture
def sections(tmp_path: Path) -> Path:
    return write(tmp_path / "sections.json", SECTIONS)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A folder with one section."""
    folder = tmp_path / "parts"
    folder.mkdir()
    write(folder / "1-rules.md", "Answer in one word.\n")
    return folder


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_rejected(outcome: Outcome, message: str) -> None:
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert message in outcome.err


@pytest.mark.parametrize("option", ["--sections", "--budget", "--tokenizer"])
def test_an_input_file_is_never_overwritten_under_any_spelling_of_its_path(
    run: Any, sections: Path, tmp_path: Path, option: str
) -> None:
    """Regression: `-o sections.yaml` replaced the sections by the prompt."""
    input_files = {
        "--sections": sections,
        "--budget": write(tmp_path / "budget.yaml", "total_tokens: 100\n"),
        "--tokenizer": write(tmp_path / "tokenizer.json", "{}"),
    }
    symlink, hard_link = tmp_path / "link", tmp_path / "hard"
    symlink.symlink_to(input_files[option])
    hard_link.hardlink_to(input_files[option])
    roundabout = tmp_path / ".." / tmp_path.name / input_files[option].name
    before = files(tmp_path)

    for output in (input_files[option], symlink, hard_link, roundabout):
        inputs = [argument for option_and_file in input_files.items() for argument in option_and_file]
        check_rejected(run("assemble", *inputs, "-o", output), f"is also the input of {option}")
    assert files(tmp_path) == before


def test_the_prompt_is_not_written_into_the_folder_of_sections(run: Any, parts: Path, tmp_path: Path) -> None:
    outside = write(tmp_path / "log.md", "started\n")
    (parts / "2-log.md").symlink_to(outside)
    (parts / "3-later.md").symlink_to(tmp_path / "not there yet")
    link_into_folder = tmp_path / "inwards"
    link_into_folder.symlink_to(parts / "new.md")
    (tmp_path / "same").symlink_to(parts)
    outputs = (
        *(parts / "1-rules.md", parts / "new.md", tmp_path / "same" / "new.md"),
        *(outside, parts / "3-later.md", link_into_folder),
    )
    before = files(tmp_path)

    for output in outputs:
        check_rejected(run("assemble", "--sections", parts, "-o", output), "is in the folder of the sections")
    assert files(tmp_path) == before


def test_the_prompt_can_be_written_next_to_the_sections_or_into_a_subfolder(
    run: Any, parts: Path, sections: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parts / "made").mkdir()
    monkeypatch.chdir(tmp_path)

    for source, output in (
        (parts, parts / "made" / "prompt"),
        (parts, Path("prompt")),
        (sections, Path("two")),
    ):
        assert run("assemble", "--sections", source, "-o", output).code == 0
        assert output.read_text(encoding="utf-8") == "Answer in one word."


def test_the_name_of_a_ladder_is_not_an_input_file(
    run: Any, sections: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert run("assemble", "--sections", sections, "--budget", "progressive", "-o", "progressive").code == 0


@pytest.mark.process
def test_running_out_of_memory_is_reported_in_one_line_with_exit_code_1(tmp_path: Path) -> None:
    """Regression: this was a traceback."""
    huge_file = tmp_path / "sections.json"
    huge_file.touch()
    os.truncate(huge_file, 900_000_000)  # a sparse file, which takes no space on the disk
    line = 'ulimit -v 600000; "$@" assemble --sections "$HUGE"'
    outcome = spawn(command=["sh", "-c", line, "sh", *COMMAND], env={"HUGE": str(huge_file)})

    assert outcome == Outcome(1, "", "foveate: not enough memory\n")
