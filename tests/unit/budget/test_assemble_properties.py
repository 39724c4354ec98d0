"""Properties of assembled prompts, for any sections, ladder and counter."""

from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import foveate
from foveate.budget import Action, Budget, Priority, Prompt, Section
from foveate.errors import BudgetExceeded
from foveate.tokens.text_meter import TextCounter
from tests.support.oracles.tiktoken_counts import tiktoken_encoding
from tests.support.strategies.sections import COUNTERS, cases, counter_named, ladders

RANKS = {priority: rank for rank, priority in enumerate(Priority)}
counter_names = st.sampled_from(COUNTERS)
PRIORITY_LADDERS = st.sampled_from(("truncate_low_priority", "drop_low_priority"))


def assemble_or_none(
    sections: list[Section],
    limit_tokens: int,
    ladder: Any,
    counter: TextCounter | str,
    *,
    show: bool = False,
) -> Prompt | None:
    """Assemble a prompt, or return None if the required sections do not fit."""
    try:
        prompt = foveate.assemble(sections, Budget(limit_tokens, 0, ladder), counter, show_budget=show)
    except BudgetExceeded as error:
        event("does not fit")
        exceeded = error
    else:
        event("cut" if prompt.cuts else "whole")
        return prompt
    assert exceeded.limit_tokens < exceeded.tokens
    assert [size.name for size in exceeded.sections][: len(sections)] == [section.name for section in sections]
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTERS)
def test_the_whole_prompt_is_within_the_budget(name: str) -> None:
    counter = counter_named(name)

    @given(case=cases(), ladder=ladders, show=st.booleans())
    def holds(case: tuple[list[Section], int], ladder: object, show: bool) -> None:
        sections, limit_tokens = case
        prompt = assemble_or_none(sections, limit_tokens, ladder, counter, show=show)
        if prompt is not None:
            assert prompt.count == counter.text(prompt.text)
            assert prompt.count.upper <= limit_tokens == prompt.limit_tokens
            assert prompt.text == "\n\n".join(section.text for section in prompt.sections if section.text)

    holds()


@pytest.mark.slow
@pytest.mark.parametrize(("model", "vocabulary"), [("gpt-4o", "o200k_base"), ("gpt-4", "cl100k_base")])
def test_an_independent_tokenizer_counts_the_same(shared_data: Path, model: str, vocabulary: str) -> None:
    oracle = tiktoken_encoding(shared_data, vocabulary)

    @given(case=cases(), ladder=ladders)
    def holds(case: tuple[list[Section], int], ladder: object) -> None:
        sections, limit_tokens = case
        prompt = assemble_or_none(sections, limit_tokens, ladder, model)
        if prompt is not None:
            whole = prompt.text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            assert len(oracle.encode_ordinary(whole)) == prompt.tokens <= limit_tokens

    holds()


@pytest.mark.slow
@given(case=cases(), ladder=ladders, name=counter_names, show=st.booleans())
def test_a_required_section_is_complete_up_to_its_own_cap(
    case: tuple[list[Section], int], ladder: object, name: str, show: bool
) -> None:
    sections, limit_tokens = case
    prompt = assemble_or_none(sections, limit_tokens, ladder, counter_named(name), show=show)
    if prompt is None:
        return
    for section, report in zip(sections, prompt.sections, strict=False):
        if section.priority is Priority.REQUIRED and section.enabled:
            cap = report.cap_tokens
            if cap is None or counter_named(name).text(section.text).upper <= cap:
                assert report.text == section.text
            else:
                assert report.text
                assert counter_named(name).text(report.text).upper <= cap
            assert {cut.rung for cut in prompt.cuts if cut.section == section.name} <= {"cap"}


@pytest.mark.slow
@given(case=cases(), ladder=PRIORITY_LADDERS, name=counter_names, show=st.booleans())
def test_lower_priorities_are_cut_before_higher_ones(
    case: tuple[list[Section], int], ladder: str, name: str, show: bool
) -> None:
    sections, limit_tokens = case
    prompt = assemble_or_none(sections, limit_tokens, ladder, counter_named(name), show=show)
    if prompt is None:
        return
    cut_sections = {cut.section for cut in prompt.cuts if cut.rung != "cap"}
    places = list(enumerate(prompt.sections[: len(sections)]))
    for (place, report), (other_place, other) in product(places, places):
        is_lower = (RANKS[other.priority], other_place) > (RANKS[report.priority], place)
        if report.name in cut_sections and is_lower:
            assert other.after == 0
            assert other.text == ""


@pytest.mark.slow
@given(case=cases(), ladder=ladders, name=counter_names)
def test_no_section_exceeds_its_own_cap(case: tuple[list[Section], int], ladder: object, name: str) -> None:
    sections, limit_tokens = case
    prompt = assemble_or_none(sections, limit_tokens, ladder, counter_named(name))
    for report in prompt.sections if prompt else ():
        if report.cap_tokens is not None:
            assert report.upper == counter_named(name).text(report.text).upper
            assert report.upper <= report.cap_tokens


@pytest.mark.slow
@given(case=cases(), ladder=PRIORITY_LADDERS, name=counter_names)
def test_the_reported_total_is_the_count_of_the_prompt(
    case: tuple[list[Section], int], ladder: str, name: str
) -> None:
    sections, limit_tokens = case
    prompt = assemble_or_none(sections, limit_tokens, ladder, counter_named(name), show=True)
    if prompt is not None:
        assert f"Using {prompt.count.upper}/{limit_tokens} tokens" in prompt.sections[-1].text
        enabled = [report for report in prompt.sections[:-1] if report.action is not Action.DISABLED]
        assert prompt.sections[-1].text.count("\n- ") == len(enabled)


@pytest.mark.slow
@given(case=cases(), ladder=ladders, name=counter_names)
def test_every_cut_is_recorded_with_its_reason_and_numbers(
    case: tuple[list[Section], int], ladder: object, name: str
) -> None:
    sections, limit_tokens = case
    prompt = assemble_or_none(sections, limit_tokens, ladder, counter_named(name))
    if prompt is None:
        return
    for section, report in zip(sections, prompt.sections, strict=True):
        text = section.text if section.enabled else ""
        cuts = [cut for cut in prompt.cuts if cut.section == section.name]
        assert report.before == counter_named(name).text(text).tokens
        assert report.after == counter_named(name).text(report.text).tokens
        assert bool(cuts) == (report.text != text)
        assert (report.action in (Action.KEPT, Action.DISABLED)) == (not cuts)
        if cuts:
            assert all(cut.reason and cut.rung for cut in cuts)
            assert [cuts[0].before, cuts[-1].after] == [report.before, report.after]
            assert all(cut.after == next_cut.before for cut, next_cut in pairwise(cuts))


@pytest.mark.slow
@given(case=cases(required=False), ladder=PRIORITY_LADDERS)
def test_the_priority_ladders_always_make_room_for_required_sections(
    case: tuple[list[Section], int], ladder: str
) -> None:
    sections, limit_tokens = case
    assert assemble_or_none(sections, limit_tokens, ladder, "gpt-4o") is not None


@pytest.mark.slow
@given(case=cases())
def test_the_same_sections_give_the_same_prompt(case: tuple[list[Section], int]) -> None:
    """Also if all texts are in the counter's cache."""
    sections, limit_tokens = case
    assert assemble_or_none(sections, limit_tokens, "truncate_low_priority", "gpt-4o") == assemble_or_none(
        sections, limit_tokens, "truncate_low_priority", "gpt-4o"
    )
