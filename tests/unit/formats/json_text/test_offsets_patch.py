"""Bytes replaced, and items of a list dropped and added."""

import json
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.errors import BadEdit
from foveate.formats.json_text.offsets import Patch, find_items, value_span

LIST = b"[ 0 ,1 , 2  ]"


def change_items(dropped: set[int], added: Mapping[int, Sequence[bytes]], data: bytes = LIST) -> bytes:
    patch = Patch()
    patch.set_items(value_span(data), find_items(data, value_span(data)), dropped=dropped, added=added)
    return patch.apply(data)


@pytest.mark.parametrize(
    ("dropped", "added", "expected"),
    [
        ({2}, {}, b"[ 0 ,1  ]"),
        ({1, 2}, {}, b"[ 0  ]"),
        ({0, 1, 2}, {}, b"[   ]"),
        ({0}, {}, b"[ 1 , 2  ]"),
        ({1}, {}, b"[ 0 ,2  ]"),
        ({2}, {3: [b"9"]}, b"[ 0 ,1 , 9  ]"),
        ({2}, {2: [b"8", b"9"]}, b"[ 0 ,1 , 8,9  ]"),
        (set(), {0: [b"9"], 3: [b"8"]}, b"[ 9,0 ,1 , 2,8  ]"),
    ],
)
def test_the_rest_of_a_list_is_unchanged(
    dropped: set[int], added: Mapping[int, Sequence[bytes]], expected: bytes
) -> None:
    assert change_items(dropped, added) == expected


@given(
    st.integers(0, 4),
    st.sets(st.integers(0, 3)),
    st.dictionaries(st.integers(0, 4), st.lists(st.just(b"9"), max_size=2)),
)
def test_the_written_list_has_the_expected_items(
    size: int, dropped: set[int], added: dict[int, list[bytes]]
) -> None:
    data = b"[" + b" ,".join(b" %d" % number for number in range(size)) + b" ]"
    valid_additions = {number: new_items for number, new_items in added.items() if number <= size}
    expected_items: list[int] = []
    for number in range(size + 1):
        expected_items += [9] * len(valid_additions.get(number, []))
        expected_items += [number] if number < size and number not in dropped else []

    assert (
        json.loads(change_items({number for number in dropped if number < size}, valid_additions, data))
        == expected_items
    )


def apply_splices(*splices: tuple[int, int, bytes]) -> bytes:
    patch = Patch()
    for start, end, new_bytes in splices:
        patch.replace(start, end, new_bytes)
    return patch.apply(b"0123456789")


@pytest.mark.parametrize("start", [2, 3, 4])
def test_two_edits_of_one_byte_are_rejected(start: int) -> None:
    with pytest.raises(BadEdit, match="the same place"):
        apply_splices((2, 5, b"x"), (start, 8, b"y"))


def test_adjacent_edits_are_both_written() -> None:
    assert apply_splices((5, 8, b"y"), (2, 5, b"x"), (5, 5, b"-")) == b"01x-y89"
