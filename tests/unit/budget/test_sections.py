"""Validation of sections and budgets."""

import copy
import dataclasses
import doctest
import math
import pickle
from typing import Any

import pytest

import foveate.budget.budget
import foveate.budget.sections
from foveate.budget import Budget, Item, Keep, Priority, Section, SectionRule, Stability
from foveate.budget.ladder import BUILT_IN_LADDERS, Drop, Truncate
from foveate.errors import BadOption


@pytest.mark.parametrize("module", [foveate.budget.sections, foveate.budget.budget])
def test_the_examples_pass(module: Any) -> None:
    results = doctest.testmod(module)

    assert results.attempted
    assert not results.failed


def test_a_section_has_the_documented_defaults() -> None:
    text, items = Section("text", "words"), Section("items", items=["a", ("b", 0.5), Item("c", 1)])

    assert (text.priority, text.stability, text.enabled) == (Priority.MEDIUM, Stability.TURN, True)
    assert (text.max_tokens, text.share) == (None, None)
    assert (text.keep, items.keep) == (Keep.HEAD, Keep.NEWEST)
    assert items.items == (Item("a"), Item("b", 0.5), Item("c", 1))
    assert items.text == "a\nb\nc"


def test_sections_are_compared_by_value() -> None:
    assert Section("a", "x") == Section("a", "x")
    assert hash(Section("a", items=["x"])) == hash(Section("a", items=["x"]))
    assert Section("a", "x") != Section("a", "y")
    with pytest.raises(AttributeError):
        Section("a", "x").text = "y"  # pyrefly: ignore[read-only]


def test_the_repr_of_a_section_is_short() -> None:
    assert repr(Section("a", "x" * 1_000_000)) == "<Section 'a': 1,000,000 characters, medium, keeps head>"
    assert repr(Section("a", items=["x"])) == "<Section 'a': 1 items, medium, keeps newest>"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "set either text or items"),
        ({"text": "a", "items": ["b"]}, "set either text or items"),
        ({"text": b"bytes"}, "text must be a str, not bytes"),
        ({"items": "letters"}, "items must be a list"),
        ({"items": [1]}, "not int"),
        ({"items": [("a", "b")]}, "finite number, not 'b'"),
        ({"items": [("a", math.nan)]}, "finite number, not nan"),
        ({"items": [("a", True)]}, "finite number, not True"),
        ({"items": [("a", 10**400)]}, "this number is too large"),
        ({"items": [("a", -(10**5000))]}, "this number is too large"),
        ({"items": 5}, "not iterable"),
        (
            {"text": "a", "priority": "urgent"},
            "priority must be one of required, high, medium, low, not 'urgent'",
        ),
        ({"text": "a", "keep": "tail"}, "keep must be one of newest, relevant, head, ends, whole, not 'tail'"),
        ({"text": "a", "stability": "never"}, "stability must be one of static, session, turn, not 'never'"),
        ({"text": "a", "max_tokens": -1}, "max_tokens must be a number of tokens, 0 or more, not -1"),
        ({"text": "a", "max_tokens": 1.5}, "not 1.5"),
        ({"text": "a", "max_tokens": True}, "not True"),
        ({"text": "a", "share": 1.1}, "share must be a number from 0 to 1, not 1.1"),
        ({"text": "a", "share": math.nan}, "not nan"),
        ({"text": "a", "enabled": "yes"}, "enabled must be true or false, not 'yes'"),
    ],
)
def test_invalid_values_are_rejected_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption) as caught:
        Section("notes", **arguments)

    assert message in str(caught.value)
    assert "notes" in str(caught.value)


@pytest.mark.parametrize("name", ["", "  ", "two\nlines", "\x1b[31m", None, 5])
def test_a_name_must_be_printable_on_one_line(name: Any) -> None:
    with pytest.raises(BadOption, match="a section's name"):
        Section(name, "text")


def test_a_budget_has_the_documented_defaults() -> None:
    budget = Budget()

    assert (budget.total_tokens, budget.output_reserve) == (None, 0)
    assert budget.ladder is BUILT_IN_LADDERS["truncate_low_priority"]
    assert budget.sections == {}
    assert budget == Budget(None, 0, "truncate_low_priority")
    assert hash(budget) == hash(Budget())


def test_overflow_policy_is_another_name_for_the_ladder() -> None:
    assert Budget(overflow_policy="progressive") == Budget(ladder="progressive")
    with pytest.raises(BadOption, match="the same"):
        Budget(ladder="progressive", overflow_policy="progressive")


def test_a_rule_converts_and_validates_names() -> None:
    rule = SectionRule(priority="required", keep="whole")

    assert (rule.priority, rule.keep) == (Priority.REQUIRED, Keep.WHOLE)
    invalid: dict[str, Any]
    for invalid in (
        {"priority": "requird"},
        {"max_tokens": -5},
        {"share": 9},
        {"keep": "tail"},
        {"enabled": 1},
    ):
        with pytest.raises(BadOption) as caught:
            SectionRule(**invalid)
        assert caught.value.path == tuple(invalid)
    with pytest.raises(BadOption, match=r"sections\.a must be a SectionRule"):
        Budget(sections={"a": {"max_tokens": 5}})  # pyrefly: ignore[bad-assignment]


def test_budgets_and_sections_can_be_copied_and_pickled() -> None:
    budget = Budget(5, 1, "progressive", sections={"a": SectionRule(share=0.5)})
    section = Section("a", items=["x", ("y", 1.0)], priority="low")

    for copied in (pickle.loads(pickle.dumps(budget)), copy.deepcopy(budget)):
        assert copied == budget
    assert pickle.loads(pickle.dumps(section)) == section
    assert dataclasses.replace(section, priority=Priority.HIGH) == Section(
        "a", items=["x", ("y", 1.0)], priority="high"
    )


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"total_tokens": -5}, ("total_tokens",)),
        ({"total_tokens": "many"}, ("total_tokens",)),
        ({"output_reserve": None}, ("output_reserve",)),
        ({"output_reserve": -1}, ("output_reserve",)),
    ],
)
def test_an_invalid_budget_has_a_path(arguments: dict[str, Any], path: tuple[str, ...]) -> None:
    with pytest.raises(BadOption) as caught:
        Budget(**arguments)

    assert caught.value.path == path


def test_a_list_of_rungs_is_a_ladder() -> None:
    budget = Budget(ladder=[{"drop": "logs"}, Truncate(("a", "b")), {"truncate": "lowest"}])

    assert budget.ladder.rungs == (Drop(("logs",)), Truncate(("a", "b")), Truncate())
