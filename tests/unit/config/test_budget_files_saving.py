"""Saving an agent's budget atomically."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from time import sleep

import pytest
from hypothesis import example, given

from foveate.budget import DEFAULT_BUDGET, Budget, SectionRule
from foveate.budget.ladder import Ladder, Replace
from foveate.config import load_agent_budget, load_budget, save_agent_budget
from foveate.config.files import open_replacement, replace_file
from foveate.errors import BadOption, UnwritableFile
from tests.support.strategies.budgets import budgets, leaves_room

# Two budgets of very different length, written alternately as fast as possible.
KINDS = (b"short", b"long" * 500_000)
REPLACING = """
import sys
from itertools import cycle
from pathlib import Path
from foveate.config.files import replace_file

print("ready", flush=True)
for kind in cycle((b"short", b"long" * 500_000)):
    replace_file(Path(sys.argv[1]), kind)
"""
SAVING = """
import sys
from pathlib import Path
from foveate.budget import Budget, SectionRule
from foveate.config import save_agent_budget

print("ready", flush=True)
for turn in range(30):
    count = 1 + turn % 2 * 40
    rules = {f"s{number}": SectionRule(max_tokens=count) for number in range(count)}
    save_agent_budget(Path(sys.argv[1]), Budget(count, sections=rules))
"""


def start_process(code: str, file: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen([sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdout.close()
    return process


def is_consistent(budget: Budget) -> bool:
    count = budget.total_tokens
    return len(budget.sections) == count and {r.max_tokens for r in budget.sections.values()} == {count}


@pytest.mark.slow
@given(budget=budgets().filter(leaves_room))
@example(budget=Budget(ladder=[Replace(("a",), "\x85\u2028 🎉")]))
@example(budget=Budget(ladder=[Replace(("a",), "\x85")]))
def test_a_saved_budget_is_loaded_unchanged(lasting_file: Path, budget: Budget) -> None:
    save_agent_budget(lasting_file, budget)

    assert load_budget(lasting_file) == budget
    # On top of any defaults from which the budget was made.
    defaults = Budget(7, 1, sections=dict.fromkeys(budget.sections, SectionRule(max_tokens=7, enabled=False)))
    assert load_agent_budget(lasting_file, defaults=defaults, allowed=None).budget == budget


def test_a_saved_budget_can_be_read_by_people(file: Path) -> None:
    save_agent_budget(file, DEFAULT_BUDGET)
    lines = file.read_text(encoding="utf-8").splitlines()

    assert lines[0].startswith("# ")
    assert lines[1:4] == ["total_tokens: 4000", "output_reserve: 0", "ladder: truncate_low_priority"]
    rule = "{priority: required, max_tokens: 500, share: null, keep: head, enabled: null}"
    assert f"  system_prompt: {rule}" in lines


def test_a_saved_file_keeps_its_permissions_and_its_link(tmp_path: Path) -> None:
    link, file = tmp_path / "link.yaml", tmp_path / "real" / "budget.yaml"
    file.parent.mkdir()
    file.write_text("total_tokens: 1\n", encoding="utf-8")
    file.chmod(0o640)
    link.symlink_to(file)
    save_agent_budget(link, DEFAULT_BUDGET)

    assert link.is_symlink()
    assert load_budget(file) == DEFAULT_BUDGET
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_new_file_has_default_permissions(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("", encoding="utf-8")
    save_agent_budget(tmp_path / "budget.yaml", DEFAULT_BUDGET)

    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "budget",
    [
        Budget(ladder=Ladder("mine", (Replace(("a",), "half of a pair: \ud83d"),))),
        Budget(sections={"": SectionRule()}),
        Budget(10**1500),
        Budget(ladder=Ladder("mine", (Replace(("a",), "long" * 250_001),))),
    ],
    ids=["surrogate", "nameless", "huge number", "too long"],
)
def test_a_budget_that_would_not_read_back_the_same_is_not_saved(file: Path, budget: Budget) -> None:
    file.write_text("total_tokens: 1\n", encoding="utf-8")

    with pytest.raises(BadOption, match="read back"):
        save_agent_budget(file, budget)
    assert load_budget(file) == Budget(1)


@pytest.mark.parametrize("budget", [Budget(0), Budget(100, 100)])
def test_a_budget_without_room_for_a_prompt_is_not_saved(file: Path, budget: Budget) -> None:
    with pytest.raises(BadOption, match="no tokens are left for the prompt"):
        save_agent_budget(file, budget)
    assert not file.exists()


def test_the_path_may_be_a_string(file: Path) -> None:
    save_agent_budget(str(file), DEFAULT_BUDGET)

    assert load_budget(str(file)) == DEFAULT_BUDGET
    assert load_agent_budget(str(file), defaults=Budget(), allowed=None).budget == DEFAULT_BUDGET


def test_a_budget_is_not_saved_as_yaml_in_a_json_file(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=r"use a name that ends in \.yaml"):
        save_agent_budget(tmp_path / "budget.json", DEFAULT_BUDGET)


def test_an_unwritable_path_is_reported_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for path, message in (
        (tmp_path / "nowhere" / "budget.yaml", "create the folder first"),
        (tmp_path / "file" / "budget.yaml", "nothing was changed"),
        (tmp_path, "is not a file"),
        (Path("/dev/null"), "is not a file"),
        (Path("/proc/budget.yaml"), "nothing was changed"),
        (tmp_path / "a\0b", "null byte"),
    ):
        with pytest.raises(UnwritableFile, match=message):
            save_agent_budget(path, DEFAULT_BUDGET)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_reported(file: Path) -> None:
    save_agent_budget(file, DEFAULT_BUDGET)
    file.parent.chmod(0o500)

    with pytest.raises(UnwritableFile, match="make the folder writable"):
        save_agent_budget(file, Budget(1))
    assert load_budget(file) == DEFAULT_BUDGET


@pytest.mark.process
def test_a_full_disk_leaves_only_the_old_file(file: Path) -> None:
    """A limit on file sizes simulates a full disk: the write fails in the middle."""
    save_agent_budget(file, DEFAULT_BUDGET)
    code = """
        import resource, sys
        from pathlib import Path
        from foveate.budget import Budget
        from foveate.config import save_agent_budget
        from foveate.errors import UnwritableFile

        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            save_agent_budget(Path(sys.argv[1]), Budget(1))
        except UnwritableFile as error:
            print(error)
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(file)], capture_output=True, text=True, check=True
    )

    assert process.stdout.startswith(f"{file}: File too large; nothing was changed: raise the file size limit")
    assert load_budget(file) == DEFAULT_BUDGET
    assert [path.name for path in file.parent.iterdir()] == ["budget.yaml"]


