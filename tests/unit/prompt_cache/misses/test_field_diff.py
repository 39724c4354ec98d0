"""Changes between two texts are classified, and located where the texts differ."""

import secrets
import string
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.prompt_cache.misses.field_diff import (
    TextChangeKind,
    common_prefix_length,
    compare_texts,
    make_excerpt,
)
from tests.support.strategies.request_mutations import CHANGING

TEMPLATES = (
    "Now: {}\nBe kind.",
    "[{}] a line of the log",
    "<env>\n  it: {}\n</env>",
    "({})",
    '{{"it": "{}", "a": 1}}',
)
TIMESTAMP_FORMATS = ("%Y-%m-%dT%H:%M:%S.%fZ", "%Y/%m/%d %H:%M", "%d.%m.%Y %H:%M:%S", "%b %d, %Y %I:%M:%S %p",
         "%A, %d %B %Y, %H:%M", "%m/%d/%Y, %I:%M %p", "%a %b %d %H:%M:%S UTC %Y", "%Y-%m-%d_%H-%M-%S",
         "%Y%m%dT%H%M%SZ")  # fmt: skip
DATE_FORMATS = (
    "%Y-%m-%d",
    "%d.%m.%Y",
    "%m/%d/%Y",
    "%B %d, %Y",
    "%d %b %Y",
    "%A",
    "%B %Y",
    "%Y-%m",
    "%Y年%m月%d日",
)
timestamps = st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1)).map(
    lambda timestamp: timestamp.replace(tzinfo=UTC)
)
lengths = st.integers(12, 40)


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("template", TEMPLATES)
def test_typical_changes_between_requests_are_classified(name: str, template: str) -> None:
    before, after, expected = CHANGING[name]

    assert compare_texts(template.format(before), template.format(after)).kind == expected


@given(
    first=timestamps,
    second=timestamps,
    time_format=st.sampled_from(TIMESTAMP_FORMATS),
    template=st.sampled_from(TEMPLATES),
)
def test_timestamps_are_recognized_in_any_notation(
    first: datetime, second: datetime, time_format: str, template: str
) -> None:
    before, after = (template.format(timestamp.strftime(time_format)) for timestamp in (first, second))

    assert before == after or compare_texts(before, after).kind is TextChangeKind.TIMESTAMP


@given(
    start=timestamps,
    days=st.integers(1, 900),
    date_format=st.sampled_from(DATE_FORMATS),
    template=st.sampled_from(TEMPLATES),
)
def test_dates_are_recognized_in_any_notation(
    start: datetime, days: int, date_format: str, template: str
) -> None:
    before, after = (
        template.format(timestamp.strftime(date_format)) for timestamp in (start, start + timedelta(days=days))
    )

    assert before == after or compare_texts(before, after).kind is TextChangeKind.DATE


@given(first=st.uuids(), second=st.uuids(), template=st.sampled_from(TEMPLATES))
def test_uuids_are_recognized(first: uuid.UUID, second: uuid.UUID, template: str) -> None:
    if first != second:
        assert compare_texts(template.format(first), template.format(second)).kind is TextChangeKind.UUID


