"""Descriptions of the causes of cache misses."""

import pytest

from foveate.prompt_cache.misses.causes import MissCause, describe_cause


@pytest.mark.parametrize("cause", list(MissCause))
def test_every_cause_has_a_description(cause: MissCause) -> None:
    description = describe_cause(cause.value)

    assert len(description.split()) >= 3
    assert description != cause.value.replace("_", " ")


def test_an_unknown_cause_is_described_by_its_name() -> None:
    assert describe_cause("moon_phase") == "moon phase"
