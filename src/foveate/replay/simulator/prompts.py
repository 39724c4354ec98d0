"""Prompts of recorded calls as a provider's cache sees them, and their breakpoints.

The breakpoints are those that clients are known to place, or fixed ones. Messages are a tree: a `HistoryNode`
points to the previous one, so two calls share the common part of their histories.

Only the end of a long history is given piece by piece. Each prompt extends that of the previous call, and only
its new part is read. So the time per call does not grow with the history, and policies that send the same share
the work.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate, islice
from typing import Protocol

import msgspec
from msgspec import structs

from foveate.model import Area, Place, Ttl
from foveate.prompt_cache.prompt.cached_prompt import (
    CachedPrompt,
    PromptPiece,
    compute_preamble_keys,
    extend_key,
    token_ends,
)
from foveate.prompt_cache.rules import CacheRules, rules_for
from foveate.replay.recording import RecordedMessage

THINKING_KINDS = frozenset(("thinking", "redacted_thinking", "reasoningContent"))
TOOL_RESULT_KINDS = frozenset(("tool_result", "toolResult"))
_GAP_KIND = "text"
# Lookback for providers without a limit: a session may be rewound this far and still find its entry.
_MIN_POSITIONS = 40


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
        keys = []
        node: HistoryNode | None = self
        while node is not None and (key := preamble.key + node.key) not in seen:
            keys.append(key)
            node = node.previous
        return keys

    def path(self, after: "HistoryNode | None" = None) -> "list[HistoryNode]":
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
        return structs.replace(node, first_thinking=node)
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


class PromptTail(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The end of a prompt after `preamble`: the messages that are given piece by piece.

    `positions_before` counts the lookback positions before each of `nodes`. `pieces`, `keys` and `ends` are
    as in a `CachedPrompt`.
    """

    preamble: SimulatedPreamble
    lookback_positions: int
    nodes: Sequence[HistoryNode]
    positions_before: list[int]
    pieces: list[PromptPiece]
    keys: list[bytes]
    ends: list[int]


class SentHistory(Protocol):
    """A call with its history. `full_nodes` are earlier messages that must be given in full too."""

    @property
    def preamble(self) -> SimulatedPreamble: ...

    @property
    def last_node(self) -> HistoryNode: ...

    @property
    def rules(self) -> CacheRules: ...

    @property
    def full_nodes(self) -> tuple[HistoryNode, ...]:
        """Messages at which another client's cache entry ends."""


class AbbreviatedPrompts:
    """Builds the prompts of calls in order, each from the previous one. Asking again returns the same."""

    def __init__(self) -> None:
        self._sent: list[SentHistory] = []
        # Keys of messages sent in the first `_seen_calls` calls; extended only when needed.
        self._seen: set[bytes] = set()
        self._seen_calls = 0
        self._latest: tuple[SentHistory, PromptTail] | None = None

    def fork(self) -> "AbbreviatedPrompts":
        other = AbbreviatedPrompts()
        other._sent, other._latest = list(self._sent), self._latest
        other._seen, other._seen_calls = set(self._seen), self._seen_calls
        return other

    def build(self, call: SentHistory, full_nodes: Sequence[HistoryNode] = ()) -> CachedPrompt:
        return build_prompt(self._build_tail(call), (*full_nodes, *call.full_nodes))

    def record_sent(self, call: SentHistory) -> None:
        if not self._sent or self._sent[-1] is not call:
            self._sent.append(call)

    def _build_tail(self, call: SentHistory) -> PromptTail:
        if self._latest is not None and self._latest[0] is call:
            return self._latest[1]
        tail = build_tail(
            call.preamble,
            call.last_node,
            seen=self._seen_before(call),
            lookback_positions=call.rules.lookback_positions,
            previous=self._latest[1] if self._latest is not None else None,
        )
        self._latest = call, tail
        return tail

    def _seen_before(self, call: SentHistory) -> set[bytes]:
        """The keys sent before a call, which may itself be recorded already."""
        is_recorded = bool(self._sent) and self._sent[-1] is call
        calls = len(self._sent) - is_recorded
        for earlier in self._sent[self._seen_calls : calls]:
            self._seen.update(earlier.last_node.unseen_keys(earlier.preamble, self._seen))
        self._seen_calls = calls
        return self._seen


