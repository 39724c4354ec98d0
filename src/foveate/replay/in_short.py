"""Calls as a provider's cache sees them, told in short: a long history piece by piece at its end alone.

A call is told by going on from the one before: what both send is taken over, and only what is new is looked at.
So what a call costs does not grow with its history, and what several policies send alike is made once for all.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, islice
from typing import Protocol

import msgspec

from foveate.cache.prompts import CachedPrompt, Piece
from foveate.cache.rules import Rules
from foveate.replay.stretches import Front, Stretch
from foveate.values import Area, Place

_GAP = "text"
# How far back one looks where a provider has no bound: so far a session may be taken back and still be found.
_LEAST_POSITIONS = 40


class Tail(msgspec.Struct, frozen=True, kw_only=True, eq=False):
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


class Telling:
    """Tells calls in their order, each by going on from the one before; whoever asks again is told the same."""

    def __init__(self) -> None:
        self._told: list[Sending] = []
        # What tells messages that were sent, of the first so many calls: nobody may ask for the others.
        self._seen: set[bytes] = set()
        self._seen_calls = 0
        self._latest: tuple[Sending, Tail] | None = None

    def forked(self) -> "Telling":
        """The same from here on, for one whose way is another."""
        other = Telling()
        other._told, other._latest = list(self._told), self._latest
        other._seen, other._seen_calls = set(self._seen), self._seen_calls
        return other

    def of(self, sending: Sending, whole: Sequence[Stretch] = ()) -> CachedPrompt:
        """The next call, with some more messages `whole`."""
        return prompt_of(self._tail(sending), (*whole, *sending.whole))

    def told(self, sending: Sending) -> None:
        """Take over that this was sent."""
        if not self._told or self._told[-1] is not sending:
            self._told.append(sending)

    def _tail(self, sending: Sending) -> Tail:
        if self._latest is not None and self._latest[0] is sending:
            return self._latest[1]
        tail = tail_of(
            sending.front,
            sending.last,
            seen=self._seen_before(sending),
            lookback_positions=sending.rules.lookback_positions,
            before=self._latest[1] if self._latest is not None else None,
        )
        self._latest = sending, tail
        return tail

    def _seen_before(self, sending: Sending) -> set[bytes]:
        """What was sent before a call, also where that was told by somebody else already."""
        is_told = bool(self._told) and self._told[-1] is sending
        calls = len(self._told) - is_told
        for one in self._told[self._seen_calls : calls]:
            self._seen.update(one.last.new_keys(one.front, self._seen))
        self._seen_calls = calls
        return self._seen


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
