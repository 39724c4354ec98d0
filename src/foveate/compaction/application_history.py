"""When a conversation was sent with a fold and when without, for models that bind thoughts to what they read.

What such a model thought after a summary fits only behind that summary, and what it thought before only behind
the messages themselves. So it is kept at which message a fold came into use, or went out of it, by the hash of
that message: forks and other gateways find it too.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from foveate.compaction.apply import find_active_compaction, matching_compactions
from foveate.compaction.store import ApplicationChange, Compaction, CompactionStore
from foveate.errors import StoreUnavailable
from foveate.prompt_cache.rules import rules_for
from foveate.session.hash_chain import HashChain


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationHistory:
    """The uses of folds along one conversation, each fold's in their order."""

    chain: HashChain
    compactions: Sequence[Compaction]
    changes: Sequence[ApplicationChange]

    def invalid_thinking_ranges(self) -> tuple[range, ...]:
        """The places in the chain of what was said after something else than the folds in force now make of it.

        What comes from now on stands behind them.
        """
        ranges: list[range] = []
        active = find_active_compaction(self.chain, self.compactions)
        if active is not None:
            ranges += self._find_ranges(active, applied=False)
        for compaction in self._undone_compactions():
            ranges += self._find_ranges(compaction, applied=True)
        return tuple(ranges)

    def new_changes(self, *, is_applied: bool) -> tuple[ApplicationChange, ...]:
        """What is to be kept of sending this conversation now: which folds it is the first to have, or to lack.

        `is_applied`: the fold in force stands in it.
        """
        active = find_active_compaction(self.chain, self.compactions)
        not_applied = (
            self._undone_compactions()
            if is_applied or active is None
            else [active, *self._undone_compactions()]
        )
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

    def _undone_compactions(self) -> list[Compaction]:
        return [
            compaction
            for compaction in matching_compactions(self.chain, self.compactions)
            if compaction.undone_at is not None
        ]

    def _changes_for(self, compaction: Compaction) -> list[ApplicationChange]:
        return [change for change in self.changes if change.compaction_id == compaction.id]

    def _was_applied(self, compaction: Compaction, *, default: object = None) -> bool:
        """Whether it was in use when this conversation was last sent; where nobody knows, as `unknown` says."""
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
        """What was said while a fold was in use, or was not, up to now."""
        changes = self._changes_for(compaction)
        # It may have been in use ever since it was made, where nobody has said when that began.
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
    """Keep which folds a conversation is the first to have, or to lack, now that it is sent.

    Where that cannot be, nothing is lost but thoughts: they are left out once more.
    """
    changes = history.new_changes(is_applied=is_applied)
    if changes:
        with suppress(StoreUnavailable):
            await store.record_application_changes(changes)


async def invalidate_history(chain: HashChain, compaction: Compaction, store: CompactionStore) -> None:
    """Have no thought in a conversation trusted to stand behind a fold: it was sent with it, and refused.

    Somebody may have sent it without the fold and not said so: while the store was away, or folds were off.

    Raises:
        StoreUnavailable: that cannot be kept.
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
    """What is known of how a conversation was sent before; None where its model does not mind.

    Raises:
        StoreUnavailable: nobody can say.
    """
    matching = matching_compactions(chain, compactions)
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
