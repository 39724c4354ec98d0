"""Decide which statements a later statement replaces, so that only the current one is carried.

A later statement replaces an earlier one about the same thing if it gives another value of the same type, and
the wording is much the same; or if a cue ("now", "instead", "no longer") announces a change, with looser
wording. Without a cue, half of the words must be the same, with what it is about among them, and no other
statement may fit as well. Each clause counts by itself ("…, so run 5 replicas"), and a sentence before may say
what the value belongs to ("The key leaked. …"). Where values change and the words are not certain, fitted
weights decide (`value_updates`). It also replaces what it calls off or rejects. Statements that differ in a
word of the same place, in their owner, or in the number of a name, are about different things. Without word
vectors (the extra `search`), only words with the same stem count as the same.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from math import log
from typing import TYPE_CHECKING

from foveate.compaction.facts.amendments import (
    amend_name,
    changed_values,
    find_outdated,
    find_rename,
    is_same_text,
)
from foveate.compaction.facts.contrasts import (
    SYNONYM_COSINE,
    WordSimilarity,
    are_different,
    are_in_same_slot,
    has_other_qualifier,
    have_other_attributes,
    have_other_heads,
    have_other_qualifiers,
    have_other_topics,
)
from foveate.compaction.facts.language import find_stem, language
from foveate.compaction.facts.outdated_values import OutdatedValues, with_text, without_values
from foveate.compaction.facts.prose import strip_label
from foveate.compaction.facts.statements import Statement, StatementKind, find_statement_subject
from foveate.compaction.facts.subjects import POSSESSIVE, Subject, ValueType, split_words
from foveate.compaction.facts.texts import Speaker
from foveate.compaction.facts.value_updates import (
    ChangedValue,
    Surroundings,
    ValueIndex,
    find_other_changes,
    find_signs,
    is_same_kind,
)
from foveate.compaction.facts.values import Mention, find_mentions, split_parts
from foveate.errors import UnreadableInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Shares of the weight of the content words that must be the same.
_SAME_WORDING = 0.66
_CONTAINED = 0.99
_SAME_WITH_LABEL = 0.6
_SAME_WITH_CUE = 0.5
_LIKELY_WITH_CUE = 0.3
# All degrees without a cue are below those with one.
_LIKELY_WITHOUT_CUE = 0.29
_SAME_WITHOUT_VALUES = 0.5
# Degrees from this on are certain; by how much they exceed it tells which of several fits best.
_CERTAIN = 2.0
_EXACT = float("inf")
_MAX_VECTORS = 20_000
_MAX_MATRICES = 1_000
_MAX_POSTINGS = 16
_MAX_CANDIDATES = 24
_MIN_HITS = 2
_SENTENCE_ENDS = (".", "!", "?", "。")


@dataclass(frozen=True, slots=True)
class Updates:
    """`replaced` has the numbers of replaced statements, each with the number of the one that replaces it.

    `statements` are those in question, and after them what is still true of replaced ones.
    """

    statements: Sequence[Statement]
    replaced: Mapping[int, int]
    count: int
    """How many statements were in question."""


def find_updates(statements: Sequence[Statement], similarity: WordSimilarity | None = None) -> Updates:
    vocabulary = _Vocabulary(_weights(statements), word_similarity() if similarity is None else similarity)
    postings: dict[str, list[int]] = {}
    replaced: dict[int, int] = {}
    known = list(statements)
    values = ValueIndex(partial(are_different, similarity=vocabulary.similarity))
    outdated = OutdatedValues()

    def find_degrees(statement: Statement, before: Statement | None) -> dict[int, float]:
        hits: Counter[int] = Counter()
        for key in dict.fromkeys(
            (
                *_statement_keys(statement),
                *(key for focus in statement.subject.focuses for key in _posting_keys(focus)),
                *(stem for thing in statement.cancelled for stem in thing),
            )
        ):
            hits.update(earlier for earlier in postings.get(key, ()) if earlier not in replaced)
        announcing = _announcing_parts(statement, before)
        degrees: dict[int, float] = {}
        # Without a cue, a word and a type of values must be the same.
        min_hits = 1 if statement.subject.has_cue or statement.cancelled else _MIN_HITS
        for earlier, count in hits.most_common(_MAX_CANDIDATES):
            if count < min_hits:
                break
            old = known[earlier]
            if is_same_text(old, statement) and not _corrects_itself(statement, is_next=old is before):
                continue
            if degree := _replaces(statement, old, vocabulary, announcing if before is not old else ()):
                degrees[earlier] = degree
        return degrees

    def find_changes(number: int) -> dict[int, list[ChangedValue]]:
        statement = statements[number]
        changes: dict[int, list[ChangedValue]] = {}
        if statement.speaker is Speaker.USER and not (statement.is_quoted or statement.is_summary):
            for change in values.find_changes(
                statement, find_surroundings(statements, number), known, replaced
            ):
                changes.setdefault(change.number, []).append(change)
        return changes

    def add_postings(number: int, before: Statement | None = None) -> None:
        for key in _statement_keys(known[number]):
            posting = postings.setdefault(key, [])
            posting.append(number)
            if len(posting) > _MAX_POSTINGS:
                del posting[0]
        values.add(number, known[number], before, is_rest=number >= len(statements))

    def replace_by(number: int, current: Mapping[int, Statement | None]) -> None:
        for earlier, rest in current.items():
            replaced[earlier] = number
            if rest is not None:
                known.append(rest)
                add_postings(len(known) - 1)
            if known[earlier].speaker is Speaker.USER:
                texts = statements[number].text, rest.text if rest else ""
                outdated.add_replaced(known[earlier], _changed_mentions(known[earlier], *texts), number)

    for number, statement in enumerate(statements):
        before = statements[number - 1] if number and is_same_text(statements[number - 1], statement) else None
        amended: dict[int, Statement | None] = {}
        if rename := find_rename(statement):
            for earlier in (*range(number), *range(len(statements), len(known))):
                if earlier in replaced or _is_same_summary(known[earlier], statement):
                    continue
                current = amend_name(known[earlier], rename)
                if current or is_repeated(known[earlier], statement):
                    amended[earlier] = current
        else:
            update = statement
            degrees = find_degrees(update, before)
            if not degrees and before is not None and _is_continued(before, statement):
                update = _join(before, statement)
                degrees = find_degrees(update, None)
            changes = find_changes(number)
            # If it is not certain that a value changes, fitted weights decide.
            degrees = {
                earlier: degree
                for earlier, degree in degrees.items()
                if degree >= _CERTAIN or not _changes_values(update, known[earlier])
            }
            for earlier in _select_outdated(degrees, known):
                old = known[earlier]
                if _cancels(update, old):
                    amended[earlier] = _without_cancelled(old, update)
                    continue
                # Other values of what the assistant said may depend on the old one.
                gone = find_outdated(old, update) if old.speaker is Speaker.USER else []
                current = without_values(old, update, gone) if gone else None
                loses_names = not update.subject.has_cue and _loses_names(old, update)
                found = changes.get(earlier)
                if found and (
                    current is not None
                    or loses_names
                    or _hard_values(old) - _values(update) > {found[0].old.value}
                    or _says_more(old, update, found)
                ):
                    others = find_other_changes(earlier, old, statement, found)
                    current = without_values(old, statement, [change.old for change in (*found, *others)])
                if current is not None or not loses_names:
                    amended[earlier] = current
                    changes.pop(earlier, None)
            settled = [
                mention
                for earlier, current in amended.items()
                if known[earlier].speaker is Speaker.USER
                for mention in find_mentions(known[earlier].text).mentions
                if current is None or mention.value not in _values(current)
            ]
            for earlier, found in changes.items():
                if not any(is_same_kind(change.new, mention) for change in found for mention in settled):
                    amended[earlier] = without_values(
                        known[earlier], statement, [change.old for change in found]
                    )
        replace_by(number, amended)
        add_postings(number, before)
        if not (statement.is_quoted or statement.is_summary):
            after = statements[number + 1] if number + 1 < len(statements) else None
            outdated.add_rejected(
                statement,
                before.text if before else "",
                after.text if after and is_same_text(statement, after) else "",
                number,
            )
    for number, newer, rest in list(outdated.cut(known, replaced, len(statements))):
        replaced[number] = newer
        if rest is not None:
            known.append(rest)
            if number == newer:
                replaced[number] = len(known) - 1
    return Updates(known, replaced, len(statements))


def _changes_values(new: Statement, old: Statement) -> bool:
    """Return whether a statement gives a value of the same kind as another one."""
    return any(
        mention.normal != other.normal and is_same_kind(mention, other)
        for mention in find_mentions(new.text).mentions
        for other in find_mentions(old.text).mentions
    )


def _corrects_itself(statement: Statement, *, is_next: bool) -> bool:
    """Return whether a statement changes one of the same text, which people rarely do without saying so."""
    subject = statement.subject
    is_announced = bool(statement.cancelled) or language().interjections.match(statement.text) is not None
    return subject.is_correction or (is_next and (subject.has_cue or is_announced))


def _changed_mentions(old: Statement, new: str, rest: str = "") -> list[Mention]:
    """The values of a statement of which a new text has others of the same kind."""
    added = find_mentions(new).mentions
    kept = {mention.normal for mention in (*added, *find_mentions(rest).mentions)}
    return [
        mention
        for mention in find_mentions(old.text).mentions
        if mention.normal not in kept and any(is_same_kind(other, mention) for other in added)
    ]


def find_surroundings(statements: Sequence[Statement], number: int) -> Surroundings:
    """The statements before one in its message, and what the assistant says just before and after it."""
    place = statements[number].message_index
    earlier: list[Statement] = []
    replies: list[str] = []
    for step in (-1, 1):
        for position in range(number + step, number + step * (_MAX_REPLIES + 1), step):
            if not 0 <= position < len(statements):
                break
            other = statements[position]
            if other.speaker is Speaker.MODEL:
                replies.append(other.text)
            elif other.message_index != place:
                break
            elif step < 0:
                earlier.append(other)
    return Surroundings(earlier, replies)


_MAX_REPLIES = 6


def _without_cancelled(old: Statement, new: Statement) -> Statement | None:
    """The other items of a list of which one is called off."""
    parts = split_parts(old.text)
    rest = [
        part
        for part in parts
        if not any(cancelled <= _all_words(find_statement_subject(part)) for cancelled in new.cancelled)
    ]
    is_list = not any(
        find_statement_subject(part).is_elliptical for part in rest
    )  # "a cake, two tiers, on Monday"
    if len(parts) < _MIN_LIST_PARTS or len(rest) == len(parts) or not is_list:
        return None
    return with_text(old, "".join(rest).rstrip(" ,;"))


_MIN_LIST_PARTS = 3


def _loses_names(old: Statement, new: Statement) -> bool:
    """Return whether the new statement gives one name where parts of the old one give several."""
    named = [
        [mention for mention in find_mentions(statement.text).mentions if mention.value_type is ValueType.NAME]
        for statement in (old, new)
    ]
    said = {mention.value for mention in named[1]}
    return len({mention.part for mention in named[0] if mention.value not in said}) > len(said) > 0


def _says_more(old: Statement, new: Statement, changes: Sequence[ChangedValue]) -> bool:
    """Return whether another part of the old statement says something that the new one does not."""
    changed = {change.old.part for change in changes}
    known = find_mentions(new.text).stems | _values(new)
    parts = [part for part in split_parts(strip_label(old.text)) if part not in changed]
    return any(len(find_mentions(part).stems - known) >= _MIN_NEW_STEMS for part in parts)


# So many new words are more than an aside.
_MIN_NEW_STEMS = 2


def _values(statement: Statement) -> frozenset[str]:
    return frozenset(mention.value for mention in find_mentions(statement.text).mentions)


def _hard_values(statement: Statement) -> frozenset[str]:
    mentions = find_mentions(statement.text).mentions
    return frozenset(mention.value for mention in mentions if mention.value_type is not ValueType.NAME)


def _is_same_summary(old: Statement, new: Statement) -> bool:
    """Return whether both are lines of one summary, which are all true."""
    return new.is_summary and old.is_summary and new.message_index == old.message_index


def _is_continued(before: Statement, statement: Statement) -> bool:
    """Return whether a sentence only names what the next one gives a value of: "The key leaked. …"."""
    return (
        not before.subject.values
        and statement.subject.has_hard_value
        and before.text.endswith(_SENTENCE_ENDS)
        and statement.speaker is Speaker.USER
        and len(before.text) + len(statement.text) <= _MAX_JOINED_CHARS
    )


_MAX_JOINED_CHARS = 300


def _join(before: Statement, statement: Statement) -> Statement:
    text = f"{before.text.rstrip('.!?。')}, {statement.text}"
    return replace(statement, text=text, subject=find_statement_subject(text))


def _select_outdated(degrees: Mapping[int, float], statements: Sequence[Statement]) -> list[int]:
    """Of the statements that may be replaced: all that certainly are, or the best.

    A cue changes one thing: of statements about different things, only the best is replaced.
    """
    certain = {number: degree for number, degree in degrees.items() if degree >= _CERTAIN}
    if not certain:
        best = max(degrees, key=lambda number: (degrees[number], number), default=None)
        if best is None:
            return []
        is_clear = degrees[best] >= _LIKELY_WITH_CUE or [*degrees.values()].count(degrees[best]) == 1
        return [best] if is_clear else []
    likely = [number for number, degree in certain.items() if degree < _EXACT]
    best = max(likely, key=lambda number: (degrees[number], number), default=None)
    return [
        number
        for number, degree in certain.items()
        if best is None
        or degree >= degrees[best]
        or not _are_different(statements[number].subject, statements[best].subject)
    ]


def _are_different(one: Subject, other: Subject) -> bool:
    """Return whether two statements are about different things: "the CI build", "the nightly build"."""
    owners = [
        {name for relation, name in subject.qualifiers if relation == POSSESSIVE} for subject in (one, other)
    ]
    return owners[0] != owners[1] or are_in_same_slot(one, other) or have_other_qualifiers(one, other)


def _statement_keys(statement: Statement) -> list[str]:
    return [
        *_posting_keys(statement.subject),
        *([f"{statement.label}:"] if statement.label else []),
        " ".join(_normal_words(statement.text)[:2]),
    ]


def _posting_keys(subject: Subject) -> list[str]:
    return [*subject.words, *(f"<{value_type.value}>" for value_type in subject.values), *subject.all_values]


def _weights(statements: Sequence[Statement]) -> dict[str, float]:
    """Words in many statements tell less."""
    counts = Counter(stem for statement in statements for stem in statement.subject.words)
    return {stem: 1 / (1 + log(max(count - 1, 1))) for stem, count in counts.items()}


def _replaces(
    new: Statement, old: Statement, vocabulary: "_Vocabulary", announcing: Sequence[frozenset[str]] | None = ()
) -> float:
    """Return 0 if `new` does not replace `old`, less than `_CERTAIN` if another one may fit better.

    `announcing` are clauses that may be about the old value; None if it is certain that they announce a change.
    """
    if _is_same_summary(old, new):
        return _EXACT if is_repeated(old, new) else 0.0
    if is_repeated(old, new):
        return _EXACT
    if new.speaker is Speaker.MODEL and old.speaker is not Speaker.MODEL:
        return 0.0  # only people change what people said
    if new.is_quoted:
        return 0.0  # a document describes something; it does not correct what was said before
    if _cancels(new, old):
        return _EXACT
    has_other_wish = (
        old.kind is StatementKind.PREFERENCE
        and new.subject.has_cue
        and not new.subject.has_hard_value
        and have_other_attributes(new.subject, old.subject)
    )
    if has_other_wish:
        return _EXACT
    if new.message_index != old.message_index and _has_other_predicate(new.text, old.text):
        return _EXACT
    has_same_label = bool(new.label) and new.label == old.label
    if (
        has_same_label
        and new.subject.all_values
        and old.subject.all_values
        and not (new.subject.words or old.subject.words)
    ):
        return _EXACT  # "Hotel: Casa Verde."
    subject = new.subject
    # What it rejects may be about another statement.
    has_cue = subject.has_cue and (
        not subject.rejected or not subject.rejected.isdisjoint(_all_words(old.subject))
    )
    if not has_cue and subject.words.keys().isdisjoint(old.subject.words):
        return 0.0
    # Lines of output that people paste look alike, but have no end.
    are_sentences = new.text.endswith(_SENTENCE_ENDS) and old.text.endswith(_SENTENCE_ENDS)
    return _update_degree(
        subject,
        old.subject,
        vocabulary,
        has_cue=has_cue
        or (are_sentences and (_is_announced(old.subject, announcing) or _refers_back(subject))),
        has_same_label=has_same_label,
        are_sentences=are_sentences,
    )


def _announcing_parts(new: Statement, before: Statement | None) -> Sequence[frozenset[str]] | None:
    """The clauses of a statement and of the one before that may be about an old value; None if all have one.

    "Paula is ill, so Igor brings the projector." "This is too long. Let the break take 10 minutes."
    """
    parts = new.subject.parts if len(new.subject.parts) > 1 else ()
    if before is None or not before.text.endswith(_SENTENCE_ENDS):
        return parts
    return None if before.subject.has_cue and not before.subject.values else parts + before.subject.parts


def _refers_back(new: Subject) -> bool:
    """Return whether a clause gives a value of what another names: "The job is late, start it at 1:05."."""
    return bool(new.focuses) and any(
        not language().back_references.isdisjoint(part) for part in new.focuses[-1].parts
    )


def _is_announced(old: Subject, announcing: Sequence[frozenset[str]] | None) -> bool:
    """Return whether one of the clauses is about the old value and nothing else of the old statement."""
    if not announcing:
        return announcing is None
    # If it has no value, its first word may be a name: "Paula brings …".
    named = old.value_words or set(list(old.words)[:1])
    others = old.words.keys() - named
    return any(not named.isdisjoint(part) and others.isdisjoint(part) for part in announcing)


def _has_other_predicate(new: str, old: str) -> bool:
    """Return whether two short sentences only differ in what follows the verb: "The log level is …"."""
    new_words, old_words = _normal_words(new), _normal_words(old)
    if new_words[:3] != old_words[:3]:
        return False
    same = [word for word, other in zip(new_words, old_words, strict=False) if word == other]
    length = len(same)
    if not 2 < length < min(len(new_words), len(old_words)) or new_words[:length] != old_words[:length]:
        return False
    rests = new_words[length:], old_words[length:]
    is_short = len(rests[1]) <= _MAX_REST_WORDS and (
        len(rests[0]) <= _MAX_REST_WORDS or language().update_cues.search(" ".join(rests[0])) is not None
    )
    names = [word for word in same[:-1] if word not in language().function_words]
    return is_short and (
        same[-1].endswith(":")
        or (same[-1] in _WISHED_VERBS and bool(names))
        or ((same[-1] in language().auxiliaries or same[-1] in _RELATING_WORDS) and len(names) > 1)
    )


@lru_cache(maxsize=_MAX_VECTORS)
def _normal_words(text: str) -> list[str]:
    return _normal(text).split(maxsplit=_MAX_PREDICATE_WORDS)


_MAX_PREDICATE_WORDS = 24
_MAX_REST_WORDS = 2
_WISHED_VERBS = frozenset(("be", "sein", "être", "essere"))
_RELATING_WORDS = frozenset(("by", "as", "called", "named"))


@lru_cache(maxsize=_MAX_VECTORS)
def _stems(value: str) -> frozenset[str]:
    return frozenset((*split_words(value), *map(find_stem, split_words(value))))


def _all_words(subject: Subject) -> frozenset[str]:
    """The stems of its words and of its values."""
    return frozenset(subject.words).union(*map(_stems, subject.all_values))


def is_repeated(old: Statement, new: Statement) -> bool:
    return _normal(old.text) == _normal(new.text)


@lru_cache(maxsize=_MAX_VECTORS)
def _normal(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".!")


def _cancels(new: Statement, old: Statement) -> bool:
    """Return whether `new` calls off `old`: all content words of what it calls off are in `old`."""
    if not new.cancelled or (old.label and old.kind is StatementKind.CONSTRAINT):
        return False
    words = _all_words(old.subject)
    return any(cancelled <= words for cancelled in new.cancelled)


def _update_degree(
    new: Subject,
    old: Subject,
    vocabulary: "_Vocabulary",
    *,
    has_cue: bool,
    has_same_label: bool,
    are_sentences: bool,
) -> float:
    for subject in (new, *new.focuses) if are_sentences else (new,):
        if degree := _compare(
            subject,
            old,
            vocabulary,
            has_cue=has_cue,
            has_same_label=has_same_label,
            are_sentences=are_sentences,
        ):
            # Another clause may say that it is about something else: "In Oslo we have a room, number 12."
            is_other = subject is not new and (are_in_same_slot(new, old) or have_other_qualifiers(new, old))
            return 0.0 if is_other else degree
    return 0.0


def _compare(
    new: Subject,
    old: Subject,
    vocabulary: "_Vocabulary",
    *,
    has_cue: bool,
    has_same_label: bool,
    are_sentences: bool,
) -> float:
    overlap = None
    if not has_cue:
        # Then synonyms do not count, so this decides most pairs at once.
        overlap = vocabulary.overlap(new, old)
        if overlap.contained < _SAME_WITH_LABEL and not (
            are_sentences and (_share_noun(new, old) or _share_head(new, old, overlap))
        ):
            return 0.0
    changed = {
        value_type
        for value_type in new.values.keys() & old.values.keys()
        if all(changed_values(value_type, new, old))
    }
    if not changed and not old.values and has_cue and _takes_over(new, old):
        return _EXACT
    if not changed and new.is_correction and _corrects(new, old):
        return _LIKELY_WITH_CUE
    if new.is_negated != old.is_negated and new.words.keys() == old.words.keys() and new.values == old.values:
        return _EXACT  # "Invite Laura." "Don't invite Laura."
    if not changed:
        is_other = has_cue and (_has_other_words(new, old, vocabulary) or _describes_anew(new, old))
        return _EXACT if is_other else 0.0
    if are_in_same_slot(new, old, vocabulary.similarity) or have_other_qualifiers(new, old):
        return 0.0
    overlap = overlap or vocabulary.overlap(new, old)
    if has_cue and overlap.contained < _SAME_WITH_CUE:
        overlap = vocabulary.overlap(new, old, with_synonyms=True)
    if overlap.contained < _LIKELY_WITH_CUE or have_other_topics(new, old, vocabulary.similarity):
        return 0.0
    is_order = old.is_negated or not _refers_back(new)
    if new.is_negated != old.is_negated and is_order and overlap.common < _SAME_WORDING:
        return 0.0  # "Never open port 22." "The port is 8090 now."
    if has_cue:
        if _share_only_units(new, old):
            return 0.0  # "Set the timeout to 30 seconds." "Set the retry delay to 5 seconds."
        # Synonyms alone may fit several statements: "Make that 171 degrees for baking", "The cake needs 133 g".
        is_certain = overlap.contained >= _SAME_WITH_CUE and not new.words.keys().isdisjoint(old.words)
        unnamed = _count_unnamed(new, old)
        return _CERTAIN + overlap.shared - unnamed if is_certain else overlap.contained - unnamed / 100
    if changed == {ValueType.NUMBER} and not _has_same_units(new, old):
        return 0.0  # "Safe number 4 …" "Keep them for 400 days."
    if changed == {ValueType.CODE} and not _have_same_signs(new, old):
        return 0.0  # "It reads from mongo-c." "svc_dash is read-only."
    is_unique = new.is_unique and old.is_unique
    is_other_name = have_other_heads(new, old) or (new.leading_names and old.leading_names)
    if changed == {ValueType.NAME} and is_other_name and not is_unique:
        return 0.0  # "Ana is a vegetarian." "Ben is a vegetarian."
    if (new.is_negated and old.is_negated and not is_unique) or (new.is_step and old.is_step):
        return 0.0  # "Never touch table 3." "Never touch table 4."
    if has_other_qualifier(new, old) or (new.condition and new.condition not in old.words):
        return 0.0  # "Rear tyres need 2.8 bar." "With the trailer the rear tyres need 3.1 bar."
    if any(relation in language().prepositions and name not in old.words for relation, name in new.qualifiers):
        return 0.0  # "Lunch is at 12:30." "Lunch for the kids is at 11:45."
    if has_same_label:
        return _EXACT
    # "The room costs 120." "Breakfast in the room costs 15.": the first word tells what it is about.
    is_same = overlap.common >= _SAME_WORDING or overlap.contained >= _CONTAINED
    has_same_head = not new.heads.isdisjoint(old.words)
    first = next(iter(new.words), "")
    if (is_same and has_same_head) or (are_sentences and first == next(iter(old.words), None)):
        return _EXACT
    # "Spend at most 400 euros on the rental car." "Let's cap the rental car at 350 euros."
    shared = new.words.keys() & old.words.keys()
    is_within = any(name in shared for subject in (new, old) for _, name in subject.qualifiers)
    has_same_noun = any(not left and stem in shared and right in shared for left, stem, right in new.slots)
    if (has_same_noun and not is_within) or (are_sentences and _share_noun(new, old)):
        return _EXACT
    is_likely = are_sentences and _share_head(new, old, overlap) and _has_same_types(new, old)
    return _LIKELY_WITHOUT_CUE * overlap.contained if is_likely else 0.0


def _share_only_units(new: Subject, old: Subject) -> bool:
    shared = new.words.keys() & old.words.keys()
    units = language().dimensions
    return bool(shared) and all(new.words[stem] in units for stem in shared) and not new.is_elliptical


def _share_head(new: Subject, old: Subject, overlap: "_Overlap") -> bool:
    """Return whether half of the words are the same, and what the new statement is about is one of them."""
    return overlap.contained >= _SAME_WITH_CUE and not new.heads.isdisjoint(old.words)


def _has_same_types(new: Subject, old: Subject) -> bool:
    """Return whether all values of the new statement are of types that the old one has, with the same units."""
    return new.values.keys() <= old.values.keys() and _has_same_units(new, old)


def _have_same_signs(new: Subject, old: Subject) -> bool:
    signs, others = (
        {frozenset(find_signs(value)) for value in subject.values[ValueType.CODE]} for subject in (new, old)
    )
    return not signs.isdisjoint(others)


def _has_same_units(new: Subject, old: Subject) -> bool:
    units, others = (
        {subject.units.get(value, "") for value in subject.values.get(ValueType.NUMBER, ())}
        for subject in (new, old)
    )
    return units <= others


def _count_unnamed(new: Subject, old: Subject) -> int:
    """How many owners of the old the new does not name: "Jo's locker …", "I have number 85 now."."""
    return sum(relation == POSSESSIVE and name not in new.words for relation, name in old.qualifiers)


def _share_noun(new: Subject, old: Subject) -> bool:
    """Return whether one is about what the other does something to, and the new one about nothing else.

    "The hedge should be 120 cm high." "Trim the hedge to 100 cm." People word different things alike, as in
    "We fetch the keys at 16:00." and "We return the keys at 10:00.", and updates in other words.
    """
    if len(new.phrases) != 1 or new.values.keys() != old.values.keys():
        return False
    (phrase,) = new.phrases
    shared = [other for other in old.phrases if _is_same_phrase(phrase, other)]
    return (
        len(shared) == 1
        and (phrase == new.topic) != (shared[0] == old.topic)
        and all(len(values) == 1 for subject in (new, old) for values in subject.values.values())
    )


def _is_same_phrase(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return whether two noun phrases are the same, perhaps with a verb after one of them."""
    short, long = (one, other) if len(one) < len(other) else (other, one)
    return long[: len(short)] == short and len(long) - len(short) < 2


