"""What a page shows of sessions beside their totals, in reads that stay light however long a session is.

The latest cache breaks, for pages: found in an index that has nothing else in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from foveate.compaction.store import CompactionOutcome
from foveate.session.traces import CacheMiss, WindowSection
from foveate.store.database import Reader, Transaction, group_placeholders
from foveate.store.repositories.ledger_rows import to_storable_name
from foveate.store.repositories.traces import decode_cache_miss

# What is long in a row is not read: only whether there is something.
_FIND_WINDOWS = """
SELECT id, at, tokens, window_tokens, fold_id, broke IS NOT NULL FROM traces_v1 WHERE session_id = ?
ORDER BY at DESC, id DESC LIMIT ?
"""
_FIND_TRACE_DETAILS = "SELECT id, told, broke FROM traces_v1 WHERE id IN ({})"
_COUNT_REQUESTS = "SELECT count(*) FROM traces_v1 WHERE session_id = ?"
_COUNT_REQUESTS_BEFORE = f"{_COUNT_REQUESTS} AND (at, id) < (?, ?)"
_FIND_COMPACTIONS = "SELECT session_id, outcome, cost FROM compactions_v1 WHERE session_id IN ({})"
# The first of those that a fold took in, one after the other: its turns begin with the conversation.
_FIND_FIRST_COMPACTION = """
WITH RECURSIVE line(id, earlier_id) AS (
    SELECT id, earlier_id FROM compactions_v1 WHERE id = ?
    UNION SELECT earlier.id, earlier.earlier_id
    FROM compactions_v1 AS earlier JOIN line ON earlier.id = line.earlier_id
)
SELECT id FROM line WHERE earlier_id IS NULL
"""
_FIND_LATER_COMPACTION = f"""
SELECT 1 FROM compactions_v1 WHERE earlier_id = ? AND outcome = '{CompactionOutcome.OK}' AND undone_at IS NULL LIMIT 1
"""
_FIND_SPAN = "SELECT count(*), min(position), max(position) FROM folded_turns_v1 WHERE compaction_id = ?"
# One that is far too long to be shown is not read as a whole either.
_MAX_MESSAGE_BYTES, _PREVIEW_BYTES = 256 * 1024, 8 * 1024
_FIND_MESSAGES = f"""
SELECT position, length(message),
CASE WHEN length(message) > {_MAX_MESSAGE_BYTES} THEN substr(message, 1, {_PREVIEW_BYTES}) ELSE message END
FROM folded_turns_v1 WHERE compaction_id = ? AND
"""
_FIND_ENDS = f"{_FIND_MESSAGES} (position < ? OR position > ?) ORDER BY position"
_FIND_BETWEEN = f"{_FIND_MESSAGES} position >= ? AND position < ? ORDER BY position"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSample:
    """How full a session's window was at a request; `is_broken` says that the cache broke there."""

    id: str
    at: float
    tokens: int | None
    window_tokens: int | None
    compaction_id: str | None
    is_cache_miss: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowContents:
    """What filled the window of a request, and why the cache broke there, if it did.

    `exact` says that the model's own tokenizer counted it; `reserved_tokens` are for the answer.
    """

    sections: Sequence[WindowSection]
    exact: bool = False
    reserved_tokens: int = 0
    broke: CacheMiss | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionCounts:
    """How often a session was folded, undone or not, how often that failed, and what all of it cost.

    `dollars` are those of a known price.
    """

    made: int = 0
    failed: int = 0
    dollars: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedMessage:
    """A message that was folded, its `position` in the conversation, and how long it is.

    `message` is all of it, or its first bytes where it is far too long to be shown.
    """

    position: int
    size_bytes: int
    message: bytes

    @property
    def is_complete(self) -> bool:
        """Whether `message` is all of it."""
        return len(self.message) == self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedMessages:
    """Some of the messages that a fold was the first to fold, and how `many` there are.

    `first_id` is the first fold of those that it took in, one after the other, or itself; None where that was
    forgotten. One that `is_taken_in` is part of a later one that is in force.
    """

    many: int
    turns: Sequence[CompactedMessage]
    first_compaction_id: str | None
    is_taken_in: bool


class _WindowDetails(msgspec.Struct, array_like=True, frozen=True):
    """The beginning of what a trace tells; its edits, which are behind it, are passed over."""

    exact: bool
    reserved_tokens: int
    added_seconds: float
    sections: tuple[tuple[str, int], ...]


