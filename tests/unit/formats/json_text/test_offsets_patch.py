"""Bytes replaced, and items of a list dropped and added."""

import json
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.errors import BadEdit
from foveate.formats.json_text.offsets import Patch, find_items, value_span
from tests.support.harness.example_limits import limit_examples

LIST = b"[ 0 ,1 , 2  ]"


def changed(dropped: set[int], added: Mapping[int, Sequence[bytes]], data: bytes = LIST) -> bytes:
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
def test_the_rest_of_a_list_stays_as_it_is(
    dropped: set[int], added: Mapping[int, Sequence[bytes]], expected: bytes
) -> None:
    assert changed(dropped, added) == expected


@given(
    st.integers(0, 4),
    st.sets(st.integers(0, 3)),
    st.dictionaries(st.integers(0, 4), st.lists(st.just(b"9"), max_size=2)),
)
@settings(max_examples=limit_examples(80))
def test_what_is_written_is_the_list_that_is_meant(
    size: int, dropped: set[int], added: dict[int, list[bytes]]
) -> None:
    data = b"[" + b" ,".join(b" %d" % number for number in range(size)) + b" ]"
    wanted = {number: new for number, new in added.items() if number <= size}
    meant: list[int] = []
    for number in range(size + 1):
        meant += [9] * len(wanted.get(number, []))
        meant += [number] if number < size and number not in dropped else []

    assert json.loads(changed({number for number in dropped if number < size}, wanted, data)) == meant


def patched(*splices: tuple[int, int, bytes]) -> bytes:
    patch = Patch()
    for start, end, new in splices:
        patch.replace(start, end, new)
    return patch.apply(b"0123456789")


@pytest.mark.parametrize("start", [2, 3, 4])
def test_two_edits_for_one_byte_are_refused(start: int) -> None:
    with pytest.raises(BadEdit, match="the same place"):
        patched((2, 5, b"x"), (start, 8, b"y"))


def test_edits_that_touch_are_both_written() -> None:
    assert patched((5, 8, b"y"), (2, 5, b"x"), (5, 5, b"-")) == b"01x-y89"
