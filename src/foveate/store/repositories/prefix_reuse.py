"""Stores which prompt prefixes each agent requests again (`foveate.prompt_cache.placement.reuse`)."""

from collections.abc import Mapping
from operator import itemgetter

import msgspec

from foveate.prompt_cache.placement.reuse import AgentReuse
from foveate.store.database import Database, check_storable_names

_LOAD = "SELECT agent, learnt FROM prefix_reuse_v1 WHERE at >= ? ORDER BY at DESC LIMIT ?"
# Of two gateways that learn about the same agent, the one with more requests wins.
_SAVE = """
INSERT INTO prefix_reuse_v1 (agent, requests, learnt, at) VALUES (?, ?, ?, ?)
ON CONFLICT (agent) DO UPDATE
SET requests = excluded.requests, learnt = excluded.learnt, at = excluded.at
WHERE excluded.requests >= prefix_reuse_v1.requests
"""
# PostgreSQL cannot index longer names.
_MAX_NAME_CHARS = 500


class SqlReuseStore:
    """`foveate.prompt_cache.placement.reuse.ReuseStore` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, *, since: float, limit: int) -> Mapping[str, AgentReuse]:
        rows = await self._database.read(lambda transaction: transaction.fetch_all(_LOAD, (since, limit)))
        return {agent: reuse for agent, learnt in reversed(rows) if (reuse := _decode(learnt)) is not None}

    async def save(self, learnt: Mapping[str, AgentReuse], *, now: float) -> None:
        rows = []
        for agent, reuse in sorted(learnt.items(), key=itemgetter(0)):
            check_storable_names(agent=agent)
            if len(agent) <= _MAX_NAME_CHARS:
                rows.append((agent, reuse.requests, msgspec.json.encode(reuse), now))
        if rows:
            await self._database.write(
                lambda transaction: transaction.execute_many(_SAVE, rows), is_idempotent=True
            )


def _decode(learnt: bytes) -> AgentReuse | None:
    """Decode a row; None if another version wrote it in a format that this one cannot read."""
    try:
        return msgspec.json.decode(learnt, type=AgentReuse)
    except msgspec.MsgspecError:
        return None
