"""Stores compactions, the messages that they replaced, and the leases for compacting."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from foveate.compaction.store import (
    ApplicationChange,
    ClearedBlock,
    Compaction,
    CompactionLease,
    CompactionOutcome,
    EditDecision,
)
from foveate.errors import StoreUnavailable
from foveate.store.database import Database, Transaction, check_storable_names, group_placeholders

# The row stays when a lease is released or expires, so that fences only increase until the session is deleted.
# A lease that expires later than possible comes from a clock that was ahead; it counts as released.
_ACQUIRE_LEASE = """
INSERT INTO compaction_locks_v1 (session_id, holder, fence, expires_at) VALUES (?, ?, 1, ?)
ON CONFLICT (session_id) DO UPDATE
SET holder = excluded.holder, fence = compaction_locks_v1.fence + 1, expires_at = excluded.expires_at
WHERE compaction_locks_v1.holder = '' OR compaction_locks_v1.expires_at <= ?
OR compaction_locks_v1.expires_at > ?
RETURNING fence
"""
_LEASE_CONDITION = " WHERE session_id = ? AND holder = ? AND fence = ?"
_RENEW_LEASE = "UPDATE compaction_locks_v1 SET expires_at = ?" + _LEASE_CONDITION
_RELEASE_LEASE = "UPDATE compaction_locks_v1 SET holder = ''" + _LEASE_CONDITION
# Changes nothing, but locks the row: nobody can take over the lease until this transaction ends.
_LOCK_LEASE = "UPDATE compaction_locks_v1 SET fence = fence" + _LEASE_CONDITION

_COMPACTION_COLUMNS = """
id, agent, session_id, boundary, messages, seen_messages, summary, carried, tokens_before, tokens_after, model,
cost, duration_seconds, outcome, compacted_at, undone_at, earlier_id, limit_tokens, reason,
decision, cleared
"""
CHANGES_REQUESTS = "outcome IN ({})".format(
    ", ".join(f"'{outcome}'" for outcome in CompactionOutcome if outcome.changes_requests)
)
_ADD_COMPACTION = f"""
INSERT INTO compactions_v1 ({_COMPACTION_COLUMNS}) VALUES ({", ".join("?" * 21)})
ON CONFLICT (id) DO NOTHING
"""
_ADD_COMPACTED_MESSAGE = "INSERT INTO folded_turns_v1 (compaction_id, position, message) VALUES (?, ?, ?)"
_FIND_COMPACTION = f"SELECT {_COMPACTION_COLUMNS} FROM compactions_v1 WHERE id = ?"
_FIND_ANY = "SELECT 1 FROM compactions_v1 WHERE agent = ? LIMIT 1"
_FIND_BY_BOUNDARY = f"""
SELECT {_COMPACTION_COLUMNS} FROM compactions_v1
WHERE agent = ? AND {CHANGES_REQUESTS} AND boundary IN ({{}})
"""
# A compaction and all earlier ones that it builds on.
_FIND_COMPACTED_MESSAGES = """
WITH RECURSIVE line(id, earlier_id) AS (
    SELECT id, earlier_id FROM compactions_v1 WHERE id = ?
    UNION SELECT earlier.id, earlier.earlier_id
    FROM compactions_v1 AS earlier JOIN line ON earlier.id = line.earlier_id
)
SELECT message FROM folded_turns_v1 WHERE compaction_id IN (SELECT id FROM line) ORDER BY position
"""
_FIND_USES = "SELECT compaction_id, tip, messages, is_used FROM fold_uses_v1 WHERE compaction_id IN ({})"
_ADD_USE = """
INSERT INTO fold_uses_v1 (compaction_id, tip, messages, is_used) VALUES (?, ?, ?, ?)
ON CONFLICT (compaction_id, tip) DO UPDATE SET is_used = excluded.is_used
"""
# Not LIKE, in which some characters are wildcards, nor a range, which PostgreSQL sorts by locale.
_FIND_IDS = "SELECT id FROM compactions_v1 WHERE substr(id, 1, ?) = ? ORDER BY id LIMIT ?"
_FIND_SESSION_IDS = """
SELECT DISTINCT session_id FROM compactions_v1 WHERE substr(session_id, 1, ?) = ? ORDER BY session_id LIMIT ?
"""
_IS_USED_BY_CODE = (False, True, None)
"""`is_applied` by the number in the column."""
_MAX_REASON_CHARS = 2_000
_UNDO_COMPACTION = f"""
UPDATE compactions_v1 SET undone_at = ?
WHERE id = ? AND {CHANGES_REQUESTS} AND undone_at IS NULL
"""


class SqlCompactionStore:
    """`foveate.compaction.store.CompactionStore` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._releases: set[asyncio.Task[None]] = set()

    async def acquire_lease(
        self, session_id: str, holder: str, *, ttl_seconds: float, now: float
    ) -> CompactionLease | None:
        check_storable_names(session_id=session_id, holder=holder)
        expires_at = now + ttl_seconds
        # Twice the TTL, because clocks may differ a little.
        values = (session_id, holder, expires_at, now, now + 2 * ttl_seconds)

        async def take() -> CompactionLease | None:
            # Not idempotent: a repetition would take the lease of the first attempt for another holder's.
            rows = await self._database.write(
                lambda transaction: transaction.fetch_all(_ACQUIRE_LEASE, values), is_idempotent=False
            )
            if not rows:
                return None
            return CompactionLease(
                session_id=session_id, holder=holder, fence=rows[0][0], expires_at=expires_at
            )

        acquisition = asyncio.ensure_future(take())
        try:
            return await asyncio.shield(acquisition)
        except asyncio.CancelledError:
            # The acquisition may still succeed; without a release nobody could get the lease until it expires.
            release = asyncio.ensure_future(self._release_when_acquired(acquisition))
            self._releases.add(release)
            release.add_done_callback(self._releases.discard)
            raise

    async def wait_for_releases(self) -> None:
        """Wait until leases that were acquired for cancelled callers are released."""
        loop = asyncio.get_running_loop()
        releases = [task for task in self._releases if task.get_loop() is loop]
        await asyncio.gather(*releases, return_exceptions=True)

    async def renew_lease(
        self, lease: CompactionLease, *, ttl_seconds: float, now: float
    ) -> CompactionLease | None:
        expires_at = now + ttl_seconds
        renewed = await self._database.write(
            lambda transaction: transaction.execute(_RENEW_LEASE, (expires_at, *_lease_key(lease))),
            is_idempotent=True,
        )
        if not renewed:
            return None
        return CompactionLease(
            session_id=lease.session_id, holder=lease.holder, fence=lease.fence, expires_at=expires_at
        )

    async def release_lease(self, lease: CompactionLease) -> None:
        await self._database.write(
            lambda transaction: transaction.execute(_RELEASE_LEASE, _lease_key(lease)), is_idempotent=True
        )

    async def _release_when_acquired(self, acquisition: asyncio.Task[CompactionLease | None]) -> None:
        with suppress(StoreUnavailable):  # the lease expires
            if lease := await acquisition:
                await self.release_lease(lease)

    async def record(
        self, compaction: Compaction, messages: Sequence[bytes], *, lease: CompactionLease | None
    ) -> bool:
        check_storable_names(
            fold_id=compaction.id,
            agent=compaction.agent,
            session_id=compaction.session_id,
            model=compaction.model,
            outcome=compaction.outcome,
            earlier_id=compaction.earlier_id,
        )
        if lease is not None and lease.session_id != compaction.session_id:
            return False
        first = compaction.messages - len(messages) if compaction.earlier_id is not None else 0
        message_rows = [(compaction.id, first + number, message) for number, message in enumerate(messages)]

        def write(transaction: Transaction) -> bool:
            if transaction.fetch_all(_FIND_COMPACTION, (compaction.id,)):
                return True
            if lease is not None and not transaction.execute(_LOCK_LEASE, _lease_key(lease)):
                return False
            if transaction.execute(_ADD_COMPACTION, _to_row(compaction)) and message_rows:
                transaction.execute_many(_ADD_COMPACTED_MESSAGE, message_rows)
            return True

        return await self._database.write(write, is_idempotent=True)

    async def find_compactions(self, agent: str, boundaries: Sequence[bytes]) -> Sequence[Compaction]:
        check_storable_names(agent=agent)

        def find(transaction: Transaction) -> list[Compaction]:
            return [
                _to_compaction(*row)
                for placeholders, group in group_placeholders(boundaries)
                for row in transaction.fetch_all(_FIND_BY_BOUNDARY.format(placeholders), (agent, *group))
            ]

        rows = await self._database.read(find) if boundaries else []
        return sorted(
            rows, key=lambda compaction: (-compaction.messages, -compaction.compacted_at, compaction.id)
        )

    async def has_compactions(self, agent: str) -> bool:
        check_storable_names(agent=agent)
        return bool(await self._database.read(lambda transaction: transaction.fetch_all(_FIND_ANY, (agent,))))

    async def get_compaction(self, compaction_id: str) -> Compaction | None:
        check_storable_names(fold_id=compaction_id)
        rows = await self._database.read(
            lambda transaction: transaction.fetch_all(_FIND_COMPACTION, (compaction_id,))
        )
        return _to_compaction(*rows[0]) if rows else None

    async def load_messages(self, compaction_id: str) -> Sequence[bytes]:
        check_storable_names(fold_id=compaction_id)
        rows = await self._database.read(
            lambda transaction: transaction.fetch_all(_FIND_COMPACTED_MESSAGES, (compaction_id,))
        )
        return [message for (message,) in rows]

    async def undo(self, compaction_id: str, *, now: float) -> bool:
        check_storable_names(fold_id=compaction_id)
        # Not idempotent: a repetition would report that the compaction was already undone.
        return bool(
            await self._database.write(
                lambda transaction: transaction.execute(_UNDO_COMPACTION, (now, compaction_id)),
                is_idempotent=False,
            )
        )

    async def list_application_changes(self, compaction_ids: Sequence[str]) -> Sequence[ApplicationChange]:
        def find(transaction: Transaction) -> list[ApplicationChange]:
            return [
                ApplicationChange(
                    compaction_id=compaction_id,
                    last_hash=tip,
                    messages=messages,
                    is_applied=_IS_USED_BY_CODE[is_used],
                )
                for placeholders, group in group_placeholders(compaction_ids)
                for compaction_id, tip, messages, is_used in dict.fromkeys(
                    transaction.fetch_all(_FIND_USES.format(placeholders), group)
                )
            ]

        return await self._database.read(find) if compaction_ids else []

    async def record_application_changes(self, changes: Sequence[ApplicationChange]) -> None:
        added = sorted(
            (use.compaction_id, use.last_hash, use.messages, _IS_USED_BY_CODE.index(use.is_applied))
            for use in changes
        )
        await self._database.write(
            lambda transaction: transaction.execute_many(_ADD_USE, added), is_idempotent=True
        )

    async def list_compactions(
        self,
        *,
        agent: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        before: float | None = None,
    ) -> Sequence[Compaction]:
        check_storable_names(agent=agent, session_id=session_id)
        conditions = {"agent = ?": agent, "session_id = ?": session_id, "compacted_at < ?": before}
        active = {condition: value for condition, value in conditions.items() if value is not None}
        where_clause = f"WHERE {' AND '.join(active)}" if active else ""
        order = "ORDER BY compacted_at DESC, id DESC LIMIT ?"
        statement = f"SELECT {_COMPACTION_COLUMNS} FROM compactions_v1 {where_clause} {order}"
        rows = await self._database.read(
            lambda transaction: transaction.fetch_all(statement, (*active.values(), limit))
        )
        return [_to_compaction(*row) for row in rows]

    async def find_ids(self, prefix: str, *, limit: int) -> list[str]:
        return await self._find_ids(_FIND_IDS, prefix, limit)

    async def find_session_ids(self, prefix: str, *, limit: int) -> list[str]:
        """Return the sessions with any compaction, whatever its outcome, whose ids have a prefix."""
        return await self._find_ids(_FIND_SESSION_IDS, prefix, limit)

    async def _find_ids(self, statement: str, prefix: str, limit: int) -> list[str]:
        check_storable_names(id=prefix)
        values = (len(prefix), prefix, limit)
        rows = await self._database.read(lambda transaction: transaction.fetch_all(statement, values))
        return [id_ for (id_,) in rows]


