"""A conversation as its bills tell it: what stands before its messages, and where each of these stands."""

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from foveate.cache.prompts import PromptPiece, compute_digest
from foveate.replay.stretches import HistoryNode, PromptFront, build_front, reattach_node
from foveate.values import Area, Place, Ttl

# So many ends of a hidden system prompt are marked: with more of them, no marks were left for the messages.
_MAX_ENDS = 2
_CONVERSATION_END = -1


class ConversationState:
    """What is known of one conversation.

    `hidden_tokens` is what it has before its messages and the recording does not show: a system prompt and
    tools, and behind the last of `ends`, up to which a bill was seen to be read, what the first message holds
    beyond what is shown of it. `links` are its messages in their places.
    """

    def __init__(self, name: str, root: str) -> None:
        self.hidden_tokens: int | None = None
        self.ends: tuple[int, ...] = ()
        self.nodes: dict[int, HistoryNode] = {}
        self.ttls: tuple[Ttl, Ttl] | None = None
        self.envelope = b""
        self.reserve_tokens = 0
        self._recorded_pieces: Sequence[PromptPiece] = ()
        self._recorded_breakpoints: Sequence[int] = ()
        self._scale = 1.0
        self._name = name
        self._root = root
        # How often what stands behind so many tokens of it became another one.
        self._changes: dict[int, int] = {}
        self._settings_version = 0
        self._fronts: dict[tuple[str, bool], PromptFront] = {}

    def copy_front_from(self, other: "ConversationState") -> None:
        """Begin with the system prompt of another one, as far as that is known."""
        self._name, self.ends, self._changes = other._name, other.ends, dict(other._changes)
        self.ttls = other.ttls

    def set_recorded_front(
        self, envelope: bytes, pieces: Sequence[PromptPiece], breakpoints: Sequence[int]
    ) -> None:
        """What stands before the messages, where it was recorded."""
        self.envelope, self._recorded_breakpoints = envelope, breakpoints
        self._recorded_pieces = _scale_pieces(pieces, self._scale)
        self._fronts = {}

    def scale_front(self, factor: float) -> None:
        """Take what was counted of that so many times as long: a bill says how long it is with the messages."""
        self._recorded_pieces, self._scale = _scale_pieces(self._recorded_pieces, factor), self._scale * factor
        self._fronts = {}

    @property
    def is_front_recorded(self) -> bool:
        """Whether what stands before the messages was recorded."""
        return bool(self._recorded_pieces)

    @property
    def has_recorded_breakpoints(self) -> bool:
        """Whether what was recorded bears marks."""
        return bool(self._recorded_breakpoints)

    @property
    def front_tokens(self) -> int:
        """How many tokens stand before the messages."""
        return (
            sum(piece.tokens for piece in self._recorded_pieces)
            if self._recorded_pieces
            else self.hidden_tokens or 0
        )

    def current_front(self, model: str, *, has_thinking: bool) -> PromptFront:
        """What stands before the messages now."""
        found = self._fronts.get((model, has_thinking))
        if found is None:
            settings = repr((has_thinking, self._settings_version)).encode()
            found = (
                self._build_recorded_front(model, settings)
                if self._recorded_pieces
                else self._build_hidden_front(model, settings)
            )
            self._fronts[model, has_thinking] = found
        return found

    def record_change(self, *, after_tokens: int | None = None) -> None:
        """From here on it is another one behind so many tokens; all of the messages, where it is not said."""
        if after_tokens is None:
            self._settings_version += 1
        else:
            self._changes[after_tokens] = self._changes.get(after_tokens, 0) + 1
        self._fronts = {}

    def replace_hidden_front(self, tokens: int) -> None:
        """Replace what was not recorded before the messages by something else of so many tokens."""
        self.hidden_tokens = tokens
        self.ends = tuple(end for end in self.ends if end < tokens)
        self.record_change(after_tokens=0)

    def find_or_add_end(self, tokens: int, tolerance_tokens: int) -> int:
        """The end nearest to so many tokens, and a new one there where none is near."""
        ends = self._recorded_ends() if self._recorded_pieces else self.ends
        near = [end for end in ends if abs(end - tokens) <= tolerance_tokens]
        if near or self._recorded_pieces:
            return min(near or ends, key=lambda end: abs(end - tokens))
        self.ends = tuple(sorted((*self.ends, tokens))[-_MAX_ENDS:])
        self._fronts = {}
        return tokens

    def rewrite(self, last: HistoryNode, keep: HistoryNode | None, scale: float = 1.0) -> HistoryNode:
        """`last` again, all behind `keep` being something else now, `scale` times as long."""
        previous = keep
        for number, node in enumerate(last.path(after=keep)):
            pieces = [replace(piece, tokens=round(piece.tokens * scale)) for piece in node.pieces]
            if not number and pieces:
                pieces[0] = replace(
                    pieces[0], digest=compute_digest(b"rewritten" + pieces[0].digest + node.key)
                )
            previous = reattach_node(previous, node, pieces)
            if node.message is not None:
                self.nodes[id(node.message)] = previous
        return previous if previous is not None else last

    def _recorded_ends(self) -> list[int]:
        found, end = [], 0
        for piece in self._recorded_pieces:
            end += piece.tokens
            found.append(end)
        return found

    def _build_recorded_front(self, model: str, settings: bytes) -> PromptFront:
        changes = sorted(self._changes.items())
        pieces, start = [], 0
        for piece in self._recorded_pieces:
            earlier_changes = [change for change in changes if change[0] <= start]
            changed_digest = (
                compute_digest(piece.digest + repr(earlier_changes).encode())
                if earlier_changes
                else piece.digest
            )
            pieces.append(replace(piece, digest=changed_digest))
            start += piece.tokens
        return build_front(model, pieces, self._recorded_breakpoints, settings)

    def _build_hidden_front(self, model: str, settings: bytes) -> PromptFront:
        """Pieces for what was not recorded; what tells each does not depend on where the others end."""
        whole = self.hidden_tokens or 0
        ends = [end for end in self.ends if end < whole]
        pieces, keys = [], []
        cuts = [0, *ends, whole] if whole else [0]
        for part, (start, end) in enumerate(pairwise(cuts)):
            is_system = part < len(ends) or not ends
            key = self._front_key(model, end if end < whole else _CONVERSATION_END, start)
            keys.append(key)
            pieces.append(
                PromptPiece(
                    digest=key,
                    tokens=end - start,
                    kind="text",
                    area=Area.SYSTEM if is_system else Area.MESSAGES,
                    place=Place(Area.SYSTEM, part) if is_system else Place(Area.MESSAGES, _CONVERSATION_END),
                    accepts_breakpoint=is_system,
                )
            )
        return PromptFront(
            model=model,
            pieces=tuple(pieces),
            keys=tuple(keys),
            key=compute_digest(self._front_key(model, _CONVERSATION_END, whole) + settings),
            tokens=whole,
            breakpoints=tuple(range(len(ends) or len(pieces))),
        )

    def _front_key(self, model: str, end: int, start: int) -> bytes:
        """What tells all up to an end from everything else; the very end is that of this conversation alone."""
        changes = sorted((after, times) for after, times in self._changes.items() if after <= start)
        root = self._root if end == _CONVERSATION_END else ""
        return compute_digest(repr((model, self._name, end, root, changes)).encode("utf-8", "replace"))


def _scale_pieces(pieces: Sequence[PromptPiece], factor: float) -> Sequence[PromptPiece]:
    return [replace(piece, tokens=round(piece.tokens * factor)) for piece in pieces]
