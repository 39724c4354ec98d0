"""Extending a prefix list never changes it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.formats.incremental.prefix_list import PrefixList

ROWS = st.lists(st.integers(), max_size=6)


@given(ROWS, st.lists(st.tuples(st.integers(0, 9), ROWS), max_size=8))
def test_extending_a_list_never_changes_another(first: list[int], steps: list[tuple[int, list[int]]]) -> None:
    rows, tuples = [PrefixList(first)], [tuple(first)]
    for number, new in steps:
        number %= len(rows)
        rows.append(rows[number].with_more(new))
        tuples.append((*tuples[number], *new))

    assert rows == tuples
    assert [list(row) for row in rows] == [list(row) for row in tuples]


@given(ROWS, ROWS, st.slices(12), st.integers(-12, 12))
def test_it_is_always_looked_at_as_a_tuple_is(first: list[int], more: list[int], part: slice, at: int) -> None:
    row, whole = PrefixList(first), tuple(first)
    row.with_more(more)

    assert (len(row), row[part], list(reversed(row))) == (len(whole), whole[part], first[::-1])
    if -len(whole) <= at < len(whole):
        assert row[at] == whole[at]
    else:
        with pytest.raises(IndexError):
            row[at]


def test_of_many_threads_each_has_its_own() -> None:
    row = PrefixList([0])
    with ThreadPoolExecutor(8) as threads:
        longer = list(threads.map(lambda number: row.with_more([number] * 50), range(1, 200)))

    assert [tuple(each) for each in longer] == [(0, *[number] * 50) for number in range(1, 200)]