def _lease_key(lease: CompactionLease) -> tuple[str, str, int]:
    return lease.session_id, lease.holder, lease.fence


def _to_row(compaction: Compaction) -> tuple[Any, ...]:
    return (
        compaction.id,
        compaction.agent,
        compaction.session_id,
        compaction.boundary,
        compaction.messages,
        compaction.seen_messages,
        compaction.summary.encode("utf-8", "surrogatepass"),
        json.dumps(compaction.carried),
        compaction.tokens_before,
        compaction.tokens_after,
        compaction.model,
        None if compaction.cost is None else str(compaction.cost),
        compaction.duration_seconds,
        compaction.outcome.value,
        compaction.compacted_at,
        compaction.undone_at,
        compaction.earlier_id,
        compaction.limit_tokens,
        compaction.reason[:_MAX_REASON_CHARS].encode("utf-8", "surrogatepass"),
        None if compaction.decision is None else json.dumps(asdict(compaction.decision)),
        json.dumps(list(map(asdict, compaction.cleared))).encode() if compaction.cleared else None,
    )


def _to_compaction(
    id_: str,
    agent: str,
    session_id: str,
    boundary: bytes,
    messages: int,
    seen_messages: int,
    summary: bytes,
    carried: str,
    tokens_before: int,
    tokens_after: int,
    model: str,
    cost: str | None,
    duration_seconds: float,
    outcome: str,
    compacted_at: float,
    undone_at: float | None,
    earlier_id: str | None,
    limit_tokens: int | None,
    reason: bytes | None,
    decision: str | None,
    cleared: bytes | None,
) -> Compaction:
    return Compaction(
        id=id_,
        agent=agent,
        session_id=session_id,
        boundary=boundary,
        messages=messages,
        seen_messages=seen_messages,
        summary=summary.decode("utf-8", "surrogatepass"),
        carried=tuple(json.loads(carried)),
        tokens_before=tokens_before,
        tokens_after=tokens_after,
        model=model,
        cost=None if cost is None else Decimal(cost),
        duration_seconds=duration_seconds,
        outcome=CompactionOutcome(outcome),
        compacted_at=compacted_at,
        undone_at=undone_at,
        earlier_id=earlier_id,
        limit_tokens=limit_tokens,
        reason=(reason or b"").decode("utf-8", "surrogatepass"),
        decision=None if decision is None else EditDecision(**json.loads(decision)),
        cleared=tuple(ClearedBlock(**block) for block in json.loads(cleared)) if cleared else (),
    )
