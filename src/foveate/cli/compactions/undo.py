"""Undo a compaction, and find out what that means for the next request of its session."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from foveate.cli.compactions.selection import CompactionFilter, find_compaction, iterate_compactions
from foveate.compaction.inspection import CompactionContents, load_contents
from foveate.compaction.store import Compaction, CompactionOutcome
from foveate.errors import BadOption

if TYPE_CHECKING:
    from foveate.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoResult:
    """An undone compaction.

    `restored` is an earlier compaction of the same conversation that is in force again. `still_in_force` covers
    more messages, or was made later for the same ones, so that nothing changes as long as it is in force. Of an
    edit of tool results, it covers the last of them.
    """

    compaction: Compaction
    was_undone_before: bool
    restored: Compaction | None = None
    still_in_force: Compaction | None = None

    @property
    def first_message(self) -> int:
        """Number of the first message that is sent again, counted from 1; 0 if none is."""
        if self.was_undone_before or self.still_in_force is not None:
            return 0
        if self.compaction.outcome is CompactionOutcome.TOOL_RESULT_TRUNCATED:
            return self.compaction.messages
        if self.compaction.cleared:
            return self.compaction.cleared[0].message + 1
        return (self.restored.messages if self.restored is not None else 0) + 1

    @property
    def more_tokens(self) -> int:
        """Estimate by how many tokens the next request grows."""
        if not self.first_message:
            return 0
        return max(
            0,
            self.compaction.freed_tokens - (self.restored.freed_tokens if self.restored is not None else 0),
        )


async def undo_compaction(store: "Store", prefix: str, *, now: float) -> UndoResult:
    """Undo the compaction whose id starts with `prefix`. Undoing it twice is not an error.

    Raises:
        BadOption: there is no such compaction, or it was never in force.
    """
    compaction = await find_compaction(store, prefix)
    if compaction.outcome is CompactionOutcome.SECTIONS_MOVED:
        raise BadOption(
            f"{compaction.id} is a move of sections, which cannot be undone: it replaced nothing, and moving "
            "the text back would write the history to the cache once more; to remove the text, edit the file "
            "that it comes from"
        )
    if not compaction.outcome.changes_requests:
        raise BadOption(
            f"nothing to undo: compaction {compaction.id} has the outcome {compaction.outcome} "
            "and changed no request"
        )
    restored, still_in_force = await _find_others_in_force(store, compaction)
    if not await store.compactions.undo(compaction.id, now=now):
        return UndoResult(
            compaction=await store.compactions.get_compaction(compaction.id) or compaction,
            was_undone_before=True,
        )
    return UndoResult(
        compaction=replace(compaction, undone_at=now),
        was_undone_before=False,
        restored=restored,
        still_in_force=still_in_force,
    )


async def _find_others_in_force(
    store: "Store", compaction: Compaction
) -> tuple[Compaction | None, Compaction | None]:
    if compaction.outcome.concerns_results:
        return None, await _find_longer(store, compaction, least_messages=compaction.messages)
    contents = await load_contents(store.compactions, compaction)
    others = [
        other
        for other in await store.compactions.find_compactions(compaction.agent, contents.hashes)
        if other.id != compaction.id and _is_in_force(other) and _is_prefix(other, contents)
    ]
    longer = [other for other in others if _precedence(other) > _precedence(compaction)]
    shorter = [other for other in others if _precedence(other) < _precedence(compaction)]
    still_in_force = max(longer, key=_precedence, default=None) or await _find_longer(
        store, compaction, least_messages=compaction.messages + 1
    )
    return max(shorter, key=_precedence, default=None), still_in_force


async def _find_longer(store: "Store", compaction: Compaction, *, least_messages: int) -> Compaction | None:
    """Find a compaction in force of the same conversation that covers at least so many messages."""
    selection = CompactionFilter(
        agent=compaction.agent, session_id=compaction.session_id, outcome=CompactionOutcome.OK
    )
    async for other in iterate_compactions(store.compactions, selection):
        if other.messages >= least_messages and _is_in_force(other):
            other_contents = await load_contents(store.compactions, other)
            if _boundary_at(other_contents.hashes, compaction.messages) == compaction.boundary:
                return other
    return None


def _is_in_force(compaction: Compaction) -> bool:
    return compaction.outcome is CompactionOutcome.OK and compaction.undone_at is None


def _is_prefix(other: Compaction, contents: CompactionContents) -> bool:
    return _boundary_at(contents.hashes, other.messages) == other.boundary


def _boundary_at(hashes: Sequence[bytes], messages: int) -> bytes | None:
    return hashes[messages - 1] if 0 < messages <= len(hashes) else None


def _precedence(compaction: Compaction) -> tuple[int, float]:
    """Sort key: the compaction with the larger value is in force."""
    return compaction.messages, compaction.compacted_at
