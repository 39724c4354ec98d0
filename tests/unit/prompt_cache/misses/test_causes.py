"""Why a cache broke, in words, where only the cause was kept."""

import pytest

from foveate.prompt_cache.misses.causes import MissCause, describe_cause


@pytest.mark.parametrize("cause", list(MissCause))
def test_every_cause_is_more_than_its_name(cause: MissCause) -> None:
    said = describe_cause(cause.value)

    assert len(said.split()) >= 3
    assert said != cause.value.replace("_", " ")


def test_a_cause_of_a_later_version_is_told_by_its_name() -> None:
    assert describe_cause("moon_phase") == "moon phase"
