"""Records of compactions, and the protocol of the store that keeps them."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Protocol


class CompactionOutcome(StrEnum):
    OK = "ok"
    FAILED = "failed"
    LOCK_HELD = "lock_held"
    NO_BOUNDARY = "no_boundary"
    TOOL_RESULT_TRUNCATED = "tool_result_truncated"
    RESULTS_CLEARED = "results_cleared"
    SECTIONS_MOVED = "sections_moved"

    @property
    def concerns_summary(self) -> bool:
        """Return whether messages were to be replaced by a summary."""
        return not self.concerns_results and self is not CompactionOutcome.SECTIONS_MOVED

    @property
    def concerns_results(self) -> bool:
        """Return whether tool results were edited, and no summary was written."""
        return self in (CompactionOutcome.TOOL_RESULT_TRUNCATED, CompactionOutcome.RESULTS_CLEARED)

    @property
    def changes_requests(self) -> bool:
        """Return whether later requests are sent differently, until it is undone."""
        return self is CompactionOutcome.OK or self.concerns_results

    @property
    def is_edit(self) -> bool:
        """Return whether it changed what a provider may have cached, in order to save money or room."""
        return self.changes_requests or self is CompactionOutcome.SECTIONS_MOVED


@dataclass(frozen=True, slots=True, kw_only=True)
class EditDecision:
    """Why an edit was made: what it was expected to save over how many requests, and to cost, in dollars.

    `moment` is one of `schedule.Moment`. `growth_tokens` is the expected growth from request to request.
    `saved_per_request_dollars` is what each later request saves after a move of sections, as long as the cache
    stays warm; 0 for other edits, whose savings are measured.
    """

    moment: str
    gain_dollars: float
    cost_dollars: float
    expected_requests: float
    growth_tokens: float
    saved_per_request_dollars: float = 0.0

    @property
    def net_dollars(self) -> float:
        return self.gain_dollars - self.cost_dollars


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearedBlock:
    """A tool result of `tokens` that is sent as `text`: block `block` of the message at position `message` of
    the chain.
    """

    message: int
    block: int
    text: str
    tokens: int
    saved_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A row of `compactions_v1`: the first `messages` of a conversation, and their summary.

    `boundary` is the hash of the last of them, which identifies the head in any session. `seen_messages` is the
    length of the conversation at that time, 0 if unknown; later messages were produced with the summary.
    `carried` are facts listed after the summary because it omits them. `cost` is None if the price is unknown.
    `earlier_id` is the compaction of the same session that this one extends; it keeps the earlier messages.

    For truncated tool results (`tool_result_truncated`), `boundary` is the hash of their message and
    `limit_tokens` how much of each is sent. For cleared ones (`results_cleared`), `boundary` is the hash of the
    last message in `cleared`. `reason` explains a failure or a fallback. `decision` is None if the size of the
    request was decisive.

    For moved sections (`sections_moved`), `messages` are those that were written to the cache again, and
    `tokens_before` and `tokens_after` the size of the request. `reason` names what was moved. The row only
    records the decision: no later request depends on it.
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
    decision: EditDecision | None = None
    cleared: tuple[ClearedBlock, ...] = ()

    @property
    def freed_tokens(self) -> int:
        return self.tokens_before - self.tokens_after


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationChange:
    """A conversation was sent with a compaction for the first time or, if not `is_applied`, no longer with it.

    It had `messages` then, the last with the hash `last_hash`: whatever continues from there was produced with
    that prefix. `is_applied` None means that it is no longer known what was sent before or since.
    """

    compaction_id: str
    last_hash: bytes
    messages: int
    is_applied: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLease:
    """The right to compact a session until `expires_at`; a higher `fence` means a newer lease."""

    session_id: str
    holder: str
    fence: int
    expires_at: float


class CompactionStore(Protocol):
    async def acquire_lease(
        self, session_id: str, holder: str, *, ttl_seconds: float, now: float
    ) -> CompactionLease | None:
        """Acquire the right to compact a session; None if another holder has it and it has not expired."""

    async def renew_lease(
        self, lease: CompactionLease, *, ttl_seconds: float, now: float
    ) -> CompactionLease | None:
        """Extend a lease; None if it was lost."""

    async def release_lease(self, lease: CompactionLease) -> None:
        """Do nothing if the lease was lost."""

    async def record(
        self, compaction: Compaction, messages: Sequence[bytes], *, lease: CompactionLease | None
    ) -> bool:
        """Store a compaction and its messages together; False, storing nothing, if the lease was lost.

        `messages` are the last ones of the head; the compaction that it extends keeps those before them.
        """

    async def find_compactions(self, agent: str, boundaries: Sequence[bytes]) -> Sequence[Compaction]:
        """Compactions and truncations at any of `boundaries`, including undone ones; the longest first."""

    async def has_compactions(self, agent: str) -> bool:
        """Return whether an agent has any compaction or truncation."""

    async def get_compaction(self, compaction_id: str) -> Compaction | None: ...

    async def load_messages(self, compaction_id: str) -> Sequence[bytes]:
        """The original messages of a compaction, including those of the compactions that it extends."""

    async def undo(self, compaction_id: str, *, now: float) -> bool:
        """Undo a compaction; False if there is none, or it was undone before."""

    async def list_application_changes(self, compaction_ids: Sequence[str]) -> Sequence[ApplicationChange]:
        """The application changes of these compactions, in any conversation."""

    async def record_application_changes(self, changes: Sequence[ApplicationChange]) -> None:
        """Store application changes; of two at the same message, the later one wins."""

    async def list_compactions(
        self,
        *,
        agent: str | None = None,
        session_id: str | None = None,
        limit: int = 50,
        before: float | None = None,
    ) -> Sequence[Compaction]:
        """List compactions, the newest first."""
