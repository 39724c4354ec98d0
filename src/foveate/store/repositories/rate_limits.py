"""Stores how much of each subscription's rate limits is used."""

from collections.abc import Sequence

from foveate.formats.response.rate_limits import RateLimit
from foveate.session.store import ObservedLimit
from foveate.store.database import Database
from foveate.store.repositories.ledger_rows import to_storable_name

_SAVE_RATE_LIMIT = """
INSERT INTO rate_limits_v1 (agent, provider, name, used, resets_at, status, at) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (agent, provider, name) DO UPDATE
SET used = excluded.used, resets_at = excluded.resets_at, status = excluded.status, at = excluded.at
WHERE excluded.at >= rate_limits_v1.at
"""
_FIND_RATE_LIMITS = """
SELECT agent, provider, name, used, resets_at, status, at FROM rate_limits_v1 WHERE at >= ?
ORDER BY agent, provider, name
"""


class SqlRateLimitStore:
    """`foveate.session.store.RateLimitStore` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, limits: Sequence[ObservedLimit]) -> None:
        rows = sorted(
            (
                *(
                    to_storable_name(observed.agent),
                    to_storable_name(observed.provider),
                    observed.limit.name,
                    observed.limit.used,
                ),
                *(observed.limit.resets_at, observed.limit.status, observed.at),
            )
            for observed in limits
        )
        if rows:
            await self._database.write(
                lambda transaction: transaction.execute_many(_SAVE_RATE_LIMIT, rows), is_idempotent=True
            )

    async def find_recent(self, *, since: float) -> Sequence[ObservedLimit]:
        rows = await self._database.read(lambda transaction: transaction.fetch_all(_FIND_RATE_LIMITS, (since,)))
        return [
            ObservedLimit(
                agent=agent,
                provider=provider,
                limit=RateLimit(name=name, used=used, resets_at=resets_at, status=status),
                at=at,
            )
            for agent, provider, name, used, resets_at, status, at in rows
        ]
