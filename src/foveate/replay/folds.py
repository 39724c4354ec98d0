"""Folds of recorded histories: where a head would have been cut, and what stands in its place from there on.

The words of a summary cannot be known, since nobody asked for it; its size can: it is what a fold allows it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from foveate import wire
from foveate.budget.eviction import Kind, is_system
from foveate.cache.prompts import Piece, digest
from foveate.errors import MalformedRequest
from foveate.fold.boundary import History, boundary
from foveate.fold.cuts import FoldOptions, limit_of, most_summary_tokens
from foveate.replay.stretches import THOUGHTS, Stretch, chained, rechained
from foveate.values import Area, Format, Message, Place, Text, ToolCall, ToolResult

# What goes around a summary when it is sent: its heading, and the model's word that it has read it.
_HEADING_TOKENS, _REPLY_TOKENS = 40, 12
# What is said after a conversation to have it summed up, beside the facts that are to be named.
_INSTRUCTION_TOKENS = 400
_FACTS_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Folded:
    """A head that was folded up to `cut`, and what stands in its place, `base`.

    `summary_tokens` are those of the summary. Of the head, `stays` are what is part of no turn, `question` that
    of the turn which is under way at its end, and `ends_with` says with what it ends. `seen_depth` is how long
    the history was then: on models that bind thoughts to what was before them, those up to there are left out.
    """

    cut: Stretch
    base: Stretch
    summary_tokens: int
    stays: tuple[Stretch, ...]
    question: tuple[Stretch, ...]
    ends_with: Kind
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


class _Head(NamedTuple):
    """A head that was folded, as far as the next fold looks at it: so its length does not matter.

    `before` are messages and their tokens in its place, `stretches` what stands there where something does.
    """

    before: tuple[tuple[Message, int], ...]
    stretches: tuple[Stretch | None, ...]
    stays: tuple[Stretch, ...]
    replaced_tokens: int


_NO_HEAD = _Head((), (), (), 0)
_SAID = Message(role="assistant", parts=(Text(""),))
_ANSWERED = Message(role="tool", parts=(ToolResult(parts=(), name="what the head ended with"),))


def _head(earlier: Folded, last: Stretch, there: Stretch, reading: Reading) -> _Head:
    """The head of an `earlier` fold, which ends at `there` on the way to `last`.

    Something that the model said stands in it, so that late results have something to answer.
    """
    stays = tuple(_now(last, earlier.stays))
    question = tuple(_now(last, earlier.question))
    asked = tuple((reading.message(stretch), stretch.tokens) for stretch in question)
    before: tuple[tuple[Message, int], ...]
    stretches: tuple[Stretch | None, ...]
    if earlier.ends_with is Kind.RESULTS:
        before, stretches = (*asked, (_SAID, 0), (_ANSWERED, 0)), (*question, None, None)
    else:
        before, stretches = ((_SAID, 0), *asked), (None, *question)
    kept_tokens = sum(stretch.tokens for stretch in (*stays, *question))
    return _Head(before, stretches, stays, there.end - kept_tokens)


def _answers_only(messages: Iterable[Message]) -> bool:
    """Whether all results in these messages are those of calls that stand there too."""
    asked, answered = set(), set()
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                asked.add(part.id or part.name)
            elif isinstance(part, ToolResult):
                answered.add(part.id or part.name)
    return answered <= asked


def _now(last: Stretch, stretches: Sequence[Stretch]) -> Iterator[Stretch]:
    """The same messages as they stand now: bills may have told that they weigh something else."""
    return (found for stretch in stretches if (found := last.at(stretch.depth)) is not None)


def folded(
    last: Stretch,
    reading: Reading,
    *,
    trigger_tokens: int,
    options: FoldOptions,
    earlier: Folded | None,
    leaves_out_thoughts: bool,
) -> Folded | None:
    """The fold of the history that ends with `last`; None where there is no place to cut.

    What an `earlier` fold of it has replaced is not looked at again, unless something there is answered late.
    """
    there = last.at(earlier.cut.depth) if earlier is not None else None
    head, way = _NO_HEAD, last.way(after=there)
    if earlier is not None and there is not None:
        if _answers_only(map(reading.message, way)):
            head = _head(earlier, last, there, reading)
        else:
            way = last.way()
    stretches = (*head.stretches, *way)
    messages = [message for message, _ in head.before] + [reading.message(stretch) for stretch in way]
    tokens = [size for _, size in head.before] + [stretch.tokens for stretch in way]
    beyond = len(stretches) - (last.depth - there.depth) if there is not None else 0
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
    asked, gone = history.kept(place), set(history.folded(place))
    new = sum(tokens[at] for at in history.folded(place, beyond=beyond))
    summary_tokens = limit_of(
        head.replaced_tokens + sum(tokens[at] for at in gone),
        new + (earlier.summary_tokens if earlier is not None else 0),
        most_tokens=most_summary_tokens(trigger_tokens),
        was_folded=earlier is not None,
    )
    cut = stretches[place - 1]
    assert cut is not None  # only what stands behind the head is cut
    question = tuple(stretch for at in asked if (stretch := stretches[at]) is not None)
    others = [at for at in range(place) if at not in gone and at not in asked]
    stays = (*head.stays, *(stretch for at in others if (stretch := stretches[at]) is not None))
    return Folded(
        cut=cut,
        base=_base(stays, question, reading.message, cut, summary_tokens),
        summary_tokens=summary_tokens,
        stays=stays,
        question=question,
        ends_with=history.ends_with(place),
        seen_depth=last.depth,
        leaves_out_thoughts=leaves_out_thoughts,
    )


def _base(
    stays: Sequence[Stretch],
    question: Sequence[Stretch],
    message: Callable[[Stretch], Message],
    cut: Stretch,
    summary_tokens: int,
) -> Stretch:
    """What stands for a head: the developer's words, the summary and a reply to it, the question that stays."""
    before: Stretch | None = None
    systems = [stretch for stretch in stays if is_system(message(stretch))]
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
    for stretch in sorted((*stays, *question), key=attrgetter("depth")):
        if stretch not in systems:
            before = rechained(before, stretch)
    assert before is not None
    return before
