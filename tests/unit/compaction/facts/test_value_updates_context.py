"""What tells which value an update changes, if its words are not those of the earlier sentence."""

import pytest

from tests.unit.compaction.facts.test_value_updates import current_text


@pytest.mark.parametrize(
    ("old", "new", "gone"),
    [
        (
            "Internet: I've ordered from Zen, install on 2 July.",
            "Rang Zen, a nice man, it's 9 July now.",
            "2 July",
        ),
        (
            "The babysitter is Inês and she's booked for Wednesday.",
            "Turns out Inês can't do that, so dinner goes to Thursday.",
            "Wednesday",
        ),
        ("I've quotes: Ridgeway 1,150 and Vans 890.", "Ridgeway could do it but charge 1,240 now.", "1,150"),
    ],
)
def test_a_shared_name_and_a_cue_tell_which_value_changes(old: str, new: str, gone: str) -> None:
    text = current_text(old, new)

    assert gone not in text
    assert new in text


def test_the_same_name_without_a_cue_changes_nothing() -> None:
    old, new = "Zen brings the router on 2 July.", "My cousin, who knows Zen, was born on 9 May."

    assert current_text(old, new) == f"{old}\n{new}"


def test_a_rule_in_another_part_of_the_sentence_does_not_protect_a_value() -> None:
    text = current_text(
        "The wifi password is maple-otter-77, please don't give it to guests.",
        "I changed the wifi password to birch-heron-41.",
        "A: The new wifi password is birch-heron-41.",
    )

    assert "maple-otter-77" not in text
    assert "don't give it to guests" in text


def test_a_value_without_a_unit_replaces_one_without_a_unit_first() -> None:
    text = current_text(
        "The archive is on 5439 here.",
        "Without fail, move everything older than 18 months to the archive.",
        "The archive moved last week, it's on port 5441 these days.",
    )

    assert "18 months" in text
    assert "5439" not in text


def test_an_address_may_have_an_apostrophe() -> None:
    text = current_text(
        "Aunt Rosalind lives at 14 Tanner's Row.",
        "Aunt Rosalind moved, she lives at 3 Abbey Court now.",
        "A: Updated, Aunt Rosalind is at 3 Abbey Court.",
    )

    assert "Tanner's Row" not in text


def test_a_contraction_is_not_what_two_sentences_are_about() -> None:
    old = "We've got four beds of 1.2 by 2.4 metres."

    assert old in current_text(old, "I said runner beans, and we'll need 8 canes a row.")


def test_a_value_in_a_part_of_its_own_belongs_to_the_whole_sentence() -> None:
    new = "They moved the deadline, in my favour: 15 January."

    text = current_text("My deadline with the publisher is 30 November.", new)

    assert "30 November" not in text
    assert new in text


def test_a_day_that_is_rejected_is_the_date() -> None:
    text = current_text("It's the Thames Half on 6 October.", "The race isn't the 6th, it's 13 October.")

    assert "6 October" not in text
    assert "13 October" in text
