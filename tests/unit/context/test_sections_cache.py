"""The prefix and the context are built only if an input changes."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import foveate
from foveate.budget import Budget
from foveate.context import CallKind, ContextInputs, PrefixInputs, PromptParts, render_context, render_prefix
from foveate.errors import BadOption, FoveateError, UnreadableInput
from foveate.tokens import counter_for, drop_caches
from tests.support.harness.example_limits import limit_examples
from tests.support.oracles.reachable_objects import reachable_texts
from tests.support.strategies.context_inputs import (
    CONTEXT,
    FIELDS,
    PREFIX,
    FakeMemory,
    any_inputs,
    describe_inputs,
    field_values,
)


def copy_inputs(inputs: Any) -> Any:
    """Equal inputs, but another object."""
    return type(inputs)(**{field.name: getattr(inputs, field.name) for field in fields(inputs)})


@given(inputs=any_inputs(ContextInputs))
def test_equal_inputs_build_the_context_once_and_give_the_same_bytes(inputs: ContextInputs) -> None:
    parts, memory = PromptParts(), FakeMemory()

    first = parts.context("user", inputs, memory)
    again = parts.context("tool", copy_inputs(inputs), memory)

    assert memory.calls == [inputs]
    assert (first.fresh, again.fresh) == (True, False)
    assert first.sections == again.sections
    assert first.sections[0].text == describe_inputs(inputs)


@given(inputs=any_inputs(PrefixInputs))
def test_equal_inputs_render_the_prefix_once_and_give_the_same_bytes(inputs: PrefixInputs) -> None:
    parts = PromptParts()

    first, again = parts.prefix(inputs), parts.prefix(copy_inputs(inputs))

    assert again.sections is first.sections
    assert (first.fresh, again.fresh) == (True, False)
    assert first == render_prefix(inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELDS[ContextInputs])
@settings(max_examples=limit_examples(50))
@given(data=st.data(), inputs=any_inputs(ContextInputs))
def test_every_input_of_the_context_is_part_of_its_key(
    name: str, data: st.DataObject, inputs: ContextInputs
) -> None:
    """For all fields, so that a new field that is missing in the key fails here."""
    changed = replace(inputs, **{name: data.draw(field_values(ContextInputs, name))})
    assume(getattr(changed, name) != getattr(inputs, name))
    parts, memory = PromptParts(), FakeMemory()
    parts.context("user", inputs, memory)

    built = parts.context("user", changed, memory)

    assert len(memory.calls) == 2
    assert built.fresh
    assert built.sections[0].text == describe_inputs(changed)
    assert parts.context("user", inputs, memory).sections[0].text == describe_inputs(inputs)
    assert len(memory.calls) == 2, "the first inputs are still cached"


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELDS[PrefixInputs])
@settings(max_examples=limit_examples(50))
@given(data=st.data(), inputs=any_inputs(PrefixInputs))
def test_every_input_of_the_prefix_is_part_of_its_key(
    name: str, data: st.DataObject, inputs: PrefixInputs
) -> None:
    changed = replace(inputs, **{name: data.draw(field_values(PrefixInputs, name))})
    assume(getattr(changed, name) != getattr(inputs, name))
    parts = PromptParts()
    parts.prefix(inputs)

    assert parts.prefix(changed) == render_prefix(changed)
    assert parts.prefix(changed).sections == render_prefix(changed).sections
    assert not parts.prefix(inputs).fresh


POOL = [replace(CONTEXT, focus=focus) for focus in ("garden", "house", "car")]
FAILING = UnreadableInput("notes.org", "no such file")


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["builds", "fails", "gives none", "is empty", "drop"]),
            st.sampled_from(POOL),
            st.sampled_from(CallKind),
        ),
        max_size=25,
    )
)
def test_cached_parts_equal_newly_built_ones(
    steps: list[tuple[str, ContextInputs, CallKind]],
) -> None:
    parts, remembered = PromptParts(), dict[ContextInputs, str]()
    for outcome, inputs, kind in steps:
        if outcome == "drop":
            parts.clear()
            remembered.clear()
            continue
        memory_text = {"builds": describe_inputs(inputs), "is empty": "", "gives none": None, "fails": FAILING}[
            outcome
        ]
        memory = FakeMemory(memory_text)

        built = parts.context(kind, inputs, memory)

        if kind in ("heartbeat", "delegation"):
            assert (built.sections, built.warnings, memory.calls) == ((), (), [])
            continue
        assert memory.calls == ([] if inputs in remembered else [inputs])
        assert built.fresh == bool(memory.calls)
        if isinstance(memory_text, str):
            remembered.setdefault(inputs, memory_text)
        if inputs in remembered:
            assert built.sections == render_context(inputs, remembered[inputs]).sections
        else:
            assert built.sections[0].text == "[Awareness not available]"
            assert len(built.warnings) == 1


@pytest.mark.parametrize("kind", ["heartbeat", "delegation"])
def test_heartbeats_and_delegations_skip_the_section_even_if_it_is_cached(kind: str) -> None:
    parts, memory = PromptParts(), FakeMemory()
    parts.context("user", CONTEXT, memory)

    assert parts.context(kind, CONTEXT, memory).sections == ()
    assert len(memory.calls) == 1


def test_an_unknown_kind_of_call_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(BadOption, match="kind must be one of user, tool, heartbeat, delegation, not 'cron'"):
        PromptParts().context("cron", CONTEXT, describe_inputs)


def test_a_failed_build_is_not_cached() -> None:
    parts, memory = PromptParts(), FakeMemory(FAILING)

    failed = parts.context("user", CONTEXT, memory)
    worked = parts.context("user", CONTEXT, memory)

    assert failed.sections[0].text == "[Awareness not available]"
    assert [str(warning) for warning in failed.warnings] == ["context: notes.org: no such file"]
    assert worked.fresh
    assert worked.sections[0].text == describe_inputs(CONTEXT)
    assert worked.warnings == ()


def test_an_error_without_a_message_is_reported_by_its_code() -> None:
    (warning,) = PromptParts().context("user", CONTEXT, FakeMemory(FoveateError())).warnings

    assert warning.reason == "error"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            FileNotFoundError(2, "No such file or directory", "notes.org"),
            "No such file or directory: 'notes.org'",
        ),
        (ConnectionResetError("the server is gone"), "the server is gone"),
        (TimeoutError(), "TimeoutError"),
    ],
    ids=["file", "server", "without a message"],
)
def test_an_unavailable_memory_is_tried_again(error: OSError, message: str) -> None:
    """Regression: it propagated, and there was no prompt at all."""
    parts, memory = PromptParts(), FakeMemory(error)

    failed = parts.context("user", CONTEXT, memory)

    assert failed.sections[0].text == "[Awareness not available]"
    assert [message in warning.reason for warning in failed.warnings] == [True]
    assert parts.context("user", CONTEXT, memory).sections[0].text == describe_inputs(CONTEXT)


@pytest.mark.parametrize("invalid", [5, b"bytes", ["a", "b"]])
def test_a_builder_that_returns_no_text_is_rejected(invalid: Any) -> None:
    """Regression: an AttributeError."""
    parts = PromptParts()

    with pytest.raises(
        BadOption, match=f"^context.text must be a string, not {type(invalid).__name__}$"
    ) as caught:
        parts.context("user", CONTEXT, lambda _: invalid)
    assert caught.value.path == ("context", "text")
    assert parts.context("user", CONTEXT, describe_inputs).fresh


def test_other_exceptions_propagate_and_are_not_cached() -> None:
    parts, memory = PromptParts(), FakeMemory(ZeroDivisionError())

    with pytest.raises(ZeroDivisionError):
        parts.context("user", CONTEXT, memory)
    assert parts.context("user", CONTEXT, memory).sections[0].text == describe_inputs(CONTEXT)


def test_a_missing_memory_is_tried_again_and_an_empty_one_is_cached() -> None:
    parts, memory = PromptParts(), FakeMemory(None, "")

    texts = [parts.context("user", CONTEXT, memory).sections[0].text for _ in range(3)]

    assert len(memory.calls) == 2
    assert texts == ["[Awareness not available]", "No active projects found.", "No active projects found."]


def test_cached_parts_keep_their_warnings() -> None:
    parts = PromptParts()
    for _ in range(2):
        assert [warning.section for warning in parts.prefix(replace(PREFIX, identity="")).warnings] == [
            "identity"
        ]
        assert len(parts.context("user", CONTEXT, FakeMemory("")).warnings) == 1


def test_drop_empties_the_cache() -> None:
    parts, memory = PromptParts(), FakeMemory()
    parts.prefix(PREFIX)
    for inputs in POOL:
        parts.context("user", inputs, memory)

    parts.clear()

    assert parts.prefix(PREFIX).fresh
    assert all(parts.context("user", inputs, memory).fresh for inputs in POOL)
    assert memory.calls == POOL * 2


@pytest.mark.parametrize("capacity", [0, 256])
def test_drop_caches_leaves_no_text_of_a_prompt(capacity: int) -> None:
    """Regression: the counter kept the texts that it had measured."""
    parts, other = PromptParts(capacity), PromptParts()
    secret = "a word that is nowhere else"
    inputs = replace(CONTEXT, query=secret)
    sections = (
        *parts.prefix(replace(PREFIX, identity=f"You are {secret}.")).sections,
        *parts.context("user", inputs, describe_inputs).sections,
    )
    other.context("user", inputs, describe_inputs)
    foveate.assemble(sections, Budget(2000), "gpt-4o")
    del sections, inputs

    drop_caches()

    assert [text for text in reachable_texts(parts, other, counter_for("gpt-4o")) if secret in text] == []


def test_the_least_recently_used_part_is_evicted_first() -> None:
    parts, memory = PromptParts(capacity=2), FakeMemory()
    garden, house, car = POOL
    for inputs in (garden, house, garden, car):
        parts.context("user", inputs, memory)

    assert not parts.context("user", garden, memory).fresh
    assert not parts.context("user", car, memory).fresh
    assert parts.context("user", house, memory).fresh


def test_a_capacity_of_0_disables_the_cache() -> None:
    parts, memory = PromptParts(capacity=0), FakeMemory()

    assert [parts.context("user", CONTEXT, memory).fresh for _ in range(2)] == [True, True]
    assert [parts.prefix(PREFIX).fresh for _ in range(2)] == [True, True]


def test_a_negative_capacity_is_rejected() -> None:
    with pytest.raises(BadOption, match="capacity must be a number, 0 or more, not -1"):
        PromptParts(capacity=-1)
