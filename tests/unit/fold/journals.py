"""A journal in memory, and summarisers that do as they are told."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from foveate.errors import StoreUnavailable
from foveate.fold.journal import Fold, Lease, Outcome, Use
from foveate.fold.summariser import Bills, NoSummary, Span, Summary
from foveate.values import Usage


class InMemory:
    """Implements `Journal`. What is in `gone` raises as a database does that is not there."""

    def __init__(self, *, gone: Sequence[str] = ()) -> None:
        self.rows: list[Fold] = []
        self.turns: dict[str, tuple[bytes, ...]] = {}
        self.leases: dict[str, Lease] = {}
        self.renewed = 0
        self.seen: dict[tuple[str, bytes], Use] = {}
        self._gone = gone

    async def lease(self, session_id: str, holder: str, *, ttl_seconds: float, now: float) -> Lease | None:
        self._there("lease")
        held = self.leases.get(session_id)
        if held is not None and held.holder and held.expires_at > now:
            return None
        fence = held.fence + 1 if held is not None else 1
        made = Lease(session_id=session_id, holder=holder, fence=fence, expires_at=now + ttl_seconds)
        self.leases[session_id] = made
        return made

    async def renew(self, lease: Lease, *, ttl_seconds: float, now: float) -> Lease | None:
        self._there("renew")
        if not self._is_held(lease):
            return None
        self.renewed += 1
        self.leases[lease.session_id] = replace(lease, expires_at=now + ttl_seconds)
        return self.leases[lease.session_id]

    async def release(self, lease: Lease) -> None:
        self._there("release")
        if self._is_held(lease):
            self.leases[lease.session_id] = replace(lease, holder="")

    async def record(self, fold: Fold, turns: Sequence[bytes], *, lease: Lease | None) -> bool:
        self._there("record")
        if lease is not None and not self._is_held(lease):
            return False
        if fold.id not in self.turns:
            self.rows.append(fold)
            self.turns[fold.id] = tuple(turns)
        return True

    async def folds(self, agent: str, boundaries: Sequence[bytes]) -> Sequence[Fold]:
        self._there("folds")
        return [
            row
            for row in self.rows
            if row.agent == agent
            and row.outcome in (Outcome.OK, Outcome.TOOL_RESULT_TRUNCATED)
            and row.boundary in boundaries
        ]

    async def has_folds(self, agent: str) -> bool:
        return any(row.agent == agent for row in self.rows)

    async def fold(self, fold_id: str) -> Fold | None:
        return next((row for row in self.rows if row.id == fold_id), None)

    async def folded(self, fold_id: str) -> Sequence[bytes]:
        row = await self.fold(fold_id)
        earlier = await self.folded(row.earlier_id) if row is not None and row.earlier_id else ()
        return (*earlier, *self.turns[fold_id])

    async def undo(self, fold_id: str, *, now: float) -> bool:
        done = [row.id for row in self.rows if row.id == fold_id and row.undone_at is None]
        self.rows = [replace(row, undone_at=now) if row.id in done else row for row in self.rows]
        return bool(done)

    async def uses(self, fold_ids: Sequence[str]) -> Sequence[Use]:
        self._there("uses")
        return [use for use in self.seen.values() if use.fold_id in fold_ids]

    async def used(self, uses: Sequence[Use]) -> None:
        self._there("used")
        self.seen |= {(use.fold_id, use.tip): use for use in uses}

    async def listed(
        self,
        *,
        agent: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        before: float | None = None,
    ) -> Sequence[Fold]:
        self._there("listed")
        return [row for row in reversed(self.rows) if session_id in (None, row.session_id)][:limit]

    def _is_held(self, lease: Lease) -> bool:
        held = self.leases.get(lease.session_id)
        return held is not None and (held.holder, held.fence) == (lease.holder, lease.fence)

    def _there(self, what: str) -> None:
        if what in self._gone:
            raise StoreUnavailable("the store", "it is gone")


class Slow(InMemory):
    """Gives and takes back the right to fold only after a while, and whether or not anybody still waits."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def lease(self, session_id: str, holder: str, *, ttl_seconds: float, now: float) -> Lease | None:
        made = await super().lease(session_id, holder, ttl_seconds=ttl_seconds, now=now)
        self.asked.set()
        await asyncio.sleep(0.1)
        return made

    async def release(self, lease: Lease) -> None:
        await asyncio.sleep(0.05)
        await super().release(lease)


class Scripted:
    """Implements `Summariser`: gives one summary after the other, a text for one that goes well.

    Each takes so many `calls` at the price of `usage`; one that takes `seconds` hangs in the call after them.
    """

    model = "a model"

    def __init__(
        self,
        *answers: str | NoSummary | Exception,
        seconds: float = 0,
        redraft_seconds: float = 0,
        usage: Usage | None = None,
        calls: int = 0,
    ) -> None:
        self._answers = list(answers)
        self._seconds = seconds
        self._redraft_seconds = redraft_seconds
        self._usage = usage
        self._calls = calls
        self.asked = asyncio.Event()
        self.spans: list[Span] = []
        self.missing: list[Sequence[str]] = []

    async def summarise(self, span: Span, bills: Bills, *, limit_tokens: int) -> Summary | NoSummary:
        self.spans.append(span)
        self.asked.set()
        await self._bill(bills, self._seconds)
        return self._next()

    async def redraft(
        self, span: Span, draft: str, missing: Sequence[str], bills: Bills, *, limit_tokens: int
    ) -> Summary | NoSummary:
        self.missing.append(missing)
        await self._bill(bills, self._redraft_seconds)
        return self._next()

    async def _bill(self, bills: Bills, seconds: float) -> None:
        for _ in range(self._calls):
            bills.begin()
            bills.settle(self._usage)
        if seconds:
            bills.begin()
            await asyncio.sleep(seconds)
            bills.settle(self._usage)

    def _next(self) -> Summary | NoSummary:
        answer = self._answers.pop(0) if self._answers else NoSummary(reason="nothing more to say")
        if isinstance(answer, Exception):
            raise answer
        return Summary(text=answer, model=self.model) if isinstance(answer, str) else answer
