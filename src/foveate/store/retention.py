"""What is forgotten of what is kept, and when.

A session is forgotten when neither it nor any session that comes of it was seen for so long: its turns, what
was counted of them, its folds and what they folded go with it. Nothing that is in use goes: a fork needs the
turns and the folds of its parent, and whoever holds the right to fold is about to write.
"""

from dataclasses import dataclass

from foveate.store.database import Database, Rows

DAY_SECONDS = 86_400.0
_SESSIONS_AT_ONCE = 64
"""In one transaction, so that nobody else waits long."""

_IN_USE = """
WITH RECURSIVE kept(id) AS (
    SELECT id FROM sessions_v1 WHERE seen_at >= ?
    UNION SELECT session_id FROM compaction_locks_v1 WHERE holder <> '' AND expires_at > ?
    UNION SELECT child.parent_id FROM sessions_v1 AS child JOIN kept ON child.id = kept.id
    WHERE child.parent_id IS NOT NULL
)
"""
_FIND_STALE = f"""{_IN_USE}
SELECT id FROM sessions_v1 WHERE seen_at < ? AND id NOT IN (SELECT id FROM kept) ORDER BY id
LIMIT {_SESSIONS_AT_ONCE}
"""
# First of all, and once more with the time: a session that is seen at this moment stays.
_FORGET_SESSION = "DELETE FROM sessions_v1 WHERE id = ? AND seen_at < ?"
_FORGET_COUNTS = """
DELETE FROM turn_counts_v1 WHERE (agent, hash) IN (SELECT agent, hash FROM turns_v1 WHERE session_id = ?)
"""
_FORGET_TURNS = "DELETE FROM turns_v1 WHERE session_id = ?"
_FORGET_FOLDED = """
DELETE FROM folded_turns_v1 WHERE compaction_id IN (SELECT id FROM compactions_v1 WHERE session_id = ?)
"""
_FORGET_FOLDS = "DELETE FROM compactions_v1 WHERE session_id = ?"
_FORGET_LOCK = "DELETE FROM compaction_locks_v1 WHERE session_id = ?"
# Nobody needs the messages of a fold that was undone: the conversation goes on with them. But for a later fold,
# which has taken it in, and would be undone with them.
_FORGET_UNDONE = """
WITH RECURSIVE needed(id, earlier_id) AS (
    SELECT id, earlier_id FROM compactions_v1 WHERE undone_at IS NULL OR undone_at >= ?
    UNION SELECT earlier.id, earlier.earlier_id
    FROM compactions_v1 AS earlier JOIN needed ON earlier.id = needed.earlier_id
)
DELETE FROM folded_turns_v1
WHERE compaction_id IN (SELECT id FROM compactions_v1 WHERE undone_at < ?)
AND compaction_id NOT IN (SELECT id FROM needed)
"""
# Of sessions that were never kept, or are gone since.
_FIND_STRAYS = f"""
SELECT session_id FROM compactions_v1 WHERE session_id NOT IN (SELECT id FROM sessions_v1)
AND session_id NOT IN (SELECT session_id FROM compaction_locks_v1 WHERE expires_at >= ?)
GROUP BY session_id HAVING max(compacted_at) < ?
UNION
SELECT session_id FROM compaction_locks_v1
WHERE expires_at < ? AND session_id NOT IN (SELECT id FROM sessions_v1)
AND session_id NOT IN (SELECT session_id FROM compactions_v1)
LIMIT {_SESSIONS_AT_ONCE}
"""


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
    """Forget what was not seen for `keep_days`, a few sessions at a time, and what was undone before that."""
    before = now - keep_days * DAY_SECONDS
    forgotten = Forgotten()
    await database.write(lambda rows: rows.change(_FORGET_UNDONE, (before, before)), again=True)
    while True:
        found, some = await database.write(lambda rows: _forget_some(rows, before, now), again=True)
        forgotten += some
        if not found:
            return forgotten


def _forget_some(rows: Rows, before: float, now: float) -> tuple[bool, Forgotten]:
    """Whether there was anything to forget, and how much was."""
    stale = [session_id for (session_id,) in rows.all(_FIND_STALE, (before, now, before))]
    gone = [session_id for session_id in stale if rows.change(_FORGET_SESSION, (session_id, before))]
    strays = [session_id for (session_id,) in rows.all(_FIND_STRAYS, (before, before, before))]
    turns = folds = 0
    for session_id in {*gone, *strays}:
        rows.change(_FORGET_COUNTS, (session_id,))
        turns += rows.change(_FORGET_TURNS, (session_id,))
        rows.change(_FORGET_FOLDED, (session_id,))
        folds += rows.change(_FORGET_FOLDS, (session_id,))
        rows.change(_FORGET_LOCK, (session_id,))
    return bool(gone or strays), Forgotten(sessions=len(gone), turns=turns, folds=folds)
