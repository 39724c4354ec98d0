"""Tell whether two sentences are about different things: "the staging port", "the production port"."""

from collections.abc import Callable, Mapping, Sequence

from foveate.compaction.facts.language import language
from foveate.compaction.facts.subjects import Subject

WordSimilarity = Callable[[tuple[str, ...], tuple[str, ...]], Sequence[Sequence[float]]]
"""The similarity of each of some words to each of others."""

# Cosine of the vectors of two words that mean the same; days of the week are below.
_SAME_MEANING = 0.5
# Cosine of the vectors of two words that mean nearly the same; names of siblings (north, south) are below.
SYNONYM_COSINE = 0.37
_DIRECTIONS = (("from", "to"), ("von", "nach"), ("aus", "nach"), ("da", "per"))


def are_in_same_slot(one: Subject, other: Subject, similarity: WordSimilarity | None = None) -> bool:
    """Return whether a word of one stands where the other has another word, as in "the staging port".

    With `similarity`, words that mean the same do not count: "The course begins at …", "… starts at …".
    """
    # All auxiliaries are the same: "Server alpha has …", "Server beta was …".
    verbs = language().auxiliaries
    own = {(left, right in verbs or right): stem for left, stem, right in one.slots if stem not in other.words}
    pairs = (
        (own.get((left, right in verbs or right), stem), stem)
        for left, stem, right in other.slots
        if stem not in one.words
    )
    return any(
        word != stem
        and (similarity is None or not _mean_same(one.words.get(word), other.words.get(stem), similarity))
        for word, stem in pairs
    )


def _mean_same(word: str | None, other: str | None, similarity: WordSimilarity) -> bool:
    return word is not None and other is not None and similarity((word,), (other,))[0][0] >= _SAME_MEANING


def has_other_qualifier(one: Subject, other: Subject) -> bool:
    """Return whether one has a word before a common word that the other does not have: "(backup) region"."""
    return any(
        not left and stem not in two.words and right in two.words and not right.isdigit()
        for first, two in ((one, other), (other, one))
        for left, stem, right in first.slots
    )


def have_other_heads(one: Subject, other: Subject) -> bool:
    """Return whether different words follow a common word: "the bedroom door", "the bedroom window"."""
    shared = one.words.keys() & other.words.keys()
    followers = {stem for left, stem, right in one.slots if not left and right not in other.words} & shared
    return any(not left and stem in followers and right not in one.words for left, stem, right in other.slots)


def have_other_qualifiers(one: Subject, other: Subject) -> bool:
    """Return whether the same relation names different things: "in Lisbon", "in Porto"; "Ana's", "Ben's"."""
    if not (one.qualifiers and other.qualifiers):
        return False
    related: dict[str, set[str]] = {}
    for relation, name in one.qualifiers:
        related.setdefault(relation, set()).add(name)
    others: dict[str, set[str]] = {}
    for relation, name in other.qualifiers:
        others.setdefault(relation, set()).add(name)
    if any(related[relation].isdisjoint(others[relation]) for relation in related.keys() & others.keys()):
        return True
    # "The flight to Lisbon …", "The flight back from Lisbon …"
    return any(
        not related.get(origin, set()).isdisjoint(others.get(target, ()))
        or not related.get(target, set()).isdisjoint(others.get(origin, ()))
        for origin, target in _DIRECTIONS
    )


def have_other_attributes(one: Subject, other: Subject) -> bool:
    """Return whether both have different words before a common word: "terse answers", "warm answers"."""
    heads = {right for left, stem, right in one.slots if not left and stem not in other.words}
    return any(not left and right in heads and stem not in one.words for left, stem, right in other.slots)


def have_other_topics(new: Subject, old: Subject, similarity: WordSimilarity) -> bool:
    """Return whether neither statement mentions the other's topic: "The office is …", "The warehouse is …"."""

    def mentions(subject: Subject, topic: tuple[str, ...], words: Mapping[str, str]) -> bool:
        if any(stem in subject.words for stem in topic):
            return True
        rows = similarity(tuple(words.get(stem, stem) for stem in topic), tuple(subject.words.values()))
        return any(cosine >= SYNONYM_COSINE for row in rows for cosine in row)

    return (
        bool(new.topic and old.topic)
        and not mentions(old, new.topic, new.words)
        and not mentions(new, old.topic, old.words)
    )


def are_different(one: Subject, other: Subject, similarity: WordSimilarity) -> bool:
    """Return whether a value of one statement cannot replace that of the other."""
    if one.is_negated or other.is_negated or (one.is_step and other.is_step):
        return True  # "Never touch table 3." "Never touch table 4."
    return (
        are_in_same_slot(one, other, similarity)
        or have_other_qualifiers(one, other)
        or have_other_topics(one, other, similarity)
    )


def names_other_thing(new: Subject, old: Subject) -> bool:
    """Return whether a statement without a cue says that it is about something else than an old one."""
    return (
        has_other_qualifier(new, old)
        or have_other_heads(new, old)
        # "Ana is a vegetarian." "Ben is a vegetarian."
        or bool(new.leading_names and old.leading_names and new.leading_names.isdisjoint(old.leading_names))
        # "Rear tyres need 2.8 bar." "With the trailer the rear tyres need 3.1 bar."
        or bool(new.condition and new.condition not in old.words)
        # "Lunch is at 12:30." "Lunch for the kids is at 11:45.", "The slides for the lunch …"
        or any(
            relation in language().prepositions and (name not in old.words or name in old.topic)
            for relation, name in new.qualifiers - old.qualifiers
        )
    )
