"""Calls as a provider's cache sees them, told in short: a long history piece by piece at its end alone.

A call is told by going on from the one before: what both send is taken over, and only what is new is looked at.
So what a call costs does not grow with its history, and what several policies send alike is made once for all.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Protocol

from foveate.cache.prompts import CachedPrompt, Piece
from foveate.cache.rules import Rules
from foveate.replay.stretches import Front, Stretch
from foveate.values import Area, Place

_GAP = "text"
# How far back one looks where a provider has no bound: so far a session may be taken back and still be found.
_LEAST_POSITIONS = 40


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tail:
    """The end of what is sent behind `front`: the messages that are told piece by piece.

    `ahead` are the positions before each of `stretches`. `pieces`, `keys` and `ends` are as those of a prompt.
    """

    front: Front
    lookback_positions: int
    stretches: Sequence[Stretch]
    ahead: list[int]
    pieces: list[Piece]
    keys: list[bytes]
    ends: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class Short:
    """What a call sent, told in short, where `number` calls were told before it."""

    number: int
    tail: Tail
    prompt: CachedPrompt


class Sending(Protocol):
    """A call, as far as it is told here; `whole` are messages before its end that are told too."""

    @property
    def front(self) -> Front:
        """What stands before its messages."""

    @property
    def last(self) -> Stretch:
        """The last of its messages."""

    @property
    def rules(self) -> Rules:
        """Those of its provider's cache."""

    @property
    def whole(self) -> tuple[Stretch, ...]:
        """Messages that somebody else has left in the cache."""

    @property
    def short(self) -> Short | None:
        """How it was told before."""


class Telling:
    """Tells calls in their order, each by going on from the one before."""

    def __init__(self) -> None:
        self._told: list[Sending] = []
        # What tells messages that were sent; None as long as all is told as it was told before.
        self._seen: set[bytes] | None = None
        self._tail: Tail | None = None

    def forked(self) -> "Telling":
        """The same from here on, for one whose way is another."""
        other = Telling()
        other._told, other._tail = list(self._told), self._tail
        other._seen = None if self._seen is None else set(self._seen)
        return other

    def of(self, sending: Sending, whole: Sequence[Stretch] = ()) -> Short:
        """The next call, with some more messages `whole`."""
        number = len(self._told)
        before = sending.short
        if self._seen is None and before is not None and _is_as_told(sending, before, number):
            if not whole:
                return before
            return Short(number, before.tail, prompt_of(before.tail, (*whole, *sending.whole)))
        tail = tail_of(
            sending.front,
            sending.last,
            seen=self._known(),
            lookback_positions=sending.rules.lookback_positions,
            before=self._tail,
        )
        return Short(number, tail, prompt_of(tail, (*whole, *sending.whole)))

    def told(self, sending: Sending, short: Short) -> None:
        """Take over that this was sent."""
        self._told.append(sending)
        self._tail = short.tail
        if self._seen is not None:
            self._seen.update(sending.last.new_keys(sending.front, self._seen))

    def _known(self) -> set[bytes]:
        if self._seen is None:
            self._seen = set()
            for sending in self._told:
                self._seen.update(sending.last.new_keys(sending.front, self._seen))
        return self._seen


def _is_as_told(sending: Sending, before: Short, number: int) -> bool:
    """Whether a call is still the one that was told before, behind the same calls."""
    tail = before.tail
    return before.number == number and tail.front is sending.front and tail.stretches[-1] is sending.last