@pytest.mark.slow
@pytest.mark.process
def test_a_killed_save_leaves_a_complete_file(file: Path) -> None:
    replace_file(file, KINDS[0])
    for pause in range(8):
        process = start_process(REPLACING, file)
        sleep(pause * 0.0037)
        process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=10) == -signal.SIGKILL

        assert file.read_bytes() in KINDS


@pytest.mark.slow
@pytest.mark.process
def test_two_concurrent_saves_leave_one_complete_file(file: Path) -> None:
    processes = [start_process(SAVING, file) for _ in range(2)]
    while any(process.poll() is None for process in processes):
        if file.exists():
            assert is_consistent(load_budget(file))

    assert [process.returncode for process in processes] == [0, 0]
    assert is_consistent(load_budget(file))
    assert [path.name for path in file.parent.iterdir()] == ["budget.yaml"]


def test_a_file_contains_exactly_the_given_bytes(file: Path) -> None:
    replace_file(file, b"\0\xff\r\n")

    assert file.read_bytes() == b"\0\xff\r\n"


def test_an_interrupted_write_leaves_the_old_file(file: Path) -> None:
    def write_and_fail() -> None:
        with open_replacement(file) as new:
            new.write(b"first half")
            raise ValueError("interrupted")

    file.write_bytes(b"old")

    with pytest.raises(ValueError, match="interrupted"):
        write_and_fail()

    assert file.read_bytes() == b"old"
    assert list(file.parent.iterdir()) == [file]


def test_a_new_file_can_be_private_to_its_owner(file: Path) -> None:
    with open_replacement(file, mode=0o600) as new:
        new.write(b"private text")

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_bytes() == b"private text"
