"""A fold undone, and what that means for the next request of its session."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from foveate.cli.compactions_found import Asked, fold_named, folds
from foveate.errors import BadOption
from foveate.fold.journal import Fold, Outcome
from foveate.fold.unfolding import Unfolded, unfolded

if TYPE_CHECKING:
    from foveate.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """A fold that is undone, `before` now or not.

    `beneath` is an earlier fold of the same conversation that is in force again, `above` one that reaches
    farther, or was made later for the same messages, so that nothing changes as long as it is in force.
    """

    fold: Fold
    before: bool
    beneath: Fold | None = None
    above: Fold | None = None

    @property
    def first_message(self) -> int:
        """The first message that is sent again, counted from 1; 0 where none is."""
        if self.before or self.above is not None:
            return 0
        if self.fold.outcome is Outcome.TOOL_RESULT_TRUNCATED:
            return self.fold.messages
        return (self.beneath.messages if self.beneath is not None else 0) + 1

    @property
    def more_tokens(self) -> int:
        """By how many tokens the next request will be longer, about."""
        if not self.first_message:
            return 0
        return max(0, _saved(self.fold) - (_saved(self.beneath) if self.beneath is not None else 0))


async def undo(store: "Store", beginning: str, *, now: float) -> Undone:
    """Have the fold whose id begins so in force no longer; it is no error where that was so before.

    Raises:
        BadOption: there is no such fold, or it never was in force.
    """
    fold = await fold_named(store, beginning)
    if fold.outcome not in (Outcome.OK, Outcome.TOOL_RESULT_TRUNCATED):
        raise BadOption(
            f"there is nothing to undo: fold {fold.id} ended with {fold.outcome}, and changed nothing"
        )
    beneath, above = await _around(store, fold)
    if not await store.journal.undo(fold.id, now=now):
        return Undone(fold=await store.journal.fold(fold.id) or fold, before=True)
    return Undone(fold=replace(fold, undone_at=now), before=False, beneath=beneath, above=above)


async def _around(store: "Store", fold: Fold) -> tuple[Fold | None, Fold | None]:
    """The fold that would be in force without this one, and the one that is in force in spite of it."""
    if fold.outcome is not Outcome.OK:
        return None, None
    own = await unfolded(store.journal, fold)
    others = [
        other
        for other in await store.journal.folds(fold.agent, own.hashes)
        if other.id != fold.id and _is_in_force(other) and _is_in(other, own)
    ]
    rivals = [other for other in others if _reach(other) > _reach(fold)]
    rest = [other for other in others if _reach(other) < _reach(fold)]
    above = max(rivals, key=_reach, default=None) or await _longer(store, fold)
    return max(rest, key=_reach, default=None), above


async def _longer(store: "Store", fold: Fold) -> Fold | None:
    """A fold of the same conversation that reaches farther."""
    asked = Asked(agent=fold.agent, session_id=fold.session_id, outcome=Outcome.OK)
    async for other in folds(store.journal, asked):
        if other.messages > fold.messages and _is_in_force(other):
            theirs = await unfolded(store.journal, other)
            if _boundary_at(theirs.hashes, fold.messages) == fold.boundary:
                return other
    return None


def _is_in_force(fold: Fold) -> bool:
    return fold.outcome is Outcome.OK and fold.undone_at is None


def _is_in(other: Fold, own: Unfolded) -> bool:
    return _boundary_at(own.hashes, other.messages) == other.boundary


def _boundary_at(hashes: Sequence[bytes], messages: int) -> bytes | None:
    return hashes[messages - 1] if 0 < messages <= len(hashes) else None


def _reach(fold: Fold) -> tuple[int, float]:
    """Of two folds, the one with more of this is in force."""
    return fold.messages, fold.compacted_at


def _saved(fold: Fold) -> int:
    return fold.tokens_before - fold.tokens_after
