"""What is kept, in numbers: how much there is, and how much of it `forget` would forget."""

from dataclasses import dataclass

from foveate.store.database import Database, Rows
from foveate.store.migrating import FIND_VERSION
from foveate.store.retention import _FIND_STALE, _FIND_STRAYS, _FORGET_UNDONE, DAY_SECONDS

# The statements by which `forget` finds what goes, without the end to how much goes at once.
_STALE = _FIND_STALE.rpartition("LIMIT")[0]
_STRAYS = _FIND_STRAYS.rpartition("LIMIT")[0]
_COUNT_STALE = f"SELECT count(*) FROM ({_STALE}) AS stale"
_GONE = f"SELECT id FROM ({_STALE}) AS stale UNION SELECT session_id FROM ({_STRAYS}) AS strays"
_COUNT_OWN = f"SELECT count(*) FROM {{}} WHERE session_id IN ({_GONE})"
_FOLDED = "SELECT compaction_id, position FROM folded_turns_v1"
_COUNT_FOLDED = f"""
SELECT count(*) FROM (
    {_FOLDED} WHERE compaction_id IN (SELECT id FROM compactions_v1 WHERE session_id IN ({_GONE}))
    UNION SELECT * FROM ({_FORGET_UNDONE.replace("DELETE FROM folded_turns_v1", _FOLDED)}) AS undone
) AS gone
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is kept, and where. `folded` are the messages that folds can be undone with."""

    where: str
    version: str
    sessions: int
    turns: int
    folds: int
    folded: int
    size_bytes: int


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
        return str(version), [_number(rows, f"SELECT count(*) FROM {table}") for table in tables]

    version, (sessions, turns, folds, folded) = await database.read(count)
    return Sizes(
        where=database.where,
        version=version,
        sessions=sessions,
        turns=turns,
        folds=folds,
        folded=folded,
        size_bytes=await database.size_bytes(),
    )


async def would_forget(database: Database, *, keep_days: float, now: float) -> Forgettable:
    """What `forget` would forget."""
    before = now - keep_days * DAY_SECONDS
    stale, strays, undone = (before, now, before), (before, before, before), (before, before)

    def count(rows: Rows) -> Forgettable:
        return Forgettable(
            sessions=_number(rows, _COUNT_STALE, stale),
            turns=_number(rows, _COUNT_OWN.format("turns_v1"), stale + strays),
            folds=_number(rows, _COUNT_OWN.format("compactions_v1"), stale + strays),
            folded=_number(rows, _COUNT_FOLDED, stale + strays + undone),
        )

    return await database.read(count)


def _number(rows: Rows, statement: str, values: tuple[float, ...] = ()) -> int:
    ((number,),) = rows.all(statement, values)
    return int(number)
