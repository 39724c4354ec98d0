"""Checkpoints restore a budget and its usage. Invalid ones are rejected with a message."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.budget.budget import (
    Budget,
    BudgetUsage,
    SectionRule,
    SectionUsage,
    checkpoint,
    measure_usage,
    restore,
)
from foveate.budget.ladder import BUILT_IN_LADDERS, Drop, Ladder, LastLines, Replace, Truncate
from foveate.budget.prompt import Action, Prompt, SectionReport
from foveate.budget.sections import Keep, Priority, Stability
from foveate.errors import BadOption
from foveate.model import TokenCount

tokens = st.integers(0, 10**20)
names = (
    st.text(min_size=1) | st.sampled_from(["🗂️ notes", 'it\'s "quoted"', "a.b/c", "version", " x "])
).filter(lambda name: name.isprintable() and bool(name.strip()))
some_names = st.lists(st.text(min_size=1), min_size=1, max_size=3).map(tuple)
any_names = st.just(()) | some_names
rungs = st.one_of(
    st.builds(Truncate, any_names),
    st.builds(Drop, any_names),
    st.builds(LastLines, some_names, st.integers(1, 10**6)),
    st.builds(Replace, some_names, st.text()),
)
ladders = st.sampled_from(sorted(BUILT_IN_LADDERS.values(), key=lambda ladder: ladder.name)) | st.builds(
    Ladder,
    st.text(min_size=1) | st.sampled_from(["own", *BUILT_IN_LADDERS]),
    st.lists(rungs, max_size=4).map(tuple),
)
rules = st.builds(
    SectionRule,
    priority=st.none() | st.sampled_from(Priority),
    max_tokens=st.none() | tokens,
    share=st.none() | st.floats(0, 1),
    keep=st.none() | st.sampled_from(Keep),
    enabled=st.none() | st.booleans(),
)
budgets = st.builds(
    Budget,
    total_tokens=st.none() | tokens,
    output_reserve=tokens,
    ladder=ladders,
    sections=st.dictionaries(names, rules, max_size=4),
)
usages = st.builds(
    BudgetUsage,
    tokens=tokens,
    limit_tokens=tokens,
    sections=st.lists(
        st.builds(SectionUsage, name=names, tokens=tokens, cap_tokens=st.none() | tokens), max_size=4
    ).map(tuple),
)

BUDGET = Budget(4_000, 500, "progressive", sections={"logs": SectionRule(share=0.1), "notes": SectionRule()})
USAGE = BudgetUsage(
    tokens=3_200,
    limit_tokens=3_500,
    sections=(
        SectionUsage(name="notes", tokens=2_900),
        SectionUsage(name="logs", tokens=300, cap_tokens=350),
    ),
)
# Written by the first version 1. Must be readable as long as version 1 is supported.
VERSION_1_TEXT = (
    '{"budget": {"ladder": "progressive", "output_reserve": 500, "sections": {'
    '"logs": {"enabled": null, "keep": null, "max_tokens": null, "priority": null, "share": 0.1}, '
    '"notes": {"enabled": null, "keep": null, "max_tokens": null, "priority": null, "share": null}}, '
    '"total_tokens": 4000}, "usage": {"limit_tokens": 3500, "sections": ['
    '{"cap_tokens": null, "name": "notes", "tokens": 2900}, '
    '{"cap_tokens": 350, "name": "logs", "tokens": 300}], "tokens": 3200}, "version": 1}'
)


@pytest.mark.slow
@given(budget=budgets, usage=usages)
def test_a_checkpoint_restores_equal_values(budget: Budget, usage: BudgetUsage) -> None:
    text = checkpoint(budget, usage)

    assert restore(text) == (budget, usage)
    assert text.isascii()


def test_the_text_of_a_checkpoint_is_stable() -> None:
    assert checkpoint(BUDGET, USAGE) == VERSION_1_TEXT
    assert restore(VERSION_1_TEXT) == (BUDGET, USAGE)


def test_equal_budgets_have_the_same_text() -> None:
    reordered = Budget(4_000, 500, "progressive", sections=dict(reversed([*BUDGET.sections.items()])))

    assert list(reordered.sections) != list(BUDGET.sections)
    assert checkpoint(reordered, USAGE) == checkpoint(BUDGET, USAGE)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (Budget(sections={"two\nlines": SectionRule()}), "can be shown on one line"),
        (
            Budget(ladder=Ladder("mine", (LastLines(("logs",), 0),))),
            "last_lines must be a number of lines, 1 or more",
        ),
        (
            Budget(ladder=Ladder("mine", (Replace(("logs",), "\ud83d" + "\ude00"),))),
            "JSON cannot represent exactly",
        ),
    ],
)
def test_values_that_cannot_be_restored_are_rejected_at_the_checkpoint(budget: Budget, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        checkpoint(budget, USAGE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "this checkpoint is not JSON: Expecting value"),
        ("{" * 5, "this checkpoint is not JSON"),
        ("[" * 100_000, "this checkpoint is not JSON"),
        ("[]", "not a checkpoint: it has no version"),
        ("{}", "not a checkpoint: it has no version"),
        ('{"version": "1"}', "not a checkpoint: it has no version"),
        ('{"version": 0}', "not a checkpoint: it has no version"),
        ('{"version": true}', "not a checkpoint: it has no version"),
        ('{"version": 2, "plan": {}}', "has version 2, but only versions up to 1 can be read.* newer Foveate"),
        ('{"version": 1}', "the checkpoint's budget: a budget must be a mapping"),
        ('{"version": 1, "budget": {}}', "usage must be a mapping"),
    ],
)
def test_invalid_checkpoints_are_rejected_with_a_message(text: str, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        restore(text)


@pytest.mark.parametrize("value", [None, 5])
def test_a_checkpoint_that_is_not_a_text_is_rejected_with_a_message(value: Any) -> None:
    with pytest.raises(BadOption, match=r"this checkpoint is not JSON: .*, not (NoneType|int)"):
        restore(value)


INVALID_VALUES: list[tuple[tuple[str | int, ...], Any]] = [
    (("extra",), 1),
    (("budget", "total_tokens"), "many"),
    (("budget", "ladder"), "rope"),
    (("budget", "sections", "logs", "share"), 2),
    (("usage", "tokens"), -1),
    (("usage", "tokens"), None),
    (("usage", "limit_tokens"), True),
    (("usage", "sections"), {}),
    (("usage", "sections", 0, "name"), 7),
    (("usage", "sections", 0, "tokens"), 1.5),
    (("usage", "sections", 0, "cap_tokens"), "350"),
    (("usage", "sections", 0, "caps"), 1),
    (("usage", "sections", 0), "notes"),
]


@pytest.mark.parametrize(("path", "value"), INVALID_VALUES)
def test_errors_in_a_checkpoint_have_a_path(path: tuple[str | int, ...], value: Any) -> None:
    data = json.loads(VERSION_1_TEXT)
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value

    with pytest.raises(BadOption) as caught:
        restore(json.dumps(data))
    assert [str(step) for step in caught.value.path] == [str(step) for step in path]


def section(name: str, after: int, action: Action, cap_tokens: int | None = None) -> SectionReport:
    return SectionReport(
        name=name,
        priority=Priority.LOW,
        stability=Stability.TURN,
        before=after,
        after=after,
        upper=after,
        cap_tokens=cap_tokens,
        action=action,
        text="",
    )


def test_the_usage_has_the_tokens_of_the_prompt() -> None:
    prompt = Prompt(
        text="",
        count=TokenCount(3_200, True, 3_200),
        limit_tokens=3_500,
        sections=(
            section("notes", 2_900, Action.KEPT),
            section("logs", 300, Action.TRUNCATED, cap_tokens=350),
            section("asleep", 0, Action.DISABLED),
        ),
        cuts=(),
    )

    assert measure_usage(prompt) == USAGE
