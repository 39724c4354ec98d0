"""Pieces of a prompt, and lookback positions between them."""

from hypothesis import given
from hypothesis import strategies as st

from foveate.model import Area
from foveate.prompt_cache.prompt.cached_prompt import PromptPiece, count_positions

KINDS = ("text", "tool_use", "tool_result")


def expected_positions(kinds: list[str], *, runs_are_one: bool) -> list[int]:
    """Return the position of each piece: one each, unless consecutive tool calls or results count as one."""
    positions: list[int] = []
    for index, kind in enumerate(kinds):
        continues_run = runs_are_one and index > 0 and kind == kinds[index - 1] != "text"
        positions.append(positions[-1] + (not continues_run) if positions else 0)
    return positions


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=60), st.booleans(), st.integers(1, 25), st.data())
def test_positions_between_two_pieces_are_counted(
    kinds: list[str], runs_are_one: bool, limit: int, data: st.DataObject
) -> None:
    pieces = [PromptPiece(digest=b"", tokens=1, kind=kind, area=Area.MESSAGES) for kind in kinds]
    start = data.draw(st.integers(0, len(pieces) - 1))
    end = data.draw(st.integers(start, len(pieces) - 1))
    positions = expected_positions(kinds, runs_are_one=runs_are_one)

    expected = min(positions[end] - positions[start], limit)
    assert count_positions(pieces, start, end, runs_are_one=runs_are_one, limit=limit) == expected
