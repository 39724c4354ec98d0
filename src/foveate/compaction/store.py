"""What is kept of folds, and the small interface of who keeps it."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Protocol


class CompactionOutcome(StrEnum):
    """How a fold ended."""

    OK = "ok"
    FAILED = "failed"
    LOCK_HELD = "lock_held"
    NO_BOUNDARY = "no_boundary"
    TOOL_RESULT_TRUNCATED = "tool_result_truncated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """One row of `compactions_v1`: the first `messages` of a conversation, and what stands for them.

    `boundary` is the hash of the last folded message, by which the same head is recognised in any session.
    `seen_messages` is how many the conversation had when that was tried, 0 where that is not known; what the
    model said beyond, it said since. `carried` are the facts that were added to the summary since it had left
    them out. `cost` is None where the price is not known. `earlier_id` is the fold of the same session that
    this one took in: the turns that it folded are kept with that one.

    Where tool results were cut (`tool_result_truncated`), `boundary` is the hash of the message that they stand
    in, and `limit_tokens` how much of each is sent. `reason` says why it did not go well, or not as it should.
    """

    id: str
    agent: str
    session_id: str
    boundary: bytes
    messages: int
    summary: str
    carried: tuple[str, ...]
    tokens_before: int
    tokens_after: int
    model: str
    cost: Decimal | None
    duration_seconds: float
    outcome: CompactionOutcome
    compacted_at: float
    undone_at: float | None = None
    seen_messages: int = 0
    earlier_id: str | None = None
    limit_tokens: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationChange:
    """That a conversation was sent with a fold for the first time, or (`is_used` false) no longer.

    It had so many `messages` then, and the last of them had the hash `tip`: in any conversation that goes on
    from there, what the model said since, it said after that. With None nobody can say any longer what was sent
    until then, or since.
    """

    compaction_id: str
    last_hash: bytes
    messages: int
    is_applied: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLease:
    """The right to fold a session, until `expires_at`; of two, the one with the higher `fence` is the later."""

    session_id: str
    holder: str
    fence: int
    expires_at: float


class CompactionStore(Protocol):
    """Keeps folds, the turns that they folded, and who may fold."""

    async def acquire_lease(
        self, session_id: str, holder: str, *, ttl_seconds: float, now: float
    ) -> CompactionLease | None:
        """The right to fold, or None where somebody else holds it and it has not expired."""

    async def renew_lease(
        self, lease: CompactionLease, *, ttl_seconds: float, now: float
    ) -> CompactionLease | None:
        """The same right for longer, or None where it was lost."""

    async def release_lease(self, lease: CompactionLease) -> None:
        """Give the right back; nothing where it is no longer one's own."""

    async def record(
        self, compaction: Compaction, messages: Sequence[bytes], *, lease: CompactionLease | None
    ) -> bool:
        """Keep a fold and the turns it folded, in one; False, and nothing kept, where the lease was lost.

        `turns` are the last ones of the span; those before them are kept with the fold that it took in.
        """

    async def find_compactions(self, agent: str, boundaries: Sequence[bytes]) -> Sequence[Compaction]:
        """What was folded or cut at any of `boundaries`, also where that was undone; the longest first."""

    async def has_compactions(self, agent: str) -> bool:
        """Whether anything was ever folded or cut for an agent."""

    async def get_compaction(self, compaction_id: str) -> Compaction | None:
        """One fold by its id."""

    async def load_messages(self, compaction_id: str) -> Sequence[bytes]:
        """The turns that a fold folded, each as it came, with those of the folds that it took in."""

    async def undo(self, compaction_id: str, *, now: float) -> bool:
        """Have the fold in force no longer; False where there is none, or it was undone before."""

    async def list_application_changes(self, compaction_ids: Sequence[str]) -> Sequence[ApplicationChange]:
        """When these folds came into use, and went out of it, in any conversation."""

    async def record_application_changes(self, changes: Sequence[ApplicationChange]) -> None:
        """Keep these; of two at the same message, the later is the one that holds."""

    async def list_compactions(
        self,
        *,
        agent: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        before: float | None = None,
    ) -> Sequence[Compaction]:
        """Folds, the newest first."""
