"""Ladders as data: parsing, serialization, and errors with the number of the rung."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.budget.ladder import (
    BUILT_IN_LADDERS,
    Drop,
    LastLines,
    Replace,
    Rung,
    Truncate,
    parse_ladder,
    rung_as_data,
    rung_matches,
)
from foveate.errors import BadOption

patterns = st.lists(st.text(min_size=1).filter(lambda name: name != "lowest"), min_size=1, max_size=3).map(
    tuple
)
rungs = st.one_of(
    st.builds(Truncate, st.just(()) | patterns),
    st.builds(Drop, st.just(()) | patterns),
    st.builds(LastLines, patterns, st.integers(1)),
    st.builds(Replace, patterns, st.text()),
)


@given(ladder_rungs=st.lists(rungs, min_size=1))
def test_a_ladder_survives_serialization(ladder_rungs: list[Rung]) -> None:
    assert parse_ladder([rung_as_data(rung) for rung in ladder_rungs]).rungs == tuple(ladder_rungs)


def test_the_built_in_ladders_have_the_documented_names() -> None:
    assert list(BUILT_IN_LADDERS) == ["truncate_low_priority", "drop_low_priority", "progressive"]
    assert all(parse_ladder(name) is ladder for name, ladder in BUILT_IN_LADDERS.items())


def test_a_built_in_ladder_can_be_written_as_rungs() -> None:
    for ladder in BUILT_IN_LADDERS.values():
        assert parse_ladder([rung_as_data(rung) for rung in ladder.rungs]).rungs == ladder.rungs


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("progresive", "no ladder is named 'progresive'"),
        ([], "a name or a list of rungs"),
        (None, "a name or a list of rungs"),
        (5, "a name or a list of rungs"),
        ({"drop": "logs"}, "a name or a list of rungs"),
        ([{"drop": "a"}, {"dorp": "b"}], "rung 2"),
        ([{"drop": "a", "of": "b"}], "rung 1"),
        ([{"drop": []}], "name at least one section"),
        ([{"drop": [5]}], "name at least one section"),
        ([{"drop": ""}], "name at least one section"),
        ([{"last_lines": 0, "of": "logs"}], "1 or more, not 0"),
        ([{"last_lines": True, "of": "logs"}], "1 or more, not True"),
        ([{"last_lines": 5}], "rung 1"),
        ([{"last_lines": 5, "of": "lowest"}], "lowest is only valid alone"),
        ([{"drop": ["logs", "lowest"]}], "lowest is only valid alone"),
        ([{"replace": "a"}], "rung 1"),
        ([{"replace": "a", "with": 5}], "rung 1"),
        (["drop"], "rung 1"),
        ([5], "a mapping such as"),
    ],
)
def test_an_invalid_ladder_is_rejected_with_the_number_of_the_rung(value: Any, message: str) -> None:
    with pytest.raises(BadOption) as caught:
        parse_ladder(value)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("section", "matches"),
    [
        ("logs", True),
        ("Logs", True),
        ("log", True),
        ("tool_logs", True),
        ("catalog", False),
        ("dialogs", False),
    ],
)
def test_the_progressive_ladder_matches_common_names_of_logs(section: str, matches: bool) -> None:
    assert rung_matches(BUILT_IN_LADDERS["progressive"].rungs[0], section) is matches
