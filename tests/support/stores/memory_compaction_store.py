"""A compaction store in memory, and scripted summarizers."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from foveate.compaction.store import ApplicationChange, Compaction, CompactionLease, CompactionOutcome
from foveate.compaction.summarize.summarizer import Summary, SummaryFailure, SummaryInput, UsageLog
from foveate.errors import StoreUnavailable
from foveate.model import Usage


class InMemoryCompactionStore:
    """Implements `CompactionStore`. Operations in `gone` raise like an unreachable database."""

    def __init__(self, *, unavailable: Sequence[str] = ()) -> None:
        self.compactions: list[Compaction] = []
        self.messages: dict[str, tuple[bytes, ...]] = {}
        self.leases: dict[str, CompactionLease] = {}
        self.renewed = 0
        self.changes: dict[tuple[str, bytes], ApplicationChange] = {}
        self._unavailable = unavailable

    async def acquire_lease(
        self, session_id: str, holder: str, *, ttl_seconds: float, now: float
    ) -> CompactionLease | None:
        self._check_available("lease")
        held = self.leases.get(session_id)
        if held is not None and held.holder and held.expires_at > now:
            return None
        fence = held.fence + 1 if held is not None else 1
        made = CompactionLease(session_id=session_id, holder=holder, fence=fence, expires_at=now + ttl_seconds)
        self.leases[session_id] = made
        return made

    async def renew_lease(
        self, lease: CompactionLease, *, ttl_seconds: float, now: float
    ) -> CompactionLease | None:
        self._check_available("renew")
        if not self._is_held(lease):
            return None
        self.renewed += 1
        self.leases[lease.session_id] = replace(lease, expires_at=now + ttl_seconds)
        return self.leases[lease.session_id]

    async def release_lease(self, lease: CompactionLease) -> None:
        self._check_available("release")
        if self._is_held(lease):
            self.leases[lease.session_id] = replace(lease, holder="")

    async def record(
        self, compaction: Compaction, messages: Sequence[bytes], *, lease: CompactionLease | None
    ) -> bool:
        self._check_available("record")
        if lease is not None and not self._is_held(lease):
            return False
        if compaction.id not in self.messages:
            self.compactions.append(compaction)
            self.messages[compaction.id] = tuple(messages)
        return True

    async def find_compactions(self, agent: str, boundaries: Sequence[bytes]) -> Sequence[Compaction]:
        self._check_available("folds")
        return [
            row
            for row in self.compactions
            if row.agent == agent
            and row.outcome in (CompactionOutcome.OK, CompactionOutcome.TOOL_RESULT_TRUNCATED)
            and row.boundary in boundaries
        ]

    async def has_compactions(self, agent: str) -> bool:
        return any(row.agent == agent for row in self.compactions)

    async def get_compaction(self, compaction_id: str) -> Compaction | None:
        return next((row for row in self.compactions if row.id == compaction_id), None)

    async def load_messages(self, compaction_id: str) -> Sequence[bytes]:
        row = await self.get_compaction(compaction_id)
        earlier = await self.load_messages(row.earlier_id) if row is not None and row.earlier_id else ()
        return (*earlier, *self.messages[compaction_id])

    async def undo(self, compaction_id: str, *, now: float) -> bool:
        done = [row.id for row in self.compactions if row.id == compaction_id and row.undone_at is None]
        self.compactions = [replace(row, undone_at=now) if row.id in done else row for row in self.compactions]
        return bool(done)

    async def list_application_changes(self, compaction_ids: Sequence[str]) -> Sequence[ApplicationChange]:
        self._check_available("uses")
        return [use for use in self.changes.values() if use.compaction_id in compaction_ids]

    async def record_application_changes(self, changes: Sequence[ApplicationChange]) -> None:
        self._check_available("used")
        self.changes |= {(use.compaction_id, use.last_hash): use for use in changes}

    async def list_compactions(
        self,
        *,
        agent: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        before: float | None = None,
    ) -> Sequence[Compaction]:
        self._check_available("listed")
        return [row for row in reversed(self.compactions) if session_id in (None, row.session_id)][:limit]

    def _is_held(self, lease: CompactionLease) -> bool:
        held = self.leases.get(lease.session_id)
        return held is not None and (held.holder, held.fence) == (lease.holder, lease.fence)

    def _check_available(self, what: str) -> None:
        if what in self._unavailable:
            raise StoreUnavailable("the store", "it is gone")


class SlowCompactionStore(InMemoryCompactionStore):
    """Acquires and releases the lease with a delay, even if the caller has been cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.lease_requested = asyncio.Event()

    async def acquire_lease(
        self, session_id: str, holder: str, *, ttl_seconds: float, now: float
    ) -> CompactionLease | None:
        made = await super().acquire_lease(session_id, holder, ttl_seconds=ttl_seconds, now=now)
        self.lease_requested.set()
        await asyncio.sleep(0.1)
        return made

    async def release_lease(self, lease: CompactionLease) -> None:
        await asyncio.sleep(0.05)
        await super().release_lease(lease)


class ScriptedSummarizer:
    """Implements `Summarizer`: returns the given summaries in order; a text stands for a success.

    Each takes this many `calls` at the price of `usage`; one that takes `seconds` hangs in the call after them.
    """

    model = "a model"

    def __init__(
        self,
        *answers: str | SummaryFailure | Exception,
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
        self.started = asyncio.Event()
        self.inputs: list[SummaryInput] = []
        self.missing: list[Sequence[str]] = []

    async def summarize(
        self, summary_input: SummaryInput, usage_log: UsageLog, *, limit_tokens: int
    ) -> Summary | SummaryFailure:
        self.inputs.append(summary_input)
        self.started.set()
        await self._record_usage(usage_log, self._seconds)
        return self._next()

    async def redraft(
        self,
        summary_input: SummaryInput,
        draft: str,
        missing: Sequence[str],
        usage_log: UsageLog,
        *,
        limit_tokens: int,
    ) -> Summary | SummaryFailure:
        self.missing.append(missing)
        await self._record_usage(usage_log, self._redraft_seconds)
        return self._next()

    async def _record_usage(self, usage_log: UsageLog, seconds: float) -> None:
        for _ in range(self._calls):
            usage_log.start_call()
            usage_log.finish_call(self._usage)
        if seconds:
            usage_log.start_call()
            await asyncio.sleep(seconds)
            usage_log.finish_call(self._usage)

    def _next(self) -> Summary | SummaryFailure:
        answer = self._answers.pop(0) if self._answers else SummaryFailure(reason="nothing more to say")
        if isinstance(answer, Exception):
            raise answer
        return Summary(text=answer, model=self.model) if isinstance(answer, str) else answer
