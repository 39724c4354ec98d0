"""Budgets as plain data."""

import doctest
import json
from typing import Any

import pytest
from hypothesis import given

from foveate.budget import (
    DEFAULT_BUDGET,
    Budget,
    Keep,
    Ladder,
    Priority,
    SectionRule,
    budget,
    budget_as_data,
    budget_from_data,
)
from foveate.budget.ladder import CUSTOM_LADDER_NAME, PROGRESSIVE, Drop, LastLines, Truncate
from foveate.errors import BadOption
from tests.support.strategies.budgets import budgets


def error_for(data: Any) -> BadOption:
    with pytest.raises(BadOption) as caught:
        budget_from_data(data)
    return caught.value


def test_the_examples_in_docstrings_pass() -> None:
    results = doctest.testmod(budget)

    assert results.attempted
    assert not results.failed


@given(budget=budgets())
def test_a_budget_survives_a_round_trip_through_json(budget: Budget) -> None:
    assert budget_from_data(json.loads(json.dumps(budget_as_data(budget)))) == budget


@pytest.mark.slow
@given(budget=budgets(), other=budgets())
def test_a_complete_budget_overrides_everything_but_sections_that_it_does_not_name(
    budget: Budget, other: Budget
) -> None:
    merged = budget_from_data(budget_as_data(budget), defaults=other)

    assert merged.sections == {**other.sections, **budget.sections}
    assert (merged.total_tokens, merged.output_reserve, merged.ladder) == (
        budget.total_tokens,
        budget.output_reserve,
        budget.ladder,
    )


def test_a_ladder_alone_is_a_budget() -> None:
    defaults = Budget(100, 10, sections={"a": SectionRule(share=0.5)})

    assert budget_from_data("progressive", defaults=defaults) == Budget(
        100, 10, PROGRESSIVE, sections=defaults.sections
    )
    assert budget_from_data([{"drop": "a"}]).ladder == Ladder(CUSTOM_LADDER_NAME, (Drop(("a",)),))


def test_values_that_are_not_named_keep_their_defaults() -> None:
    merged = budget_from_data(
        {"sections": {"recent_events": {"max_tokens": 50}, "extra": {"share": 1}}}, defaults=DEFAULT_BUDGET
    )

    assert merged.total_tokens == 4000
    assert merged.ladder == DEFAULT_BUDGET.ladder
    assert merged.sections["recent_events"] == SectionRule(
        max_tokens=50, priority=Priority.LOW, keep=Keep.NEWEST
    )
    assert merged.sections["extra"] == SectionRule(share=1.0)
    assert merged.sections["system_prompt"] == DEFAULT_BUDGET.sections["system_prompt"]


def test_null_removes_a_rule() -> None:
    merged = budget_from_data(
        {"total_tokens": None, "sections": {"recent_events": {"max_tokens": None}}}, defaults=DEFAULT_BUDGET
    )

    assert merged.total_tokens is None
    assert merged.sections["recent_events"] == SectionRule(priority=Priority.LOW, keep=Keep.NEWEST)


@pytest.mark.parametrize("key", ["ladder", "overflow_policy"])
def test_a_ladder_can_have_either_key(key: str) -> None:
    custom = Ladder(CUSTOM_LADDER_NAME, (LastLines(("logs",), 5), Drop(), Truncate(("a", "b"))))

    assert budget_from_data({key: "progressive"}).ladder == PROGRESSIVE
    assert (
        budget_from_data(
            {key: [{"last_lines": 5, "of": "logs"}, {"drop": "lowest"}, {"truncate": ["a", "b"]}]}
        ).ladder
        == custom
    )


def test_a_named_ladder_keeps_its_name() -> None:
    ladder = Ladder("mine", (Drop(),))

    assert budget_as_data(Budget(ladder=ladder))["ladder"] == {"name": "mine", "rungs": [{"drop": "lowest"}]}


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        (5, (), "a budget must be a mapping with total_tokens"),
        ([], (), "a ladder must be a name or a list of rungs"),
        ("sideways", (), "no ladder is named 'sideways'"),
        ([{"drop": "a"}, {"dorp": "b"}], (1,), "rung 2"),
        ({"total_token": 1}, ("total_token",), "did you mean total_tokens?"),
        ({"Total_Tokens": 1}, ("Total_Tokens",), "did you mean total_tokens?"),
        ({"colour": 1}, ("colour",), "its keys are total_tokens, output_reserve"),
        ({"total_tokens": -1}, ("total_tokens",), "0 or more, not -1"),
        ({"total_tokens": True}, ("total_tokens",), "not True"),
        ({"total_tokens": 1.5}, ("total_tokens",), "not 1.5"),
        ({"output_reserve": None}, ("output_reserve",), "not None"),
        ({"output_reserve": "many"}, ("output_reserve",), "not 'many'"),
        ({"sections": None}, ("sections",), "a mapping of names to rules, not None"),
        ({"sections": {"a": 3}}, ("sections", "a"), "the rule for 'a' must be a mapping with priority"),
        ({"sections": {" ": {}}}, ("sections", " "), "a section's name"),
        ({"sections": {"a\nb": {}}}, ("sections", "a\nb"), "a section's name"),
        ({"sections": {"a": {"max_token": 1}}}, ("sections", "a", "max_token"), "did you mean max_tokens?"),
        ({"sections": {"a": {"max_tokens": "9"}}}, ("sections", "a", "max_tokens"), "not '9'"),
        ({"sections": {"a": {"share": 1.1}}}, ("sections", "a", "share"), "from 0 to 1, not 1.1"),
        ({"sections": {"a": {"share": float("nan")}}}, ("sections", "a", "share"), "not nan"),
        ({"sections": {"a": {"priority": "hi"}}}, ("sections", "a", "priority"), "one of required, high"),
        ({"sections": {"a": {"keep": "tail"}}}, ("sections", "a", "keep"), "one of newest, relevant"),
        ({"sections": {"a": {"enabled": "yes"}}}, ("sections", "a", "enabled"), "true or false, not 'yes'"),
        ({"ladder": "climb"}, ("ladder",), "no ladder is named 'climb'"),
        ({"ladder": None}, ("ladder",), "a name or a list of rungs, not None"),
        ({"ladder": []}, ("ladder",), "a name or a list of rungs"),
        ({"ladder": [{"drop": "a"}, {"drop": 3}]}, ("ladder", 1), "rung 2 of the ladder"),
        ({"overflow_policy": ["drop"]}, ("overflow_policy", 0), "rung 1 of the ladder"),
        ({"ladder": {"name": "mine", "rungs": [{"drop": 3}]}}, ("ladder", "rungs", 0), "rung 1"),
        (
            {"ladder": "progressive", "overflow_policy": "progressive"},
            ("overflow_policy",),
            "set only one of them",
        ),
    ],
)
def test_invalid_data_is_rejected_with_its_path(data: Any, path: tuple[str | int, ...], message: str) -> None:
    error = error_for(data)

    assert error.path == path
    assert message in str(error)
