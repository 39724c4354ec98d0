"""Rendering of the prefix and the context, and placeholders of missing parts."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.budget import Keep, Priority, Stability
from foveate.context import (
    ContextInputs,
    MissingContent,
    PrefixInputs,
    RenderedSections,
    ToolText,
    render_context,
    render_prefix,
)
from foveate.errors import BadOption
from tests.support.strategies.context_inputs import CONTEXT, PREFIX, READ, WRITE, any_inputs


def text_by_section(rendered: RenderedSections) -> dict[str, str]:
    return {section.name: section.text for section in rendered.sections}


def test_the_prefix_has_four_sections_with_labelled_entries() -> None:
    assert text_by_section(render_prefix(PREFIX)) == {
        "identity": "You are Ana.",
        "mandates": "Mandate: Ask before you delete.\nMandate: Answer in English.",
        "tools": 'Tool read_file: Reads a file.\n{"type": "object"}\nTool write_file: Writes a file.',
        "feedback": "Feedback: Too long.\nFeedback: Better.",
    }
    assert render_prefix(PREFIX).warnings == ()


def test_a_tool_without_description_and_schema_is_only_its_name() -> None:
    assert text_by_section(render_prefix(PrefixInputs(tools=(ToolText(name="ping"),))))["tools"] == "Tool ping"


def test_identity_and_tools_are_required_and_feedback_is_cut_first() -> None:
    sections = {section.name: section for section in render_prefix(PREFIX).sections}

    assert {name: section.priority for name, section in sections.items()} == {
        "identity": Priority.REQUIRED,
        "mandates": Priority.HIGH,
        "tools": Priority.REQUIRED,
        "feedback": Priority.MEDIUM,
    }
    assert sections["feedback"].keep is Keep.NEWEST
    assert sections["mandates"].keep is Keep.HEAD


@given(inputs=any_inputs(PrefixInputs), feedback=st.tuples(st.text()))
def test_new_feedback_does_not_change_what_precedes_it(inputs: PrefixInputs, feedback: tuple[str, ...]) -> None:
    before = render_prefix(inputs).sections
    after = render_prefix(replace(inputs, feedback=feedback)).sections

    assert before[:-1] == after[:-1]
    assert [section.stability for section in after] == [Stability.STATIC] * 3 + [Stability.SESSION]


@given(data=st.data(), inputs=any_inputs(PrefixInputs))
def test_the_order_of_registered_tools_does_not_matter(data: st.DataObject, inputs: PrefixInputs) -> None:
    reordered = replace(inputs, tools=tuple(data.draw(st.permutations(inputs.tools))))

    assert reordered == inputs
    assert render_prefix(reordered) == render_prefix(inputs)


def test_tools_of_the_same_name_have_a_fixed_order() -> None:
    tools = tuple(replace(READ, description=letter) for letter in "abcdefghij")

    assert PrefixInputs(tools=tools[::-1] + tools).tools == tools


def test_duplicate_mandates_are_dropped() -> None:
    rendered = render_prefix(PrefixInputs(mandates=("Ask.", "Answer.", "Ask.")))

    assert text_by_section(rendered)["mandates"] == "Mandate: Ask.\nMandate: Answer."


@pytest.mark.parametrize(
    "empty",
    [
        PrefixInputs(),
        PrefixInputs(identity=None),
        PrefixInputs(identity=" \n", feedback=("",), mandates=("\t",)),
    ],
)
def test_a_missing_part_of_the_prefix_is_a_visible_line_and_a_warning(empty: PrefixInputs) -> None:
    rendered = render_prefix(empty)

    assert text_by_section(rendered) == {
        "identity": "[Identity not available]",
        "mandates": "No standing mandates.",
        "tools": "No tools available.",
        "feedback": "No feedback yet.",
    }
    assert [str(warning) for warning in rendered.warnings] == [
        "identity: not provided",
        "mandates: not provided",
        "tools: not provided",
        "feedback: not provided",
    ]


@pytest.mark.slow
@given(inputs=any_inputs(PrefixInputs))
def test_no_section_of_the_prefix_is_ever_blank(inputs: PrefixInputs) -> None:
    assert all(section.text.strip() for section in render_prefix(inputs).sections)


def test_the_context_is_one_section_with_a_cap() -> None:
    (section,) = render_context(CONTEXT, "* Garden\nRoses.").sections

    assert (section.name, section.text, section.max_tokens) == ("context", "* Garden\nRoses.", 800)
    assert section.stability is Stability.TURN


@pytest.mark.parametrize("empty", ["", " \n\t"])
def test_an_empty_memory_is_a_placeholder_and_a_warning(empty: str) -> None:
    rendered = render_context(CONTEXT, empty)

    assert text_by_section(rendered) == {"context": "No active projects found."}
    assert [warning.section for warning in rendered.warnings] == ["context"]


def test_a_missing_memory_is_a_visible_line_and_a_warning() -> None:
    missing = MissingContent("context", "notes.org: no such file")
    rendered = render_context(CONTEXT, missing)

    assert text_by_section(rendered) == {"context": "[Awareness not available]"}
    assert rendered.warnings == (missing,)


@pytest.mark.slow
@given(inputs=any_inputs(ContextInputs), text=st.text())
def test_the_context_is_never_blank(inputs: ContextInputs, text: str) -> None:
    (section,) = render_context(inputs, text).sections

    assert section.text == text if text.strip() else section.text.strip()


@pytest.mark.parametrize("name", ["feedback", "mandates", "tools"])
@pytest.mark.parametrize("invalid", ["a text", [WRITE]])
def test_a_field_that_is_not_a_tuple_is_rejected_by_name(name: str, invalid: Any) -> None:
    with pytest.raises(BadOption, match=f"^prefix.{name} must be a tuple, not (str|list)$"):
        PrefixInputs(**{name: invalid})


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        ({"identity": 5}, "prefix.identity must be a string or None, not int"),
        ({"feedback": ("fine", None)}, "prefix.feedback.1 must be a string, not NoneType"),
        ({"mandates": (["a"],)}, "prefix.mandates.0 must be a string, not list"),
        ({"tools": (READ, {"name": "read_file"})}, "prefix.tools.1 must be a ToolText, not dict"),
    ],
)
def test_an_invalid_entry_of_the_prefix_is_rejected_with_its_path(invalid: Any, message: str) -> None:
    """Regression: a TypeError from deep inside, or an AttributeError when it was rendered."""
    with pytest.raises(BadOption) as caught:
        PrefixInputs(**invalid)

    assert str(caught.value) == message
    assert ".".join(map(str, caught.value.path)) == message.partition(" ")[0]


@pytest.mark.parametrize(
    ("name", "value"), [("name", None), ("description", b"x"), ("schema", {"type": "object"})]
)
def test_fields_of_a_tool_must_be_texts(name: str, value: Any) -> None:
    with pytest.raises(BadOption, match=f"^tool.{name} must be a string, not ") as caught:
        replace(READ, **{name: value})

    assert caught.value.path == ("tool", name)


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        ({"agent": None}, "context.agent must be a string, not NoneType"),
        ({"format": 1}, "context.format must be a string, not int"),
        ({"model": None}, "context.model must be a string, not NoneType"),
        ({"semantic_threshold": 1.5}, "context.semantic_threshold must be a number from 0 to 1, not 1.5"),
        ({"semantic_threshold": "0.5"}, "context.semantic_threshold must be a number from 0 to 1, not '0.5'"),
        ({"focus": ["garden"]}, "context.focus must be a string or None, not list"),
        ({"scope": 5}, "context.scope must be a string or None, not int"),
        ({"query": b"roses"}, "context.query must be a string or None, not bytes"),
        ({"privacy_tags": frozenset({"private", 5})}, "context.privacy_tags must be a set of strings, not int"),
        ({"memory_version": {"nodes": 3}}, "context.memory_version must be hashable, not dict"),
        ({"memory_version": (1, [2])}, "context.memory_version must be hashable, not tuple"),
    ],
)
def test_invalid_inputs_of_the_context_are_rejected_by_name(invalid: Any, message: str) -> None:
    """Regression: a version that is not hashable was a TypeError at the look-up."""
    with pytest.raises(BadOption) as caught:
        replace(CONTEXT, **invalid)

    assert str(caught.value) == message
    assert caught.value.path == ("context", next(iter(invalid)))


def test_a_single_text_as_privacy_tags_is_rejected() -> None:
    tag: Any = "private"

    with pytest.raises(BadOption, match="privacy_tags must be a frozenset of tags, not str"):
        replace(CONTEXT, privacy_tags=tag)


def test_a_negative_limit_is_rejected() -> None:
    with pytest.raises(BadOption, match="limit_tokens must be a number of tokens"):
        replace(CONTEXT, limit_tokens=-1)