def _corrects(new: Subject, old: Subject) -> bool:
    """Return whether a correction is about the same noun: "Plant the roses …", "The roses go … instead."."""
    return (
        not (new.has_hard_value or old.has_hard_value)
        and any(_is_same_phrase(one, other) for one in new.phrases for other in old.phrases)
        and not new.heads.isdisjoint(old.words)
        and not (are_in_same_slot(new, old) or have_other_qualifiers(new, old))
    )


def _takes_over(new: Subject, old: Subject) -> bool:
    """Return whether a name replaces the first word: "Paula brings it." "Paula is ill, Igor brings it."."""
    first, *rest = old.words or ("",)
    *earlier, last = new.parts
    return (
        ValueType.NAME in new.values
        and bool(rest)
        and any(first in part for part in earlier)
        and first not in last
        and last.issuperset(rest)
    )


def _describes_anew(new: Subject, old: Subject) -> bool:
    """Return whether both say in few words what the same thing is: "The hedge is privet.", "… is yew now."."""
    rests = [subject.words.keys() - new.topic for subject in (new, old)]
    return (
        new.topic == old.topic != ()
        and any(right in language().copulas for _, _, right in old.slots)
        and not (new.has_hard_value or old.has_hard_value or new.is_negated or old.is_negated)
        and all(0 < len(rest) <= _MAX_DESCRIBING_WORDS for rest in rests)
        and rests[0].isdisjoint(rests[1])
        and not have_other_qualifiers(new, old)
    )


