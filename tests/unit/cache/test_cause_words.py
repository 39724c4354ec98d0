"""Why a cache broke, in words, where only the cause was kept."""

import pytest

from foveate.cache.cause_words import cause_in_words
from foveate.cache.causes import Cause


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_is_more_than_its_name(cause: Cause) -> None:
    said = cause_in_words(cause.value)

    assert len(said.split()) >= 3
    assert said != cause.value.replace("_", " ")


def test_a_cause_of_a_later_version_is_told_by_its_name() -> None:
    assert cause_in_words("moon_phase") == "moon phase"
