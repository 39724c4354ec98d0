"""What a page shows of sessions beside their totals, in reads that stay light however long a session is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import msgspec

from foveate.fold.journal import Outcome
from foveate.session.traces import CacheBreak, WindowSection
from foveate.store.aside import Reads
from foveate.store.database import Rows, in_groups
from foveate.store.ledger_rows import name_of
from foveate.store.traces import break_in

# What is long in a row is not read: only whether there is something.
_FIND_WINDOWS = """
SELECT id, at, tokens, window_tokens, fold_id, broke IS NOT NULL FROM traces_v1 WHERE session_id = ?
ORDER BY at DESC, id DESC LIMIT ?
"""
_FIND_TOLD = "SELECT id, told, broke FROM traces_v1 WHERE id IN ({})"
_COUNT = "SELECT count(*) FROM traces_v1 WHERE session_id = ?"
_COUNT_BEFORE = f"{_COUNT} AND (at, id) < (?, ?)"
_FIND_FOLDS = "SELECT session_id, outcome, cost FROM compactions_v1 WHERE session_id IN ({})"
# The first of those that a fold took in, one after the other: its turns begin with the conversation.
_FIND_FIRST = """
WITH RECURSIVE line(id, earlier_id) AS (
    SELECT id, earlier_id FROM compactions_v1 WHERE id = ?
    UNION SELECT earlier.id, earlier.earlier_id
    FROM compactions_v1 AS earlier JOIN line ON earlier.id = line.earlier_id
)
SELECT id FROM line WHERE earlier_id IS NULL
"""
_FIND_LATER = f"""
SELECT 1 FROM compactions_v1 WHERE earlier_id = ? AND outcome = '{Outcome.OK}' AND undone_at IS NULL LIMIT 1
"""
_FIND_SPAN = "SELECT count(*), min(position), max(position) FROM folded_turns_v1 WHERE compaction_id = ?"
# One that is far too long to be shown is not read as a whole either.
_MOST_BYTES, _SOME_BYTES = 256 * 1024, 8 * 1024
_FIND_TURNS = f"""
SELECT position, length(message),
CASE WHEN length(message) > {_MOST_BYTES} THEN substr(message, 1, {_SOME_BYTES}) ELSE message END
FROM folded_turns_v1 WHERE compaction_id = ? AND
"""
_FIND_ENDS = f"{_FIND_TURNS} (position < ? OR position > ?) ORDER BY position"
_FIND_BETWEEN = f"{_FIND_TURNS} position >= ? AND position < ? ORDER BY position"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAt:
    """How full a session's window was at a request; `is_broken` says that the cache broke there."""

    id: str
    at: float
    tokens: int | None
    window_tokens: int | None
    fold_id: str | None
    is_broken: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """What filled the window of a request, and why the cache broke there, if it did.

    `exact` says that the model's own tokenizer counted it; `reserved_tokens` are for the answer.
    """

    sections: Sequence[WindowSection]
    exact: bool = False
    reserved_tokens: int = 0
    broke: CacheBreak | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldCount:
    """How often a session was folded, undone or not, how often that failed, and what all of it cost.

    `dollars` are those of a known price.
    """

    made: int = 0
    failed: int = 0
    dollars: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedTurn:
    """A message that was folded, its `position` in the conversation, and how long it is.

    `message` is all of it, or its first bytes where it is far too long to be shown.
    """

    position: int
    size_bytes: int
    message: bytes

    @property
    def is_whole(self) -> bool:
        """Whether `message` is all of it."""
        return len(self.message) == self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedSpan:
    """Some of the messages that a fold was the first to fold, and how `many` there are.

    `first_id` is the first fold of those that it took in, one after the other, or itself; None where that was
    forgotten. One that `is_taken_in` is part of a later one that is in force.
    """

    many: int
    turns: Sequence[FoldedTurn]
    first_id: str | None
    is_taken_in: bool


class _Told(msgspec.Struct, array_like=True, frozen=True):
    """The beginning of what a trace tells; its edits, which are behind it, are passed over."""

    exact: bool
    reserved_tokens: int
    added_seconds: float
    sections: tuple[tuple[str, int], ...]


