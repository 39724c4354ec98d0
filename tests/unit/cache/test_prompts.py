"""Pieces of a request, and how far they are from each other."""

from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.cache.prompts import Piece, distance, positions
from foveate.values import Area

KINDS = ("text", "tool_use", "tool_result")


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=60), st.booleans(), st.integers(1, 25), st.data())
@settings(max_examples=60)
def test_a_distance_is_what_lies_between_two_positions(
    kinds: list[str], runs_are_one: bool, most: int, data: st.DataObject
) -> None:
    pieces = [Piece(digest=b"", tokens=1, kind=kind, area=Area.MESSAGES) for kind in kinds]
    start = data.draw(st.integers(0, len(pieces) - 1))
    end = data.draw(st.integers(start, len(pieces) - 1))
    found = positions(pieces, runs_are_one=runs_are_one)

    expected = min(found[end] - found[start], most)
    assert distance(pieces, start, end, runs_are_one=runs_are_one, most=most) == expected
