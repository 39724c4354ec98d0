"""Folds, what they folded and who may fold, as `foveate.fold` asks to have them kept."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

from foveate.errors import StoreUnavailable
from foveate.fold.journal import Fold, Lease, Outcome, Use
from foveate.store.database import Database, Rows, check_names, in_groups

# The row stays when the right is given back or runs out: fences only rise, until the session is forgotten.
# One that runs out later than any can is of somebody whose clock was ahead, and held by nobody.
_TAKE = """
INSERT INTO compaction_locks_v1 (session_id, holder, fence, expires_at) VALUES (?, ?, 1, ?)
ON CONFLICT (session_id) DO UPDATE
SET holder = excluded.holder, fence = compaction_locks_v1.fence + 1, expires_at = excluded.expires_at
WHERE compaction_locks_v1.holder = '' OR compaction_locks_v1.expires_at <= ?
OR compaction_locks_v1.expires_at > ?
RETURNING fence
"""
_OWN = " WHERE session_id = ? AND holder = ? AND fence = ?"
_RENEW = "UPDATE compaction_locks_v1 SET expires_at = ?" + _OWN
_RELEASE = "UPDATE compaction_locks_v1 SET holder = ''" + _OWN
# Changes nothing, and has whoever wants to take the lease over wait until this transaction is through.
_HOLD = "UPDATE compaction_locks_v1 SET fence = fence" + _OWN

_COLUMNS = """
id, agent, session_id, boundary, messages, seen_messages, summary, carried, tokens_before, tokens_after, model,
cost, duration_seconds, outcome, compacted_at, undone_at, earlier_id, limit_tokens, reason
"""
_ADD_FOLD = f"""
INSERT INTO compactions_v1 ({_COLUMNS}) VALUES ({", ".join("?" * 19)})
ON CONFLICT (id) DO NOTHING
"""
_ADD_FOLDED = "INSERT INTO folded_turns_v1 (compaction_id, position, message) VALUES (?, ?, ?)"
_FIND_FOLD = f"SELECT {_COLUMNS} FROM compactions_v1 WHERE id = ?"
_ANY = "SELECT 1 FROM compactions_v1 WHERE agent = ? LIMIT 1"
_FIND_AT = f"""
SELECT {_COLUMNS} FROM compactions_v1
WHERE agent = ? AND outcome IN ('{Outcome.OK}', '{Outcome.TOOL_RESULT_TRUNCATED}') AND boundary IN ({{}})
"""
# A fold and all that it took in, each with the one that took it in before them.
_FIND_FOLDED = """
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
_TOLD = (False, True, None)
"""Whether a fold is in use, as the numbers 0 to 2 say it."""
_LONGEST_REASON = 2_000
_UNDO = f"""
UPDATE compactions_v1 SET undone_at = ?
WHERE id = ? AND outcome IN ('{Outcome.OK}', '{Outcome.TOOL_RESULT_TRUNCATED}') AND undone_at IS NULL
"""


