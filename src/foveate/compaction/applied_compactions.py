"""Record when a conversation was sent with a compaction and when without it, and when clearing was undone.

Some models bind thinking blocks to the exact messages before them. Thinking produced after a summary is valid
only after that summary, and earlier thinking only after the original messages. So the store keeps the message
at which a compaction was first applied or no longer applied, identified by its hash, which forks of the
conversation and other gateways find too.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from foveate.compaction.apply import find_active_compaction, matching_compactions, undone_clearings
from foveate.compaction.store import ApplicationChange, Compaction, CompactionStore
from foveate.errors import StoreUnavailable
from foveate.prompt_cache.rules import rules_for
from foveate.session.hash_chain import HashChain


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationHistory:
    """`compactions` are those of the conversation, and its clearings that were undone."""

    chain: HashChain
    compactions: Sequence[Compaction]
    changes: Sequence[ApplicationChange]

    def invalid_thinking_ranges(self) -> tuple[range, ...]:
        """Positions in the chain of messages produced after a prefix other than the one sent now.

        Messages after the end of the chain are produced after the current prefix.
        """
        ranges: list[range] = []
        active = find_active_compaction(self.chain, self.compactions)
        if active is not None:
            ranges += self._find_ranges(active, applied=False)
        for compaction in self._undone():
            ranges += self._find_ranges(compaction, applied=True)
        return tuple(ranges)

    def new_changes(self, *, is_applied: bool) -> tuple[ApplicationChange, ...]:
        """Changes to store because this conversation is sent now.

        `is_applied` tells whether the active compaction is part of the request.
        """
        active = find_active_compaction(self.chain, self.compactions)
        not_applied = self._undone() if is_applied or active is None else [active, *self._undone()]
        applied = [active] if is_applied and active is not None else []
        return (
            *(
                self._new_change(compaction, is_applied=True)
                for compaction in applied
                if not self._was_applied(compaction)
            ),
            *(
                self._new_change(compaction, is_applied=False)
                for compaction in not_applied
                if self._was_applied(compaction, default=compaction.undone_at)
            ),
        )

    def _undone(self) -> list[Compaction]:
        return [compaction for compaction in self.compactions if compaction.undone_at is not None]

    def _changes_for(self, compaction: Compaction) -> list[ApplicationChange]:
        return [change for change in self.changes if change.compaction_id == compaction.id]

    def _was_applied(self, compaction: Compaction, *, default: object = None) -> bool:
        """Return whether the last request had the compaction; if unknown, whether `default` is set."""
        changes = self._changes_for(compaction)
        was_applied = changes[-1].is_applied if changes else None
        return default is not None if was_applied is None else was_applied

    def _new_change(self, compaction: Compaction, *, is_applied: bool) -> ApplicationChange:
        return ApplicationChange(
            compaction_id=compaction.id,
            last_hash=self.chain.hashes[-1],
            messages=len(self.chain),
            is_applied=is_applied,
        )

    def _find_ranges(self, compaction: Compaction, *, applied: bool) -> list[range]:
        changes = self._changes_for(compaction)
        # If no change says when it was first applied, it may have been applied from the start.
        made_at = compaction.seen_messages or compaction.messages
        earliest = min([made_at, *(change.messages for change in changes)]) if applied else 0
        start = None if applied and changes and changes[0].is_applied else earliest
        ranges: list[range] = []
        for change in changes:
            if change.is_applied is None:
                start, ranges = earliest, []
            elif change.is_applied is applied:
                start = change.messages if start is None else start
            elif start is not None:
                ranges.append(range(start, change.messages))
                start = None
        return ranges if start is None else [*ranges, range(start, len(self.chain))]


async def record_applications(history: ApplicationHistory, store: CompactionStore, *, is_applied: bool) -> None:
    """Store which compactions this conversation is the first to have, or to lack, now that it is sent.

    If the store is unavailable, the only loss is that thinking is dropped once more.
    """
    changes = history.new_changes(is_applied=is_applied)
    if changes:
        with suppress(StoreUnavailable):
            await store.record_application_changes(changes)


async def invalidate_history(chain: HashChain, compaction: Compaction, store: CompactionStore) -> None:
    """Mark the application history of a compaction as unknown, after the provider rejected thinking.

    Another gateway may have sent the conversation without the compaction and not recorded it, because the store
    was unavailable or compaction was disabled.

    Raises:
        StoreUnavailable: the change cannot be stored.
    """
    hashes = set(chain.hashes)
    changes = [
        change for change in await store.list_application_changes([compaction.id]) if change.last_hash in hashes
    ]
    if changes:
        await store.record_application_changes([replace(change, is_applied=None) for change in changes])


async def load_application_history(
    chain: HashChain, compactions: Sequence[Compaction], store: CompactionStore, *, model: str
) -> ApplicationHistory | None:
    """Load the application changes of a conversation; None if its model does not bind thinking.

    Raises:
        StoreUnavailable: the changes cannot be read.
    """
    matching = [*matching_compactions(chain, compactions), *undone_clearings(chain, compactions)]
    if not matching or not rules_for(model).binds_thinking:
        return None
    positions = {message_hash: position for position, message_hash in enumerate(chain.hashes, 1)}
    changes = [
        change
        for change in await store.list_application_changes([compaction.id for compaction in matching])
        if positions.get(change.last_hash) == change.messages
    ]
    return ApplicationHistory(
        chain=chain, compactions=matching, changes=sorted(changes, key=lambda change: change.messages)
    )
