"""Decide which statements a later statement replaces, so that only the current one is carried.

A later statement replaces an earlier one about the same thing if it gives another value of the same type, and
the wording is much the same; or if a cue ("now", "instead", "no longer") announces a change, with looser
wording. It also replaces what it calls off. Statements that differ in a word of the same place are about
different things. Without word vectors (the extra `search`), only words with the same stem count as the same.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import log
from typing import TYPE_CHECKING

from foveate.compaction.facts.statements import Statement, StatementKind
from foveate.compaction.facts.subjects import (
    Subject,
    ValueType,
    are_in_same_slot,
    has_other_qualifier,
    have_other_attributes,
    have_other_qualifiers,
    split_words,
)
from foveate.compaction.facts.texts import Speaker
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
_SAME_WITHOUT_VALUES = 0.5
_CERTAIN = 2.0
# Cosine of the vectors of two words that mean nearly the same; names of siblings (north, south) are below.
_SYNONYM_COSINE = 0.37
_MAX_VECTORS = 20_000
_MAX_MATRICES = 1_000
_MAX_POSTINGS = 16
_MAX_CANDIDATES = 24
_SENTENCE_ENDS = (".", "!", "?", "。")

WordSimilarity = Callable[[tuple[str, ...], tuple[str, ...]], Sequence[Sequence[float]]]
"""The similarity of each of some words to each of others."""


def find_replacements(
    statements: Sequence[Statement], similarity: WordSimilarity | None = None
) -> dict[int, int]:
    """The numbers of replaced statements, each with the number of the statement that replaces it."""
    similarity = word_similarity() if similarity is None else similarity
    weights = _weights(statements)
    postings: dict[str, list[int]] = {}
    replaced: dict[int, int] = {}
    for number, statement in enumerate(statements):
        keys = _posting_keys(statement)
        before = statements[number - 1] if number and _is_same_text(statements[number - 1], statement) else None
        hits: Counter[int] = Counter()
        for key in keys:
            hits.update(earlier for earlier in postings.get(key, ()) if earlier not in replaced)
        best: tuple[float, int] | None = None
        replaces = False
        for earlier, _ in hits.most_common(_MAX_CANDIDATES):
            degree = _replaces(statement, statements[earlier], weights, similarity, before)
            if degree >= _CERTAIN:
                replaced[earlier] = number
                replaces = True
            elif degree and (best is None or (degree, earlier) > best):
                best = degree, earlier
        if best is not None and not replaces:
            replaced[best[1]] = number
        for key in keys:
            posting = postings.setdefault(key, [])
            posting.append(number)
            if len(posting) > _MAX_POSTINGS:
                del posting[0]
    return replaced


def _is_same_text(one: Statement, other: Statement) -> bool:
    place = other.message_index, other.text_index
    return not other.is_summary and (one.message_index, one.text_index) == place


def _posting_keys(statement: Statement) -> list[str]:
    subject = statement.subject
    return [*subject.words, *(f"<{value_type.value}>" for value_type in subject.values), *subject.all_values]


def _weights(statements: Sequence[Statement]) -> dict[str, float]:
    """Words in many statements tell less."""
    counts = Counter(stem for statement in statements for stem in statement.subject.words)
    return {stem: 1 / (1 + log(max(count - 1, 1))) for stem, count in counts.items()}


def _replaces(
    new: Statement,
    old: Statement,
    weights: Mapping[str, float],
    similarity: WordSimilarity,
    before: Statement | None = None,
) -> float:
    """Return 0 if `new` does not replace `old`, `_CERTAIN` if it does, and less if others may fit better.

    `before` is the sentence before `new` in the same text.
    """
    if new.is_summary and old.is_summary and new.message_index == old.message_index:
        return _CERTAIN * is_repeated(old, new)
    if is_repeated(old, new):
        return _CERTAIN
    if new.speaker is Speaker.MODEL and old.speaker is not Speaker.MODEL:
        return 0.0  # only people change what people said
    if _cancels(new, old):
        return _CERTAIN
    has_other_wish = (
        new.kind is old.kind is StatementKind.PREFERENCE
        and new.subject.has_cue
        and not new.subject.has_hard_value
        and have_other_attributes(new.subject, old.subject)
    )
    if has_other_wish:
        return _CERTAIN
    has_same_label = bool(new.label) and new.label == old.label
    subject = new.subject
    # Lines of output that people paste look alike, but have no end.
    are_sentences = new.text.endswith(_SENTENCE_ENDS) and old.text.endswith(_SENTENCE_ENDS)
    if not subject.has_cue:
        if subject.words.keys().isdisjoint(old.subject.words):
            return 0.0
        if are_sentences and before is not old and _is_announced(new, old, before):
            subject = replace(subject, has_cue=True)
    return _update_degree(
        subject,
        old.subject,
        weights,
        similarity,
        has_same_label=has_same_label,
        are_sentences=are_sentences,
    )


def _is_announced(new: Statement, old: Statement, before: Statement | None) -> bool:
    """Return whether a clause or the sentence before is about the old value, or has a cue and no value.

    "Paula is ill, so Igor brings the projector." "This is too long. Let the break take 10 minutes."
    """
    earlier = new.subject.parts[:-1]
    if before is not None and before.text.endswith(_SENTENCE_ENDS):
        if before.subject.has_cue and not before.subject.values:
            return True
        earlier += before.subject.parts
    named = _value_words(old.subject)
    others = old.subject.words.keys() - named
    return any(not named.isdisjoint(part) and others.isdisjoint(part) for part in earlier)


def _value_words(subject: Subject) -> set[str]:
    """The words of its values; if it has none, its first word, which may be a name: "Paula brings …"."""
    words = {word for value in subject.all_values for word in split_words(value)}
    return words or set(list(subject.words)[:1])


def is_repeated(old: Statement, new: Statement) -> bool:
    return _normal(old.text) == _normal(new.text)


@lru_cache(maxsize=_MAX_VECTORS)
def _normal(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".!")


def _cancels(new: Statement, old: Statement) -> bool:
    """Return whether `new` calls off `old`: all content words of what it calls off are in `old`."""
    if not new.cancelled or (old.label and old.kind is StatementKind.CONSTRAINT):
        return False
    return any(cancelled <= old.subject.words.keys() for cancelled in new.cancelled)


def _update_degree(
    new: Subject,
    old: Subject,
    weights: Mapping[str, float],
    similarity: WordSimilarity,
    *,
    has_same_label: bool,
    are_sentences: bool,
) -> float:
    overlap = None
    if not new.has_cue:
        # Then synonyms do not count, so this decides most pairs at once.
        overlap = _overlap(new, old, weights, similarity)
        if overlap.contained < _SAME_WITH_LABEL:
            return 0.0
    changed = {
        value_type
        for value_type in new.values.keys() & old.values.keys()
        if new.values[value_type] - old.values[value_type] and old.values[value_type] - new.values[value_type]
    }
    if not changed and not old.values and new.has_cue and _takes_over(new, old):
        return _CERTAIN
    if not changed:
        return _CERTAIN * (new.has_cue and _has_other_words(new, old, weights, similarity))
    if are_in_same_slot(new, old) or have_other_qualifiers(new, old):
        return 0.0
    overlap = overlap or _overlap(new, old, weights, similarity)
    if overlap.contained < _LIKELY_WITH_CUE or _have_other_topics(new, old, similarity):
        return 0.0
    if new.is_negated != old.is_negated and overlap.common < _SAME_WORDING:
        return 0.0  # "Never open port 22." "The port is 8090 now."
    if new.has_cue:
        # Synonyms alone may fit several statements: "Make that 171 degrees for baking", "The cake needs 133 g".
        is_certain = overlap.contained >= _SAME_WITH_CUE and not new.words.keys().isdisjoint(old.words)
        return _CERTAIN if is_certain else overlap.contained
    is_unique = new.is_unique and old.is_unique
    if changed == {ValueType.NAME} and new.leading_names and old.leading_names and not is_unique:
        return 0.0  # "Ana is a vegetarian." "Ben is a vegetarian."
    if (new.is_negated and old.is_negated and not is_unique) or (new.is_step and old.is_step):
        return 0.0  # "Never touch table 3." "Never touch table 4."
    if has_other_qualifier(new, old) or (new.condition and new.condition not in old.words):
        return 0.0  # "Rear tyres need 2.8 bar." "With the trailer the rear tyres need 3.1 bar."
    if has_same_label:
        return _CERTAIN
    # "The room costs 120." "Breakfast in the room costs 15.": the first word tells what it is about.
    is_same = overlap.common >= _SAME_WORDING or overlap.contained >= _CONTAINED
    first = next(iter(new.words), "")
    if (is_same and first in old.words) or (are_sentences and first == next(iter(old.words), None)):
        return _CERTAIN
    # "Spend at most 400 euros on the rental car." "Let's cap the rental car at 350 euros."
    shared = new.words.keys() & old.words.keys()
    is_within = any(name in shared for subject in (new, old) for _, name in subject.qualifiers)
    has_same_noun = any(not left and stem in shared and right in shared for left, stem, right in new.slots)
    return _CERTAIN * (has_same_noun and not is_within)


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


def _has_other_words(
    new: Subject, old: Subject, weights: Mapping[str, float], similarity: WordSimilarity
) -> bool:
    """Return whether a statement with a cue says something else of the same thing, without another value."""
    # "No longer X but Y" names the old value; otherwise the wording must be the same.
    says_more = bool(new.all_values - old.all_values) or bool(new.words.keys() - old.words.keys())
    names_old_value = bool(new.all_values & old.all_values) and says_more
    if not names_old_value and (
        bool(old.values) != bool(new.values) or old.has_hard_value != new.has_hard_value
    ):
        return False
    overlap = _overlap(new, old, weights, similarity)
    return (overlap.contained if names_old_value else overlap.common) >= _SAME_WITHOUT_VALUES


def _have_other_topics(new: Subject, old: Subject, similarity: WordSimilarity) -> bool:
    """Return whether neither statement mentions the other's topic: "The office is …", "The warehouse is …"."""

    def mentions(subject: Subject, topic: tuple[str, ...], words: Mapping[str, str]) -> bool:
        if any(stem in subject.words for stem in topic):
            return True
        rows = similarity(tuple(words.get(stem, stem) for stem in topic), tuple(subject.words.values()))
        return any(cosine >= _SYNONYM_COSINE for row in rows for cosine in row)

    return (
        bool(new.topic and old.topic)
        and not mentions(old, new.topic, new.words)
        and not mentions(new, old.topic, old.words)
    )


@dataclass(frozen=True, slots=True)
class _Overlap:
    """`common`: share of all words that are the same; `contained`: of the shorter statement's words."""

    common: float
    contained: float


def _overlap(new: Subject, old: Subject, weights: Mapping[str, float], similarity: WordSimilarity) -> _Overlap:
    shared = new.words.keys() & old.words.keys()
    weight = weights.__getitem__
    same = sum(map(weight, shared))
    if new.has_cue:
        matched = set(shared)
        rows = similarity(tuple(new.words.values()), tuple(old.words.values()))
        for stem, row in zip(new.words, rows, strict=True):
            if stem in shared or max(row, default=0.0) < _SYNONYM_COSINE:
                continue
            others = (
                (cosine, other) for cosine, other in zip(row, old.words, strict=True) if other not in matched
            )
            cosine, best = max(others, default=(0.0, ""))
            if cosine >= _SYNONYM_COSINE:
                same += min(weight(stem), weight(best))
                matched.add(best)
    new_weight, old_weight = sum(map(weight, new.words)), sum(map(weight, old.words))
    if not same:
        return _Overlap(0.0, 0.0)
    return _Overlap(same / (new_weight + old_weight - same), same / min(new_weight, old_weight))


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
