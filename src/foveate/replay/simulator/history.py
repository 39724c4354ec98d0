"""Histories as a provider's cache sees them: a tree of messages with their pieces and keys.

A `HistoryNode` points to the previous one, so two calls share the common part of their histories, and the
time per call does not grow with its history.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from foveate.model import Area
from foveate.prompt_cache.prompt.cached_prompt import PromptPiece, compute_preamble_keys, extend_key
from foveate.replay.recording import RecordedMessage

THINKING_KINDS = frozenset(("thinking", "redacted_thinking", "reasoningContent"))
TOOL_RESULT_KINDS = frozenset(("tool_result", "toolResult"))


# A struct, since one is created for every message, and structs are created several times as fast as
# dataclasses.
class HistoryNode(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A message in its history: its pieces, and totals of the messages up to and including it.

    `keys` are the message-prefix keys of its pieces, `key` the last one. `end_tokens` are the tokens of all
    messages so far. `first` is the first node of the history (None for that itself), `first_thinking` the
    first one with a thinking block. `positions` is the minimum number of lookback positions that it takes,
    `positions_before` that of all before it. `skip_link` points far back, so that any ancestor is found in a
    few steps.
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
        return self.positions_before + self.positions

    @property
    def tokens(self) -> int:
        return self.end_tokens - (self.previous.end_tokens if self.previous is not None else 0)

    def ancestor_at(self, depth: int) -> "HistoryNode | None":
        """The ancestor (or itself) at this depth; None if the history is shorter."""
        node: HistoryNode | None = self
        while node is not None and node.depth > depth:
            node = (
                node.skip_link
                if node.skip_link is not None and node.skip_link.depth >= depth
                else node.previous
            )
        return node if node is not None and node.depth == depth else None

    def descends_from(self, other: "HistoryNode") -> bool:
        """Return whether `other` is an ancestor, or this node."""
        return self.ancestor_at(other.depth) is other

    def last_within(self, tokens: int) -> "HistoryNode | None":
        """The last ancestor (or itself) up to which the messages have at most this many tokens."""
        node: HistoryNode | None = self
        while node is not None and node.end_tokens > tokens:
            node = (
                node.skip_link
                if node.skip_link is not None and node.skip_link.end_tokens > tokens
                else node.previous
            )
        return node

    def nearest(self, tokens: int) -> "HistoryNode | None":
        """The ancestor (or itself) up to which the number of tokens is nearest to `tokens`."""
        below = self.last_within(tokens)
        above = self.ancestor_at(below.depth + 1 if below is not None else 0)
        if below is None or above is None:
            return below or above
        return above if above.end_tokens - tokens < tokens - below.end_tokens else below

    def unseen_keys(self, preamble: "SimulatedPreamble", seen: Collection[bytes]) -> list[bytes]:
        """The keys of the nodes after `preamble` that are not in `seen`."""
        keys = []
        node: HistoryNode | None = self
        while node is not None and (key := preamble.key + node.key) not in seen:
            keys.append(key)
            node = node.previous
        return keys

    def path(self, after: "HistoryNode | None" = None) -> "list[HistoryNode]":
        """The nodes from the one after `after` up to this one, in order."""
        nodes = []
        node: HistoryNode | None = self
        while node is not None and node is not after:
            nodes.append(node)
            node = node.previous
        return nodes[::-1]


def append_node(
    previous: HistoryNode | None,
    pieces: Sequence[PromptPiece],
    *,
    message: RecordedMessage | None = None,
    role: str = "",
) -> HistoryNode:
    """A message with these pieces after `previous`."""
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
    """The skip link of a node after `previous`: chosen so that any ancestor is a logarithmic number of steps
    away.
    """
    if previous is None or previous.skip_link is None or previous.skip_link.skip_link is None:
        return previous
    near, far = previous.skip_link, previous.skip_link.skip_link
    return far if previous.depth - near.depth == near.depth - far.depth else previous


def reattach_node(
    previous: HistoryNode | None, node: HistoryNode, pieces: Sequence[PromptPiece] | None = None
) -> HistoryNode:
    """`node` after another one, with other pieces if given."""
    own_pieces = node.pieces if pieces is None else pieces
    return append_node(previous, own_pieces, message=node.message, role=node.role)


def drop_thinking(last: HistoryNode) -> HistoryNode:
    """The history without thinking blocks, as the provider sees it after the next user turn."""
    first = last.first_thinking
    if first is None:
        return last
    previous = first.previous
    for node in last.path(after=first.previous):
        pieces = [piece for piece in node.pieces if piece.kind not in THINKING_KINDS]
        if pieces:
            previous = reattach_node(previous, node, pieces)
    # The whole history may have been thinking.
    return previous if previous is not None else reattach_node(None, first, ())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedPreamble:
    """Everything before the messages: tools and system prompt, as far as known.

    `breakpoints` are the pieces on which the client places breakpoints.
    """

    model: str
    pieces: tuple[PromptPiece, ...]
    keys: tuple[bytes, ...]
    key: bytes
    tokens: int
    breakpoints: tuple[int, ...]

    def token_ends(self) -> list[int]:
        return list(accumulate([piece.tokens for piece in self.pieces]))

    def end_tokens(self, piece: int) -> int:
        """The tokens up to and including a piece."""
        return sum(earlier.tokens for earlier in self.pieces[: piece + 1])


def build_preamble(
    model: str, pieces: Sequence[PromptPiece], breakpoints: Iterable[int] = (), settings: bytes = b""
) -> SimulatedPreamble:
    """Build a preamble; `settings` are parameters that change the keys of all messages after it."""
    keys, key = compute_preamble_keys(model, pieces, {Area.MESSAGES: settings})
    return SimulatedPreamble(
        model=model,
        pieces=tuple(pieces),
        keys=tuple(keys),
        key=key,
        tokens=sum(piece.tokens for piece in pieces),
        breakpoints=tuple(breakpoints),
    )
