"""Queries for the dashboard, cheap even for long sessions."""

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

# Long columns are not read, only whether they are set.
_FIND_WINDOWS = """
SELECT id, at, tokens, window_tokens, fold_id, broke IS NOT NULL FROM traces_v1 WHERE session_id = ?
ORDER BY at DESC, id DESC LIMIT ?
"""
_FIND_TRACE_DETAILS = "SELECT id, told, broke FROM traces_v1 WHERE id IN ({})"
_COUNT_REQUESTS = "SELECT count(*) FROM traces_v1 WHERE session_id = ?"
_COUNT_REQUESTS_BEFORE = f"{_COUNT_REQUESTS} AND (at, id) < (?, ?)"
_FIND_COMPACTIONS = "SELECT session_id, outcome, cost FROM compactions_v1 WHERE session_id IN ({})"
# The oldest of the compactions that one builds on: its messages are the first of the conversation.
_FIND_FIRST_COMPACTION = """
WITH RECURSIVE line(id, earlier_id) AS (
    SELECT id, earlier_id FROM compactions_v1 WHERE id = ?
    UNION SELECT earlier.id, earlier.earlier_id
    FROM compactions_v1 AS earlier JOIN line ON earlier.id = line.earlier_id
)
SELECT id FROM line WHERE earlier_id IS NULL
"""
_FIND_LATER_COMPACTION = f"""
SELECT 1 FROM compactions_v1
WHERE earlier_id = ? AND outcome = '{CompactionOutcome.OK}' AND undone_at IS NULL LIMIT 1
"""
_FIND_SPAN = "SELECT count(*), min(position), max(position) FROM folded_turns_v1 WHERE compaction_id = ?"
# A message that is too long to be shown is not read completely.
_MAX_MESSAGE_BYTES, _PREVIEW_BYTES = 256 * 1024, 8 * 1024
_FIND_MESSAGES = f"""
SELECT position, length(message),
CASE WHEN length(message) > {_MAX_MESSAGE_BYTES} THEN substr(message, 1, {_PREVIEW_BYTES}) ELSE message END
FROM folded_turns_v1 WHERE compaction_id = ? AND
"""
_FIND_ENDS = f"{_FIND_MESSAGES} (position < ? OR position > ?) ORDER BY position"
_FIND_BETWEEN = f"{_FIND_MESSAGES} position >= ? AND position < ? ORDER BY position"
_FIND_CACHE_MISSES = """
SELECT id, at, agent, session_id, model, broke FROM traces_v1 WHERE broke IS NOT NULL {}
ORDER BY at DESC, id DESC LIMIT ?
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSample:
    id: str
    at: float
    tokens: int | None
    window_tokens: int | None
    compaction_id: str | None
    is_cache_miss: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowContents:
    """The sections that filled the window of a request, and the cache miss there, if any.

    `exact` means that the model's own tokenizer counted it. `reserved_tokens` are reserved for the response.
    """

    sections: Sequence[WindowSection]
    exact: bool = False
    reserved_tokens: int = 0
    cache_miss: CacheMiss | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionCounts:
    """Number of compactions of a session, of failed ones, and their cost.

    `succeeded` includes compactions that were undone. `dollars` covers calls of known price.
    """

    succeeded: int = 0
    failed: int = 0
    dollars: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedMessage:
    """A message that a compaction replaced. `position` is its index in the conversation.

    `message` is cut to a preview if it is too long to be shown.
    """

    position: int
    size_bytes: int
    message: bytes

    @property
    def is_complete(self) -> bool:
        return len(self.message) == self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedMessages:
    """Some of the messages that a compaction was the first to replace; `total` counts all of them.

    `first_compaction_id` is the oldest of the compactions that this one builds on, or itself; None if that one
    was deleted. `is_superseded` means that a later compaction in force includes it.
    """

    total: int
    messages: Sequence[CompactedMessage]
    first_compaction_id: str | None
    is_superseded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMissRecord:
    """A request that could not read what the previous request wrote to the cache, and why."""

    request_id: str
    at: float
    agent: str
    session_id: str
    model: str
    cache_miss: CacheMiss


class _WindowDetails(msgspec.Struct, array_like=True, frozen=True):
    """The first fields of a trace's details. The decoder skips the edits, which follow them."""

    exact: bool
    reserved_tokens: int
    added_seconds: float
    sections: tuple[tuple[str, int], ...]


