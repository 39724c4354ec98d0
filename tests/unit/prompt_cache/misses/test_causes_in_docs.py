"""The guide to cache misses lists every cause as it is printed."""

from pathlib import Path

import pytest

from foveate.prompt_cache.misses.causes import MissCause, describe_cause

GUIDE = Path(__file__).parents[4] / "docs" / "guides" / "cache-misses.md"


@pytest.mark.parametrize("cause", MissCause)
def test_the_guide_lists_every_cause_as_it_is_printed(cause: MissCause) -> None:
    assert f"| {describe_cause(cause)} | `{cause.value}` |" in GUIDE.read_text(encoding="utf-8")
