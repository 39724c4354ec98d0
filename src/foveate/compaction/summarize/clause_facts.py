"""Tell what a clause says, and how probably that is a fact that somebody who goes on needs.

A clause gives values and names, and perhaps a fact in words: a rule, a wish, a task. The probabilities are
those of logistic regressions, whose weights in `clauses.toml` are fitted by `benchmarks/fit_clauses.py`.
"""

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log1p
from pathlib import Path

from foveate.compaction.facts.language import find_stem, language
from foveate.compaction.facts.rules import rules
from foveate.compaction.facts.sentences import normalize_letters
from foveate.compaction.facts.statements import Statement, is_summary
from foveate.compaction.facts.subjects import ValueType, split_words
from foveate.compaction.facts.texts import MODEL_ROLES, Speaker, message_texts
from foveate.compaction.facts.values import Mention, find_mentions
from foveate.compaction.summarize.clauses import Clause
from foveate.model import Message

_WEIGHTS_FILE = Path(__file__).with_name("clauses.toml")
_MAX_REPLY_CHARS = 2_000
_MAX_REPLIES = 2
_MAX_DISTANCE = 12
# The same date, time or number may be that of something else; a code or a name is not.
_AMBIGUOUS = frozenset((ValueType.DATE, ValueType.TIME, ValueType.NUMBER, ValueType.MONEY))
_CODE_TYPES = frozenset((ValueType.CODE, ValueType.PATH, ValueType.ADDRESS))

Features = Mapping[str, float]
ClauseWeights = Mapping[str, Features]
"""The weight of each feature, for values and for facts in words."""
VALUES, WORDS = "values", "words"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClauseFact:
    """A value that a clause gives, or what else it says.

    It is carried if all its `keys` are; `near` are the words around a value with several meanings. `start` and
    `end` are its place in the statement. `table` is that of its weights.
    """

    keys: tuple[str, ...]
    start: int
    end: int
    table: str
    features: Features
    near: frozenset[str] = frozenset()

    def probability(self, weights: ClauseWeights) -> float:
        table = weights[self.table]
        return 1 / (1 + exp(-sum(value * table.get(name, 0.0) for name, value in self.features.items())))


class ClauseReader:
    """Finds what the clauses of a conversation say, with its features."""

    def __init__(self, messages: Sequence[Message], statements: Sequence[Statement]) -> None:
        self._message_count = len(messages)
        self._sides = _Sides(messages)
        self._repetition = self._sides.find_repetition(statements)
        """How much of what people say the other side repeats."""
        self._places: dict[str, set[int]] = defaultdict(set)
        """The messages that contain a value or a stem."""
        for statement in statements:
            wording = find_mentions(statement.text)
            for key in (*wording.stems, *(mention.normal for mention in wording.mentions)):
                self._places[key].add(statement.message_index)

    def read(self, statement: Statement, clause: Clause) -> Iterator[ClauseFact]:
        mentions = [
            mention
            for mention in find_mentions(statement.text).mentions
            if clause.start <= mention.start < clause.end
        ]
        values = {word for mention in mentions for word in split_words(mention.value)}
        text = normalize_letters(statement.text[clause.start : clause.end]).lower()
        words = [word for word in dict.fromkeys(_content_words(text)) if len(word) > 1 and word not in values]
        features = self._describe(statement, clause, words)
        for group in _join_parts(statement.text, mentions):
            yield self._read_value(group, statement, clause, features)
        if statement.speaker is Speaker.USER and words:
            stems = set(map(find_stem, words))
            other = self._sides.other_side(statement)
            yield ClauseFact(
                keys=(f"{statement.message_index}:{statement.text_index}:{statement.start + clause.start}",),
                start=clause.start,
                end=clause.end,
                table=WORDS,
                features={
                    **features,
                    "repeated": len(stems & other.words) / len(stems),
                    "recurs": sum(len(self._places[stem]) > 1 for stem in stems) / len(stems),
                    f"is_{statement.kind.name.lower()}": 1.0,
                    "has_value": float(bool(mentions)),
                    "negated": float(not rules().negations.isdisjoint(text.split())),
                },
            )

    def _describe(self, statement: Statement, clause: Clause, words: Sequence[str]) -> dict[str, float]:
        """The features that all facts of a clause have in common."""
        text = normalize_letters(statement.text)
        plain = text[clause.start : clause.end]
        cues = language()
        share = statement.message_index / max(self._message_count, 1)
        return {
            "always": 1.0,
            "repetition": self._repetition,
            "position": 1.0 if statement.is_summary else share,
            "words": log1p(len(words)),
            "first_sentence": float(statement.start == 0 and not statement.is_summary),
            "update": float(cues.update_cues.search(plain) is not None),
            "hedge": float(cues.hedges.search(plain) is not None),
            "refused": float(
                any(cue.search(plain) for cue in (cues.refusals, cues.cancel_cues, cues.rejections))
            ),
            "exclaims": float(text.rstrip().endswith("!")),
        }

    def _read_value(
        self, mentions: Sequence[Mention], statement: Statement, clause: Clause, features: Features
    ) -> ClauseFact:
        first = mentions[0]
        value_type = first.value_type
        is_name = value_type is ValueType.NAME
        keys = tuple(first.value.split() if is_name else (first.normal,))
        other = self._sides.other_side(statement)
        is_repeated = statement.is_summary or not (other.words if is_name else other.values).isdisjoint(keys)
        keys += tuple(mention.normal for mention in mentions[1:])
        is_model = statement.speaker is Speaker.MODEL
        return ClauseFact(
            keys=keys,
            start=first.start,
            end=mentions[-1].end,
            table=VALUES,
            features={
                **features,
                f"is_{_name_type(mentions)}": 1.0,
                "full_name": float(is_name and len(keys) > 1),
                "leads": float(not _content_words(statement.text[clause.start : first.start].lower())),
                "repeated": float(is_repeated),
                "missing_repetition": 0.0 if is_repeated or is_model else self._repetition,
                "model": float(is_model),
                "model_new": float(is_model and not is_repeated),
                "times": log1p(max(len(self._places[key]) for key in keys)),
            },
            near=first.near if value_type in _AMBIGUOUS and len(mentions) == 1 else frozenset(),
        )


