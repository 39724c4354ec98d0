"""A conversation as its bills tell it: what stands before its messages, and where each of these stands."""

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from foveate.cache.prompts import Piece, digest
from foveate.replay.stretches import Front, Stretch, front_of, rechained
from foveate.values import Area, Place, Ttl

# So many ends of a hidden system prompt are marked: with more of them, no marks were left for the messages.
_MOST_ENDS = 2
_END = -1


class Talk:
    """What is known of one conversation.

    `hidden_tokens` is what it has before its messages and the recording does not show: a system prompt and
    tools, and behind the last of `ends`, up to which a bill was seen to be read, what the first message holds
    beyond what is shown of it. `links` are its messages in their places.
    """

    def __init__(self, name: str, root: str) -> None:
        self.hidden_tokens: int | None = None
        self.ends: tuple[int, ...] = ()
        self.links: dict[int, Stretch] = {}
        self.ttls: tuple[Ttl, Ttl] | None = None
        self.around = b""
        self.reserve_tokens = 0
        self._shown: Sequence[Piece] = ()
        self._shown_marks: Sequence[int] = ()
        self._rate = 1.0
        self._name = name
        self._root = root
        # How often what stands behind so many tokens of it became another one.
        self._changes: dict[int, int] = {}
        self._settings = 0
        self._fronts: dict[tuple[str, bool], Front] = {}

    def like(self, other: "Talk") -> None:
        """Begin with the system prompt of another one, as far as that is known."""
        self._name, self.ends, self._changes = other._name, other.ends, dict(other._changes)
        self.ttls = other.ttls

    def show(self, around: bytes, pieces: Sequence[Piece], marks: Sequence[int]) -> None:
        """What stands before the messages, where it was recorded."""
        self.around, self._shown_marks = around, marks
        self._shown = _scaled(pieces, self._rate)
        self._fronts = {}

    def scale(self, rate: float) -> None:
        """Take what was counted of that so many times as long: a bill says how long it is with the messages."""
        self._shown, self._rate = _scaled(self._shown, rate), self._rate * rate
        self._fronts = {}

    @property
    def is_shown(self) -> bool:
        """Whether what stands before the messages was recorded."""
        return bool(self._shown)

    @property
    def shows_marks(self) -> bool:
        """Whether what was recorded bears marks."""
        return bool(self._shown_marks)

    @property
    def front_tokens(self) -> int:
        """How many tokens stand before the messages."""
        return sum(piece.tokens for piece in self._shown) if self._shown else self.hidden_tokens or 0

    def front(self, model: str, *, thinks: bool) -> Front:
        """What stands before the messages now."""
        found = self._fronts.get((model, thinks))
        if found is None:
            settings = repr((thinks, self._settings)).encode()
            found = self._made(model, settings) if self._shown else self._hidden(model, settings)
            self._fronts[model, thinks] = found
        return found

    def change(self, *, after_tokens: int | None = None) -> None:
        """From here on it is another one behind so many tokens; all of the messages, where it is not said."""
        if after_tokens is None:
            self._settings += 1
        else:
            self._changes[after_tokens] = self._changes.get(after_tokens, 0) + 1
        self._fronts = {}

    def shorten(self, tokens: int) -> None:
        """Replace what was not recorded before the messages by something else of so many tokens."""
        self.hidden_tokens = tokens
        self.ends = tuple(end for end in self.ends if end < tokens)
        self.change(after_tokens=0)

    def end_near(self, tokens: int, tolerance_tokens: int) -> int:
        """The end nearest to so many tokens, and a new one there where none is near."""
        ends = self._shown_ends() if self._shown else self.ends
        near = [end for end in ends if abs(end - tokens) <= tolerance_tokens]
        if near or self._shown:
            return min(near or ends, key=lambda end: abs(end - tokens))
        self.ends = tuple(sorted((*self.ends, tokens))[-_MOST_ENDS:])
        self._fronts = {}
        return tokens

    def rewrite(self, last: Stretch, keep: Stretch | None, scale: float = 1.0) -> Stretch:
        """`last` again, all behind `keep` being something else now, `scale` times as long."""
        here = keep
        for number, stretch in enumerate(last.way(after=keep)):
            pieces = [replace(piece, tokens=round(piece.tokens * scale)) for piece in stretch.pieces]
            if not number and pieces:
                pieces[0] = replace(pieces[0], digest=digest(b"rewritten" + pieces[0].digest + stretch.key))
            here = rechained(here, stretch, pieces)
            if stretch.said is not None:
                self.links[id(stretch.said)] = here
        return here if here is not None else last

    def _shown_ends(self) -> list[int]:
        found, end = [], 0
        for piece in self._shown:
            end += piece.tokens
            found.append(end)
        return found

    def _made(self, model: str, settings: bytes) -> Front:
        changes = sorted(self._changes.items())
        pieces, start = [], 0
        for piece in self._shown:
            behind = [change for change in changes if change[0] <= start]
            told = digest(piece.digest + repr(behind).encode()) if behind else piece.digest
            pieces.append(replace(piece, digest=told))
            start += piece.tokens
        return front_of(model, pieces, self._shown_marks, settings)

    def _hidden(self, model: str, settings: bytes) -> Front:
        """Pieces for what was not recorded; what tells each does not depend on where the others end."""
        whole = self.hidden_tokens or 0
        ends = [end for end in self.ends if end < whole]
        pieces, keys = [], []
        cuts = [0, *ends, whole] if whole else [0]
        for part, (start, end) in enumerate(pairwise(cuts)):
            is_system = part < len(ends) or not ends
            key = self._key(model, end if end < whole else _END, start)
            keys.append(key)
            pieces.append(
                Piece(
                    digest=key,
                    tokens=end - start,
                    kind="text",
                    area=Area.SYSTEM if is_system else Area.MESSAGES,
                    place=Place(Area.SYSTEM, part) if is_system else Place(Area.MESSAGES, _END),
                    markable=is_system,
                )
            )
        return Front(
            model=model,
            pieces=tuple(pieces),
            keys=tuple(keys),
            key=digest(self._key(model, _END, whole) + settings),
            tokens=whole,
            marks=tuple(range(len(ends) or len(pieces))),
        )

    def _key(self, model: str, end: int, start: int) -> bytes:
        """What tells all up to an end from everything else; the very end is that of this conversation alone."""
        changes = sorted((after, times) for after, times in self._changes.items() if after <= start)
        root = self._root if end == _END else ""
        return digest(repr((model, self._name, end, root, changes)).encode("utf-8", "replace"))


def _scaled(pieces: Sequence[Piece], rate: float) -> Sequence[Piece]:
    return [replace(piece, tokens=round(piece.tokens * rate)) for piece in pieces]