def test_random_ids_of_letters_and_digits_are_almost_always_recognized() -> None:
    alphabet = string.ascii_letters + string.digits
    kinds = [
        compare_texts(template.format(first), template.format(second)).kind
        for template in TEMPLATES
        for _ in range(60)
        for first, second in [["".join(secrets.choice(alphabet) for _ in range(12)) for _ in range(2)]]
    ]

    assert kinds.count(TextChangeKind.RANDOM_ID) >= 0.95 * len(kinds)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("config_v1_prod is set", "config_v1_test is set", TextChangeKind.EDITED),
        ("May I come in", "June I come in", TextChangeKind.DATE),
        ("I may come in", "I will come in", TextChangeKind.EDITED),
        ("On 2026-11-15 we met Ana", "On 2026-11-16 we saw Ben", TextChangeKind.EDITED),
        ("see section 4.2.1 of it", "see section 4.2.2 of it", TextChangeKind.NUMBER),
        ("there are 1,200 left", "there are 1,250 left", TextChangeKind.NUMBER),
        ("there are 1,200 so far", "there are 1,202 so far", TextChangeKind.COUNTER),
        ("it costs 40 euros", "it costs 45 euros", TextChangeKind.NUMBER),
        ("it costs 40 euros", "it costs 41 euros", TextChangeKind.NUMBER),
        ("it costs $40", "it costs $41", TextChangeKind.NUMBER),
        ("at 98 % of it", "at 99 % of it", TextChangeKind.NUMBER),
        ("turn 5 of it, 12 lamps", "turn 6 of it, 13 lamps", TextChangeKind.NUMBER),
        ("turn 6 of it", "turn 5 of it", TextChangeKind.NUMBER),
        ("id " + "aB3" * 42 + "Q7", "id " + "aB3" * 42 + "R8", TextChangeKind.RANDOM_ID),
        ("id " + "aB3" * 43 + "Q7", "id " + "aB3" * 43 + "R8", TextChangeKind.EDITED),
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', TextChangeKind.JSON_SPELLING),
        ("a b\n", "a  b", TextChangeKind.WHITESPACE),
        ("café", "cafe\u0301", TextChangeKind.UNICODE),
        ("lamp " * 100, "[cleared]", TextChangeKind.SHORTENED),
        ("lamp " * 100 + "end", "lamp " * 20 + "[...truncated]" + "end", TextChangeKind.SHORTENED),
        ("Be brief.", "Be brief. Please.", TextChangeKind.EXTENDED),
        ("Be brief. Please.", "Be brief.", TextChangeKind.EDITED),
        ("", "now", TextChangeKind.EXTENDED),
        ("Ana", "Ben", TextChangeKind.EDITED),
    ],
)
def test_other_changes_are_not_classified_as_timestamps(
    before: str, after: str, expected: TextChangeKind
) -> None:
    assert compare_texts(before, after).kind is expected


def test_the_change_covers_the_whole_timestamp_not_only_the_changed_digit() -> None:
    before, after = "Now: 2026-11-15T10:00:00Z.", "Now: 2026-11-15T10:00:07Z."
    change = compare_texts(before, after)

    assert before[change.start : change.end_before] == "2026-11-15T10:00:00Z"
    assert after[change.start : change.end_after] == "2026-11-15T10:00:07Z"


texts = st.text(alphabet="ab1 :-\n2é\u0301,.", max_size=60)


@given(before=texts, after=texts)
def test_texts_are_always_equal_before_the_change_and_different_in_it(before: str, after: str) -> None:
    if before == after:
        return
    change = compare_texts(before, after)

    assert before[: change.start] == after[: change.start]
    assert 0 <= change.start <= change.end_before <= len(before)
    assert change.start <= change.end_after <= len(after)
    assert before[change.start : change.end_before] != after[change.start : change.end_after]


@given(start=texts, first=texts, second=texts, times=st.integers(1, 300))
def test_the_common_prefix_is_the_one_that_a_plain_loop_finds(
    start: str, first: str, second: str, times: int
) -> None:
    first, second = start * times + first, start * times + second
    expected = next(
        (index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )

    assert common_prefix_length(first, second) == expected


def test_long_runs_of_combining_marks_are_compared_quickly() -> None:
    first, second = "a" + "\u0301\u0316" * 200_000, "a" + "\u0316\u0301" * 200_000

    assert compare_texts(first, second).kind is TextChangeKind.EDITED


def test_an_excerpt_of_a_long_run_of_flags_is_made_quickly() -> None:
    flags = "\U0001f1e9\U0001f1ea" * 200_000

    assert make_excerpt(flags, 300_000, 300_002).strip("…") in flags


@pytest.mark.parametrize("unit", ["a", "1", " ", "-", "word 12 ", "12:30 ", "1,", "A/+", "Mon "])
def test_long_texts_without_word_boundaries_are_compared_quickly(unit: str) -> None:
    text = unit * (300_000 // len(unit))
    change = compare_texts(f"step 5 {text}", f"step 6 {text}{unit}.")

    assert change.start == 5
