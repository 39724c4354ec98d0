"""Folds of recorded histories: where a head would have been cut, and what stands in its place from there on.

The words of a summary cannot be known, since nobody asked for it; its size can: it is what a fold allows it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from foveate import wire
from foveate.budget.eviction import is_system
from foveate.cache.prompts import Piece, digest
from foveate.errors import MalformedRequest
from foveate.fold.boundary import History, boundary
from foveate.fold.cuts import FoldOptions, limit_of, most_summary_tokens
from foveate.replay.stretches import THOUGHTS, Stretch, chained, rechained
from foveate.values import Area, Format, Message, Place, Text

# What goes around a summary when it is sent: its heading, and the model's word that it has read it.
_HEADING_TOKENS, _REPLY_TOKENS = 40, 12
# What is said after a conversation to have it summed up, beside the facts that are to be named.
_INSTRUCTION_TOKENS = 400
_FACTS_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Folded:
    """A head that was folded up to `cut`, and what stands in its place, `base`.

    `summary_tokens` are those of the summary. `seen_depth` is how long the history was then: on models that
    bind thoughts to what was before them, those up to there are left out.
    """

    cut: Stretch
    base: Stretch
    summary_tokens: int
    seen_depth: int
    leaves_out_thoughts: bool
    _made: dict[int, tuple[Stretch, Stretch]] = field(default_factory=dict)

    def of(self, last: Stretch) -> Stretch | None:
        """`last` behind the summary; None where the head that was folded does not stand before it."""
        there = last.at(self.cut.depth)
        if there is None or there is last or there.said is not self.cut.said:
            return None
        new = []
        here: Stretch | None = last
        while here is not None and here is not there and id(here) not in self._made:
            new.append(here)
            here = here.before
        before = self._made[id(here)][1] if here is not None and here is not there else self.base
        for stretch in reversed(new):
            pieces = None
            if self.leaves_out_thoughts and stretch.depth <= self.seen_depth:
                pieces = [piece for piece in stretch.pieces if piece.kind not in THOUGHTS]
            before = rechained(before, stretch, pieces)
            self._made[id(stretch)] = stretch, before  # the first is held, so that no other has its id
        return before

    @property
    def instruction_tokens(self) -> int:
        """Those of what a model is told to have the summary written."""
        return _INSTRUCTION_TOKENS + int(self.summary_tokens * _FACTS_SHARE)


class Reading:
    """Messages of a recording, each read once, for those who cut between them."""

    def __init__(self, spoken: Format) -> None:
        self._spoken = spoken
        self._read: dict[int, Message] = {}

    def message(self, stretch: Stretch) -> Message:
        """What stands there."""
        said = stretch.said
        if said is None:
            return Message(role=stretch.role, parts=(Text(""),))
        found = self._read.get(id(said))
        if found is None:
            try:
                found = wire.message(self._spoken, said.raw)
            except MalformedRequest:
                found = Message(role=said.role, parts=(Text(""),))
            self._read[id(said)] = found
        return found


def folded(
    last: Stretch,
    reading: Reading,
    *,
    trigger_tokens: int,
    options: FoldOptions,
    earlier: Folded | None,
    leaves_out_thoughts: bool,
) -> Folded | None:
    """The fold of the history that ends with `last`; None where there is no place to cut."""
    way = last.way()
    messages = [reading.message(stretch) for stretch in way]
    tokens = [stretch.tokens for stretch in way]
    beyond = _place(way, earlier.cut) + 1 if earlier is not None else 0
    place = boundary(
        messages,
        tokens,
        tail_keep_tokens=options.tail_keep_tokens,
        trigger_tokens=trigger_tokens,
        beyond=beyond,
    )
    if place is None or not place:
        return None
    history = History(messages)
    replaced = set(history.folded(place))
    new = sum(tokens[at] for at in history.folded(place, beyond=beyond))
    summary_tokens = limit_of(
        sum(tokens[at] for at in replaced),
        new + (earlier.summary_tokens if earlier is not None else 0),
        most_tokens=most_summary_tokens(trigger_tokens),
        was_folded=earlier is not None,
    )
    cut = way[place - 1]
    kept = [stretch for at, stretch in enumerate(way[:place]) if at not in replaced]
    return Folded(
        cut=cut,
        base=_base(kept, reading.message, cut, summary_tokens),
        summary_tokens=summary_tokens,
        seen_depth=last.depth,
        leaves_out_thoughts=leaves_out_thoughts,
    )


def _place(way: Sequence[Stretch], cut: Stretch) -> int:
    return next((at for at, stretch in enumerate(way) if stretch.said is cut.said), -1)


def _base(
    kept: Sequence[Stretch], message: Callable[[Stretch], Message], cut: Stretch, summary_tokens: int
) -> Stretch:
    """What stands for a head: the developer's words, the summary and a reply to it, the question that stays."""
    before: Stretch | None = None
    systems = [stretch for stretch in kept if is_system(message(stretch))]
    for stretch in systems:
        before = rechained(before, stretch)
    for role, tokens in (("user", summary_tokens + _HEADING_TOKENS), ("assistant", _REPLY_TOKENS)):
        piece = Piece(
            digest=digest(b"summary\0" + role.encode() + cut.key),
            tokens=tokens,
            kind="text",
            area=Area.MESSAGES,
            place=Place(Area.MESSAGES, -2 if role == "user" else -3, 0),
        )
        before = chained(before, (piece,), role=role)
    for stretch in kept:
        if stretch not in systems:
            before = rechained(before, stretch)
    assert before is not None
    return before
