"""Budgets in files: the operator's, and the one that an agent writes itself."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.budget import PRESET, Budget, Keep, Priority, SectionRule, budget_as_data
from foveate.budget.ladders import DROP_LOW_PRIORITY
from foveate.config import load_agent_budget, load_budget
from foveate.errors import BadSetting, UnreadableInput
from tests.unit.config.made import budgets, caps, names, shares

few_names = st.sampled_from(["logs", "notes", "no"])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "budget.yaml"


@pytest.fixture(scope="module")
def lasting_file() -> Iterator[Path]:
    """One for all examples of a property."""
    with TemporaryDirectory() as folder:
        yield Path(folder) / "budget.yaml"


def refusal(file: Path, text: str) -> BadSetting:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadSetting) as caught:
        load_budget(file)
    return caught.value


def test_the_example_is_the_preset(root: Path) -> None:
    assert load_budget(root / "examples" / "budget.yaml") == PRESET


def test_a_budget_may_be_json(tmp_path: Path) -> None:
    file = tmp_path / "budget.json"
    file.write_text('{"total_tokens": 100, "sections": {"a": {"share": 0.5}}}', encoding="utf-8")

    assert load_budget(file) == Budget(100, sections={"a": SectionRule(share=0.5)})


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ("# mine\n5\n", 2, "", "a budget is a mapping of total_tokens"),
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
        ("sections:\n  a: {}\n  a: {}\n", 3, "sections.a", "a second time"),
        ("ladder:\n  - {drop: a}\n  - {dorp: b}\n", 3, "ladder.1", "rung 2 of the ladder is not one of"),
    ],
)
def test_what_cannot_be_is_told_with_its_file_line_and_key(
    file: Path, text: str, line: int, key: str, words: str
) -> None:
    error = refusal(file, text)

    assert str(error).startswith(f"{file}:{line}: ")
    assert error.key == key
    assert words in error.reason


def test_a_value_that_is_a_megabyte_long_is_not_told_whole(file: Path) -> None:
    assert len(str(refusal(file, "total_tokens: " + "x" * 900_000))) < 1000


def test_an_agents_file_is_laid_over_the_defaults(file: Path) -> None:
    file.write_text(
        "total_tokens: 3000\noverflow_policy: drop_low_priority\n"
        "sections:\n  recent_events: {max_tokens: 100}\n  diary: {priority: low}\n",
        encoding="utf-8",
    )
    agents = load_agent_budget(file, defaults=PRESET, allowed=PRESET)

    assert agents.problem is None
    assert agents.clamped == ()
    assert agents.budget == Budget(
        3000,
        ladder=DROP_LOW_PRIORITY,
        sections={
            **PRESET.sections,
            "recent_events": SectionRule(max_tokens=100, priority=Priority.LOW, keep=Keep.NEWEST),
            "diary": SectionRule(priority=Priority.LOW),
        },
    )


def test_a_file_that_is_not_there_is_no_problem(file: Path) -> None:
    agents = load_agent_budget(file, defaults=PRESET, allowed=None)

    assert agents.budget == PRESET
    assert agents.problem is None


def test_of_a_file_that_is_wrong_nothing_holds(file: Path) -> None:
    file.write_text("total_tokens: 100\nsections: {recent_events: {max_tokens: -1}}\n", encoding="utf-8")
    agents = load_agent_budget(file, defaults=PRESET, allowed=PRESET)

    assert agents.budget == PRESET
    assert isinstance(agents.problem, BadSetting)
    assert (agents.problem.line, agents.problem.key) == (2, "sections.recent_events.max_tokens")


def test_what_cannot_be_read_is_a_problem_and_nobody_waits_for_it(tmp_path: Path) -> None:
    pipe, loop = tmp_path / "pipe", tmp_path / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    below_a_file = tmp_path / "file" / "budget.yaml"
    below_a_file.parent.write_text("", encoding="utf-8")
    for path in (tmp_path, pipe, loop, below_a_file, tmp_path / "a\0b", below_a_file.parent):
        agents = load_agent_budget(path, defaults=PRESET, allowed=None)

        assert agents.budget == PRESET
        assert isinstance(agents.problem, UnreadableInput)


def test_a_wish_for_more_than_is_allowed_is_brought_down_and_told(file: Path) -> None:
    file.write_text(
        "total_tokens: 1000000\noutput_reserve: 0\n"
        "sections:\n"
        "  logs: {max_tokens: 90, share: 0.5}\n"
        "  notes: {max_tokens: null}\n"
        "  free: {max_tokens: 9}\n",
        encoding="utf-8",
    )
    allowed = Budget(
        4000,
        500,
        sections={
            "logs": SectionRule(max_tokens=50, share=0.1),
            "notes": SectionRule(max_tokens=70),
            "more": SectionRule(share=0.2),
        },
    )
    agents = load_agent_budget(file, defaults=Budget(), allowed=allowed)

    assert agents.budget == Budget(
        4000,
        500,
        sections={
            "logs": SectionRule(max_tokens=50, share=0.1),
            "notes": SectionRule(max_tokens=70),
            "free": SectionRule(max_tokens=9),
            "more": SectionRule(share=0.2),
        },
    )
    assert agents.clamped == (
        "total_tokens: 1000000 with an output_reserve of 0 is more than is allowed; 4000 with 500 holds",
        "sections.logs.max_tokens: 90 is more than is allowed; 50 holds",
        "sections.logs.share: 0.5 is more than is allowed; 0.1 holds",
        "sections.notes.max_tokens: no cap is more than is allowed; 70 holds",
        "sections.more.share: no cap is more than is allowed; 0.2 holds",
    )


@pytest.mark.parametrize(
    ("asked", "held"),
    [
        ((4000, 0), (4000, 500)),  # the room for the answer is not the agent's
        ((5000, 1600), (4000, 600)),  # as much room as was asked for, within the total
        ((3000, 0), (3000, 0)),
        ((None, 900), (4000, 900)),
        ((None, 100), (4000, 500)),
        ((10_000, 8000), (4000, 2000)),
    ],
)
def test_the_room_that_is_left_is_what_was_asked_for_or_what_is_allowed(
    file: Path, asked: tuple[int | None, int], held: tuple[int, int]
) -> None:
    file.write_text(yaml.safe_dump(budget_as_data(Budget(*asked))), encoding="utf-8")
    budget = load_agent_budget(file, defaults=Budget(), allowed=Budget(4000, 500)).budget

    assert (budget.total_tokens, budget.output_reserve) == held


def test_where_the_window_is_all_that_is_allowed_the_reserve_stays(file: Path) -> None:
    file.write_text("output_reserve: 0\n", encoding="utf-8")
    budget = load_agent_budget(file, defaults=Budget(), allowed=Budget(None, 500)).budget

    assert (budget.total_tokens, budget.output_reserve) == (None, 500)


wishes = st.one_of(
    budgets(few_names).map(lambda budget: yaml.safe_dump(budget_as_data(budget)).encode()),
    st.fixed_dictionaries(
        {},
        optional={
            "total_tokens": caps | st.none() | st.integers(),
            "output_reserve": caps | st.integers(),
            "sections": st.dictionaries(
                few_names,
                st.fixed_dictionaries(
                    {}, optional={"max_tokens": caps | st.none(), "share": shares | st.none()}
                ),
            ),
        },
    ).map(lambda wish: yaml.safe_dump(wish).encode()),
    st.dictionaries(names, names).map(lambda wish: yaml.safe_dump(wish).encode()),
    st.binary(),
)


@settings(max_examples=200)
@given(wish=wishes, defaults=budgets(few_names), allowed=budgets(few_names))
def test_whatever_an_agent_writes_it_never_gets_more_than_is_allowed(
    lasting_file: Path, wish: bytes, defaults: Budget, allowed: Budget
) -> None:
    lasting_file.write_bytes(wish)
    agents = load_agent_budget(lasting_file, defaults=defaults, allowed=allowed)
    budget = agents.budget

    if allowed.total_tokens is None:
        assert budget.output_reserve >= allowed.output_reserve
    else:
        assert budget.total_tokens is not None
        assert budget.total_tokens <= allowed.total_tokens
        room = budget.total_tokens - budget.output_reserve
        assert room <= allowed.total_tokens - allowed.output_reserve
    for name, most in allowed.sections.items():
        given = budget.sections.get(name, SectionRule())
        for has, may in ((given.max_tokens, most.max_tokens), (given.share, most.share)):
            assert may is None or (has is not None and has <= may)
    if agents.problem is None and not agents.clamped:
        assert budget == load_agent_budget(lasting_file, defaults=defaults, allowed=None).budget


@settings(max_examples=50)
@given(wish=wishes, defaults=budgets(few_names))
def test_a_file_holds_whole_or_not_at_all(lasting_file: Path, wish: bytes, defaults: Budget) -> None:
    lasting_file.write_bytes(wish)
    agents = load_agent_budget(lasting_file, defaults=defaults, allowed=None)

    assert agents.clamped == ()
    if agents.problem is None:
        assert agents.budget == load_budget(lasting_file, defaults=defaults)
    else:
        assert agents.budget == defaults
