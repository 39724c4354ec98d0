"""What is kept, in numbers: how much there is, and how much of it `forget` would forget."""

from dataclasses import dataclass

from foveate.store.database import Database, Rows
from foveate.store.migrating import FIND_VERSION
from foveate.store.retention import (
    _ALL_STALE,
    _ALL_STRAYS,
    _FORGET_UNDONE,
    _IS_IN_FORCE,
    _IS_LEFT,
    DAY_SECONDS,
    stale_values,
    stray_values,
)

# By the statements with which `forget` finds what goes.
_STALE = f"SELECT id FROM ({_ALL_STALE}) AS stale"
_COUNT_STALE = f"SELECT count(*) FROM ({_ALL_STALE}) AS stale"
_COUNT_TURNS = f"SELECT count(*) FROM turns_v1 WHERE session_id IN ({_STALE})"
# As in `forget`, a fold stays where the turn at its boundary does, which may go with a stale session.
_STRAYS = f"SELECT session_id FROM ({_ALL_STRAYS.replace(f'{_IS_LEFT} AND ', '')}) AS strays"
_FOLDS = f"""
FROM compactions_v1 LEFT JOIN turns_v1 AS turn
ON {_IS_IN_FORCE} AND turn.agent = compactions_v1.agent AND turn.hash = compactions_v1.boundary
WHERE compactions_v1.session_id IN ({_STALE} UNION {_STRAYS})
AND (turn.hash IS NULL OR turn.session_id IN ({_STALE}))
"""
_COUNT_FOLDS = f"SELECT count(*) {_FOLDS}"
_FOLDED = "SELECT compaction_id, position FROM folded_turns_v1"
_COUNT_FOLDED = f"""
SELECT count(*) FROM (
    {_FOLDED} WHERE compaction_id IN (SELECT compactions_v1.id {_FOLDS})
    UNION SELECT * FROM ({_FORGET_UNDONE.replace("DELETE FROM folded_turns_v1", _FOLDED)}) AS undone
) AS gone
"""

_COUNT_REQUESTS = "SELECT count(*), coalesce(sum(size_bytes), 0) FROM requests_v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is kept, and where. `folded` are the messages that folds can be undone with.

    `requests` are those that are kept whole, which take `request_bytes`.
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
class Forgettable:
    """How much would be forgotten, of each as in `Sizes`."""

    sessions: int = 0
    turns: int = 0
    folds: int = 0
    folded: int = 0


async def sizes_of(database: Database) -> Sizes:
    """How much is kept in a database."""

    def count(rows: Rows) -> tuple[str, list[int]]:
        ((version,),) = rows.all(FIND_VERSION)
        tables = ("sessions_v1", "turns_v1", "compactions_v1", "folded_turns_v1")
        kept = [_number(rows, f"SELECT count(*) FROM {table}") for table in tables]
        return str(version), [*kept, *rows.all(_COUNT_REQUESTS)[0]]

    version, (sessions, turns, folds, folded, requests, request_bytes) = await database.read(count)
    return Sizes(
        where=database.where,
        version=version,
        sessions=sessions,
        turns=turns,
        folds=folds,
        folded=folded,
        size_bytes=await database.size_bytes(),
        requests=requests,
        request_bytes=int(request_bytes),
    )


async def would_forget(database: Database, *, keep_days: float, now: float) -> Forgettable:
    """What `forget` would forget."""
    before = now - keep_days * DAY_SECONDS
    stale, undone = stale_values(before, now), (before, before)
    folds = stale + stray_values(before, now) + stale

    def count(rows: Rows) -> Forgettable:
        return Forgettable(
            sessions=_number(rows, _COUNT_STALE, stale),
            turns=_number(rows, _COUNT_TURNS, stale),
            folds=_number(rows, _COUNT_FOLDS, folds),
            folded=_number(rows, _COUNT_FOLDED, folds + undone),
        )

    return await database.read(count)


def _number(rows: Rows, statement: str, values: tuple[float, ...] = ()) -> int:
    ((number,),) = rows.all(statement, values)
    return int(number)
