"""Which changes of stable sections only add text."""

from foveate.caching import hash_bytes
from foveate.engine.sections.fit import FittedSection, SectionGroup, find_additions


def group(**texts: str) -> SectionGroup:
    sections = tuple(
        FittedSection(name=name, text=text, tokens=1, reason=f"section {name}") for name, text in texts.items()
    )
    return SectionGroup(version=hash_bytes(*(text.encode() for text in texts.values())), sections=sections)


BEFORE = group(identity="You are Ana.", memory="Bob has roses.")


def test_lines_at_the_end_and_new_sections_are_additions() -> None:
    after = group(identity="You are Ana.", memory="Bob has roses.\nHe has tulips.", skills="water: a bed")

    assert find_additions(BEFORE, after) == [("memory", "He has tulips."), ("skills", "water: a bed")]


def test_an_unchanged_group_has_no_additions() -> None:
    assert find_additions(BEFORE, BEFORE) == []


def test_a_changed_or_removed_text_must_not_be_sent_any_longer() -> None:
    assert find_additions(BEFORE, group(identity="You are Ana.", memory="He has tulips.")) == []
    assert find_additions(BEFORE, group(identity="You are Ana.")) == []
    # One section has only grown, but the other has changed.
    assert find_additions(BEFORE, group(identity="You are Eve.", memory="Bob has roses.\nMore.")) == []


def test_a_line_that_goes_on_is_changed() -> None:
    assert find_additions(BEFORE, group(identity="You are Ana.", memory="Bob has roses. No more.")) == []


def test_the_first_sections_of_a_conversation_are_not_additions() -> None:
    assert find_additions(SectionGroup(), BEFORE) == []