def build_tail(
    preamble: SimulatedPreamble,
    last_node: HistoryNode,
    *,
    seen: Collection[bytes] = (),
    lookback_positions: int,
    previous: PromptTail | None = None,
) -> PromptTail:
    """The end of the prompt whose last message is `last_node`.

    It contains everything since the last message that was `seen` after this preamble, and the positions before
    it that a breakpoint looks back. It extends the `previous` tail if `last_node` follows that.
    """
    lookback = lookback_positions or _MIN_POSITIONS
    continues = (
        previous is not None
        and previous.preamble is preamble
        and previous.lookback_positions == lookback_positions
    )
    junction = previous.nodes[-1] if continues and previous is not None else None
    new: list[HistoryNode] = []
    node, seen_node = last_node, None
    while True:
        if seen_node is None and preamble.key + node.key in seen:
            seen_node = node
        if node is junction and seen_node is not None and previous is not None:
            at = bisect_left(previous.positions_before, seen_node.positions_through - lookback) - 1
            if at >= 0 or previous.nodes[0].previous is None:
                return _extend_tail(previous, max(at, 0), new[::-1])
        new.append(node)
        if node.previous is None or (
            seen_node is not None and seen_node.positions_through - node.positions_before > lookback
        ):
            empty = PromptTail(
                preamble=preamble,
                lookback_positions=lookback_positions,
                nodes=(),
                positions_before=[],
                pieces=[],
                keys=[],
                ends=[],
            )
            return _extend_tail(empty, 0, new[::-1])
        node = node.previous


def _extend_tail(previous: PromptTail, start: int, new: Sequence[HistoryNode]) -> PromptTail:
    preamble, dropped_pieces = previous.preamble, sum([len(node.pieces) for node in previous.nodes[:start]])
    key, ends = preamble.key, previous.ends[dropped_pieces:]
    pieces = [piece for node in new for piece in node.pieces]
    if pieces:
        first = new[0]
        sizes = accumulate(
            [piece.tokens for piece in pieces], initial=preamble.tokens + first.end_tokens - first.tokens
        )
        ends += islice(sizes, 1, None)
    return PromptTail(
        preamble=preamble,
        lookback_positions=previous.lookback_positions,
        nodes=(*previous.nodes[start:], *new),
        positions_before=previous.positions_before[start:] + [node.positions_before for node in new],
        pieces=previous.pieces[dropped_pieces:] + pieces,
        keys=previous.keys[dropped_pieces:] + [key + node_key for node in new for node_key in node.keys],
        ends=ends,
    )


def build_prompt(tail: PromptTail, full_nodes: Iterable[HistoryNode] = ()) -> CachedPrompt:
    """The prompt with this tail. Everything before it is one piece, except the first message and
    `full_nodes`.

    The cache has no entry in between that a breakpoint could find.
    """
    preamble, omitted = tail.preamble, tail.nodes[0].previous
    pieces, keys, ends = list(preamble.pieces), list(preamble.keys), preamble.token_ends()
    if omitted is not None:
        full_by_depth = {node.depth: node for node in full_nodes if omitted.descends_from(node)}
        full_by_depth[0] = omitted.first or omitted
        previous: HistoryNode | None = None
        for depth in sorted(full_by_depth):
            _add_gap(pieces, keys, ends, preamble, previous, full_by_depth[depth].previous)
            previous = full_by_depth[depth]
            _add_node(pieces, keys, ends, preamble, previous)
        _add_gap(pieces, keys, ends, preamble, previous, omitted)
    return CachedPrompt(
        model=preamble.model,
        pieces=(*pieces, *tail.pieces),
        keys=keys + tail.keys,
        ends=ends + tail.ends,
    )


def _add_node(
    pieces: list[PromptPiece],
    keys: list[bytes],
    ends: list[int],
    preamble: SimulatedPreamble,
    node: HistoryNode,
) -> None:
    pieces += node.pieces
    keys += [preamble.key + key for key in node.keys]
    end = preamble.tokens + node.end_tokens - node.tokens
    for piece in node.pieces:
        end += piece.tokens
        ends.append(end)


