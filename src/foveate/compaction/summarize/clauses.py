"""Choose the clauses of statements that say most in little room.

People wrap a fact in a sentence: "We talked again, and it's 96 guests now, which is a relief." If not all
statements fit, only the clauses are carried that give a value or a name, that repeat what the other side said,
or that state a rule. What is carried already counts no more, so a value that both sides gave is carried once.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise

from foveate.compaction.facts.amendments import OMITTED
from foveate.compaction.facts.language import find_stem, language
from foveate.compaction.facts.prose import find_label, strip_label
from foveate.compaction.facts.rules import FactKind
from foveate.compaction.facts.sentences import find_phrase, is_question, normalize_letters
from foveate.compaction.facts.statements import (
    ASSISTANT_PREFIX,
    LINE_START,
    Statement,
    StatementKind,
    is_request,
    is_summary,
)
from foveate.compaction.facts.subjects import ValueType, split_words
from foveate.compaction.facts.texts import MODEL_ROLES, Speaker, message_texts
from foveate.compaction.facts.values import find_mentions
from foveate.model import Message

TokenCounter = Callable[[str], int]

# Where a sentence may be cut. A colon follows what the rest is about.
_CLAUSE_END = re.compile(
    r"[;.!?](?<!\bDr\.)(?<!\bMr\.)(?<!\bMrs\.)(?<!\bMs\.)(?<!\bProf\.)(?<!\bSt\.)(?<!\bNr\.)\s+|,\s+"
    r"|(?<!\s)\s++(?:[–—-]\s+|(?=(?:and|but|so|because|since|although|though|while|which|und|aber|weil|denn"
    r"|obwohl|et|mais|parce que|y|pero|porque|ma|perché|mas)\s))",
    re.IGNORECASE,
)
_EDGES = " ,;:–—-"
_MAX_CLAUSES = 12
# How many clauses in a row are tried together.
_MAX_RANGE = 5
_MAX_TEXTS = 20_000
_MAX_REPLY_CHARS = 2_000
_MAX_REPLIES = 2
_MAX_DISTANCE = 12
_MIN_TOKENS = 4

# How much each thing counts that a clause says, if the other side repeats it, and if not: what nobody repeats
# is mostly told by the way, if the other side repeats much. Fitted on conversations of everyday domains.
_CODE_WEIGHTS = 3.0, 2.0
_VALUE_WEIGHTS = {
    ValueType.DATE: (2.4, 1.5),
    ValueType.TIME: (2.7, 1.1),
    ValueType.CODE: _CODE_WEIGHTS,
    ValueType.PATH: _CODE_WEIGHTS,
    ValueType.ADDRESS: _CODE_WEIGHTS,
    ValueType.MONEY: (1.3, 0.5),
    ValueType.NUMBER: (2.0, 0.4),
    ValueType.NAME: (1.6, 0.1),
}
_WORD_WEIGHTS = 0.9, 0.06
_RULE_WEIGHTS = 1.4, 0.5
# The share of values that the other side repeats, from which on the lack of a repetition tells all that it can.
# Below it, rules and values in figures count as if they were repeated, and other traits of a clause tell more.
_FULL_REPETITION = 0.2
_UPDATE_FACTOR, _HEDGE_FACTOR, _PRONOUN_FACTOR = 2.0, 0.6, 0.8
_LABEL_WEIGHT = 10.0
_SMALL_TALK_FACTOR = 0.5
# A value without a word of its own, and the same value with other words, perhaps of something else.
_ALONE_FACTOR, _ELSEWHERE_FACTOR = 0.1, 0.4
# What only the assistant says is perhaps a proposal.
_PROPOSAL_FACTOR = 0.7
# A reply first repeats what was said, in few words, and then proposes or explains something.
_REPEATING_FACTOR, _PROPOSING_FACTOR, _ANSWERING_FACTOR = 1.2, 0.6, 0.6
# Of what was said early, much is only the background.
_FIRST_FACTOR, _LAST_FACTOR = 0.6, 1.4
# A value is missing, which was replaced.
_GAP_FACTOR = 0.4
_QUOTED_FACTOR = 0.2
_LINE_COST = 3.0
_CHARS_PER_TOKEN = 4
# The same date, time or number may be that of something else; a code or a name is not.
_AMBIGUOUS = frozenset((ValueType.DATE, ValueType.TIME, ValueType.NUMBER, ValueType.MONEY))


@dataclass(frozen=True, slots=True)
class _Item:
    """A value or a word that a clause says; `near` are the words around a value with several meanings."""

    key: str
    weight: float
    near: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Clause:
    start: int
    end: int
    items: tuple[_Item, ...]


@dataclass(slots=True)
class _Condensed:
    """A statement of which some clauses are chosen."""

    statement: Statement
    clauses: tuple[_Clause, ...]
    chosen: set[int] = field(default_factory=set)

    def write(self, more: Iterable[int] = ()) -> str:
        numbers = sorted(self.chosen.union(more))
        runs: list[str] = []
        for before, number in zip((-2, *numbers), numbers, strict=False):
            clause = self.clauses[number]
            text = self.statement.text[clause.start : clause.end]
            if number == before + 1:
                runs[-1] += text
            else:
                runs.append(text)
        return ", ".join(filter(None, map(_trim, runs)))


class ClauseChooser:
    """Chooses clauses of statements; what was chosen once stays so."""

    def __init__(
        self, messages: Sequence[Message], statements: Sequence[Statement], count: TokenCounter
    ) -> None:
        self._count = count
        self._message_count = len(messages)
        self._sides = _Sides(messages)
        self._habit = min(self._sides.find_repetition(statements) / _FULL_REPETITION, 1.0)
        """How much it tells, from 0 to 1, that the other side does not repeat something."""
        self._said: dict[str, set[str]] = {}
        """What is carried, each with the words around it."""
        self._condensed = {_key(statement): self._condense(statement) for statement in statements}

    def cover(self, statements: Iterable[Statement]) -> None:
        """Note that statements are carried whole."""
        for statement in statements:
            if row := self._condensed.get(_key(statement)):
                self._choose(row, range(len(row.clauses)))

    def choose(self, statements: Sequence[Statement], limit_tokens: int) -> Iterator[tuple[Statement, str]]:
        """Yield statements with the clauses to carry, the most useful first; a statement may come again."""
        rows = [self._condensed[_key(statement)] for statement in statements]
        heap = [
            (-self._density(row, clauses), place, clauses.start, clauses.stop)
            for place, row in enumerate(rows)
            for clauses in _ranges(row)
        ]
        heapify(heap)
        while heap and limit_tokens >= _MIN_TOKENS:
            _, place, start, stop = heappop(heap)
            row, clauses = rows[place], range(start, stop)
            # What was chosen in the meantime may say the same.
            density = self._density(row, clauses)
            if not density:
                continue
            if heap and density < -heap[0][0]:
                heappush(heap, (-density, place, start, stop))
                continue
            cost = self._find_cost(row, clauses)
            if cost <= limit_tokens:
                limit_tokens -= cost
                self._choose(row, clauses)
                yield row.statement, row.write()

    def _choose(self, row: _Condensed, clauses: range) -> None:
        row.chosen.update(clauses)
        for number in clauses:
            for item in row.clauses[number].items:
                self._said.setdefault(item.key, set()).update(item.near)

    def _find_cost(self, row: _Condensed, clauses: range) -> int:
        prefix = ASSISTANT_PREFIX if row.statement.speaker is Speaker.MODEL else ""
        cost = self._count(f"{LINE_START}{prefix}{row.write(clauses)}")
        return cost - self._count(f"{LINE_START}{prefix}{row.write()}") if row.chosen else cost + 1

    def _density(self, row: _Condensed, clauses: range) -> float:
        """How much the clauses say that is not carried yet, per token; 0 if nothing."""
        items: dict[str, float] = {}
        cost = 1.0 if row.chosen else _LINE_COST
        for number in clauses:
            if number not in row.chosen:
                clause = row.clauses[number]
                cost += (clause.end - clause.start) / _CHARS_PER_TOKEN
                for item in clause.items:
                    items.setdefault(item.key, self._weigh(item))
        return sum(items.values()) / cost

    def _weigh(self, item: _Item) -> float:
        said = self._said.get(item.key)
        if said is None:
            return item.weight
        return item.weight * _ELSEWHERE_FACTOR if item.near and item.near.isdisjoint(said) else 0.0

    def _condense(self, statement: Statement) -> _Condensed:
        text = statement.text
        is_whole = statement.is_summary or statement.is_marked
        ranges = ((0, len(text)),) if is_whole else _clause_ranges(text)
        clauses = (_Clause(start, end, tuple(self._find_items(statement, start, end))) for start, end in ranges)
        return _Condensed(statement, tuple(clauses))

    def _importance(self, statement: Statement) -> float:
        if statement.is_summary:
            return 1.0
        share = statement.message_index / max(self._message_count, 1)
        importance = _FIRST_FACTOR + share * (_LAST_FACTOR - _FIRST_FACTOR)
        if statement.speaker is Speaker.MODEL:
            importance *= _PROPOSING_FACTOR if statement.start else _REPEATING_FACTOR
            importance *= _ANSWERING_FACTOR if self._sides.is_answer(statement.message_index) else 1.0
        return importance

    def _find_items(self, statement: Statement, start: int, end: int) -> Iterator[_Item]:
        """What a clause says, with how much that counts, given what the other side says."""
        text = statement.text[start:end]
        is_model = statement.speaker is Speaker.MODEL
        other = self._sides.other_side(statement)
        factor = self._importance(statement) * (_QUOTED_FACTOR if statement.is_quoted else 1.0)
        if OMITTED in text:
            factor *= _GAP_FACTOR
        common = factor * (_SMALL_TALK_FACTOR if statement.kind is StatementKind.OTHER else 1.0)
        if not is_model and self._habit < 1:
            common *= _find_trait_factor(normalize_letters(text)) ** (1 - self._habit)

        def weigh(weights: tuple[float, float], *, is_repeated: bool, is_exact: bool = False) -> float:
            repeated, unrepeated = weights
            if statement.is_summary or is_repeated:
                return repeated * common
            if is_model:
                return unrepeated * common * _PROPOSAL_FACTOR * self._habit
            rise = (repeated - unrepeated) * (1 - self._habit) if is_exact else 0.0
            return (unrepeated + rise) * common

        mentions = [
            mention for mention in find_mentions(statement.text).mentions if start <= mention.start < end
        ]
        values = {word for mention in mentions for word in split_words(mention.value)}
        words = dict.fromkeys(
            word
            for word in split_words(text.lower())
            if len(word) > 1 and word not in values and word not in language().function_words
        )
        value_factor = _ALONE_FACTOR if not words and len(mentions) == 1 else 1.0
        for mention in mentions:
            weights = _VALUE_WEIGHTS[mention.value_type]
            if mention.value_type is ValueType.NAME:
                names = mention.value.split()
                for name in names:
                    weight = weigh(weights, is_repeated=name in other.words) / len(names)
                    yield _Item(name, weight * value_factor)
            else:
                weight = weigh(
                    weights,
                    is_repeated=mention.normal in other.values,
                    is_exact=mention.value_type is not ValueType.NUMBER or mention.value[0].isdigit(),
                )
                near = mention.near if mention.value_type in _AMBIGUOUS else frozenset[str]()
                yield _Item(mention.normal, weight * value_factor, near)
        stems = dict.fromkeys(map(find_stem, words))
        for stem in stems:
            yield _Item(stem, weigh(_WORD_WEIGHTS, is_repeated=stem in other.words))
        if is_model:
            return
        place = f"{statement.message_index}:{statement.text_index}:{statement.start + start}"
        if statement.is_marked:
            yield _Item(f"label {place}", _LABEL_WEIGHT * factor)
        elif statement.kind is StatementKind.CONSTRAINT and find_phrase(
            FactKind.CONSTRAINT, normalize_letters(text)
        ):
            is_repeated = not other.words.isdisjoint(stems)
            yield _Item(f"rule {place}", weigh(_RULE_WEIGHTS, is_repeated=is_repeated, is_exact=True))


def _find_trait_factor(text: str) -> float:
    """How much more a clause counts if it announces a change, or less if it is a guess or a comment."""
    words = language()
    factor = _UPDATE_FACTOR if words.update_cues.search(text) else 1.0
    if words.hedges.search(text):
        factor *= _HEDGE_FACTOR
    first_word = _WORDS.search(_trim(text).lower())
    if first_word and first_word[0].partition("'")[0] in words.comment_subjects:
        factor *= _PRONOUN_FACTOR
    return factor


def _key(statement: Statement) -> tuple[int, int, int, str]:
    return statement.message_index, statement.text_index, statement.start, statement.text


def _ranges(row: _Condensed) -> Iterator[range]:
    count = len(row.clauses)
    for first in range(count):
        for last in range(first + 1, min(first + _MAX_RANGE, count) + 1):
            yield range(first, last)
    if count > _MAX_RANGE:
        yield range(count)


@lru_cache(maxsize=_MAX_TEXTS)
def _clause_ranges(text: str) -> tuple[tuple[int, int], ...]:
    label = len(text) - len(strip_label(text)) if find_label(text) else 0
    ends = [match.end() for match in _CLAUSE_END.finditer(text, label)][: _MAX_CLAUSES - 1]
    ranges: list[tuple[int, int]] = []
    for start, end in pairwise([0, *ends, len(text)]):
        before = ranges[-1] if ranges else None
        # Items of a list, and what only explains the words before it, belong to those.
        if before is not None and not (
            _stands_alone(text[start:end]) and _stands_alone(text[before[0] : before[1]])
        ):
            ranges[-1] = before[0], end
        elif start < end:
            ranges.append((start, end))
    return tuple(ranges)


def _stands_alone(part: str) -> bool:
    """Return whether a part of a text has a subject or a verb, or ends a sentence."""
    words = _WORDS.findall(part.lower())
    return any(
        word in language().clause_words
        or word.partition("'")[0] in language().clause_words
        or word.endswith("'s")
        for word in words
    )


_WORDS = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")


def _trim(text: str) -> str:
    """The text without words at its start that only connect it with what was said before."""
    text = text.strip().rstrip(_EDGES)
    if text.startswith("(") and ")" not in text:
        text = text[1:]
    while (match := language().fillers.match(text)) is not None:
        rest = text[match.end() :].lstrip(" ,;:–—-!.")
        if len(rest.split()) < 2:
            break
        text = rest
    return text


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

    def is_answer(self, index: int) -> bool:
        """Return whether a message follows a question of the other side."""
        return index > 0 and any(map(is_question, self._texts(index - 1)))

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


def find_asking_clause(sentence: str) -> str:
    clauses = (_trim(sentence[start:end]) for start, end in _clause_ranges(sentence))
    return next((clause for clause in clauses if is_request(clause) and _says_what(clause)), "")


def _says_what(clause: str) -> bool:
    """Return whether a request has words of its own: not "please, go ahead"."""
    words = set(split_words(clause.lower())) - language().function_words
    return len(words) >= _MIN_REQUEST_WORDS


_MIN_REQUEST_WORDS = 2