class DashboardQueries:
    def __init__(self, database: Reader) -> None:
        self._database = database

    async def window_samples(self, session_id: str, *, limit: int) -> Sequence[WindowSample]:
        values = (to_storable_name(session_id), limit)
        rows = await self._database.read(lambda transaction: transaction.fetch_all(_FIND_WINDOWS, values))
        return [
            WindowSample(
                id=id_,
                at=at,
                tokens=tokens,
                window_tokens=window,
                compaction_id=compaction_id,
                is_cache_miss=bool(is_cache_miss),
            )
            for id_, at, tokens, window, compaction_id, is_cache_miss in reversed(rows)
        ]

    async def window_contents(self, request_ids: Sequence[str]) -> Mapping[str, WindowContents]:
        def find(transaction: Transaction) -> dict[str, WindowContents]:
            return {
                id_: _to_window_contents(details, encoded_miss)
                for placeholders, group in group_placeholders(request_ids)
                for id_, details, encoded_miss in transaction.fetch_all(
                    _FIND_TRACE_DETAILS.format(placeholders), group
                )
            }

        return await self._database.read(find) if request_ids else {}

    async def count_requests(self, session_id: str, *, before: tuple[float, str] | None = None) -> int:
        """Count the stored requests of a session, or only those before an (at, id) pair."""
        statement, values = (_COUNT_REQUESTS, ()) if before is None else (_COUNT_REQUESTS_BEFORE, before)
        rows = await self._database.read(
            lambda transaction: transaction.fetch_all(statement, (to_storable_name(session_id), *values))
        )
        return int(rows[0][0])

    async def count_compactions(self, session_ids: Sequence[str]) -> Mapping[str, CompactionCounts]:
        def find(transaction: Transaction) -> dict[str, CompactionCounts]:
            rows_by_session: dict[str, list[tuple[str, str | None]]] = {}
            for placeholders, group in group_placeholders([to_storable_name(id_) for id_ in session_ids]):
                for session_id, outcome, cost in transaction.fetch_all(
                    _FIND_COMPACTIONS.format(placeholders), group
                ):
                    rows_by_session.setdefault(session_id, []).append((outcome, cost))
            return {
                session_id: _to_compaction_counts(compactions)
                for session_id, compactions in rows_by_session.items()
            }

        return await self._database.read(find) if session_ids else {}

    async def compacted_ends(
        self, compaction_ids: Sequence[str], *, per_end: int
    ) -> Mapping[str, CompactedMessages]:
        """Return the first and last `per_end` messages that each compaction was the first to replace."""

        def find(transaction: Transaction) -> dict[str, CompactedMessages]:
            return {id_: _read_ends(transaction, id_, per_end) for id_ in compaction_ids}

        return await self._database.read(find) if compaction_ids else {}

    async def compacted_page(self, compaction_id: str, *, skip: int, limit: int) -> CompactedMessages:
        def find(transaction: Transaction) -> CompactedMessages:
            total, first, _ = transaction.fetch_all(_FIND_SPAN, (compaction_id,))[0]
            start = (first or 0) + skip
            return _to_compacted_messages(
                transaction,
                compaction_id,
                total,
                _read_messages(transaction, _FIND_BETWEEN, (compaction_id, start, start + limit)),
            )

        return await self._database.read(find)

    async def find_latest_cache_misses(
        self, *, limit: int, since: float | None = None, agent: str | None = None
    ) -> list[CacheMissRecord]:
        conditions: dict[str, Any] = {
            "AND at >= ?": since,
            "AND agent = ?": None if agent is None else to_storable_name(agent),
        }
        active = {condition: value for condition, value in conditions.items() if value is not None}
        statement, values = _FIND_CACHE_MISSES.format(" ".join(active)), (*active.values(), limit)
        rows = await self._database.read(lambda transaction: transaction.fetch_all(statement, values))
        return [_to_cache_miss_record(*row) for row in rows]


def _to_compaction_counts(compactions: Sequence[tuple[str, str | None]]) -> CompactionCounts:
    outcomes = [outcome for outcome, _ in compactions]
    return CompactionCounts(
        succeeded=outcomes.count(CompactionOutcome.OK),
        failed=outcomes.count(CompactionOutcome.FAILED),
        dollars=sum((Decimal(cost) for _, cost in compactions if cost is not None), Decimal(0)),
    )


def _read_ends(transaction: Transaction, compaction_id: str, per_end: int) -> CompactedMessages:
    total, first, last = transaction.fetch_all(_FIND_SPAN, (compaction_id,))[0]
    messages = (
        _read_messages(transaction, _FIND_ENDS, (compaction_id, first + per_end, last - per_end))
        if total
        else []
    )
    return _to_compacted_messages(transaction, compaction_id, total, messages)


def _to_compacted_messages(
    transaction: Transaction, compaction_id: str, total: int, messages: Sequence[CompactedMessage]
) -> CompactedMessages:
    first = transaction.fetch_all(_FIND_FIRST_COMPACTION, (compaction_id,))
    is_superseded = bool(transaction.fetch_all(_FIND_LATER_COMPACTION, (compaction_id,)))
    return CompactedMessages(
        total=int(total),
        messages=messages,
        first_compaction_id=first[0][0] if first else None,
        is_superseded=is_superseded,
    )


def _read_messages(
    transaction: Transaction, statement: str, values: tuple[str, int, int]
) -> list[CompactedMessage]:
    return [
        CompactedMessage(position=position, size_bytes=size, message=bytes(message))
        for position, size, message in transaction.fetch_all(statement, values)
    ]


def _to_window_contents(encoded: bytes, encoded_miss: bytes | None) -> WindowContents:
    details = msgspec.json.decode(encoded, type=_WindowDetails)
    return WindowContents(
        sections=[WindowSection(name, tokens) for name, tokens in details.sections],
        exact=details.exact,
        reserved_tokens=details.reserved_tokens,
        cache_miss=None if encoded_miss is None else decode_cache_miss(encoded_miss),
    )


def _to_cache_miss_record(
    id_: str, at: float, agent: str, session_id: str, model: str, encoded_miss: bytes
) -> CacheMissRecord:
    return CacheMissRecord(
        request_id=id_,
        at=at,
        agent=agent,
        session_id=session_id,
        model=model,
        cache_miss=decode_cache_miss(encoded_miss),
    )
