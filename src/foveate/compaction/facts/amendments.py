"""Write what statements say after an update: values alone are completed, and other values of old ones stay.

"Dinner is at 19:00 in room 3." "Make it 18:30." The second becomes "Dinner is at 18:30 in room 3." If the
update is a sentence of its own ("Dinner starts at 18:30 now."), the first is amended, so that the room is not
lost.
"""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from foveate.compaction.facts.contrasts import are_in_same_slot, have_other_heads, have_other_qualifiers
from foveate.compaction.facts.language import find_stem, language
from foveate.compaction.facts.rules import find_whole
from foveate.compaction.facts.statements import Statement, StatementKind, find_statement_subject
from foveate.compaction.facts.subjects import Subject, ValueType, split_words
from foveate.compaction.facts.texts import Speaker
from foveate.compaction.facts.values import ORDINAL, Mention, find_mentions

_MAX_ELLIPSIS_DISTANCE = 12
_MAX_ELLIPSIS_VALUES = 2
# A number alone may also be a time or an amount: "Make it 7."
_BARE_NUMBERS = ValueType.TIME, ValueType.MONEY
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


def complete_ellipses(statements: Sequence[Statement]) -> list[Statement]:
    """The statements, with those that only give a value completed by what they change.

    "Dinner is at 19:00." "Make it 18:30." becomes "Dinner is at 18:30."
    """
    completed: list[Statement] = []
    for number, statement in enumerate(statements):
        before = statements[number - 1] if number and is_same_text(statements[number - 1], statement) else None
        completed.append(_complete(statement, before, completed))
    return completed


def is_same_text(one: Statement, other: Statement) -> bool:
    place = other.message_index, other.text_index
    return not other.is_summary and (one.message_index, one.text_index) == place


def _complete(statement: Statement, before: Statement | None, earlier: Sequence[Statement]) -> Statement:
    subject = statement.subject
    value = (subject.focuses or (subject,))[-1]
    types = [value_type for value_type in value.values if value_type is not ValueType.NAME]
    if (
        not value.is_elliptical
        or value.is_negated  # "They can't come before 19 April."
        # Something else follows that is not a reason: "Make it 4 nights, the weather is bad."
        or value.parts[-1:] not in (subject.parts[-1:], subject.parts[:1] if subject.has_cue else ())
        or len(types) != 1
        or len(value.all_values) > _MAX_ELLIPSIS_VALUES
        or not _is_from_user(statement)
        or statement.kind is StatementKind.CONSTRAINT
        or statement.is_summary
        or find_rename(statement) is not None
    ):
        return statement
    others = {
        mention.value
        for mention in find_mentions(statement.text).mentions
        if mention.value_type is not ValueType.NAME and mention.value not in language().number_words
    } - value.all_values
    is_announced = (
        subject.has_cue or language().interjections.match(statement.text) is not None or _points_back(subject)
    )
    parts = tuple(part for part in subject.parts if part not in value.parts)
    if before is not None and not before.subject.values:
        parts += before.subject.parts
    context = frozenset[str]().union(*parts)
    for value_type in (*types, *(_BARE_NUMBERS if types == [ValueType.NUMBER] and not value.units else ())):
        numbers = range(len(earlier) - 1, max(len(earlier) - _MAX_ELLIPSIS_DISTANCE, 0) - 1, -1)
        candidates = [
            (number, earlier[number])
            for number in numbers
            if value_type in earlier[number].subject.values
            and _is_from_user(earlier[number])
            and others <= earlier[number].subject.all_values  # otherwise it says more
        ]
        shared = [_count_shared(old, context) for _, old in candidates]
        most = max(shared, default=0)
        named = [
            candidate
            for candidate, count in zip(candidates, shared, strict=True)
            if count == most and not _is_about_other(subject, candidate[1])
        ]
        for number, old in named[:1] if most or is_announced else ():
            if text := _write_with_values(old, value_type, statement, value, types[0]):
                completed = find_statement_subject(text)
                return replace(
                    statement, text=text, subject=completed, kind=old.kind, label=old.label, completes=number
                )
    return statement


def _is_from_user(statement: Statement) -> bool:
    return statement.speaker is Speaker.USER and not statement.is_quoted


def _points_back(subject: Subject) -> bool:
    """Return whether a clause before the last refers to something earlier: "that week"."""
    return any(not language().demonstratives.isdisjoint(part) for part in subject.parts[:-1])


