"""Names of steps and edits for people, and the description of a cache miss."""

from decimal import Decimal

import pytest

from foveate.session.traces import CacheMiss, describe_action, describe_cache_miss, describe_step


@pytest.mark.parametrize(
    ("action", "label"),
    [
        ("mark", "breakpoint"),
        ("mark 5m", "breakpoint 5m"),
        ("unmark", "remove breakpoint"),
        ("cut", "shorten"),
        ("drop", "remove"),
        ("insert", "insert"),
    ],
)
def test_actions_have_a_name_for_people(action: str, label: str) -> None:
    assert describe_action(action) == label


@pytest.mark.parametrize(("step", "label"), [("fold", "compaction"), ("room", "overflow"), ("route", "route")])
def test_steps_have_a_name_for_people(step: str, label: str) -> None:
    assert describe_step(step) == label


def test_a_cache_miss_has_its_cause_place_and_cost() -> None:
    miss = CacheMiss(cause="date", where="system[0]", lost_tokens=1_200, lost_dollars=Decimal("0.01"))

    assert describe_cache_miss(miss, "a date changed", "$0.01") == (
        "cache miss: a date changed, at system[0]; 1,200 tokens paid again, $0.01"
    )


def test_a_planned_rewrite_is_not_called_a_miss() -> None:
    miss = CacheMiss(cause="compaction", where="", lost_tokens=300, is_planned=True)

    assert describe_cache_miss(miss, "Foveate replaced old messages with a summary") == (
        "planned rewrite: Foveate replaced old messages with a summary; 300 tokens written again,"
        " included in savings"
    )
