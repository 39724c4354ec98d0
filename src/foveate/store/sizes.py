"""What is kept, in numbers: how much there is, and how much of it `forget` would forget."""

from dataclasses import dataclass

from foveate.store.database import Database, Transaction
from foveate.store.migrating import FIND_VERSION
from foveate.store.retention import (
    _ALL_ORPHANED,
    _ALL_STALE,
    _DELETE_UNDONE_MESSAGES,
    _IS_IN_FORCE,
    _IS_UNREFERENCED,
    DAY_SECONDS,
    orphan_parameters,
    stale_parameters,
)

# By the statements with which `forget` finds what goes.
_STALE_IDS = f"SELECT id FROM ({_ALL_STALE}) AS stale"
_COUNT_STALE = f"SELECT count(*) FROM ({_ALL_STALE}) AS stale"
_COUNT_TURNS = f"SELECT count(*) FROM turns_v1 WHERE session_id IN ({_STALE_IDS})"
# As in `forget`, a fold stays where the turn at its boundary does, which may go with a stale session.
_ORPHANED_IDS = f"SELECT session_id FROM ({_ALL_ORPHANED.replace(f'{_IS_UNREFERENCED} AND ', '')}) AS strays"
_STALE_COMPACTIONS = f"""
FROM compactions_v1 LEFT JOIN turns_v1 AS turn
ON {_IS_IN_FORCE} AND turn.agent = compactions_v1.agent AND turn.hash = compactions_v1.boundary
WHERE compactions_v1.session_id IN ({_STALE_IDS} UNION {_ORPHANED_IDS})
AND (turn.hash IS NULL OR turn.session_id IN ({_STALE_IDS}))
"""
_COUNT_COMPACTIONS = f"SELECT count(*) {_STALE_COMPACTIONS}"
_COMPACTED_MESSAGES = "SELECT compaction_id, position FROM folded_turns_v1"
_COUNT_COMPACTED_MESSAGES = f"""
SELECT count(*) FROM (
    {_COMPACTED_MESSAGES} WHERE compaction_id IN (SELECT compactions_v1.id {_STALE_COMPACTIONS})
    UNION SELECT * FROM ({_DELETE_UNDONE_MESSAGES.replace("DELETE FROM folded_turns_v1", _COMPACTED_MESSAGES)}) AS undone
) AS gone
"""

_COUNT_REQUESTS = "SELECT count(*), coalesce(sum(size_bytes), 0) FROM requests_v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSizes:
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
class PrunePreview:
    """How much would be forgotten, of each as in `Sizes`."""

    sessions: int = 0
    turns: int = 0
    folds: int = 0
    folded: int = 0


async def measure_sizes(database: Database) -> StoreSizes:
    """How much is kept in a database."""

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
    """What `forget` would forget."""
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