class DashboardQueries:
    """Looks at sessions in a database."""

    def __init__(self, database: Reader) -> None:
        self._database = database

    async def window_samples(self, session_id: str, *, limit: int) -> Sequence[WindowSample]:
        """How full the window was at the last requests of a session, in their order."""
        values = (to_storable_name(session_id), limit)
        found = await self._database.read(lambda transaction: transaction.fetch_all(_FIND_WINDOWS, values))
        return [
            WindowSample(
                id=id_,
                at=at,
                tokens=tokens,
                window_tokens=window,
                compaction_id=compaction_id,
                is_cache_miss=bool(is_cache_miss),
            )
            for id_, at, tokens, window, compaction_id, is_cache_miss in reversed(found)
        ]

    async def window_contents(self, request_ids: Sequence[str]) -> Mapping[str, WindowContents]:
        """What filled the windows of these requests, by their ids."""

        def find(transaction: Transaction) -> dict[str, WindowContents]:
            return {
                id_: _to_window_contents(details, broke)
                for placeholders, group in group_placeholders(request_ids)
                for id_, details, broke in transaction.fetch_all(
                    _FIND_TRACE_DETAILS.format(placeholders), group
                )
            }

        return await self._database.read(find) if request_ids else {}

    async def count_requests(self, session_id: str, *, before: tuple[float, str] | None = None) -> int:
        """How many requests of a session are kept, or those of them that came `before`: (at, id)."""
        statement, values = (_COUNT_REQUESTS, ()) if before is None else (_COUNT_REQUESTS_BEFORE, before)
        found = await self._database.read(
            lambda transaction: transaction.fetch_all(statement, (to_storable_name(session_id), *values))
        )
        return int(found[0][0])

    async def count_compactions(self, session_ids: Sequence[str]) -> Mapping[str, CompactionCounts]:
        """How often each of these sessions was folded, or was to be."""

        def find(transaction: Transaction) -> dict[str, CompactionCounts]:
            found: dict[str, list[tuple[str, str | None]]] = {}
            for placeholders, group in group_placeholders([to_storable_name(id_) for id_ in session_ids]):
                for session_id, outcome, cost in transaction.fetch_all(
                    _FIND_COMPACTIONS.format(placeholders), group
                ):
                    found.setdefault(session_id, []).append((outcome, cost))
            return {session_id: _to_compaction_counts(compactions) for session_id, compactions in found.items()}

        return await self._database.read(find) if session_ids else {}

    async def compacted_ends(
        self, compaction_ids: Sequence[str], *, each: int
    ) -> Mapping[str, CompactedMessages]:
        """What each of these folds was the first to fold: so many messages at its beginning and at its end."""

        def find(transaction: Transaction) -> dict[str, CompactedMessages]:
            return {id_: _read_ends(transaction, id_, each) for id_ in compaction_ids}

        return await self._database.read(find) if compaction_ids else {}

    async def compacted_page(self, compaction_id: str, *, skip: int, limit: int) -> CompactedMessages:
        """What a fold was the first to fold: `limit` messages, after `skip` of them."""

        def find(transaction: Transaction) -> CompactedMessages:
            many, first, _ = transaction.fetch_all(_FIND_SPAN, (compaction_id,))[0]
            start = (first or 0) + skip
            return _to_compacted_messages(
                transaction,
                compaction_id,
                many,
                _read_messages(transaction, _FIND_BETWEEN, (compaction_id, start, start + limit)),
            )

        return await self._database.read(find)


def _to_compaction_counts(compactions: Sequence[tuple[str, str | None]]) -> CompactionCounts:
    outcomes = [outcome for outcome, _ in compactions]
    return CompactionCounts(
        made=outcomes.count(CompactionOutcome.OK),
        failed=outcomes.count(CompactionOutcome.FAILED),
        dollars=sum((Decimal(cost) for _, cost in compactions if cost is not None), Decimal(0)),
    )


def _read_ends(transaction: Transaction, compaction_id: str, each: int) -> CompactedMessages:
    many, first, last = transaction.fetch_all(_FIND_SPAN, (compaction_id,))[0]
    turns = _read_messages(transaction, _FIND_ENDS, (compaction_id, first + each, last - each)) if many else []
    return _to_compacted_messages(transaction, compaction_id, many, turns)


def _to_compacted_messages(
    transaction: Transaction, compaction_id: str, many: int, turns: Sequence[CompactedMessage]
) -> CompactedMessages:
    first = transaction.fetch_all(_FIND_FIRST_COMPACTION, (compaction_id,))
    is_taken_in = bool(transaction.fetch_all(_FIND_LATER_COMPACTION, (compaction_id,)))
    return CompactedMessages(
        many=int(many), turns=turns, first_compaction_id=first[0][0] if first else None, is_taken_in=is_taken_in
    )


def _read_messages(
    transaction: Transaction, statement: str, values: tuple[str, int, int]
) -> list[CompactedMessage]:
    return [
        CompactedMessage(position=position, size_bytes=size, message=bytes(message))
        for position, size, message in transaction.fetch_all(statement, values)
    ]


def _to_window_contents(encoded: bytes, broke: bytes | None) -> WindowContents:
    details = msgspec.json.decode(encoded, type=_WindowDetails)
    return WindowContents(
        sections=[WindowSection(name, tokens) for name, tokens in details.sections],
        exact=details.exact,
        reserved_tokens=details.reserved_tokens,
        broke=None if broke is None else decode_cache_miss(broke),
    )


_FIND_CACHE_MISSES = """
SELECT id, at, agent, session_id, model, broke FROM traces_v1 WHERE broke IS NOT NULL {}
ORDER BY at DESC, id DESC LIMIT ?
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMissRecord:
    """A request that could not read what the one before it left in the cache, and why."""

    request_id: str
    at: float
    agent: str
    session_id: str
    model: str
    broke: CacheMiss


async def find_latest_cache_misses(
    database: Reader, *, limit: int, since: float | None = None, agent: str | None = None
) -> list[CacheMissRecord]:
    """The newest first, of those since a time, of an agent."""
    conditions: dict[str, Any] = {
        "AND at >= ?": since,
        "AND agent = ?": None if agent is None else to_storable_name(agent),
    }
    active = {condition: value for condition, value in conditions.items() if value is not None}
    statement, values = _FIND_CACHE_MISSES.format(" ".join(active)), (*active.values(), limit)
    return [
        _to_cache_miss_record(*row)
        for row in await database.read(lambda transaction: transaction.fetch_all(statement, values))
    ]


def _to_cache_miss_record(
    id_: str, at: float, agent: str, session_id: str, model: str, broke: bytes
) -> CacheMissRecord:
    return CacheMissRecord(
        request_id=id_,
        at=at,
        agent=agent,
        session_id=session_id,
        model=model,
        broke=decode_cache_miss(broke),
    )