def _join_parts(text: str, mentions: Sequence[Mention]) -> Iterator[list[Mention]]:
    """Each mention alone, but the parts of one number or address together: "912 555 034", "Coolsingel 55"."""
    group: list[Mention] = []
    for mention in mentions:
        if group and not (
            mention.value_type in _PART_TYPES
            and mention.value[0].isdigit()
            and not mention.unit.isalpha()
            and text[group[-1].end : mention.start].isspace()
            and (group[-1].value_type is ValueType.NAME or group[-1].value[-1].isdigit())
            and group[-1].value_type in (ValueType.NAME, *_PART_TYPES)
        ):
            yield group
            group = []
        group.append(mention)
    if group:
        yield group


_PART_TYPES = frozenset((ValueType.NUMBER, ValueType.CODE))


def _name_type(mentions: Sequence[Mention]) -> str:
    """The type of a value in the names of features."""
    first = mentions[0]
    if len(mentions) > 1 or first.value_type in _CODE_TYPES:
        return ValueType.CODE.value
    is_word = first.value_type is ValueType.NUMBER and not first.value[0].isdigit()
    return "number_word" if is_word else first.value_type.value


def _content_words(text: str) -> list[str]:
    return [word for word in split_words(text) if word not in language().function_words]


@cache
def default_clause_weights() -> ClauseWeights:
    return tomllib.loads(_WEIGHTS_FILE.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class _Wording:
    words: frozenset[str]
    """And their stems."""
    values: frozenset[str]


class _Sides:
    """What each side says, so that what the other side repeats can be found."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._wordings: dict[int, _Wording] = {}
        self._is_model = [message.role in MODEL_ROLES for message in messages]
        self._others: dict[int, _Wording] = {}

    def other_side(self, statement: Statement) -> _Wording:
        """The words of the other side, just before and just after a statement."""
        index = statement.message_index
        known = self._others.get(index)
        if known is None:
            known = self._others[index] = self._find_others(index)
        return known

    def find_repetition(self, statements: Iterable[Statement]) -> float:
        """The share of the values in what people say that the other side repeats."""
        repeated = [
            mention.normal in self.other_side(statement).values
            for statement in statements
            if statement.speaker is Speaker.USER and not statement.is_summary
            for mention in find_mentions(statement.text).mentions
            if mention.value_type is not ValueType.NAME
        ]
        return sum(repeated) / (len(repeated) + 1)

    def _find_others(self, index: int) -> _Wording:
        found: list[_Wording] = []
        for step in (-1, 1):
            place = index + step
            taken = 0
            while 0 <= place < len(self._messages) and abs(place - index) <= _MAX_DISTANCE:
                is_other = self._is_model[place] != self._is_model[index]
                if is_other and self._texts(place):
                    found.append(self._wording(place))
                    taken += 1
                if taken == _MAX_REPLIES or (taken and not is_other):
                    break
                place += step
        return _Wording(
            frozenset[str]().union(*(wording.words for wording in found)),
            frozenset[str]().union(*(wording.values for wording in found)),
        )

    def _texts(self, index: int) -> list[str]:
        side = Speaker.MODEL if self._is_model[index] else Speaker.USER
        return [
            text[:_MAX_REPLY_CHARS]
            for speaker, text in message_texts(self._messages[index])
            if speaker is side and not is_summary(text)
        ]

    def _wording(self, index: int) -> _Wording:
        known = self._wordings.get(index)
        if known is None:
            texts = self._texts(index)
            words = [word for text in texts for word in split_words(text.lower())]
            stems = (*words, *map(find_stem, words))
            values = (mention.normal for text in texts for mention in find_mentions(text).mentions)
            known = self._wordings[index] = _Wording(frozenset(stems), frozenset(values))
        return known
