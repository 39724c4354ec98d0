"""Budget files of the operator and of agents."""

import os
from pathlib import Path

import pytest

from foveate.budget import DEFAULT_BUDGET, Budget, Keep, Priority, SectionRule
from foveate.budget.ladder import DROP_LOW_PRIORITY
from foveate.config import load_agent_budget, load_budget
from foveate.errors import BadSetting, UnreadableInput
from tests.support.oracles.setting_errors import read_error


def load_error(file: Path, text: str) -> BadSetting:
    file.write_text(text, encoding="utf-8")
    return read_error(load_budget, file)


def test_the_example_equals_the_preset(root: Path) -> None:
    assert load_budget(root / "examples" / "budget.yaml") == DEFAULT_BUDGET


def test_a_budget_may_be_json(tmp_path: Path) -> None:
    file = tmp_path / "budget.json"
    file.write_text('{"total_tokens": 100, "sections": {"a": {"share": 0.5}}}', encoding="utf-8")

    assert load_budget(file) == Budget(100, sections={"a": SectionRule(share=0.5)})


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        ("# mine\n5\n", 2, "", "a budget must be a mapping with total_tokens"),
        ("# mine\n- {drop: a}\n- a\n", 3, "1", "rung 2 of the ladder"),
        ("total_tokens: 9\n\ntotal_token: 1\n", 3, "total_token", "did you mean total_tokens?"),
        ("total_tokens: 4k\n", 1, "total_tokens", "0 or more, not '4k'"),
        ("output_reserve: on\n", 1, "output_reserve", "not True"),
        (
            "sections:\n  a: {share: 1}\n  b:\n    keep: head\n    share: 2\n",
            5,
            "sections.b.share",
            "0 to 1, not 2",
        ),
        ("sections:\n  a:\n    prio: low\n", 3, "sections.a.prio", "did you mean priority?"),
        ("sections:\n  a: {}\n  no: {}\n", 3, "sections.no", "put it in quotes"),
        ("sections:\n  a: {}\n  a: {}\n", 3, "sections.a", "duplicate key"),
        (
            "ladder:\n  - {drop: a}\n  - {dorp: b}\n",
            3,
            "ladder.1",
            "rung 2 of the ladder must be {truncate: SECTIONS}",
        ),
    ],
)
def test_invalid_values_are_reported_with_file_line_and_key(
    file: Path, text: str, line: int, key: str, message: str
) -> None:
    error = load_error(file, text)

    assert str(error).startswith(f"{file}:{line}: ")
    assert error.key == key
    assert message in error.reason


def test_a_very_long_value_is_shortened_in_the_error(file: Path) -> None:
    assert len(str(load_error(file, "total_tokens: " + "x" * 900_000))) < 1000


def test_an_agents_file_overrides_the_defaults(file: Path) -> None:
    file.write_text(
        "total_tokens: 3000\noverflow_policy: drop_low_priority\n"
        "sections:\n  recent_events: {max_tokens: 100}\n  diary: {priority: low}\n",
        encoding="utf-8",
    )
    agents = load_agent_budget(file, defaults=DEFAULT_BUDGET, allowed=DEFAULT_BUDGET)

    assert agents.problem is None
    assert agents.clamped == ()
    assert agents.budget == Budget(
        3000,
        ladder=DROP_LOW_PRIORITY,
        sections={
            **DEFAULT_BUDGET.sections,
            "recent_events": SectionRule(max_tokens=100, priority=Priority.LOW, keep=Keep.NEWEST),
            "diary": SectionRule(priority=Priority.LOW),
        },
    )


def test_a_missing_file_is_not_an_error(file: Path) -> None:
    agents = load_agent_budget(file, defaults=DEFAULT_BUDGET, allowed=None)

    assert agents.budget == DEFAULT_BUDGET
    assert agents.problem is None


def test_without_a_file_the_defaults_are_clamped_silently(file: Path) -> None:
    allowed = Budget(4000, sections={"logs": SectionRule(max_tokens=50, enabled=False)})
    defaults = Budget(9000, sections={"logs": SectionRule(max_tokens=90)})

    for is_invalid in (False, True):
        agents = load_agent_budget(file, defaults=defaults, allowed=allowed)

        assert agents.budget == allowed
        assert agents.clamped == ()
        assert (agents.problem is not None) is is_invalid
        file.write_text("what is this?\n", encoding="utf-8")


def test_nothing_of_an_invalid_file_applies(file: Path) -> None:
    file.write_text("total_tokens: 100\nsections: {recent_events: {max_tokens: -1}}\n", encoding="utf-8")
    agents = load_agent_budget(file, defaults=DEFAULT_BUDGET, allowed=DEFAULT_BUDGET)

    assert agents.budget == DEFAULT_BUDGET
    assert isinstance(agents.problem, BadSetting)
    assert (agents.problem.line, agents.problem.key) == (2, "sections.recent_events.max_tokens")


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        (
            "# none\ntotal_tokens: 0\n",
            2,
            "total_tokens",
            "total_tokens is 0: no tokens are left for the prompt",
        ),
        ("output_reserve: 9\ntotal_tokens: 0\n", 2, "total_tokens", "total_tokens is 0: no tokens are left"),
        (
            "sections: {}\noutput_reserve: 4000\n",
            2,
            "output_reserve",
            "is 4000 and output_reserve is 4000",
        ),
        ("total_tokens: 9\noutput_reserve: 10\n", 2, "output_reserve", "is 9 and output_reserve is 10"),
        (
            "ladder: progressive\ntotal_tokens: 500\n",
            2,
            "total_tokens",
            "is 500 and output_reserve is 500",
        ),
        ("total_tokens: null\noutput_reserve: 7000\n", 2, "output_reserve", "is 6000 and output_reserve"),
    ],
)
def test_a_file_that_leaves_no_room_for_a_prompt_is_an_error(
    file: Path, text: str, line: int, key: str, message: str
) -> None:
    file.write_text(text, encoding="utf-8")
    defaults = Budget(4000, 500)
    agents = load_agent_budget(file, defaults=defaults, allowed=Budget(6000))

    assert agents.budget == defaults
    assert agents.clamped == ()
    assert isinstance(agents.problem, BadSetting)
    assert (agents.problem.source, agents.problem.line, agents.problem.key) == (str(file), line, key)
    assert message in agents.problem.reason


def test_a_file_is_not_blamed_for_defaults_without_room(file: Path) -> None:
    file.write_text("total_tokens: 4000\n", encoding="utf-8")

    assert load_agent_budget(file, defaults=Budget(), allowed=Budget(0)).problem is None


def test_an_unreadable_file_is_an_error_and_never_blocks(tmp_path: Path) -> None:
    pipe, loop = tmp_path / "pipe", tmp_path / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    below_a_file = tmp_path / "file" / "budget.yaml"
    below_a_file.parent.write_text("", encoding="utf-8")
    for path in (tmp_path, pipe, loop, below_a_file, tmp_path / "a\0b", below_a_file.parent):
        agents = load_agent_budget(path, defaults=DEFAULT_BUDGET, allowed=None)

        assert agents.budget == DEFAULT_BUDGET
        assert isinstance(agents.problem, UnreadableInput)