class Glances:
    """Looks at sessions in a database."""

    def __init__(self, database: Reads) -> None:
        self._database = database

    async def windows(self, session_id: str, *, limit: int) -> Sequence[WindowAt]:
        """How full the window was at the last requests of a session, in their order."""
        values = (name_of(session_id), limit)
        found = await self._database.read(lambda rows: rows.all(_FIND_WINDOWS, values))
        return [
            WindowAt(
                id=id_, at=at, tokens=tokens, window_tokens=window, fold_id=fold_id, is_broken=bool(broken)
            )
            for id_, at, tokens, window, fold_id, broken in reversed(found)
        ]

    async def fillings(self, request_ids: Sequence[str]) -> Mapping[str, Filling]:
        """What filled the windows of these requests, by their ids."""

        def find(rows: Rows) -> dict[str, Filling]:
            return {
                id_: _filling(told, broke)
                for marks, some in in_groups(request_ids)
                for id_, told, broke in rows.all(_FIND_TOLD.format(marks), some)
            }

        return await self._database.read(find) if request_ids else {}

    async def count_requests(self, session_id: str, *, before: tuple[float, str] | None = None) -> int:
        """How many requests of a session are kept, or those of them that came `before`: (at, id)."""
        statement, values = (_COUNT, ()) if before is None else (_COUNT_BEFORE, before)
        found = await self._database.read(lambda rows: rows.all(statement, (name_of(session_id), *values)))
        return int(found[0][0])

    async def count_folds(self, session_ids: Sequence[str]) -> Mapping[str, FoldCount]:
        """How often each of these sessions was folded, or was to be."""

        def find(rows: Rows) -> dict[str, FoldCount]:
            found: dict[str, list[tuple[str, str | None]]] = {}
            for marks, some in in_groups([name_of(id_) for id_ in session_ids]):
                for session_id, outcome, cost in rows.all(_FIND_FOLDS.format(marks), some):
                    found.setdefault(session_id, []).append((outcome, cost))
            return {session_id: _fold_count(folds) for session_id, folds in found.items()}

        return await self._database.read(find) if session_ids else {}

    async def ends(self, fold_ids: Sequence[str], *, each: int) -> Mapping[str, FoldedSpan]:
        """What each of these folds was the first to fold: so many messages at its beginning and at its end."""

        def find(rows: Rows) -> dict[str, FoldedSpan]:
            return {id_: _ends(rows, id_, each) for id_ in fold_ids}

        return await self._database.read(find) if fold_ids else {}

    async def folded(self, fold_id: str, *, skip: int, limit: int) -> FoldedSpan:
        """What a fold was the first to fold: `limit` messages, after `skip` of them."""

        def find(rows: Rows) -> FoldedSpan:
            many, first, _ = rows.all(_FIND_SPAN, (fold_id,))[0]
            start = (first or 0) + skip
            return _span(rows, fold_id, many, _turns(rows, _FIND_BETWEEN, (fold_id, start, start + limit)))

        return await self._database.read(find)


def _fold_count(folds: Sequence[tuple[str, str | None]]) -> FoldCount:
    outcomes = [outcome for outcome, _ in folds]
    return FoldCount(
        made=outcomes.count(Outcome.OK),
        failed=outcomes.count(Outcome.FAILED),
        dollars=sum((Decimal(cost) for _, cost in folds if cost is not None), Decimal(0)),
    )


def _ends(rows: Rows, fold_id: str, each: int) -> FoldedSpan:
    many, first, last = rows.all(_FIND_SPAN, (fold_id,))[0]
    turns = _turns(rows, _FIND_ENDS, (fold_id, first + each, last - each)) if many else []
    return _span(rows, fold_id, many, turns)


def _span(rows: Rows, fold_id: str, many: int, turns: Sequence[FoldedTurn]) -> FoldedSpan:
    first = rows.all(_FIND_FIRST, (fold_id,))
    is_taken_in = bool(rows.all(_FIND_LATER, (fold_id,)))
    return FoldedSpan(
        many=int(many), turns=turns, first_id=first[0][0] if first else None, is_taken_in=is_taken_in
    )


def _turns(rows: Rows, statement: str, values: tuple[str, int, int]) -> list[FoldedTurn]:
    return [
        FoldedTurn(position=position, size_bytes=size, message=bytes(message))
        for position, size, message in rows.all(statement, values)
    ]


def _filling(told: bytes, broke: bytes | None) -> Filling:
    said = msgspec.json.decode(told, type=_Told)
    return Filling(
        sections=[WindowSection(name, tokens) for name, tokens in said.sections],
        exact=said.exact,
        reserved_tokens=said.reserved_tokens,
        broke=None if broke is None else break_in(broke),
    )