class KeptFolds:
    """Implements `foveate.fold.journal.Journal` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._giving_back: set[asyncio.Task[None]] = set()

    async def lease(self, session_id: str, holder: str, *, ttl_seconds: float, now: float) -> Lease | None:
        """The right to fold, or None where it is held, by whomever, and has not expired."""
        check_names(session_id=session_id, holder=holder)
        expires_at = now + ttl_seconds
        # Twice the time, since clocks may disagree a little.
        values = (session_id, holder, expires_at, now, now + 2 * ttl_seconds)

        async def take() -> Lease | None:
            # Not again: the second time would find the first one's lease, and take it for somebody else's.
            taken = await self._database.write(lambda rows: rows.all(_TAKE, values), again=False)
            if not taken:
                return None
            return Lease(session_id=session_id, holder=holder, fence=taken[0][0], expires_at=expires_at)

        taking = asyncio.ensure_future(take())
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            # What is under way may still take it: nobody would have it, and nobody else could get it.
            giving_back = asyncio.ensure_future(self._give_back(taking))
            self._giving_back.add(giving_back)
            giving_back.add_done_callback(self._giving_back.discard)
            raise

    async def settled(self) -> None:
        """Wait until what was taken by those who no longer wait for it is given back."""
        here = asyncio.get_running_loop()
        own = [task for task in self._giving_back if task.get_loop() is here]
        await asyncio.gather(*own, return_exceptions=True)

    async def renew(self, lease: Lease, *, ttl_seconds: float, now: float) -> Lease | None:
        """The same right for longer, or None where it was lost.

        One that has run out is not lost before somebody else has taken it.
        """
        expires_at = now + ttl_seconds
        kept = await self._database.write(
            lambda rows: rows.change(_RENEW, (expires_at, *_own(lease))), again=True
        )
        if not kept:
            return None
        return Lease(session_id=lease.session_id, holder=lease.holder, fence=lease.fence, expires_at=expires_at)

    async def release(self, lease: Lease) -> None:
        """Give the right back; nothing where it is no longer one's own."""
        await self._database.write(lambda rows: rows.change(_RELEASE, _own(lease)), again=True)

    async def _give_back(self, taking: asyncio.Task[Lease | None]) -> None:
        with suppress(StoreUnavailable):  # it runs out in time
            if lease := await taking:
                await self.release(lease)

    async def record(self, fold: Fold, turns: Sequence[bytes], *, lease: Lease | None) -> bool:
        """Keep a fold and the turns it folded, in one; False, and nothing kept, where the lease was lost.

        A fold that is kept already stays as it is, and that is True.
        """
        check_names(
            fold_id=fold.id,
            agent=fold.agent,
            session_id=fold.session_id,
            model=fold.model,
            outcome=fold.outcome,
            earlier_id=fold.earlier_id,
        )
        if lease is not None and lease.session_id != fold.session_id:
            return False
        first = fold.messages - len(turns) if fold.earlier_id is not None else 0
        folded = [(fold.id, first + number, message) for number, message in enumerate(turns)]

        def write(rows: Rows) -> bool:
            if rows.all(_FIND_FOLD, (fold.id,)):
                return True
            if lease is not None and not rows.change(_HOLD, _own(lease)):
                return False
            if rows.change(_ADD_FOLD, _row(fold)) and folded:
                rows.change_many(_ADD_FOLDED, folded)
            return True

        return await self._database.write(write, again=True)

    async def folds(self, agent: str, boundaries: Sequence[bytes]) -> Sequence[Fold]:
        """What was folded or cut at any of `boundaries`: the longest first, of equally long ones the newest."""
        check_names(agent=agent)

        def find(rows: Rows) -> list[Fold]:
            return [
                _fold(*row)
                for marks, some in in_groups(boundaries)
                for row in rows.all(_FIND_AT.format(marks), (agent, *some))
            ]

        found = await self._database.read(find) if boundaries else []
        return sorted(found, key=lambda fold: (-fold.messages, -fold.compacted_at, fold.id))

    async def has_folds(self, agent: str) -> bool:
        """Whether anything was ever folded or cut for an agent."""
        check_names(agent=agent)
        return bool(await self._database.read(lambda rows: rows.all(_ANY, (agent,))))

    async def fold(self, fold_id: str) -> Fold | None:
        """One fold by its id."""
        check_names(fold_id=fold_id)
        found = await self._database.read(lambda rows: rows.all(_FIND_FOLD, (fold_id,)))
        return _fold(*found[0]) if found else None

    async def folded(self, fold_id: str) -> Sequence[bytes]:
        """The turns that a fold folded, each as it came, with those of the folds that it took in."""
        check_names(fold_id=fold_id)
        found = await self._database.read(lambda rows: rows.all(_FIND_FOLDED, (fold_id,)))
        return [message for (message,) in found]

    async def undo(self, fold_id: str, *, now: float) -> bool:
        """Have the fold in force no longer; False where there is none, it failed, or was undone before."""
        check_names(fold_id=fold_id)
        # Not again: the second time would say that somebody else has undone it.
        return bool(await self._database.write(lambda rows: rows.change(_UNDO, (now, fold_id)), again=False))

    async def uses(self, fold_ids: Sequence[str]) -> Sequence[Use]:
        """When these folds came into use, and went out of it, in any conversation."""

        def find(rows: Rows) -> list[Use]:
            return [
                Use(fold_id=fold_id, tip=tip, messages=messages, is_used=_TOLD[is_used])
                for marks, some in in_groups(fold_ids)
                for fold_id, tip, messages, is_used in dict.fromkeys(rows.all(_FIND_USES.format(marks), some))
            ]

        return await self._database.read(find) if fold_ids else []

    async def used(self, uses: Sequence[Use]) -> None:
        """Keep these; of two at the same message, the later is the one that holds."""
        added = sorted((use.fold_id, use.tip, use.messages, _TOLD.index(use.is_used)) for use in uses)
        await self._database.write(lambda rows: rows.change_many(_ADD_USE, added), again=True)

    async def listed(
        self,
        *,
        agent: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        before: float | None = None,
    ) -> Sequence[Fold]:
        """Folds, the newest first."""
        check_names(agent=agent, session_id=session_id)
        wanted = {"agent = ?": agent, "session_id = ?": session_id, "compacted_at < ?": before}
        asked = {condition: value for condition, value in wanted.items() if value is not None}
        where = f"WHERE {' AND '.join(asked)}" if asked else ""
        statement = f"SELECT {_COLUMNS} FROM compactions_v1 {where} ORDER BY compacted_at DESC, id DESC LIMIT ?"
        found = await self._database.read(lambda rows: rows.all(statement, (*asked.values(), limit)))
        return [_fold(*row) for row in found]


def _own(lease: Lease) -> tuple[str, str, int]:
    return lease.session_id, lease.holder, lease.fence


def _row(fold: Fold) -> tuple[Any, ...]:
    """A fold as a row of the columns above."""
    return (
        fold.id,
        fold.agent,
        fold.session_id,
        fold.boundary,
        fold.messages,
        fold.seen_messages,
        fold.summary.encode("utf-8", "surrogatepass"),
        json.dumps(fold.carried),
        fold.tokens_before,
        fold.tokens_after,
        fold.model,
        None if fold.cost is None else str(fold.cost),
        fold.duration_seconds,
        fold.outcome.value,
        fold.compacted_at,
        fold.undone_at,
        fold.earlier_id,
        fold.limit_tokens,
        fold.reason[:_LONGEST_REASON].encode("utf-8", "surrogatepass"),
    )


def _fold(
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
) -> Fold:
    return Fold(
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
        outcome=Outcome(outcome),
        compacted_at=compacted_at,
        undone_at=undone_at,
        earlier_id=earlier_id,
        limit_tokens=limit_tokens,
        reason=(reason or b"").decode("utf-8", "surrogatepass"),
    )