def tail_of(
    front: Front,
    last: Stretch,
    *,
    seen: Collection[bytes] = (),
    lookback_positions: int,
    before: Tail | None = None,
) -> Tail:
    """The end of what was sent with `last` as its last message.

    It is what is new since a message that was `seen` behind this front, and so many positions before that as a
    mark looks back. It is told by going on from the tail `before` it, where `last` stands behind that.
    """
    reach = lookback_positions or _LEAST_POSITIONS
    goes_on = before is not None and before.front is front and before.lookback_positions == lookback_positions
    joint = before.stretches[-1] if goes_on and before is not None else None
    new: list[Stretch] = []
    here, known = last, None
    while True:
        if known is None and front.key + here.key in seen:
            known = here
        if here is joint and known is not None and before is not None:
            at = bisect_left(before.ahead, known.span - reach) - 1
            if at >= 0 or before.stretches[0].before is None:
                return _gone_on(before, max(at, 0), new[::-1])
        new.append(here)
        if here.before is None or (known is not None and known.span - here.ahead > reach):
            nothing = Tail(
                front=front,
                lookback_positions=lookback_positions,
                stretches=(),
                ahead=[],
                pieces=[],
                keys=[],
                ends=[],
            )
            return _gone_on(nothing, 0, new[::-1])
        here = here.before


def _gone_on(before: Tail, start: int, new: Sequence[Stretch]) -> Tail:
    """A tail from its stretch number `start` on, with `new` ones behind it."""
    front, left_out = before.front, sum([len(stretch.pieces) for stretch in before.stretches[:start]])
    key, ends = front.key, before.ends[left_out:]
    pieces = [piece for stretch in new for piece in stretch.pieces]
    if pieces:
        first = new[0]
        sizes = accumulate([piece.tokens for piece in pieces], initial=front.tokens + first.end - first.tokens)
        ends += islice(sizes, 1, None)
    return Tail(
        front=front,
        lookback_positions=before.lookback_positions,
        stretches=(*before.stretches[start:], *new),
        ahead=before.ahead[start:] + [stretch.ahead for stretch in new],
        pieces=before.pieces[left_out:] + pieces,
        keys=before.keys[left_out:] + [key + each for stretch in new for each in stretch.keys],
        ends=ends,
    )


def prompt_of(tail: Tail, whole: Iterable[Stretch] = ()) -> CachedPrompt:
    """What was sent with that end: all before it is one piece, but for the first message and those in `whole`.

    Nothing is kept between them that a mark could find.
    """
    front, rest = tail.front, tail.stretches[0].before
    pieces, keys, ends = list(front.pieces), list(front.keys), front.ends()
    if rest is not None:
        shown = {stretch.depth: stretch for stretch in whole if rest.follows(stretch)}
        shown[0] = rest.first or rest
        behind: Stretch | None = None
        for depth in sorted(shown):
            _add_gap(pieces, keys, ends, front, behind, shown[depth].before)
            behind = shown[depth]
            _add(pieces, keys, ends, front, behind)
        _add_gap(pieces, keys, ends, front, behind, rest)
    return CachedPrompt(
        model=front.model,
        pieces=(*pieces, *tail.pieces),
        keys=keys + tail.keys,
        ends=ends + tail.ends,
    )


def _add(pieces: list[Piece], keys: list[bytes], ends: list[int], front: Front, stretch: Stretch) -> None:
    pieces += stretch.pieces
    keys += [front.key + key for key in stretch.keys]
    end = front.tokens + stretch.end - stretch.tokens
    for piece in stretch.pieces:
        end += piece.tokens
        ends.append(end)


def _add_gap(
    pieces: list[Piece],
    keys: list[bytes],
    ends: list[int],
    front: Front,
    behind: Stretch | None,
    end: Stretch | None,
) -> None:
    """All messages behind one up to another, as one piece."""
    tokens = (end.end if end is not None else 0) - (behind.end if behind is not None else 0)
    if end is None or end is behind or (behind is not None and end.depth <= behind.depth):
        return
    last = end.pieces[-1] if end.pieces else None
    pieces.append(
        Piece(
            digest=end.key,
            tokens=tokens,
            kind=_GAP,
            area=Area.MESSAGES,
            place=last.place if last is not None else Place(Area.MESSAGES, end.depth),
            markable=last is not None and last.markable,
        )
    )
    keys.append(front.key + end.key)
    ends.append(front.tokens + end.end)
