"""Find which value of an earlier statement a later one changes.

"The left bed is 2.4 m and the right one 1.8 m." "Only 2.1 m on the left." Each new value is compared with
earlier ones of the same type and unit that a person said. General features of a pair are weighed: how many
words around both values are the same, also in what the assistant says next to them; what announces a change or
says that the old one has ended; and how many others there are. The weights are fitted (`value_updates.toml`).
The likeliest old value is replaced, if it is likely enough. Without any sign of a change, its words must be the
same.
"""

import re
import tomllib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from heapq import nlargest
from math import log, log1p
from pathlib import Path

from foveate.compaction.facts.contrasts import have_other_heads, have_other_qualifiers, names_other_thing
from foveate.compaction.facts.language import language
from foveate.compaction.facts.statements import Statement
from foveate.compaction.facts.subjects import Subject, ValueType, find_subject, split_words
from foveate.compaction.facts.texts import Speaker
from foveate.compaction.facts.values import ORDINAL, Mention, find_mentions

_WEIGHTS_FILE = Path(__file__).with_name("value_updates.toml")
_MAX_TEXTS = 20_000
_MAX_POSTINGS = 8
_MAX_RECENT = 24
_MAX_COMPARED = 4
_MAX_WEIGHT = 2.5
_MAX_OVERLAP = 3.0
_MAX_LEAD = 2.0
_SHORT = 1
# Among so many values, it means much that there is only one of a kind.
_MANY_VALUES = 16


