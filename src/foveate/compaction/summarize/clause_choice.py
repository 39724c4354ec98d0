"""Choose the clauses of statements that say most in little room.

People wrap a fact in a sentence: "We talked again, and it's 96 guests now, which is a relief." If not all
statements fit, the clauses are carried that probably give the most facts per token. What is carried already
counts no more, so a value that both sides gave is carried once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from foveate.compaction.facts.statements import ASSISTANT_PREFIX, LINE_START, Statement
from foveate.compaction.facts.texts import Speaker
from foveate.compaction.summarize.clause_facts import (
    WORDS,
    ClauseFact,
    ClauseReader,
    ClauseWeights,
    default_clause_weights,
)
from foveate.compaction.summarize.clauses import Clause, split_clauses, trim_clause, whole_clause
from foveate.model import Message

TokenCounter = Callable[[str], int]

# How many clauses in a row are tried together.
_MAX_RANGE = 5
_MIN_TOKENS = 4
_LABEL_WEIGHT = 10.0
# The same value with other words is perhaps that of something else.
_ELSEWHERE_FACTOR = 0.4
# Pasted texts are not among the conversations that the weights are fitted on.
_QUOTED_FACTOR = 0.2
# Of the start and end of a line, of the prefix of the assistant, and of a comma.
_LINE_TOKENS, _PREFIX_TOKENS, _JOIN_TOKENS = 2, 2, 1


@dataclass(frozen=True, slots=True)
class _RatedClause:
    clause: Clause
    tokens: int
    facts: tuple[tuple[ClauseFact, float], ...]
    """What it says, each with the probability that it is needed."""


@dataclass(slots=True)
class _Condensed:
    """A statement of which some clauses are chosen."""

    statement: Statement
    clauses: tuple[_RatedClause, ...]
    chosen: set[int] = field(default_factory=set)

    def write(self, more: Iterable[int] = ()) -> str:
        numbers = sorted(self.chosen.union(more))
        runs: list[tuple[int, int]] = []
        for before, number in zip((-2, *numbers), numbers, strict=False):
            clause = self.clauses[number].clause
            start = runs.pop()[0] if number == before + 1 else clause.start
            runs.append((start, clause.end))
        return ", ".join(filter(None, (trim_clause(self.statement.text[start:end]) for start, end in runs)))


class ClauseChooser:
    """Chooses clauses of statements; what was chosen once stays so."""

    def __init__(
        self,
        messages: Sequence[Message],
        statements: Sequence[Statement],
        count: TokenCounter,
        weights: ClauseWeights | None = None,
    ) -> None:
        self._count = count
        self._reader = ClauseReader(messages, statements)
        self._weights = default_clause_weights() if weights is None else weights
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
        heap = [entry for place, row in enumerate(rows) for entry in self._rate(row, place)]
        heapify(heap)
        while heap and limit_tokens >= _MIN_TOKENS:
            _, place, clauses = heappop(heap)
            row = rows[place]
            # What was chosen in the meantime may say the same.
            density = self._density(row, clauses)
            if not density:
                continue
            if heap and density < -heap[0][0]:
                heappush(heap, (-density, place, clauses))
                continue
            cost = self._find_cost(row, clauses)
            if cost <= limit_tokens:
                limit_tokens -= cost
                self._choose(row, clauses)
                # The rest no longer costs a line of its own.
                for entry in self._rate(row, place):
                    heappush(heap, entry)
                yield row.statement, row.write()

    def _rate(self, row: _Condensed, place: int) -> Iterator[tuple[float, int, tuple[int, ...]]]:
        for clauses in _options(row):
            if density := self._density(row, clauses):
                yield -density, place, clauses

    def _choose(self, row: _Condensed, clauses: Iterable[int]) -> None:
        row.chosen.update(clauses)
        for number in clauses:
            for fact, _ in row.clauses[number].facts:
                for key in fact.keys:
                    self._said.setdefault(key, set()).update(fact.near)

    def _find_cost(self, row: _Condensed, clauses: Iterable[int]) -> int:
        prefix = ASSISTANT_PREFIX if row.statement.speaker is Speaker.MODEL else ""
        cost = self._count(f"{LINE_START}{prefix}{row.write(clauses)}")
        return cost - self._count(f"{LINE_START}{prefix}{row.write()}") if row.chosen else cost + 1

    def _density(self, row: _Condensed, clauses: Iterable[int]) -> float:
        """How many facts that are not carried yet the clauses probably give, per token; 0 if none."""
        found: dict[str, float] = {}
        prefix_tokens = _PREFIX_TOKENS if row.statement.speaker is Speaker.MODEL else 0
        tokens = _JOIN_TOKENS if row.chosen else _LINE_TOKENS + prefix_tokens
        for number in clauses:
            if number not in row.chosen:
                clause = row.clauses[number]
                tokens += clause.tokens
                for fact, probability in clause.facts:
                    for key in fact.keys:
                        found.setdefault(key, probability * self._novelty(key, fact.near) / len(fact.keys))
        return sum(found.values()) / tokens

    def _novelty(self, key: str, near: frozenset[str]) -> float:
        said = self._said.get(key)
        if said is None:
            return 1.0
        return _ELSEWHERE_FACTOR if near and near.isdisjoint(said) else 0.0

    def _condense(self, statement: Statement) -> _Condensed:
        is_whole = statement.is_summary or statement.is_marked
        clauses = (whole_clause(statement.text),) if is_whole else split_clauses(statement.text)
        return _Condensed(statement, tuple(self._rate_clause(statement, clause) for clause in clauses))

    def _rate_clause(self, statement: Statement, clause: Clause) -> _RatedClause:
        factor = _QUOTED_FACTOR if statement.is_quoted else 1.0
        facts = [
            (fact, fact.probability(self._weights) * factor) for fact in self._reader.read(statement, clause)
        ]
        if statement.is_marked:
            label = ClauseFact(keys=(f"label {_key(statement)}",), start=0, end=0, table=WORDS, features={})
            facts.append((label, _LABEL_WEIGHT))
        tokens = self._count(trim_clause(statement.text[clause.start : clause.end]))
        return _RatedClause(clause, tokens, tuple(facts))


def _key(statement: Statement) -> tuple[int, int, int, str]:
    return statement.message_index, statement.text_index, statement.start, statement.text


def _options(row: _Condensed) -> Iterator[tuple[int, ...]]:
    """Clauses in a row; one that depends on another comes with that."""
    clauses = row.clauses
    for first, rated in enumerate(clauses):
        head = rated.clause.head
        heads = () if head is None or head in row.chosen else (head,)
        for last in range(first + 1, min(first + _MAX_RANGE, len(clauses)) + 1):
            yield (*heads, *range(first, last))
    if len(clauses) > _MAX_RANGE:
        yield tuple(range(len(clauses)))
