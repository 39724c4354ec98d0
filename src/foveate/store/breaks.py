"""The latest cache breaks, for pages: found in an index that has nothing else in it."""

from dataclasses import dataclass
from typing import Any

from foveate.session.traces import CacheMiss
from foveate.store.aside import Reader
from foveate.store.ledger_rows import to_storable_name
from foveate.store.traces import decode_cache_miss

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
