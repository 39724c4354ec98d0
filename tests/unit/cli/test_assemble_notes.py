"""Notes below the chart of a prompt: only those that the user can act on."""

from time import process_time

import pytest

import foveate
from foveate.budget import Budget, Priority, Section, SectionRule
from foveate.cli.assemble import prompt_notes

UNKNOWN_MODEL = "a-model-of-next-year"
NOT_RESERVED = "no tokens are reserved for the response: set output_reserve in the budget"
SAME_PRIORITY = "all sections have the same priority, so the last are cut first: set priorities in the budget"

RULE = SectionRule(priority=Priority.HIGH)


def list_notes(
    sections: list[Section], budget: Budget, *, model: str = "gpt-4o", explain: bool = False, show: bool = False
) -> list[str]:
    prompt = foveate.assemble(sections, budget, model, show_budget=show)
    return list(prompt_notes(prompt, budget, model=model, explain=explain))


def make_sections(*names: str, priority: foveate.PriorityName = "medium") -> list[Section]:
    return [Section(name, "one two three four five six seven eight", priority=priority) for name in names]


@pytest.fixture(autouse=True)
def _without_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONTEXT_MAX_TOKENS", raising=False)


def test_an_unknown_window_is_reported_with_the_assumed_size() -> None:
    expected = [
        f"the window of '{UNKNOWN_MODEL}' is unknown, assuming 16,384 tokens: set total_tokens in the budget"
    ]

    assert list_notes(make_sections("task"), Budget(), model=UNKNOWN_MODEL) == expected
    assert list_notes(make_sections("task"), Budget(output_reserve=1000), model=UNKNOWN_MODEL) == expected


def test_a_missing_output_reserve_is_reported() -> None:
    assert list_notes(make_sections("task"), Budget()) == [NOT_RESERVED]
    assert list_notes(make_sections("task"), Budget(output_reserve=1)) == []


def test_an_explicit_limit_is_not_reported() -> None:
    assert list_notes(make_sections("task"), Budget(100)) == []
    assert list_notes(make_sections("task"), Budget(100), model=UNKNOWN_MODEL) == []


@pytest.mark.parametrize("name", ["Task_List", "task_lst", "TASKLIST", "tasks_list"])
def test_a_misspelt_rule_is_reported_with_a_suggestion(name: str) -> None:
    budget = Budget(100, sections={name: RULE})

    assert list_notes(make_sections("rules", "task_list"), budget) == [
        f"the budget has a rule for '{name}', but no such section exists: did you mean 'task_list'?"
    ]


def test_a_misspelt_rung_is_reported_even_if_the_section_has_a_rule() -> None:
    budget = Budget(100, ladder=[{"drop": ["tsak"]}, {"truncate": "lowest"}], sections={"task": RULE})

    assert list_notes(make_sections("rules", "task"), budget) == [
        "the budget has a rule for 'tsak', but no such section exists: did you mean 'task'?"
    ]


def test_a_section_with_a_rule_is_not_suggested_for_another_rule() -> None:
    budget = Budget(100, sections={"history_1": RULE, "history_2": RULE})

    assert list_notes(make_sections("history_1"), budget) == []


def test_an_unmatched_name_without_a_suggestion_is_listed_only_with_explain() -> None:
    one_rule = Budget(100, sections={"mandates": RULE})
    three_rules = Budget(100, sections={"mandates": RULE, "Rules": RULE, "weather": RULE})

    assert list_notes(make_sections("rules"), one_rule) == []
    assert list_notes(make_sections("rules"), one_rule, explain=True) == [
        "the budget has rules for 'mandates', but no such section exists"
    ]
    assert list_notes(make_sections("rules"), three_rules, explain=True) == [
        "the budget has a rule for 'Rules', but no such section exists: did you mean 'rules'?",
        "the budget has rules for 'mandates', 'weather', but no such sections exist",
    ]


def test_thousands_of_names_are_compared_only_by_case() -> None:
    """Regression: comparing all with all took minutes."""
    sections = [Section(f"a section with the number {i}", "") for i in range(2000)]
    rules = {f"no section with the number {i}": RULE for i in range(1000)}
    budget = Budget(100, sections=rules | {"A Section with the number 7": RULE})
    prompt = foveate.assemble(sections, budget)

    before = process_time()
    (line,) = prompt_notes(prompt, budget, model="gpt-4o", explain=False)

    assert "did you mean 'a section with the number 7'?" in line
    assert process_time() - before < 20


@pytest.mark.parametrize("ladder", ["truncate_low_priority", "drop_low_priority", [{"truncate": "lowest"}]])
@pytest.mark.parametrize("show", [False, True])
def test_a_cut_by_position_is_reported(ladder: foveate.LadderName, show: bool) -> None:
    tight = Budget(60 if show else 20, ladder=ladder)

    assert list_notes(make_sections("a", "b", "c", "d", "e", "f"), tight, show=show) == [SAME_PRIORITY]


@pytest.mark.parametrize(
    ("sections", "budget"),
    [
        ([*make_sections("a"), *make_sections("b", priority="low")], Budget(12)),
        (make_sections("a", "b"), Budget(12, sections={"b": SectionRule(priority=Priority.LOW)})),
        (make_sections("a", "b"), Budget(12, ladder=[{"drop": ["b"]}])),
        (make_sections("a", "b"), Budget(100, sections={"b": SectionRule(max_tokens=5)})),
        (make_sections("a", "b"), Budget(100)),
        (make_sections("a"), Budget(5)),
        ([*make_sections("a"), Section("b", "", enabled=False)], Budget(5)),
    ],
    ids=["priorities", "rules", "by name", "own cap", "no cut", "one section", "one that is enabled"],
)
def test_priorities_are_not_suggested_if_they_would_change_nothing(
    sections: list[Section], budget: Budget
) -> None:
    assert list_notes(sections, budget) == []


def test_a_disabled_section_does_not_count_as_another_priority() -> None:
    sections = [*make_sections("a", "b"), Section("c", "", priority="low", enabled=False)]

    assert list_notes(sections, Budget(12)) == [SAME_PRIORITY]