def _add_gap(
    pieces: list[PromptPiece],
    keys: list[bytes],
    ends: list[int],
    preamble: SimulatedPreamble,
    start: HistoryNode | None,
    end: HistoryNode | None,
) -> None:
    tokens = (end.end_tokens if end is not None else 0) - (start.end_tokens if start is not None else 0)
    if end is None or end is start or (start is not None and end.depth <= start.depth):
        return
    last = end.pieces[-1] if end.pieces else None
    pieces.append(
        PromptPiece(
            digest=end.key,
            tokens=tokens,
            kind=_GAP_KIND,
            area=Area.MESSAGES,
            place=last.place if last is not None else Place(Area.MESSAGES, end.depth),
            accepts_breakpoint=last is not None and last.accepts_breakpoint,
        )
    )
    keys.append(preamble.key + end.key)
    ends.append(preamble.tokens + end.end_tokens)


_ASSISTANT, _USER = "assistant", "user"
# Before this date, the documentation counted every block as one position; counting runs as one came later.
_RUNS_ARE_ONE_SINCE = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
_MAX_CACHED_RULES = 256


def rules_at(model: str, at: float) -> CacheRules:
    """The cache rules of a model at a time; today's rules if the time is unknown."""
    return _dated_rules(model, 0 < at < _RUNS_ARE_ONE_SINCE)


@lru_cache(_MAX_CACHED_RULES)
def _dated_rules(model: str, is_early: bool) -> CacheRules:
    rules = rules_for(model)
    return replace(rules, runs_are_one_position=False) if is_early else rules


def client_breakpoints(
    prompt: CachedPrompt,
    preamble: SimulatedPreamble,
    last_node: HistoryNode,
    *,
    preamble_ttl: Ttl,
    tail_ttl: Ttl,
) -> dict[int, Ttl]:
    """The breakpoints of coding agents, by piece: the ends of the system prompt, and the last assistant and
    user messages.

    In a message it is on the block that was logged last, or on the last one that accepts a breakpoint.
    """
    breakpoints = dict.fromkeys(preamble.breakpoints, preamble_ttl)
    missing_roles = {_ASSISTANT, _USER}
    for start, node in iterate_full_nodes(prompt, last_node):
        role = _ASSISTANT if node.role == _ASSISTANT else _USER
        if role in missing_roles:
            missing_roles.remove(role)
            at = _client_breakpoint_piece(node)
            if at is not None:
                breakpoints[start + at] = tail_ttl
        if not missing_roles:
            break
    return breakpoints


def _client_breakpoint_piece(node: HistoryNode) -> int | None:
    pieces = node.pieces
    last_logged = node.message.last_logged_block if node.message is not None else -1
    if 0 <= last_logged < len(pieces) and pieces[last_logged].accepts_breakpoint:
        return last_logged
    return next((at for at in range(len(pieces) - 1, -1, -1) if pieces[at].accepts_breakpoint), None)


def with_breakpoints(prompt: CachedPrompt, breakpoints: Mapping[int, Ttl]) -> CachedPrompt:
    pieces = list(prompt.pieces)
    for at, ttl in breakpoints.items():
        pieces[at] = structs.replace(pieces[at], breakpoint_ttl=ttl)
    return replace(prompt, pieces=tuple(pieces), layout=None)


def fixed_breakpoint_pieces(
    prompt: CachedPrompt, preamble: SimulatedPreamble, *, minimum_tokens: int
) -> list[int]:
    """Fixed breakpoints, by piece: the ends of the tools and of the system prompt, and the last block."""
    pieces, ends = prompt.pieces, token_ends(prompt)
    last: dict[Area, int] = {}
    for at in range(len(preamble.pieces)):
        if pieces[at].accepts_breakpoint:
            last[pieces[at].area] = at
    messages_backwards = range(len(pieces) - 1, len(preamble.pieces) - 1, -1)
    last_accepting = next((at for at in messages_backwards if pieces[at].accepts_breakpoint), None)
    if last_accepting is not None:
        last[Area.MESSAGES] = last_accepting
    return sorted(at for at in last.values() if ends[at] >= minimum_tokens)


def iterate_full_nodes(prompt: CachedPrompt, last_node: HistoryNode) -> Iterator[tuple[int, HistoryNode]]:
    """The last messages that `prompt` contains in full, last one first, with the index of their first piece."""
    node: HistoryNode | None = last_node
    end = len(prompt.pieces)
    while node is not None:
        start = end - len(node.pieces)
        if node.pieces and prompt.pieces[end - 1] is not node.pieces[-1]:
            return
        yield start, node
        node, end = node.previous, start
