"""When a conversation was sent with a fold and when without, for models that bind thoughts to what they read.

What such a model thought after a summary fits only behind that summary, and what it thought before only behind
the messages themselves. So it is kept at which message a fold came into use, or went out of it, by the hash of
that message: forks and other gateways find it too.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from foveate.cache.rules import rules_for
from foveate.errors import StoreUnavailable
from foveate.fold.journal import Fold, Journal, Use
from foveate.fold.replacing import fold_of, folds_of
from foveate.session.chain import Chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The uses of folds along one conversation, each fold's in their order."""

    chain: Chain
    folds: Sequence[Fold]
    uses: Sequence[Use]

    def unbound(self) -> tuple[range, ...]:
        """The places in the chain of what was said after something else than the folds in force now make of it.

        What comes from now on stands behind them.
        """
        found: list[range] = []
        in_force = fold_of(self.chain, self.folds)
        if in_force is not None:
            found += self._spans(in_force, with_it=False)
        for fold in self._undone():
            found += self._spans(fold, with_it=True)
        return tuple(found)

    def news(self, *, is_applied: bool) -> tuple[Use, ...]:
        """What is to be kept of sending this conversation now: which folds it is the first to have, or to lack.

        `is_applied`: the fold in force stands in it.
        """
        in_force = fold_of(self.chain, self.folds)
        lacking = self._undone() if is_applied or in_force is None else [in_force, *self._undone()]
        having = [in_force] if is_applied and in_force is not None else []
        return (
            *(self._now(fold, is_used=True) for fold in having if not self._is_used(fold)),
            *(
                self._now(fold, is_used=False)
                for fold in lacking
                if self._is_used(fold, unknown=fold.undone_at)
            ),
        )

    def _undone(self) -> list[Fold]:
        return [fold for fold in folds_of(self.chain, self.folds) if fold.undone_at is not None]

    def _own(self, fold: Fold) -> list[Use]:
        return [use for use in self.uses if use.fold_id == fold.id]

    def _is_used(self, fold: Fold, *, unknown: object = None) -> bool:
        """Whether it was in use when this conversation was last sent; where nobody knows, as `unknown` says."""
        own = self._own(fold)
        told = own[-1].is_used if own else None
        return unknown is not None if told is None else told

    def _now(self, fold: Fold, *, is_used: bool) -> Use:
        return Use(fold_id=fold.id, tip=self.chain.hashes[-1], messages=len(self.chain), is_used=is_used)

    def _spans(self, fold: Fold, *, with_it: bool) -> list[range]:
        """What was said while a fold was in use, or was not, up to now."""
        own = self._own(fold)
        # It may have been in use ever since it was made, where nobody has said when that began.
        made_at = fold.seen_messages or fold.messages
        earliest = min([made_at, *(use.messages for use in own)]) if with_it else 0
        begins = None if with_it and own and own[0].is_used else earliest
        found: list[range] = []
        for use in own:
            if use.is_used is None:
                begins, found = earliest, []
            elif use.is_used is with_it:
                begins = use.messages if begins is None else begins
            elif begins is not None:
                found.append(range(begins, use.messages))
                begins = None
        return found if begins is None else [*found, range(begins, len(self.chain))]


async def keep_uses(line: Line, journal: Journal, *, is_applied: bool) -> None:
    """Keep which folds a conversation is the first to have, or to lack, now that it is sent.

    Where that cannot be, nothing is lost but thoughts: they are left out once more.
    """
    news = line.news(is_applied=is_applied)
    if news:
        with suppress(StoreUnavailable):
            await journal.used(news)


async def doubted(chain: Chain, fold: Fold, journal: Journal) -> None:
    """Have no thought in a conversation trusted to stand behind a fold: it was sent with it, and refused.

    Somebody may have sent it without the fold and not said so: while the store was away, or folds were off.

    Raises:
        StoreUnavailable: that cannot be kept.
    """
    there = set(chain.hashes)
    found = [use for use in await journal.uses([fold.id]) if use.tip in there]
    if found:
        await journal.used([replace(use, is_used=None) for use in found])


async def line_of(chain: Chain, folds: Sequence[Fold], journal: Journal, *, model: str) -> Line | None:
    """What is known of how a conversation was sent before; None where its model does not mind.

    Raises:
        StoreUnavailable: nobody can say.
    """
    own = folds_of(chain, folds)
    if not own or not rules_for(model).binds_thinking:
        return None
    places = {tip: place for place, tip in enumerate(chain.hashes, 1)}
    found = [
        use for use in await journal.uses([fold.id for fold in own]) if places.get(use.tip) == use.messages
    ]
    return Line(chain=chain, folds=own, uses=sorted(found, key=lambda use: use.messages))
