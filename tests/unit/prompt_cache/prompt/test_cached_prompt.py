"""Pieces of a prompt, and lookback positions between them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.model import Area
from foveate.prompt_cache.prompt.cached_prompt import PromptPiece, count_positions
from tests.support.harness.example_limits import limit_examples

KINDS = ("text", "tool_use", "tool_result")


def positions(kinds: list[str], *, runs_are_one: bool) -> list[int]:
    """The position of each piece: one each, unless consecutive tool calls or results count as one."""
    found: list[int] = []
    for at, kind in enumerate(kinds):
        goes_on = runs_are_one and at > 0 and kind == kinds[at - 1] != "text"
        found.append(found[-1] + (not goes_on) if found else 0)
    return found


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=60), st.booleans(), st.integers(1, 25), st.data())
@settings(max_examples=limit_examples(60))
def test_positions_between_two_pieces_are_counted(
    kinds: list[str], runs_are_one: bool, most: int, data: st.DataObject
) -> None:
    pieces = [PromptPiece(digest=b"", tokens=1, kind=kind, area=Area.MESSAGES) for kind in kinds]
    start = data.draw(st.integers(0, len(pieces) - 1))
    end = data.draw(st.integers(start, len(pieces) - 1))
    found = positions(kinds, runs_are_one=runs_are_one)

    expected = min(found[end] - found[start], most)
    assert count_positions(pieces, start, end, runs_are_one=runs_are_one, limit=most) == expected
