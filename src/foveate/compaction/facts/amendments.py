"""Find what an update leaves of old statements, and what was renamed.

"Dinner is at 19:00 in room 3." "Dinner starts at 18:30 now." Only the value is taken out of the first, so that
the room is not lost. The new value is not written in its place, nor into "Make it 18:30.": in conversations of
people, two of five such sentences were false, because the values belonged to different things (November 2026).
"""

import re
from collections.abc import Sequence, Set
from dataclasses import replace

from foveate.compaction.facts.language import find_stem, language
from foveate.compaction.facts.rules import find_whole
from foveate.compaction.facts.statements import Statement, find_statement_subject
from foveate.compaction.facts.subjects import Subject, ValueType, split_words
from foveate.compaction.facts.texts import Speaker
from foveate.compaction.facts.values import Mention, find_mentions

# A part of a sentence that may have its own values.
_SEGMENT_END = re.compile(r"[,;:.!?]\s|\s(?:and|but|und|aber|et|mais|y|pero|e|ma|mas)\s")
_UNIT = re.compile(r"\s([^\W\d_]{1,20})")
OMITTED = "…"
# "We renamed X to Y", "X was renamed to Y", "X is now called Y".
_NAME = r"[`\"'“]?(\w[\w./:@+-]{0,80}(?<=\w))[`\"'”]?"
_RENAMED = re.compile(
    rf"\b(?:renam|umbenannt|renomm|renombr|rinomin)\w{{0,9}}\s(?:[a-z]{{1,20}}\s){{0,2}}?{_NAME}"
    rf"\s(?:to|into|as|in|en|a)\s{_NAME}"
    rf"|{_NAME}\s(?:(?:is|are|was|were|has been|got)\s(?:renamed(?:\s(?:to|as|into))?|now (?:called|named))"
    rf"|heißt (?:jetzt|nun)|s'appelle (?:désormais|maintenant)|ahora se llama|ora si chiama)\s{_NAME}"
)


def is_same_text(one: Statement, other: Statement) -> bool:
    place = other.message_index, other.text_index
    return not other.is_summary and (one.message_index, one.text_index) == place


def _is_from_user(statement: Statement) -> bool:
    return statement.speaker is Speaker.USER and not statement.is_quoted


def find_outdated(old: Statement, new: Statement) -> list[Mention]:
    """The values of the old statement that the new one changes; none if the new one says all that is true."""
    places: list[tuple[int, int]] = []
    for value_type in new.subject.values.keys() & old.subject.values.keys():
        removed, added = changed_values(value_type, new.subject, old.subject)
        if len(added) > len(removed) and new.subject.focuses:
            added &= new.subject.focuses[-1].values.get(value_type, added)
        if removed and added:
            places += _find_changed_places(old, removed, new, added)
    values = {old.text[start:end].lower() for start, end in places}
    if not old.subject.all_values - values - new.subject.all_values or old.is_quoted:
        return []
    mentions = find_mentions(old.text).mentions
    return [mention for place in places if (mention := _find_mention(mentions, place)) is not None]


def amend_name(old: Statement, renamed: tuple[str, str]) -> Statement | None:
    """None if `old` does not have the old name, or has both."""
    name, new_name = renamed
    places = [*find_whole(name, old.text)]
    if not places or next(find_whole(new_name, old.text), None) is not None:
        return None
    text = old.text
    for start in reversed(places):
        text = text[:start] + new_name + text[start + len(name) :]
    return replace(old, text=text, subject=find_statement_subject(text, old.speaker))


def find_rename(statement: Statement) -> tuple[str, str] | None:
    """The old name and the new one, if a statement says that something was renamed."""
    match = _RENAMED.search(statement.text) if _is_from_user(statement) else None
    if match is None:
        return None
    old, new = match[1] or match[3], match[2] or match[4]
    return (old, new) if old != new and all(map(_is_name, (old, new))) else None


def _is_name(text: str) -> bool:
    return not text.islower() or not text.isalpha()


def changed_values(value_type: ValueType, new: Subject, old: Subject) -> tuple[Set[str], Set[str]]:
    """Values of a type that only the old or only the new has. Numbers count the same, as far as is known."""
    removed = old.values[value_type] - new.values[value_type]
    added = new.values[value_type] - old.values[value_type]
    if value_type is not ValueType.NUMBER:
        return removed, added
    return (
        {one for one in removed if any(_count_same(old, one, new, other) for other in added)},
        {one for one in added if any(_count_same(new, one, old, other) for other in removed)},
    )


def _count_same(one: Subject, value: str, other: Subject, other_value: str) -> bool:
    units = one.units.get(value, ""), other.units.get(other_value, "")
    return units[0] == units[1] or not all(units)


def _find_changed_places(
    old: Statement, removed: Set[str], new: Statement, added: Set[str]
) -> Sequence[tuple[int, int]]:
    """Where the removed values are; nothing if they or the added ones are not found."""
    places = _find_places(old.text, removed)
    new_places = _find_places(new.text, added)
    if not places or not new_places:
        return ()
    return _find_named(old.text, places, new.subject) if len(places) > len(new_places) == 1 else places


def _find_mention(mentions: Sequence[Mention], place: tuple[int, int]) -> Mention | None:
    return next((mention for mention in mentions if mention.start <= place[0] < mention.end), None)


def find_unit_end(text: str, end: int) -> int:
    """Where the unit after a value ends: "240 euros", "6 pm", "30 s"."""
    match = _UNIT.match(text, end)
    words = language()
    is_unit = match is not None and any(
        match[1].lower() in units for units in (words.currencies, words.times_of_day, words.dimensions)
    )
    return match.end() if match is not None and is_unit else end


def _find_places(text: str, values: Set[str]) -> list[tuple[int, int]]:
    """Where each of the values stands, in order; nothing if one is not found, or more than once."""
    lower = text.lower()
    places = [(start, start + len(value)) for value in values for start in find_whole(value, lower)]
    is_clear = len(lower) == len(text) and len(places) == len({text[start:end] for start, end in places})
    return sorted(places) if is_clear and len(places) == len(values) else []


def _find_named(text: str, places: Sequence[tuple[int, int]], new: Subject) -> Sequence[tuple[int, int]]:
    """Of several values, that which stands among the words of the new statement, if there is one."""
    words = frozenset[str]().union(*new.parts) - language().function_words
    ends = [0, *(match.end() for match in _SEGMENT_END.finditer(text)), len(text)]
    shared = []
    for place in places:
        start = max(end for end in ends if end <= place[0])
        end = min(end for end in ends if end >= place[1])
        segment = split_words(text[start:end].lower())
        shared.append(len(words.intersection((*segment, *map(find_stem, segment)))))
    most = max(shared)
    named = [place for place, count in zip(places, shared, strict=True) if count == most]
    return named if len(named) == 1 else places
