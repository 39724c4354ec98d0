"""The latest cache breaks, for pages: found in an index that has nothing else in it."""

from dataclasses import dataclass
from typing import Any

from foveate.session.traces import CacheBreak
from foveate.store.aside import Reads
from foveate.store.ledger_rows import name_of
from foveate.store.traces import break_in

_FIND = """
SELECT id, at, agent, session_id, model, broke FROM traces_v1 WHERE broke IS NOT NULL {}
ORDER BY at DESC, id DESC LIMIT ?
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenAt:
    """A request that could not read what the one before it left in the cache, and why."""

    request_id: str
    at: float
    agent: str
    session_id: str
    model: str
    broke: CacheBreak


async def latest_breaks(
    database: Reads, *, limit: int, since: float | None = None, agent: str | None = None
) -> list[BrokenAt]:
    """The newest first, of those since a time, of an agent."""
    asked: dict[str, Any] = {
        "AND at >= ?": since,
        "AND agent = ?": None if agent is None else name_of(agent),
    }
    said = {condition: value for condition, value in asked.items() if value is not None}
    statement, values = _FIND.format(" ".join(said)), (*said.values(), limit)
    return [_broken(*row) for row in await database.read(lambda rows: rows.all(statement, values))]


def _broken(id_: str, at: float, agent: str, session_id: str, model: str, broke: bytes) -> BrokenAt:
    return BrokenAt(
        request_id=id_,
        at=at,
        agent=agent,
        session_id=session_id,
        model=model,
        broke=break_in(broke),
    )