_MAX_DESCRIBING_WORDS = 3


def _has_other_words(new: Subject, old: Subject, vocabulary: "_Vocabulary") -> bool:
    """Return whether a statement with a cue says something else of the same thing, without another value."""
    # "No longer X but Y" names the old value; otherwise the wording must be the same.
    says_more = bool(new.all_values - old.all_values) or bool(new.words.keys() - old.words.keys())
    names_old_value = says_more and any(
        not _stems(value).isdisjoint(_all_words(old)) for value in new.all_values
    )
    if not names_old_value and (
        bool(old.values) != bool(new.values) or old.has_hard_value != new.has_hard_value
    ):
        return False
    if not names_old_value and old.has_hard_value and old.values.keys().isdisjoint(new.values):
        return False  # "There are 11 of us for dinner." "Dinner is now at 18:30."
    overlap = vocabulary.overlap(new, old, with_synonyms=True)
    return (overlap.contained if names_old_value else overlap.common) >= _SAME_WITHOUT_VALUES


@dataclass(frozen=True, slots=True)
class _Overlap:
    """`common`: share of all words that are the same; `contained`: of the shorter statement's words."""

    common: float
    contained: float
    shared: float
    """The weight of the words that are the same."""


_NO_OVERLAP = _Overlap(0.0, 0.0, 0.0)


