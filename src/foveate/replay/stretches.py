"""What was sent as a provider's cache sees it: each message once, behind all that stands before it.

A `Stretch` is a message in its place. It knows the one before it, so that two calls share what their histories
share, and what a call costs does not grow with its history: of a long one, only the end and the few places that
matter are looked at piece by piece, and all between them as one piece.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from foveate.cache.prompts import Piece, front_keys, next_key
from foveate.replay.recordings import Said
from foveate.values import Area

THOUGHTS = frozenset(("thinking", "redacted_thinking", "reasoningContent"))
RESULTS = frozenset(("tool_result", "toolResult"))


# Made for every message, and a struct is made several times as fast as a dataclass.
class Stretch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A message where it stands: its pieces, and what the conversation up to and with it comes to.

    `keys` are what tells the messages up to each piece from all others, `key` those up to the last one. `end`
    is how many tokens the messages up to and with it have. `first` is the one that the way here begins with,
    None where it is this. `thought` is the first one that holds a thought. `positions` are how many it takes at
    the least, however runs are counted, and `ahead` those of all before it. `jump` leads far back at once.
    """

    before: "Stretch | None"
    jump: "Stretch | None"
    depth: int
    said: Said | None
    role: str
    pieces: tuple[Piece, ...]
    keys: tuple[bytes, ...]
    key: bytes
    end: int
    first: "Stretch | None"
    thought: "Stretch | None"
    positions: int
    ahead: int

    @property
    def span(self) -> int:
        """The positions up to and with it."""
        return self.ahead + self.positions

    @property
    def tokens(self) -> int:
        """Those of its own pieces."""
        return self.end - (self.before.end if self.before is not None else 0)

    def at(self, depth: int) -> "Stretch | None":
        """The one so deep on the way here; None where the way is not so long."""
        here: Stretch | None = self
        while here is not None and here.depth > depth:
            here = here.jump if here.jump is not None and here.jump.depth >= depth else here.before
        return here if here is not None and here.depth == depth else None

    def follows(self, other: "Stretch") -> bool:
        """Whether `other` stands on the way here, or is this."""
        return self.at(other.depth) is other

    def within(self, tokens: int) -> "Stretch | None":
        """The last on the way here up to which the messages have at most so many tokens."""
        here: Stretch | None = self
        while here is not None and here.end > tokens:
            here = here.jump if here.jump is not None and here.jump.end > tokens else here.before
        return here

    def nearest(self, tokens: int) -> "Stretch | None":
        """The one on the way here up to which the messages have so many tokens, as nearly as there is one."""
        below = self.within(tokens)
        above = self.at(below.depth + 1 if below is not None else 0)
        if below is None or above is None:
            return below or above
        return above if above.end - tokens < tokens - below.end else below

    def new_keys(self, front: "Front", seen: Collection[bytes]) -> list[bytes]:
        """What tells those on the way here, behind `front`, that were not seen before."""
        found = []
        here: Stretch | None = self
        while here is not None and (key := front.key + here.key) not in seen:
            found.append(key)
            here = here.before
        return found

    def way(self, after: "Stretch | None" = None) -> "list[Stretch]":
        """All from the one behind `after` up to this, the first one first."""
        found = []
        here: Stretch | None = self
        while here is not None and here is not after:
            found.append(here)
            here = here.before
        return found[::-1]


def chained(
    before: Stretch | None,
    pieces: Sequence[Piece],
    *,
    said: Said | None = None,
    role: str = "",
) -> Stretch:
    """A message of these pieces behind `before`."""
    key = before.key if before is not None else b""
    keys = []
    for piece in pieces:
        key = next_key(key, piece)
        keys.append(key)
    kinds = {piece.kind for piece in pieces}
    has_thought = not THOUGHTS.isdisjoint(kinds)
    here = Stretch(
        before=before,
        jump=_jump(before),
        depth=before.depth + 1 if before is not None else 0,
        said=said,
        role=role,
        pieces=tuple(pieces),
        keys=tuple(keys),
        key=key,
        end=(before.end if before is not None else 0) + sum([piece.tokens for piece in pieces]),
        first=before.first or before if before is not None else None,
        thought=before.thought if before is not None else None,
        positions=len(kinds),
        ahead=before.span if before is not None else 0,
    )
    if has_thought and here.thought is None:
        return msgspec.structs.replace(here, thought=here)
    return here


def _jump(before: Stretch | None) -> Stretch | None:
    """Where a stretch behind `before` leads back to: so far that any place is a few such steps away."""
    if before is None or before.jump is None or before.jump.jump is None:
        return before
    near, far = before.jump, before.jump.jump
    return far if before.depth - near.depth == near.depth - far.depth else before


def rechained(before: Stretch | None, stretch: Stretch, pieces: Sequence[Piece] | None = None) -> Stretch:
    """`stretch` behind something else, with other pieces where they are said."""
    own = stretch.pieces if pieces is None else pieces
    return chained(before, own, said=stretch.said, role=stretch.role)


def unthought(last: Stretch) -> Stretch:
    """The same way without any thought on it: what is left of it once the user speaks again."""
    first = last.thought
    if first is None:
        return last
    here = first.before
    for stretch in last.way(after=first.before):
        pieces = [piece for piece in stretch.pieces if piece.kind not in THOUGHTS]
        if pieces:
            here = rechained(here, stretch, pieces)
    # All that was said may have been thoughts.
    return here if here is not None else rechained(None, first, ())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Front:
    """What stands before the messages: tools and system prompt, as far as they are known.

    `marks` are the pieces that the client marks.
    """

    model: str
    pieces: tuple[Piece, ...]
    keys: tuple[bytes, ...]
    key: bytes
    tokens: int
    marks: tuple[int, ...]

    def ends(self) -> list[int]:
        """How many tokens it has up to and with each piece."""
        return list(accumulate([piece.tokens for piece in self.pieces]))

    def end(self, piece: int) -> int:
        """How many tokens it has up to and with a piece."""
        return sum(one.tokens for one in self.pieces[: piece + 1])


def front_of(model: str, pieces: Sequence[Piece], marks: Iterable[int] = (), settings: bytes = b"") -> Front:
    """A front of these pieces; `settings` are parameters with which all messages behind it are others."""
    keys, key = front_keys(model, pieces, {Area.MESSAGES: settings})
    return Front(
        model=model,
        pieces=tuple(pieces),
        keys=tuple(keys),
        key=key,
        tokens=sum(piece.tokens for piece in pieces),
        marks=tuple(marks),
    )