@dataclass(frozen=True, slots=True)
class ChangedValue:
    """The number of a statement, one of its values, and what replaces that."""

    number: int
    old: Mention
    new: Mention


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is said around a statement.

    `earlier` are the statements before it in the same message, the nearest first, and `replies` what the
    assistant says just before and after it.
    """

    earlier: Sequence[Statement]
    replies: Sequence[str]


@dataclass(frozen=True, slots=True)
class ValuePair:
    change: ChangedValue
    features: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _SaidValue:
    """A value that a person said, with the stems of its statement and of the one before."""

    number: int
    message_index: int
    mention: Mention
    stems: frozenset[str]
    before: frozenset[str]
    names: frozenset[str]
    """The words of the names in both."""


class ValueIndex:
    """The values that people said so far, by type and by the words around them.

    `are_different` compares what two statements are about.
    """

    def __init__(self, are_different: Callable[[Subject, Subject], bool]) -> None:
        self._are_different = are_different
        self._recent: dict[ValueType, deque[_SaidValue]] = {}
        self._postings: dict[str, deque[_SaidValue]] = {}
        self._statement_counts: Counter[str] = Counter()
        """In how many statements each stem is."""
        self._value_counts: Counter[str] = Counter()

    def add(
        self, number: int, statement: Statement, before: Statement | None, *, is_rest: bool = False
    ) -> None:
        """`before` is the statement before it in the same message; `is_rest`: it remains of an earlier one."""
        if statement.is_quoted or statement.speaker is not Speaker.USER:
            return
        wording = find_mentions(statement.text)
        stems_before = find_mentions(before.text).stems if before else frozenset[str]()
        names = _find_names(statement, before)
        for mention in wording.mentions:
            said = _SaidValue(number, statement.message_index, mention, wording.stems, stems_before, names)
            self._recent.setdefault(mention.value_type, deque(maxlen=_MAX_RECENT)).append(said)
            for stem in mention.near:
                self._postings.setdefault(stem, deque(maxlen=_MAX_POSTINGS)).append(said)
            self._value_counts[mention.normal] += 0 if is_rest else 1
        if not is_rest:
            self._statement_counts.update(wording.stems)

    def find_changes(
        self,
        statement: Statement,
        surroundings: Surroundings,
        known: Sequence[Statement],
        replaced: Mapping[int, int],
    ) -> Iterator[ChangedValue]:
        """The values of earlier statements that a statement changes."""
        weights, threshold = _load_weights()
        best: dict[int, tuple[float, int, ChangedValue]] = {}
        for pair in self.find_pairs(statement, surroundings, known, replaced):
            change = pair.change
            score = sum(weights.get(name, 0.0) * value for name, value in pair.features.items())
            if score > threshold and (score, change.number) > best.get(change.new.start, (threshold, -1))[:2]:
                best[change.new.start] = score, change.number, change
        for _, _, change in best.values():
            yield change

    def find_pairs(
        self,
        statement: Statement,
        surroundings: Surroundings,
        known: Sequence[Statement],
        replaced: Mapping[int, int],
    ) -> Iterator[ValuePair]:
        """The values of a statement, each with the earlier ones that it may change, and their features."""
        wording = find_mentions(statement.text)
        before = surroundings.earlier[0] if surroundings.earlier else None
        names = _find_names(statement, before)
        context = _Context(
            statement,
            wording.stems,
            find_mentions(before.text).stems if before else frozenset(),
            frozenset[str]().union(*(find_mentions(said.text).stems for said in surroundings.earlier[1:])),
            _find_endings([statement, *surroundings.earlier]),
        )
        for new in wording.mentions:
            repeated = [
                (mention, reply)
                for reply in surroundings.replies
                for mention in find_mentions(reply).mentions
                if mention.normal == new.normal
            ]
            near_reply = frozenset[str]().union(*(mention.near for mention, _ in repeated))
            candidates = [
                said
                for said in self._find_candidates(new, context.before | near_reply)
                if said.message_index < statement.message_index
                and said.number not in replaced
                and said.mention.normal != new.normal
                and is_same_kind(new, said.mention)
                and not _is_restated(said.mention, new, wording.mentions)
            ]
            if not candidates:
                continue
            own = _near_in_part(new)
            shared = {
                number: self._weigh_shared(new, said, context, near_reply)
                for number, said in enumerate(candidates)
            }
            ranks = {
                number: _rank(weights) + (said.mention.normal in context.endings)
                for (number, weights), said in zip(shared.items(), candidates, strict=True)
            }
            alike = {said.mention.normal for said in candidates if _has_same_form(new, said.mention)}
            of_new = {
                "always": 1.0,
                "cue": float(statement.subject.has_cue),
                "cue_before": float(before is not None and before.subject.has_cue),
                "cue_in_reply": float(
                    any(language().update_cues.search(reply) is not None for _, reply in repeated)
                ),
                "weak_cue": float(
                    any(
                        language().weak_cues.search(said.text)
                        for said in (statement, *surroundings.earlier[:1])
                    )
                ),
                "ended": float(context.endings is not None and any(context.endings.values())),
                "novel": sum(not self._statement_counts[stem] for stem in own) / max(len(own), 1),
                "known": float(self._value_counts[new.normal] > 0),
                "rivals": log1p(len(alike)),
                "pronoun": float(_starts_with_pronoun(new.part)),
                "short": float(len(new.near) <= _SHORT),
                "bare": float(not own),
                "several_new": float(sum(is_same_kind(other, new) for other in wording.mentions) > 1),
            }
            for number in nlargest(_MAX_COMPARED, ranks, key=lambda number: (ranks[number], number)):
                said = candidates[number]
                parts = _find_part_subject(new.part), _find_part_subject(said.mention.part)
                subjects = statement.subject, known[said.number].subject
                # "The bedroom window is 120 cm wide." "The bedroom door is new: 80 cm."
                if self._are_different(*parts) or (not own and have_other_heads(*subjects)):
                    continue
                # "Breakfast is at 07:30." "Dinner moved to 19:00."
                if own and not (ranks[number] or of_new["pronoun"]):
                    continue
                others = [
                    rank
                    for other, rank in ranks.items()
                    if candidates[other].mention.normal != said.mention.normal
                ]
                lead = ranks[number] - max(others) if others else 0.0
                features = {
                    **of_new,
                    **shared[number],
                    "lead": max(min(lead, _MAX_LEAD), -_MAX_LEAD),
                    "nothing_shared": float(not ranks[number]),
                    **_compare_names(names, said, new),
                    **self._compare(new, said, context, known[said.number], only=len(alike) == 1),
                }
                features["other_thing"] = float(_names_other_thing(features, new, said.mention, subjects))
                # Without any sign of a change, only the same words tell that it is the same thing.
                is_same = (features["contained"] or features["reply"]) and not features["other_thing"]
                if not is_same and not any(features[name] for name in _EVIDENCE):
                    continue
                yield ValuePair(ChangedValue(said.number, said.mention, new), _combine(features))

    def _find_candidates(self, new: Mention, stems: Iterable[str]) -> Iterable[_SaidValue]:
        types = (new.value_type, *(_NUMBER_TYPES if new.value_type is ValueType.NUMBER else ()))
        found = {id(said): said for value_type in types for said in self._recent.get(value_type, ())}
        for stem in (*new.near, *stems):
            found.update((id(said), said) for said in self._postings.get(stem, ()))
        return found.values()

    def _weigh(self, stems: frozenset[str]) -> float:
        if not stems:
            return 0.0
        counts = self._statement_counts
        return min(sum(1 / (1 + log(max(counts[stem], 1))) for stem in stems), _MAX_WEIGHT)

    def _weigh_shared(
        self, new: Mention, old: _SaidValue, context: "_Context", near_reply: frozenset[str]
    ) -> dict[str, float]:
        """The weight of the words that are around both, each counted where it is nearest."""
        near = old.mention.near
        shared = new.near & near
        return {
            "near": self._weigh(shared),
            "statement": self._weigh((context.stems & old.stems) - shared),
            "before": self._weigh((context.before & near) - shared),
            "before_statement": self._weigh((context.before & old.stems) - shared - near),
            "message": self._weigh((context.message - context.before) & (near | old.stems)),
            "before_old": self._weigh((new.near & old.before) - near),
            "reply": self._weigh((near_reply & near) - shared),
        }

    def _compare(
        self, new: Mention, said: _SaidValue, context: "_Context", statement: Statement, *, only: bool
    ) -> dict[str, float]:
        old = said.mention
        parts = _find_part_subject(new.part), _find_part_subject(old.part)
        subjects = context.statement.subject, statement.subject
        is_same_form = _has_same_form(new, old)
        mentions = find_mentions(statement.text).mentions
        return {
            f"is_{old.value_type.value}": 1.0,
            "same_form": float(is_same_form),
            "contained": float(bool(new.near) and new.near <= said.stems | said.before | old.near),
            "same_shape": float(_find_shape(new.value) == _find_shape(old.value)),
            "same_unit": float(bool(old.unit) and old.unit == new.unit),
            "unit_lost": float(bool(old.unit) and not new.unit),
            "unit_added": float(bool(new.unit) and not old.unit),
            "other_type": float(new.value_type is not old.value_type),
            "other_script": float(new.value[0].isdigit() != old.value[0].isdigit()),
            "only": float(only and is_same_form) * min(len(self._value_counts) / _MANY_VALUES, 1.0),
            "ratio": _find_ratio(new, old),
            "named": float(old.normal in context.endings or _is_named(old, new, context.endings)),
            "named_ended": float(context.is_ended(old, new)),
            "times_said": log(max(self._value_counts[old.normal], 1)),
            "distance": log1p(context.statement.message_index - said.message_index),
            "several_old": float(sum(is_same_kind(other, old) for other in mentions) > 1),
            "negated_old": float(parts[1].is_negated),
            "different": float(self._are_different(*subjects)),
            "other_qualifier": float(have_other_qualifiers(*parts) or have_other_qualifiers(*subjects)),
        }


@dataclass(frozen=True, slots=True)
class _Context:
    """A statement, the stems of it, of the one before and of others in its message."""

    statement: Statement
    stems: frozenset[str]
    before: frozenset[str]
    message: frozenset[str]
    endings: Mapping[str, bool]
    """The words and values in the message, and whether their sentence says that something ended."""

    def is_ended(self, old: Mention, new: Mention) -> bool:
        return self.endings.get(old.normal, False) or any(
            self.endings[word] for word in _shared_words(old, new, self.endings)
        )


def _names_other_thing(
    features: Mapping[str, float], new: Mention, old: Mention, subjects: tuple[Subject, Subject]
) -> bool:
    """Return whether a value is of something else, unless something announces a change."""
    if any(features[name] for name in _CHANGES):
        return False
    parts = _find_part_subject(new.part), _find_part_subject(old.part)
    return names_other_thing(*parts) or names_other_thing(*subjects)


def _find_names(statement: Statement, before: Statement | None) -> frozenset[str]:
    """The words of the names in a statement and the one before."""
    names = _name_words(statement.text)
    return names | _name_words(before.text) if before else names


@lru_cache(maxsize=_MAX_TEXTS)
def _name_words(text: str) -> frozenset[str]:
    names = (mention for mention in find_mentions(text).mentions if mention.value_type is ValueType.NAME)
    return frozenset(word for mention in names for word in split_words(mention.value))


def _compare_names(names: frozenset[str], said: _SaidValue, new: Mention) -> dict[str, float]:
    """Whether the same names are around both values, or only others."""
    values = {*split_words(said.mention.value), *split_words(new.value)}
    own, old = names - values, said.names - values
    is_same = not own.isdisjoint(old)
    return {"same_name": float(is_same), "other_names": float(bool(own) and bool(old) and not is_same)}


def _is_restated(old: Mention, new: Mention, mentions: Sequence[Mention]) -> bool:
    """Return whether an old value is given next to a new one: "still from 1:00 to 3:00"."""
    return any(mention.normal == old.normal and mention.part == new.part for mention in mentions)


def _find_endings(statements: Sequence[Statement]) -> dict[str, bool]:
    endings: dict[str, bool] = {}
    for statement in statements:
        is_end = language().end_cues.search(statement.text) is not None
        words = split_words(statement.text.lower())
        values = (mention.normal for mention in find_mentions(statement.text).mentions)
        for word in (*words, *values):
            endings[word] = endings.get(word, False) or is_end
    return endings


def _shared_words(old: Mention, new: Mention, words: Mapping[str, bool]) -> Iterator[str]:
    """The words of an old name that are in the message, and not in the new name."""
    if old.value_type is ValueType.NAME:
        own = split_words(new.value)
        yield from (word for word in split_words(old.value) if word in words and word not in own)


def _is_named(old: Mention, new: Mention, words: Mapping[str, bool]) -> bool:
    return next(_shared_words(old, new, words), None) is not None


def _rank(shared: Mapping[str, float]) -> float:
    """A first guess at how well two values fit, to choose those that are compared."""
    return sum(_FIRST_GUESS[name] * weight for name, weight in shared.items())


_FIRST_GUESS = {
    "near": 1.0,
    "statement": 0.5,
    "before": 0.5,
    "reply": 0.5,
    "before_statement": 0.3,
    "before_old": 0.3,
    "message": 0.2,
}


def _combine(features: Mapping[str, float]) -> dict[str, float]:
    """The features, and products of those that mean more together."""
    overlap = min(sum(features[name] for name in _OVERLAPS), _MAX_OVERLAP)
    change = max(features["cue"], features["cue_before"], features["cue_in_reply"])
    unchanged = float(not any(features[name] for name in _EVIDENCE))
    return {
        **features,
        "overlap": overlap,
        "change": change,
        "overlap_and_change": overlap * change,
        "overlap_and_end": overlap * features["ended"],
        "before_and_pronoun": features["before"] * features["pronoun"],
        "near_and_pronoun": features["near"] * features["pronoun"],
        "same_name_and_change": features["same_name"] * change,
        "overlap_and_shape": overlap * features["same_shape"],
        "bare_and_change": features["bare"] * change,
        "only_and_change": features["only"] * change,
        "different_and_change": features["different"] * change,
        "different_unchanged": features["different"] * unchanged,
        "other_thing_overlap": features["other_thing"] * overlap,
        "unchanged": unchanged,
        "unchanged_contained": unchanged * features["contained"],
        "unchanged_overlap": unchanged * overlap,
    }


# What tells that something changed.
_CHANGES = "cue", "cue_before", "cue_in_reply", "named"
_EVIDENCE = *_CHANGES, "weak_cue", "ended"
_OVERLAPS = "near", "statement", "before", "before_statement", "reply"


@cache
def _load_weights() -> tuple[Mapping[str, float], float]:
    table = tomllib.loads(_WEIGHTS_FILE.read_text(encoding="utf-8"))
    return table["weights"], table["threshold"]


@lru_cache(maxsize=_MAX_TEXTS)
def _find_shape(value: str) -> str:
    """Values that are written alike have the same: "db-a-4", "db-b-7"; "Monday", "Friday"."""
    words = language()
    if value in words.weekdays or value.removesuffix("s") in words.weekdays:
        return "weekday"
    if value in words.frequencies:
        return "frequency"
    return _LETTERS.sub("a", _FIGURES.sub("0", value))


_FIGURES, _LETTERS = re.compile(r"\d+"), re.compile(r"[^\W\d_]+")


def _find_ratio(new: Mention, old: Mention) -> float:
    """The logarithm of how many times one amount is the other; 0 for all other values."""
    if not all(mention.value_type in (ValueType.NUMBER, ValueType.MONEY) for mention in (new, old)):
        return 0.0
    amounts = [_read_amount(mention.value) for mention in (new, old)]
    return min(abs(log(amounts[0] / amounts[1])), _MAX_RATIO) if all(amounts) else 0.0


_MAX_RATIO = 3.0
_AMOUNT = re.compile(r"\d{1,12}(?:\.\d{1,6})?")


@lru_cache(maxsize=_MAX_TEXTS)
def _read_amount(value: str) -> float:
    match = _AMOUNT.search(value.replace(",", ""))
    return float(match[0]) if match else 0.0


# A number alone may be one of these.
_NUMBER_TYPES = ValueType.TIME, ValueType.MONEY, ValueType.DATE


def _starts_with_pronoun(part: str) -> bool:
    """Return whether a part of a sentence does not name what it is about: "we're landing on 21 May"."""
    return not language().pronouns.isdisjoint(split_words(part.lower())[:2])  # "so we …"


def _near_in_part(mention: Mention) -> frozenset[str]:
    """The stems around a value in its own part of the sentence, without those of the parts before."""
    alone = (other for other in find_mentions(mention.part).mentions if other.value == mention.value)
    return next((other.near for other in alone), mention.near)


def is_same_kind(new: Mention, old: Mention) -> bool:
    if not _are_comparable(new, old):
        return False
    if new.value_type in (ValueType.CODE, ValueType.PATH):
        return new.value_type is old.value_type and find_signs(new.value) == find_signs(old.value)
    if new.value_type is old.value_type:
        return not (new.unit and old.unit) or new.dimension == old.dimension
    if new.value_type is not ValueType.NUMBER or new.unit:
        return False
    if ORDINAL.fullmatch(new.value):
        return old.value_type is ValueType.DATE  # "on the 8th"
    return old.value_type in (ValueType.TIME, ValueType.MONEY)


def _are_comparable(new: Mention, old: Mention) -> bool:
    """Return whether two amounts are of about the same size: few change by a factor of ten."""
    if not (_has_amount(new) and _has_amount(old)):
        return True
    amounts = [amount for mention in (new, old) if (amount := _find_amount(mention.value)) is not None]
    count_other = new.unit and old.unit and new.unit != old.unit
    return bool(count_other) or len(amounts) < len((new, old)) or max(amounts) <= _MAX_FACTOR * min(amounts)


_MAX_FACTOR = 5
_PLAIN_AMOUNT = re.compile(r"[$€£¥]?([1-9]\d{0,2}(?:,\d{3})+|[1-9]\d{0,8})(k)?")


def _has_amount(mention: Mention) -> bool:
    return bool(mention.unit) or mention.value_type is ValueType.MONEY


@lru_cache(maxsize=_MAX_TEXTS)
def _find_amount(value: str) -> int | None:
    match = _PLAIN_AMOUNT.fullmatch(value)
    return int(match[1].replace(",", "")) * (1000 if match[2] else 1) if match else None


def _has_same_form(new: Mention, old: Mention) -> bool:
    """Return whether two values look alike: "18:40" and "17:10", "4.12" and "4.15", but not any two numbers."""
    if not is_same_kind(new, old) or new.unit != old.unit or new.value_type is ValueType.NAME:
        return False
    signs = find_signs(new.value)
    return bool(new.unit) or new.value_type is not ValueType.NUMBER or signs == find_signs(old.value) != set()


def find_signs(value: str) -> set[str]:
    """The punctuation of a code or path: those of the same kind have the same."""
    return {char for char in value if not char.isalnum()}


@lru_cache(maxsize=_MAX_TEXTS)
def _find_part_subject(part: str) -> Subject:
    return find_subject(part)


def find_other_changes(
    number: int, old: Statement, new: Statement, changes: Sequence[ChangedValue]
) -> list[ChangedValue]:
    """Other values of a statement of which one changes: "The dentist called, Thursday at 3 now."."""
    olds, news = find_mentions(old.text).mentions, find_mentions(new.text).mentions
    same = {mention.value for mention in olds} & {mention.value for mention in news}
    changed = same.union(*((change.old.value, change.new.value) for change in changes))
    found: list[ChangedValue] = []
    for mention in news:
        pairs = [
            (other, candidate)
            for other in news
            for candidate in olds
            if is_same_kind(mention, other) and is_same_kind(other, candidate)
        ]
        if (
            len(pairs) == 1
            and mention.value_type in (ValueType.DATE, ValueType.TIME)
            and len(_near_in_part(mention) - find_mentions(old.text).stems) <= 1
            and changed.isdisjoint((mention.value, pairs[0][1].value))
        ):
            found.append(ChangedValue(number, pairs[0][1], mention))
    return found
