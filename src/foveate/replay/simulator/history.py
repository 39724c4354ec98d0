"""What was sent as a provider's cache sees it: each message once, behind all that stands before it.

A `Stretch` is a message in its place. It knows the one before it, so that two calls share what their histories
share, and what a call costs does not grow with its history: of a long one, only the end and the few places that
matter are looked at piece by piece, and all between them as one piece.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from foveate.model import Area
from foveate.prompt_cache.prompt.cached_prompt import PromptPiece, compute_front_keys, extend_key
from foveate.replay.recording import RecordedMessage

THINKING_KINDS = frozenset(("thinking", "redacted_thinking", "reasoningContent"))
TOOL_RESULT_KINDS = frozenset(("tool_result", "toolResult"))


# Made for every message, and a struct is made several times as fast as a dataclass.
class HistoryNode(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A message where it stands: its pieces, and what the conversation up to and with it comes to.

    `keys` are what tells the messages up to each piece from all others, `key` those up to the last one. `end`
    is how many tokens the messages up to and with it have. `first` is the one that the way here begins with,
    None where it is this. `thought` is the first one that holds a thought. `positions` are how many it takes at
    the least, however runs are counted, and `ahead` those of all before it. `jump` leads far back at once.
    """

    previous: "HistoryNode | None"
    skip_link: "HistoryNode | None"
    depth: int
    message: RecordedMessage | None
    role: str
    pieces: tuple[PromptPiece, ...]
    keys: tuple[bytes, ...]
    key: bytes
    end_tokens: int
    first: "HistoryNode | None"
    first_thinking: "HistoryNode | None"
    positions: int
    positions_before: int

    @property
    def positions_through(self) -> int:
        """The positions up to and with it."""
        return self.positions_before + self.positions

    @property
    def tokens(self) -> int:
        """Those of its own pieces."""
        return self.end_tokens - (self.previous.end_tokens if self.previous is not None else 0)

    def ancestor_at(self, depth: int) -> "HistoryNode | None":
        """The one so deep on the way here; None where the way is not so long."""
        node: HistoryNode | None = self
        while node is not None and node.depth > depth:
            node = (
                node.skip_link
                if node.skip_link is not None and node.skip_link.depth >= depth
                else node.previous
            )
        return node if node is not None and node.depth == depth else None

    def descends_from(self, other: "HistoryNode") -> bool:
        """Whether `other` stands on the way here, or is this."""
        return self.ancestor_at(other.depth) is other

    def last_within(self, tokens: int) -> "HistoryNode | None":
        """The last on the way here up to which the messages have at most so many tokens."""
        node: HistoryNode | None = self
        while node is not None and node.end_tokens > tokens:
            node = (
                node.skip_link
                if node.skip_link is not None and node.skip_link.end_tokens > tokens
                else node.previous
            )
        return node

    def nearest(self, tokens: int) -> "HistoryNode | None":
        """The one on the way here up to which the messages have so many tokens, as nearly as there is one."""
        below = self.last_within(tokens)
        above = self.ancestor_at(below.depth + 1 if below is not None else 0)
        if below is None or above is None:
            return below or above
        return above if above.end_tokens - tokens < tokens - below.end_tokens else below

    def unseen_keys(self, front: "PromptFront", seen: Collection[bytes]) -> list[bytes]:
        """What tells those on the way here, behind `front`, that were not seen before."""
        found = []
        node: HistoryNode | None = self
        while node is not None and (key := front.key + node.key) not in seen:
            found.append(key)
            node = node.previous
        return found

    def path(self, after: "HistoryNode | None" = None) -> "list[HistoryNode]":
        """All from the one behind `after` up to this, the first one first."""
        found = []
        node: HistoryNode | None = self
        while node is not None and node is not after:
            found.append(node)
            node = node.previous
        return found[::-1]


def append_node(
    previous: HistoryNode | None,
    pieces: Sequence[PromptPiece],
    *,
    message: RecordedMessage | None = None,
    role: str = "",
) -> HistoryNode:
    """A message of these pieces behind `before`."""
    key = previous.key if previous is not None else b""
    keys = []
    for piece in pieces:
        key = extend_key(key, piece)
        keys.append(key)
    kinds = {piece.kind for piece in pieces}
    has_thinking = not THINKING_KINDS.isdisjoint(kinds)
    node = HistoryNode(
        previous=previous,
        skip_link=_skip_target(previous),
        depth=previous.depth + 1 if previous is not None else 0,
        message=message,
        role=role,
        pieces=tuple(pieces),
        keys=tuple(keys),
        key=key,
        end_tokens=(previous.end_tokens if previous is not None else 0)
        + sum([piece.tokens for piece in pieces]),
        first=previous.first or previous if previous is not None else None,
        first_thinking=previous.first_thinking if previous is not None else None,
        positions=len(kinds),
        positions_before=previous.positions_through if previous is not None else 0,
    )
    if has_thinking and node.first_thinking is None:
        return msgspec.structs.replace(node, first_thinking=node)
    return node


def _skip_target(previous: HistoryNode | None) -> HistoryNode | None:
    """Where a stretch behind `before` leads back to: so far that any place is a few such steps away."""
    if previous is None or previous.skip_link is None or previous.skip_link.skip_link is None:
        return previous
    near, far = previous.skip_link, previous.skip_link.skip_link
    return far if previous.depth - near.depth == near.depth - far.depth else previous


def reattach_node(
    previous: HistoryNode | None, node: HistoryNode, pieces: Sequence[PromptPiece] | None = None
) -> HistoryNode:
    """`stretch` behind something else, with other pieces where they are said."""
    own_pieces = node.pieces if pieces is None else pieces
    return append_node(previous, own_pieces, message=node.message, role=node.role)


def drop_thinking(last: HistoryNode) -> HistoryNode:
    """The same way without any thought on it: what is left of it once the user speaks again."""
    first = last.first_thinking
    if first is None:
        return last
    previous = first.previous
    for node in last.path(after=first.previous):
        pieces = [piece for piece in node.pieces if piece.kind not in THINKING_KINDS]
        if pieces:
            previous = reattach_node(previous, node, pieces)
    # All that was said may have been thoughts.
    return previous if previous is not None else reattach_node(None, first, ())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptFront:
    """What stands before the messages: tools and system prompt, as far as they are known.

    `marks` are the pieces that the client marks.
    """

    model: str
    pieces: tuple[PromptPiece, ...]
    keys: tuple[bytes, ...]
    key: bytes
    tokens: int
    breakpoints: tuple[int, ...]

    def token_ends(self) -> list[int]:
        """How many tokens it has up to and with each piece."""
        return list(accumulate([piece.tokens for piece in self.pieces]))

    def end_tokens(self, piece: int) -> int:
        """How many tokens it has up to and with a piece."""
        return sum(earlier.tokens for earlier in self.pieces[: piece + 1])


def build_front(
    model: str, pieces: Sequence[PromptPiece], breakpoints: Iterable[int] = (), settings: bytes = b""
) -> PromptFront:
    """A front of these pieces; `settings` are parameters with which all messages behind it are others."""
    keys, key = compute_front_keys(model, pieces, {Area.MESSAGES: settings})
    return PromptFront(
        model=model,
        pieces=tuple(pieces),
        keys=tuple(keys),
        key=key,
        tokens=sum(piece.tokens for piece in pieces),
        breakpoints=tuple(breakpoints),
    )