class _Vocabulary:
    """The words of all statements, with how much each tells."""

    def __init__(self, weights: Mapping[str, float], similarity: WordSimilarity) -> None:
        self._weights = weights
        self.similarity = similarity
        self._totals: dict[int, tuple[Subject, float]] = {}
        """By the identity of a subject, which must live as long."""

    def overlap(self, new: Subject, old: Subject, *, with_synonyms: bool = False) -> _Overlap:
        shared = new.words.keys() & old.words.keys()
        same = sum([self._weights.get(stem, 1.0) for stem in shared])
        if with_synonyms:
            same += self._weigh_synonyms(new.words, old.words, shared)
        if not same:
            return _NO_OVERLAP
        new_total, old_total = self._total(new), self._total(old)
        return _Overlap(same / (new_total + old_total - same), same / min(new_total, old_total), same)

    def _weight(self, stem: str) -> float:
        return self._weights.get(stem, 1.0)

    def _total(self, subject: Subject) -> float:
        known = self._totals.get(id(subject))
        if known is None:
            known = self._totals[id(subject)] = subject, sum(map(self._weight, subject.words))
        return known[1]

    def _weigh_synonyms(self, new: Mapping[str, str], old: Mapping[str, str], shared: Set[str]) -> float:
        if len(shared) == min(len(new), len(old)):
            return 0.0
        same = 0.0
        matched = set(shared)
        rows = self.similarity(tuple(new.values()), tuple(old.values()))
        for stem, row in zip(new, rows, strict=True):
            if stem in shared or max(row, default=0.0) < SYNONYM_COSINE:
                continue
            others = ((cosine, other) for cosine, other in zip(row, old, strict=True) if other not in matched)
            cosine, best = max(others, default=(0.0, ""))
            if cosine >= SYNONYM_COSINE:
                same += min(self._weight(stem), self._weight(best))
                matched.add(best)
        return same


@cache
def word_similarity() -> WordSimilarity:
    """The cosines of word vectors, or 0 if the extra `search` is not installed."""
    try:
        import numpy as np

        from foveate.memory.search.embeddings import default_embedder

        embedder = default_embedder()
    except (ImportError, UnreadableInput):
        return no_similarity

    @lru_cache(maxsize=_MAX_VECTORS)
    def vector(word: str) -> "NDArray[np.float32]":
        row: NDArray[np.float32] = embedder.embed([word])[0]
        return row

    @lru_cache(maxsize=_MAX_MATRICES)
    def matrix(words: tuple[str, ...]) -> "NDArray[np.float32]":
        return np.array([vector(word) for word in words])

    def cosines(words: tuple[str, ...], others: tuple[str, ...]) -> Sequence[Sequence[float]]:
        if not words or not others:
            return no_similarity(words, others)
        rows: list[list[float]] = (matrix(words) @ matrix(others).T).tolist()
        return rows

    return cosines


def no_similarity(words: tuple[str, ...], others: tuple[str, ...]) -> Sequence[Sequence[float]]:
    """Only the same words are similar."""
    return [[0.0] * len(others)] * len(words)
