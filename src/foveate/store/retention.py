"""Deletes old data, and reports how much is stored and would be deleted.

A session is deleted if neither it nor any session that depends on it was seen for long enough. Its turns,
counts and compactions are deleted with it. Nothing in use is deleted: a session needs the turns and compactions
of the sessions it depends on, a compaction needs the earlier ones that it includes, and the holder of a lease
is about to write. A compaction that ends at a turn of another session stays with that turn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, nextafter

from foveate.store.database import Database, Transaction
from foveate.store.migrate import FIND_VERSION
from foveate.store.repositories.compactions import CHANGES_REQUESTS

DAY_SECONDS = 86_400.0
_MAX_LEASE_SECONDS = DAY_SECONDS
"""A lease that expires later comes from a clock that was ahead."""
_SESSION_BATCH_SIZE = 64
"""Keeps transactions short."""
_STALE_PAGE_SIZE = 10_000
_MAX_PLACEHOLDERS = 1_024
_COUNT_BATCH_SIZE = 1_000

# Which session depends on which: on its turns, or through a compaction on an earlier one.
_DEPENDENCIES = """
depends(id, parent_id) AS (
    SELECT session_id, parent_id FROM session_parents_v1
    UNION ALL SELECT later.session_id, earlier.session_id
    FROM compactions_v1 AS later JOIN compactions_v1 AS earlier ON earlier.id = later.earlier_id
    WHERE earlier.session_id <> later.session_id
)
"""
_IN_USE = f"""
WITH RECURSIVE {_DEPENDENCIES}, in_use(id) AS (
    SELECT id FROM sessions_v1 WHERE seen_at >= ?
    UNION SELECT session_id FROM compaction_locks_v1
    WHERE holder <> '' AND expires_at > ? AND expires_at <= ?
    UNION SELECT session_id FROM compactions_v1
    WHERE compacted_at >= ? AND session_id NOT IN (SELECT id FROM sessions_v1)
    UNION SELECT depends.parent_id FROM depends JOIN in_use ON depends.id = in_use.id
)
"""
_ALL_STALE = f"""{_IN_USE}
SELECT id FROM sessions_v1 WHERE seen_at < ? AND id NOT IN (SELECT id FROM in_use)
"""
# Sessions without dependents first, so that few others must be deleted with them.
_FIND_STALE = f"""{_ALL_STALE}
ORDER BY id IN (SELECT parent_id FROM depends), id LIMIT {_STALE_PAGE_SIZE}
"""
_FIND_DEPENDENTS = """
SELECT session_id, parent_id FROM session_parents_v1 WHERE parent_id IN ({0})
UNION SELECT later.session_id, earlier.session_id
FROM compactions_v1 AS earlier JOIN compactions_v1 AS later ON later.earlier_id = earlier.id
WHERE earlier.session_id IN ({0})
"""
_FIND_LIVE = """
SELECT id FROM sessions_v1 WHERE id IN ({0}) AND seen_at >= ?
UNION SELECT session_id FROM compaction_locks_v1
WHERE session_id IN ({0}) AND holder <> '' AND expires_at > ? AND expires_at <= ?
UNION SELECT session_id FROM compactions_v1
WHERE session_id IN ({0}) AND compacted_at >= ? AND session_id NOT IN (SELECT id FROM sessions_v1)
"""
# Changes nothing, but locks the row: nobody can touch the session or start to depend on it.
_LOCK_SESSION = "UPDATE sessions_v1 SET seen_at = seen_at WHERE id = ?"
_DELETE_SESSION = "DELETE FROM sessions_v1 WHERE id = ?"
_DELETE_PARENTS = "DELETE FROM session_parents_v1 WHERE session_id = ?"
_DELETE_COUNTS = """
DELETE FROM turn_counts_v1 WHERE (agent, hash) IN (SELECT agent, hash FROM turns_v1 WHERE session_id = ?)
"""
_DELETE_ANSWERS = "DELETE FROM answers_v1 WHERE session_id = ?"
_DELETE_TURNS = "DELETE FROM turns_v1 WHERE session_id = ?"
# Checked after the session's own turns are deleted: a boundary that still exists belongs to another session.
_IS_IN_FORCE = f"undone_at IS NULL AND {CHANGES_REQUESTS}"
_IS_UNREFERENCED = f"""
NOT ({_IS_IN_FORCE} AND EXISTS (
    SELECT 1 FROM turns_v1 AS turn
    WHERE turn.agent = compactions_v1.agent AND turn.hash = compactions_v1.boundary
))
"""
_DELETE_COMPACTED_MESSAGES = f"""
DELETE FROM folded_turns_v1
WHERE compaction_id IN (SELECT id FROM compactions_v1 WHERE session_id = ? AND {_IS_UNREFERENCED})
"""
_DELETE_USES = f"""
DELETE FROM fold_uses_v1
WHERE compaction_id IN (SELECT id FROM compactions_v1 WHERE session_id = ? AND {_IS_UNREFERENCED})
"""
_DELETE_COMPACTIONS = f"DELETE FROM compactions_v1 WHERE session_id = ? AND {_IS_UNREFERENCED}"
_DELETE_LOCK = "DELETE FROM compaction_locks_v1 WHERE session_id = ?"
# The content of an undone compaction is only needed by a later one that builds on it and could be undone too.
_NEEDED = """
WITH RECURSIVE needed(id, earlier_id) AS (
    SELECT id, earlier_id FROM compactions_v1 WHERE undone_at IS NULL OR undone_at >= ?
    UNION SELECT earlier.id, earlier.earlier_id
    FROM compactions_v1 AS earlier JOIN needed ON earlier.id = needed.earlier_id
)
"""
_DELETE_UNDONE_MESSAGES = f"""{_NEEDED}
DELETE FROM folded_turns_v1
WHERE compaction_id IN (SELECT id FROM compactions_v1 WHERE undone_at < ?)
AND compaction_id NOT IN (SELECT id FROM needed)
"""
_CLEAR_UNDONE = f"""{_NEEDED}
UPDATE compactions_v1 SET summary = ?, carried = '[]'
WHERE undone_at < ? AND (summary <> ? OR carried <> '[]') AND id NOT IN (SELECT id FROM needed)
"""
_DELETE_REQUESTS = "DELETE FROM requests_v1 WHERE at < ?"
_DELETE_CALIBRATIONS = "DELETE FROM lessons_v1 WHERE at < ?"
_DELETE_REUSE = "DELETE FROM prefix_reuse_v1 WHERE at < ?"
_DELETE_RATE_LIMITS = "DELETE FROM rate_limits_v1 WHERE at < ?"
# Traces are limited in age and number, and deleted in batches, because every request has one.
MAX_TRACES = 500_000
_TRACE_BATCH_SIZE = 1_000
_FIND_BEYOND_TRACES = "SELECT at FROM traces_v1 ORDER BY at DESC, id DESC LIMIT 1 OFFSET ?"
_DELETE_TRACES = f"""
DELETE FROM traces_v1 WHERE id IN (
    SELECT id FROM traces_v1 WHERE at < ? ORDER BY at, id LIMIT {_TRACE_BATCH_SIZE}
)
"""
# Totals of sessions are deleted with them, or by their own age if the session is not stored. They are deleted
# in order of ids, the order in which additions lock them. A row that was added to meanwhile stays.
_TOTALS_BATCH_SIZE = 256
_IS_OLD = """
last_at < ? AND NOT EXISTS (SELECT 1 FROM sessions_v1 WHERE sessions_v1.id = session_totals_v1.session_id)
"""
_FIND_OLD_TOTALS = f"SELECT session_id FROM session_totals_v1 WHERE {_IS_OLD} LIMIT {_TOTALS_BATCH_SIZE}"
_DELETE_TOTALS = f"DELETE FROM session_totals_v1 WHERE {_IS_OLD} AND session_id = ?"
# Counts whose turns were deleted or never stored are deleted in batches.
_FIND_NEXT_COUNT = f"""
SELECT agent, hash FROM turn_counts_v1 WHERE (agent, hash) > (?, ?) ORDER BY agent, hash
LIMIT 1 OFFSET {_COUNT_BATCH_SIZE - 1}
"""
_FIND_LAST_COUNT = "SELECT agent, hash FROM turn_counts_v1 ORDER BY agent DESC, hash DESC LIMIT 1"
_ORPHANED_COUNTS = """
FROM turn_counts_v1 WHERE (agent, hash) > (?, ?) AND (agent, hash) <= (?, ?)
AND NOT EXISTS (
    SELECT 1 FROM turns_v1 AS turn WHERE turn.agent = turn_counts_v1.agent AND turn.hash = turn_counts_v1.hash
)
"""
_FIND_ORPHANED_COUNT = f"SELECT 1 {_ORPHANED_COUNTS} LIMIT 1"
_DELETE_ORPHANED_COUNTS = f"DELETE {_ORPHANED_COUNTS}"
# Compactions and locks of sessions that are not stored.
_ALL_ORPHANED = f"""{_IN_USE}
SELECT session_id FROM compactions_v1
WHERE {_IS_UNREFERENCED} AND session_id NOT IN (SELECT id FROM sessions_v1)
AND session_id NOT IN (SELECT id FROM in_use)
AND session_id NOT IN (
    SELECT session_id FROM compaction_locks_v1 WHERE expires_at >= ? AND expires_at <= ?
)
UNION
SELECT session_id FROM compaction_locks_v1
WHERE (expires_at < ? OR expires_at > ?) AND session_id NOT IN (SELECT id FROM sessions_v1)
AND session_id NOT IN (SELECT session_id FROM compactions_v1)
"""
_FIND_ORPHANED = f"{_ALL_ORPHANED} LIMIT {_SESSION_BATCH_SIZE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    sessions: int = 0
    turns: int = 0
    folds: int = 0

    def __add__(self, other: "PruneResult") -> "PruneResult":
        return PruneResult(
            sessions=self.sessions + other.sessions,
            turns=self.turns + other.turns,
            folds=self.folds + other.folds,
        )


async def prune(database: Database, *, keep_days: float, now: float) -> PruneResult:
    """Delete what was not seen for `keep_days`, a few sessions at a time, and what was undone before that.

    Archived requests, traces, totals of deleted sessions, calibrations, prefix reuse and rate limits of that
    age are deleted too.
    """
    before = now - keep_days * DAY_SECONDS
    await database.write(partial(_delete_expired_rows, before=before), is_idempotent=True)
    result = await _delete_stale_sessions(database, before, now) + await _delete_orphaned(database, before, now)
    await _delete_orphaned_counts(database)
    await delete_old_traces(database, before=before)
    await _delete_old_totals(database, before)
    return result


def _delete_expired_rows(transaction: Transaction, *, before: float) -> None:
    transaction.execute(_DELETE_REQUESTS, (before,))
    transaction.execute(_DELETE_CALIBRATIONS, (before,))
    transaction.execute(_DELETE_REUSE, (before,))
    transaction.execute(_DELETE_RATE_LIMITS, (before,))
    transaction.execute(_DELETE_UNDONE_MESSAGES, (before, before))
    transaction.execute(_CLEAR_UNDONE, (before, b"", before, b""))


async def delete_old_traces(database: Database, *, before: float, max_traces: int = MAX_TRACES) -> None:
    beyond = await database.read(lambda transaction: transaction.fetch_all(_FIND_BEYOND_TRACES, (max_traces,)))
    limit = max([before, *(nextafter(at, inf) for (at,) in beyond)])
    while await database.write(
        lambda transaction: transaction.execute(_DELETE_TRACES, (limit,)), is_idempotent=True
    ):
        pass


async def _delete_old_totals(database: Database, before: float) -> None:
    """Delete the totals of sessions that are not stored and were not active since. Totals by hour stay."""
    while old := _first_column(
        await database.read(lambda transaction: transaction.fetch_all(_FIND_OLD_TOTALS, (before,)))
    ):
        values = [(before, session_id) for session_id in sorted(old)]
        await database.write(
            partial(_execute_many, statement=_DELETE_TOTALS, values=values), is_idempotent=True
        )


def _execute_many(transaction: Transaction, *, statement: str, values: Sequence[tuple[float, str]]) -> int:
    return transaction.execute_many(statement, values)


async def _delete_orphaned_counts(database: Database) -> None:
    last_key: tuple[str, bytes] | None = ("", b"")
    while last_key:
        last_key = await _delete_orphaned_counts_after(database, last_key)


async def _delete_orphaned_counts_after(
    database: Database, start: tuple[str, bytes]
) -> tuple[str, bytes] | None:
    """Delete orphaned counts in the next batch, and return its last key; None at the end."""

    def find(transaction: Transaction) -> tuple[tuple[str, bytes], bool] | None:
        rows = transaction.fetch_all(_FIND_NEXT_COUNT, start) or transaction.fetch_all(_FIND_LAST_COUNT)
        if not rows or rows[0] == start:
            return None
        end: tuple[str, bytes] = rows[0]
        return end, bool(transaction.fetch_all(_FIND_ORPHANED_COUNT, (*start, *end)))

    part = await database.read(find)
    if part is None:
        return None
    end, has_orphans = part
    if has_orphans:
        await database.write(
            lambda transaction: transaction.execute(_DELETE_ORPHANED_COUNTS, (*start, *end)), is_idempotent=True
        )
    return end


async def _delete_stale_sessions(database: Database, before: float, now: float) -> PruneResult:
    result = PruneResult()
    checked_ids: set[str] = set()
    values = stale_parameters(before, now)
    while True:
        stale = _first_column(
            await database.read(lambda transaction: transaction.fetch_all(_FIND_STALE, values))
        )
        new = [session_id for session_id in stale if session_id not in checked_ids]
        if not new:
            return result
        checked_ids.update(new)
        for first in range(0, len(new), _SESSION_BATCH_SIZE):
            batch = new[first : first + _SESSION_BATCH_SIZE]
            result += await database.write(
                partial(_delete_unused_sessions, stale=batch, before=before, now=now), is_idempotent=True
            )


async def _delete_orphaned(database: Database, before: float, now: float) -> PruneResult:
    values = orphan_parameters(before, now)

    def forget_some(transaction: Transaction) -> PruneResult:
        return _delete_compactions(transaction, _first_column(transaction.fetch_all(_FIND_ORPHANED, values)))

    result = PruneResult()
    while await database.read(lambda transaction: transaction.fetch_all(_FIND_ORPHANED, values)):
        result += await database.write(forget_some, is_idempotent=True)
    return result


def stale_parameters(before: float, now: float) -> tuple[float, ...]:
    return (before, now, now + _MAX_LEASE_SECONDS, before, before)


def orphan_parameters(before: float, now: float) -> tuple[float, ...]:
    latest = now + _MAX_LEASE_SECONDS
    return (before, now, latest, before, before, latest, before, latest)


def _delete_unused_sessions(
    transaction: Transaction, *, stale: Sequence[str], before: float, now: float
) -> PruneResult:
    unused = _lock_unused_sessions(transaction, stale, before, now)
    turns = 0
    for session_id in unused:
        transaction.execute(_DELETE_SESSION, (session_id,))
        transaction.execute(_DELETE_PARENTS, (session_id,))
        transaction.execute(_DELETE_COUNTS, (session_id,))
        transaction.execute(_DELETE_ANSWERS, (session_id,))
        turns += transaction.execute(_DELETE_TURNS, (session_id,))
    return PruneResult(sessions=len(unused), turns=turns) + _delete_compactions(transaction, unused)


def _delete_compactions(transaction: Transaction, session_ids: Sequence[str]) -> PruneResult:
    deleted = 0
    for session_id in session_ids:
        transaction.execute(_DELETE_COMPACTED_MESSAGES, (session_id,))
        transaction.execute(_DELETE_USES, (session_id,))
        deleted += transaction.execute(_DELETE_COMPACTIONS, (session_id,))
        transaction.execute(_DELETE_LOCK, (session_id,))
    return PruneResult(folds=deleted)


def _lock_unused_sessions(
    transaction: Transaction, stale: Sequence[str], before: float, now: float
) -> list[str]:
    """Lock those of the `stale` sessions and their dependents that are not in use, and return them.

    They were found earlier, and on a server other transactions run meanwhile: one may just have touched a
    session that depends on a stale one. So the whole family is locked first and then checked again. After that
    nobody can touch one of them, or start to depend on one, until this transaction ends.
    """
    candidates, _ = _find_family(transaction, stale)
    locked = [
        session_id for session_id in sorted(candidates) if transaction.execute(_LOCK_SESSION, (session_id,))
    ]
    family, dependencies = _find_family(transaction, locked)
    latest = now + _MAX_LEASE_SECONDS
    live = sorted(family - candidates)
    for group in _split_ids(sorted(family)):
        values = (*group, before, *group, now, latest, *group, before)
        live += _first_column(transaction.fetch_all(_FIND_LIVE.format(_format_placeholders(group)), values))
    in_use = set(live)
    while live:
        for parent_id in dependencies.get(live.pop(), ()):
            if parent_id not in in_use:
                in_use.add(parent_id)
                live.append(parent_id)
    return [session_id for session_id in locked if session_id not in in_use]


def _find_family(transaction: Transaction, session_ids: Sequence[str]) -> tuple[set[str], dict[str, set[str]]]:
    """Return these sessions with all that depend on them, and for each the sessions it depends on."""
    family, dependencies = set(session_ids), dict[str, set[str]]()
    new = list(session_ids)
    while new:
        found: set[str] = set()
        for group in _split_ids(new):
            for session_id, parent_id in transaction.fetch_all(
                _FIND_DEPENDENTS.format(_format_placeholders(group)), (*group, *group)
            ):
                dependencies.setdefault(session_id, set()).add(parent_id)
                found.add(session_id)
        new = sorted(found - family)
        family |= found
    return family, dependencies


def _split_ids(session_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(session_ids), _MAX_PLACEHOLDERS):
        yield session_ids[first : first + _MAX_PLACEHOLDERS]


def _format_placeholders(session_ids: Sequence[str]) -> str:
    return ",".join("?" * len(session_ids))


def _first_column(rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [session_id for (session_id,) in rows]


# Built from the statements with which `prune` finds what to delete.
_STALE_IDS = f"SELECT id FROM ({_ALL_STALE}) AS stale"
_COUNT_STALE = f"SELECT count(*) FROM ({_ALL_STALE}) AS stale"
_COUNT_TURNS = f"SELECT count(*) FROM turns_v1 WHERE session_id IN ({_STALE_IDS})"
# As in `prune`, a compaction stays if the turn at its boundary does, which may belong to a stale session.
_ORPHANED_IDS = f"SELECT session_id FROM ({_ALL_ORPHANED.replace(f'{_IS_UNREFERENCED} AND ', '')}) AS strays"
_STALE_COMPACTIONS = f"""
FROM compactions_v1 LEFT JOIN turns_v1 AS turn
ON {_IS_IN_FORCE} AND turn.agent = compactions_v1.agent AND turn.hash = compactions_v1.boundary
WHERE compactions_v1.session_id IN ({_STALE_IDS} UNION {_ORPHANED_IDS})
AND (turn.hash IS NULL OR turn.session_id IN ({_STALE_IDS}))
"""
_COUNT_COMPACTIONS = f"SELECT count(*) {_STALE_COMPACTIONS}"
_COMPACTED_MESSAGES = "SELECT compaction_id, position FROM folded_turns_v1"
_UNDONE_MESSAGES = _DELETE_UNDONE_MESSAGES.replace("DELETE FROM folded_turns_v1", _COMPACTED_MESSAGES)
_COUNT_COMPACTED_MESSAGES = f"""
SELECT count(*) FROM (
    {_COMPACTED_MESSAGES} WHERE compaction_id IN (SELECT compactions_v1.id {_STALE_COMPACTIONS})
    UNION SELECT * FROM ({_UNDONE_MESSAGES}) AS undone
) AS gone
"""

_COUNT_REQUESTS = "SELECT count(*), coalesce(sum(size_bytes), 0) FROM requests_v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSizes:
    """Amounts of stored data, and their location; `folded` counts the messages that undoing compactions
    restores.

    `requests` counts archived requests, which take `request_bytes`.
    """

    where: str
    version: str
    sessions: int
    turns: int
    folds: int
    folded: int
    size_bytes: int
    requests: int = 0
    request_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePreview:
    sessions: int = 0
    turns: int = 0
    folds: int = 0
    folded: int = 0


async def measure_sizes(database: Database) -> StoreSizes:
    def count(transaction: Transaction) -> tuple[str, list[int]]:
        ((version,),) = transaction.fetch_all(FIND_VERSION)
        tables = ("sessions_v1", "turns_v1", "compactions_v1", "folded_turns_v1")
        counts = [_fetch_int(transaction, f"SELECT count(*) FROM {table}") for table in tables]
        return str(version), [*counts, *transaction.fetch_all(_COUNT_REQUESTS)[0]]

    version, (sessions, turns, folds, folded, requests, request_bytes) = await database.read(count)
    return StoreSizes(
        where=database.location,
        version=version,
        sessions=sessions,
        turns=turns,
        folds=folds,
        folded=folded,
        size_bytes=await database.size_bytes(),
        requests=requests,
        request_bytes=int(request_bytes),
    )


async def preview_prune(database: Database, *, keep_days: float, now: float) -> PrunePreview:
    before = now - keep_days * DAY_SECONDS
    stale, undone = stale_parameters(before, now), (before, before)
    folds = stale + orphan_parameters(before, now) + stale

    def count(transaction: Transaction) -> PrunePreview:
        return PrunePreview(
            sessions=_fetch_int(transaction, _COUNT_STALE, stale),
            turns=_fetch_int(transaction, _COUNT_TURNS, stale),
            folds=_fetch_int(transaction, _COUNT_COMPACTIONS, folds),
            folded=_fetch_int(transaction, _COUNT_COMPACTED_MESSAGES, folds + undone),
        )

    return await database.read(count)


def _fetch_int(transaction: Transaction, statement: str, values: tuple[float, ...] = ()) -> int:
    ((value,),) = transaction.fetch_all(statement, values)
    return int(value)