def _count_shared(old: Statement, context: Set[str]) -> int:
    """How many words of a statement, or of its values, other clauses contain."""
    return len(context & (old.subject.words.keys() | old.subject.value_words))


def _is_about_other(subject: Subject, old: Statement) -> bool:
    return (
        are_in_same_slot(subject, old.subject)
        or have_other_qualifiers(subject, old.subject)
        or have_other_heads(subject, old.subject)
    )


def _write_with_values(
    old: Statement, old_type: ValueType, new: Statement, subject: Subject, new_type: ValueType
) -> str:
    """Empty if it is not clear which value replaces which."""
    added = subject.values[new_type]
    units = {subject.units.get(value, "") for value in added}
    removed = {
        value
        for value in old.subject.values[old_type]
        if units == {""} or old.subject.units.get(value, "") in units
    }
    edits = _find_edits(old, removed, new, added)
    is_clear = all(text != OMITTED for _, _, text in edits.values())
    return _apply_edits(old.text, edits) if edits and is_clear else ""


def amend(old: Statement, new: Statement) -> Statement | None:
    """The old statement with the values of the new one; None if the new one says all that is still true."""
    edits: dict[str, _Edit] = {}
    for value_type in new.subject.values.keys() & old.subject.values.keys():
        removed, added = changed_values(value_type, new.subject, old.subject)
        if len(added) > len(removed) and new.subject.focuses:
            added &= new.subject.focuses[-1].values.get(value_type, added)
        if removed and added:
            edits |= _find_edits(old, removed, new, added)
    if not edits or not old.subject.all_values - edits.keys() - new.subject.all_values or old.is_quoted:
        return None
    if new.subject.is_negated != old.subject.is_negated:  # "They can't come before 19 April."
        edits = {value: (start, end, OMITTED) for value, (start, end, _) in edits.items()}
    text = _apply_edits(old.text, edits)
    return replace(old, text=text, subject=find_statement_subject(text, old.speaker))


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


_Edit = tuple[int, int, str]
"""A range of a text, and what replaces it."""


def _find_edits(old: Statement, removed: Set[str], new: Statement, added: Set[str]) -> dict[str, _Edit]:
    """The edit that replaces each of the removed values; nothing if they are not found."""
    places = _find_places(old.text, removed)
    new_places = _find_places(new.text, added)
    if not places or not new_places:
        return {}
    if len(places) > len(new_places) == 1:
        places = _find_named(old.text, places, new.subject)
    edits: dict[str, _Edit] = {}
    for number, (start, end) in enumerate(places):
        value = old.text[start:end].lower()
        if len(places) != len(new_places) or not _is_evident(old.text, places, number, new.text, new_places):
            edits[value] = start, end, OMITTED
            continue
        new_start, new_end = new_places[number]
        new_unit_end = find_unit_end(new.text, new_end)
        # "6 pm" and "7" become "7 pm"; "30 s" and "2 minutes" become "2 minutes".
        is_bare = new_unit_end == new_end and not new.text[new_start:new_end].strip("0123456789.,")
        unit_end = end if is_bare else find_unit_end(old.text, end)
        edits[value] = start, unit_end, new.text[new_start:new_unit_end]
    return edits


def _is_evident(
    old: str, places: Sequence[tuple[int, int]], number: int, new: str, new_places: Sequence[tuple[int, int]]
) -> bool:
    """Return whether a new value surely takes the place of an old one: both count the same."""
    mentions = find_mentions(old).mentions
    value = _find_mention(mentions, places[number])
    new_value = _find_mention(find_mentions(new).mentions, new_places[number])
    if value is None or new_value is None:
        return True
    are_ordinal = {ORDINAL.fullmatch(mention.value) is not None for mention in (value, new_value)}
    if value.value_type is new_value.value_type and len(are_ordinal) > 1:
        return False  # "… until the 15th", "140 people"
    if new_value.value_type is ValueType.NUMBER and new_value.unit and new_value.dimension != value.dimension:
        return False
    replaced = {start for start, _ in places}
    others = (other for other in mentions if other.start not in replaced)
    is_only = not any(other.value_type is value.value_type for other in others)
    return is_only or not new_value.near.isdisjoint(value.near)


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


def _apply_edits(text: str, edits: Mapping[str, _Edit]) -> str:
    for start, end, new_text in sorted(edits.values(), reverse=True):
        text = text[:start] + new_text + text[end:]
    return text
