"""What is forgotten of what is kept, and when.

A session is forgotten when neither it nor any session that stands on it was seen for so long: its turns, what
was counted of them, its folds and what they folded go with it. Nothing that is in use goes: a session needs the
turns and the folds of those that it stands on, a fold those that it took in, and whoever holds the right to
fold is about to write. A fold that ends at a turn which another session needs stays with that turn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, nextafter

from foveate.store.database import Database, Rows

DAY_SECONDS = 86_400.0
_LONGEST_LEASE_SECONDS = DAY_SECONDS
"""One that runs out later is of somebody whose clock was ahead."""
_SESSIONS_AT_ONCE = 64
"""In one transaction, so that nobody else waits long."""
_FOUND_AT_ONCE = 10_000
_MOST_MARKS = 1_024
_COUNTS_AT_ONCE = 1_000

# Who stands on whom: on its turns, or with a fold on one that it took in.
_STANDS = """
stands(id, on_id) AS (
    SELECT session_id, parent_id FROM session_parents_v1
    UNION ALL SELECT later.session_id, earlier.session_id
    FROM compactions_v1 AS later JOIN compactions_v1 AS earlier ON earlier.id = later.earlier_id
    WHERE earlier.session_id <> later.session_id
)
"""
_IN_USE = f"""
WITH RECURSIVE {_STANDS}, kept(id) AS (
    SELECT id FROM sessions_v1 WHERE seen_at >= ?
    UNION SELECT session_id FROM compaction_locks_v1
    WHERE holder <> '' AND expires_at > ? AND expires_at <= ?
    UNION SELECT session_id FROM compactions_v1
    WHERE compacted_at >= ? AND session_id NOT IN (SELECT id FROM sessions_v1)
    UNION SELECT stands.on_id FROM stands JOIN kept ON stands.id = kept.id
)
"""
_ALL_STALE = f"""{_IN_USE}
SELECT id FROM sessions_v1 WHERE seen_at < ? AND id NOT IN (SELECT id FROM kept)
"""
# Those first that nobody stands on, so that few others have to go with them.
_FIND_STALE = f"""{_ALL_STALE}
ORDER BY id IN (SELECT on_id FROM stands), id LIMIT {_FOUND_AT_ONCE}
"""
_FIND_STANDING = """
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
# Changes nothing, and has whoever sees the session, or wants to stand on it, wait until it is gone.
_HOLD_SESSION = "UPDATE sessions_v1 SET seen_at = seen_at WHERE id = ?"
_FORGET_SESSION = "DELETE FROM sessions_v1 WHERE id = ?"
_FORGET_PARENTS = "DELETE FROM session_parents_v1 WHERE session_id = ?"
_FORGET_COUNTS = """
DELETE FROM turn_counts_v1 WHERE (agent, hash) IN (SELECT agent, hash FROM turns_v1 WHERE session_id = ?)
"""
_FORGET_ANSWERS = "DELETE FROM answers_v1 WHERE session_id = ?"
_FORGET_TURNS = "DELETE FROM turns_v1 WHERE session_id = ?"
# Once the session's own turns are gone: a boundary that is still there is one that others go on from.
_IS_IN_FORCE = "undone_at IS NULL AND outcome IN ('ok', 'tool_result_truncated')"
_IS_LEFT = f"""
NOT ({_IS_IN_FORCE} AND EXISTS (
    SELECT 1 FROM turns_v1 AS turn
    WHERE turn.agent = compactions_v1.agent AND turn.hash = compactions_v1.boundary
))
"""
_FORGET_FOLDED = f"""
DELETE FROM folded_turns_v1
WHERE compaction_id IN (SELECT id FROM compactions_v1 WHERE session_id = ? AND {_IS_LEFT})
"""
_FORGET_USES = f"""
DELETE FROM fold_uses_v1
WHERE compaction_id IN (SELECT id FROM compactions_v1 WHERE session_id = ? AND {_IS_LEFT})
"""
_FORGET_FOLDS = f"DELETE FROM compactions_v1 WHERE session_id = ? AND {_IS_LEFT}"
_FORGET_LOCK = "DELETE FROM compaction_locks_v1 WHERE session_id = ?"
# Nobody needs what a fold says that was undone: the conversation goes on as it came. But for a later fold,
# which has taken it in, and would be undone with it.
_NEEDED = """
WITH RECURSIVE needed(id, earlier_id) AS (
    SELECT id, earlier_id FROM compactions_v1 WHERE undone_at IS NULL OR undone_at >= ?
    UNION SELECT earlier.id, earlier.earlier_id
    FROM compactions_v1 AS earlier JOIN needed ON earlier.id = needed.earlier_id
)
"""
_FORGET_UNDONE = f"""{_NEEDED}
DELETE FROM folded_turns_v1
WHERE compaction_id IN (SELECT id FROM compactions_v1 WHERE undone_at < ?)
AND compaction_id NOT IN (SELECT id FROM needed)
"""
_BLANK_UNDONE = f"""{_NEEDED}
UPDATE compactions_v1 SET summary = ?, carried = '[]'
WHERE undone_at < ? AND (summary <> ? OR carried <> '[]') AND id NOT IN (SELECT id FROM needed)
"""
_FORGET_REQUESTS = "DELETE FROM requests_v1 WHERE at < ?"
_FORGET_LESSONS = "DELETE FROM lessons_v1 WHERE at < ?"
_FORGET_REUSE = "DELETE FROM prefix_reuse_v1 WHERE at < ?"
_FORGET_RATE_LIMITS = "DELETE FROM rate_limits_v1 WHERE at < ?"
# What was done to requests as long ago, and beyond so many; a few at a time, since there is one for each.
MOST_TRACES = 500_000
_TRACES_AT_ONCE = 1_000
_FIND_BEYOND_TRACES = "SELECT at FROM traces_v1 ORDER BY at DESC, id DESC LIMIT 1 OFFSET ?"
_FORGET_TRACES = f"""
DELETE FROM traces_v1 WHERE id IN (
    SELECT id FROM traces_v1 WHERE at < ? ORDER BY at, id LIMIT {_TRACES_AT_ONCE}
)
"""
# What sessions add up to goes with them, by its own time where they are not kept. One after the other by their
# ids: whoever adds to them locks rows in that order. What was added to meanwhile stays.
_TOTALS_AT_ONCE = 256
_IS_OLD = """
last_at < ? AND NOT EXISTS (SELECT 1 FROM sessions_v1 WHERE sessions_v1.id = session_totals_v1.session_id)
"""
_FIND_OLD_TOTALS = f"SELECT session_id FROM session_totals_v1 WHERE {_IS_OLD} LIMIT {_TOTALS_AT_ONCE}"
_FORGET_TOTALS = f"DELETE FROM session_totals_v1 WHERE {_IS_OLD} AND session_id = ?"
# Counts are kept for turns, which may be gone, or were never kept; a part of them at a time.
_FIND_NEXT_COUNT = f"""
SELECT agent, hash FROM turn_counts_v1 WHERE (agent, hash) > (?, ?) ORDER BY agent, hash
LIMIT 1 OFFSET {_COUNTS_AT_ONCE - 1}
"""
_FIND_LAST_COUNT = "SELECT agent, hash FROM turn_counts_v1 ORDER BY agent DESC, hash DESC LIMIT 1"
_STRAY_COUNTS = """
FROM turn_counts_v1 WHERE (agent, hash) > (?, ?) AND (agent, hash) <= (?, ?)
AND NOT EXISTS (
    SELECT 1 FROM turns_v1 AS turn WHERE turn.agent = turn_counts_v1.agent AND turn.hash = turn_counts_v1.hash
)
"""
_FIND_STRAY_COUNT = f"SELECT 1 {_STRAY_COUNTS} LIMIT 1"
_FORGET_STRAY_COUNTS = f"DELETE {_STRAY_COUNTS}"
# Of sessions that were never kept, or are gone since.
_ALL_STRAYS = f"""{_IN_USE}
SELECT session_id FROM compactions_v1
WHERE {_IS_LEFT} AND session_id NOT IN (SELECT id FROM sessions_v1) AND session_id NOT IN (SELECT id FROM kept)
AND session_id NOT IN (
    SELECT session_id FROM compaction_locks_v1 WHERE expires_at >= ? AND expires_at <= ?
)
UNION
SELECT session_id FROM compaction_locks_v1
WHERE (expires_at < ? OR expires_at > ?) AND session_id NOT IN (SELECT id FROM sessions_v1)
AND session_id NOT IN (SELECT session_id FROM compactions_v1)
"""
_FIND_STRAYS = f"{_ALL_STRAYS} LIMIT {_SESSIONS_AT_ONCE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """How much was forgotten."""

    sessions: int = 0
    turns: int = 0
    folds: int = 0

    def __add__(self, other: "Forgotten") -> "Forgotten":
        return Forgotten(
            sessions=self.sessions + other.sessions,
            turns=self.turns + other.turns,
            folds=self.folds + other.folds,
        )


async def forget(database: Database, *, keep_days: float, now: float) -> Forgotten:
    """Forget what was not seen for `keep_days`, a few sessions at a time, and what was undone before that.

    Whole requests that are as old go too, where they are kept, what was done to requests, what sessions add up
    to that are not kept, and what was learnt of models and agents that were not heard of since.
    """
    before = now - keep_days * DAY_SECONDS
    await database.write(partial(_forget_undone, before=before), again=True)
    forgotten = await _forget_sessions(database, before, now) + await _forget_strays(database, before, now)
    await _forget_counts(database)
    await forget_traces(database, before=before)
    await _forget_totals(database, before)
    return forgotten


def _forget_undone(rows: Rows, *, before: float) -> None:
    rows.change(_FORGET_REQUESTS, (before,))
    rows.change(_FORGET_LESSONS, (before,))
    rows.change(_FORGET_REUSE, (before,))
    rows.change(_FORGET_RATE_LIMITS, (before,))
    rows.change(_FORGET_UNDONE, (before, before))
    rows.change(_BLANK_UNDONE, (before, b"", before, b""))


async def forget_traces(database: Database, *, before: float, most: int = MOST_TRACES) -> None:
    """Forget what was done to requests before that time, and to all but the `most` newest."""
    beyond = await database.read(lambda rows: rows.all(_FIND_BEYOND_TRACES, (most,)))
    limit = max([before, *(nextafter(at, inf) for (at,) in beyond)])
    while await database.write(lambda rows: rows.change(_FORGET_TRACES, (limit,)), again=True):
        pass


async def _forget_totals(database: Database, before: float) -> None:
    """Forget what sessions add up to that are not kept, and were neither asked nor billed since; hours stay."""
    while old := _ids(await database.read(lambda rows: rows.all(_FIND_OLD_TOTALS, (before,)))):
        values = [(before, session_id) for session_id in sorted(old)]
        await database.write(partial(_change_many, statement=_FORGET_TOTALS, values=values), again=True)


def _change_many(rows: Rows, *, statement: str, values: Sequence[tuple[float, str]]) -> int:
    return rows.change_many(statement, values)


async def _forget_counts(database: Database) -> None:
    """Forget what was counted of turns that are not kept."""
    reached: tuple[str, bytes] | None = ("", b"")
    while reached:
        reached = await _counts_forgotten_after(database, reached)


async def _counts_forgotten_after(database: Database, start: tuple[str, bytes]) -> tuple[str, bytes] | None:
    """How far counts were looked through; None where that was the end."""

    def find(rows: Rows) -> tuple[tuple[str, bytes], bool] | None:
        found = rows.all(_FIND_NEXT_COUNT, start) or rows.all(_FIND_LAST_COUNT)
        if not found or found[0] == start:
            return None
        end: tuple[str, bytes] = found[0]
        return end, bool(rows.all(_FIND_STRAY_COUNT, (*start, *end)))

    part = await database.read(find)
    if part is None:
        return None
    end, has_strays = part
    if has_strays:
        await database.write(lambda rows: rows.change(_FORGET_STRAY_COUNTS, (*start, *end)), again=True)
    return end


async def _forget_sessions(database: Database, before: float, now: float) -> Forgotten:
    forgotten = Forgotten()
    tried: set[str] = set()
    values = stale_values(before, now)
    while True:
        stale = _ids(await database.read(lambda rows: rows.all(_FIND_STALE, values)))
        new = [session_id for session_id in stale if session_id not in tried]
        if not new:
            return forgotten
        tried.update(new)
        for first in range(0, len(new), _SESSIONS_AT_ONCE):
            some = new[first : first + _SESSIONS_AT_ONCE]
            forgotten += await database.write(
                partial(_forget_some, stale=some, before=before, now=now), again=True
            )


async def _forget_strays(database: Database, before: float, now: float) -> Forgotten:
    values = stray_values(before, now)

    def forget_some(rows: Rows) -> Forgotten:
        return _forget_folds(rows, _ids(rows.all(_FIND_STRAYS, values)))

    forgotten = Forgotten()
    while await database.read(lambda rows: rows.all(_FIND_STRAYS, values)):
        forgotten += await database.write(forget_some, again=True)
    return forgotten


def stale_values(before: float, now: float) -> tuple[float, ...]:
    """Of the statements that find sessions."""
    return (before, now, now + _LONGEST_LEASE_SECONDS, before, before)


def stray_values(before: float, now: float) -> tuple[float, ...]:
    """Of the statements that find what is of no session."""
    latest = now + _LONGEST_LEASE_SECONDS
    return (before, now, latest, before, before, latest, before, latest)


def _forget_some(rows: Rows, *, stale: Sequence[str], before: float, now: float) -> Forgotten:
    gone = _held(rows, stale, before, now)
    turns = 0
    for session_id in gone:
        rows.change(_FORGET_SESSION, (session_id,))
        rows.change(_FORGET_PARENTS, (session_id,))
        rows.change(_FORGET_COUNTS, (session_id,))
        rows.change(_FORGET_ANSWERS, (session_id,))
        turns += rows.change(_FORGET_TURNS, (session_id,))
    return Forgotten(sessions=len(gone), turns=turns) + _forget_folds(rows, gone)


def _forget_folds(rows: Rows, session_ids: Sequence[str]) -> Forgotten:
    folds = 0
    for session_id in session_ids:
        rows.change(_FORGET_FOLDED, (session_id,))
        rows.change(_FORGET_USES, (session_id,))
        folds += rows.change(_FORGET_FOLDS, (session_id,))
        rows.change(_FORGET_LOCK, (session_id,))
    return Forgotten(folds=folds)


def _held(rows: Rows, stale: Sequence[str], before: float, now: float) -> list[str]:
    """Those of `stale` sessions, and of all that stand on them, that are not in use, held until they are gone.

    They were found a while ago, and on a server others go on beside this transaction too: one of them may just
    have seen a session that stands on a stale one. So the whole family is held first, and then looked at once
    more: from there on nobody can see one of them, or come to stand on one, before it is gone.
    """
    before_it, _ = _family(rows, stale)
    held = [session_id for session_id in sorted(before_it) if rows.change(_HOLD_SESSION, (session_id,))]
    family, standing = _family(rows, held)
    latest = now + _LONGEST_LEASE_SECONDS
    live = sorted(family - before_it)
    for some in _groups(sorted(family)):
        values = (*some, before, *some, now, latest, *some, before)
        live += _ids(rows.all(_FIND_LIVE.format(_marks(some)), values))
    in_use = set(live)
    while live:
        for on_id in standing.get(live.pop(), ()):
            if on_id not in in_use:
                in_use.add(on_id)
                live.append(on_id)
    return [session_id for session_id in held if session_id not in in_use]


def _family(rows: Rows, session_ids: Sequence[str]) -> tuple[set[str], dict[str, set[str]]]:
    """These sessions and all that stand on them, and of each on which of them it stands."""
    family, standing = set(session_ids), dict[str, set[str]]()
    new = list(session_ids)
    while new:
        found: set[str] = set()
        for some in _groups(new):
            for session_id, on_id in rows.all(_FIND_STANDING.format(_marks(some)), (*some, *some)):
                standing.setdefault(session_id, set()).add(on_id)
                found.add(session_id)
        new = sorted(found - family)
        family |= found
    return family, standing


def _groups(session_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(session_ids), _MOST_MARKS):
        yield session_ids[first : first + _MOST_MARKS]


def _marks(session_ids: Sequence[str]) -> str:
    return ",".join("?" * len(session_ids))


def _ids(found: Sequence[tuple[str, ...]]) -> list[str]:
    return [session_id for (session_id,) in found]
