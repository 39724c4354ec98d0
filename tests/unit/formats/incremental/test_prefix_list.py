"""Extending a prefix list never changes it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.formats.incremental.prefix_list import PrefixList

item_lists = st.lists(st.integers(), max_size=6)


@given(item_lists, st.lists(st.tuples(st.integers(0, 9), item_lists), max_size=8))
def test_extending_a_list_never_changes_another(first: list[int], steps: list[tuple[int, list[int]]]) -> None:
    lists, tuples = [PrefixList(first)], [tuple(first)]
    for number, new_items in steps:
        number %= len(lists)
        lists.append(lists[number].with_more(new_items))
        tuples.append((*tuples[number], *new_items))

    assert lists == tuples
    assert [list(items) for items in lists] == [list(items) for items in tuples]


@given(item_lists, item_lists, st.slices(12), st.integers(-12, 12))
def test_a_prefix_list_always_behaves_like_a_tuple(
    first: list[int], new_items: list[int], index_slice: slice, index: int
) -> None:
    prefix_list, expected = PrefixList(first), tuple(first)
    prefix_list.with_more(new_items)

    assert (len(prefix_list), prefix_list[index_slice], list(reversed(prefix_list))) == (
        len(expected),
        expected[index_slice],
        first[::-1],
    )
    if -len(expected) <= index < len(expected):
        assert prefix_list[index] == expected[index]
    else:
        with pytest.raises(IndexError):
            prefix_list[index]


def test_threads_that_extend_one_list_get_separate_lists() -> None:
    prefix_list = PrefixList([0])
    with ThreadPoolExecutor(8) as threads:
        extended = list(threads.map(lambda number: prefix_list.with_more([number] * 50), range(1, 200)))

    assert [tuple(items) for items in extended] == [(0, *[number] * 50) for number in range(1, 200)]
