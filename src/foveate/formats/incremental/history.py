"""Conversations seen before, as a tree: each message a link that hangs on what was said before it.

A client sends its whole past with every request. A past that was seen before is found here by its bytes, one
look a message, and with it whatever was found out about it: nothing of it is read, hashed or counted again.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from foveate.caching import register
from foveate.formats.json_text.parse import read_role
from foveate.model import Format, Request

# Of each of two generations: a few hundred sessions of a coding agent.
_MAX_GENERATION_BYTES = 48 * 1024 * 1024
# What a link takes beside its bytes and its blocks, and what a note does, about.
_NODE_BYTES = 512
_MEMO_BYTES = 384
# Each block is kept as several objects.
_OBJECT_BYTES = 1024
# Its blocks, hash and role, and what a few counters and caches have made of it.
_MAX_INHERITED_MEMOS = 24
# Conversations of which something is held whole, and how many messages a turn may bring.
_MAX_HISTORIES = 128
_MAX_LOOKBACK = 16
# So many are walked through as quickly as they are compared with those that were.
_SHORT_HISTORY_MESSAGES = 16

Value = TypeVar("Value")
CacheKey = TypeVar("CacheKey")
Cached = TypeVar("Cached")

_SYSTEM_ROLES = frozenset(("system", "developer"))


class _MemoCounter:
    """How many notes were made. No attribute of their class: changing one costs all that looks anything up."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


_MEMO_COUNTER = _MemoCounter()


class NodeMemo(dict[object, Any]):
    """What was found out about a message, each thing under a key of its own; how many there are is known."""

    __slots__ = ()

    def __setitem__(self, key: object, value: Any) -> None:
        """Note something."""
        _MEMO_COUNTER.count += 1
        super().__setitem__(key, value)


class MessageNode:
    """A message with all that stands before it; `raw` are its bytes.

    Under keys of their own, rooms note in `known` what they have found out about it. A note may depend on the
    messages before it, never on those after it.
    """

    __slots__ = ("_role", "can_inherit", "children", "is_cached", "memo", "raw")

    def __init__(
        self, raw: bytes, memo: dict[object, Any], *, can_inherit: bool = True, is_cached: bool = True
    ) -> None:
        """Where it `carries`, what follows it may bring notes along from an older generation.

        One that is not remembered is gone with its request: nothing may hold it for the next.
        """
        self.raw = raw
        self.memo = memo
        self.can_inherit = can_inherit
        self.is_cached = is_cached
        self.children: dict[bytes, MessageNode] = {}
        self._role: str | None = None

    @property
    def role(self) -> str:
        """Who speaks; nobody where the message does not say."""
        if self._role is None:
            self._role = read_role(self.raw)
        return self._role


class MessageHistory(msgspec.Struct, frozen=True):
    """The messages of one request as links, without the `head` system messages with which it begins.

    Those hold the time of day, and would make every conversation a new one.
    """

    leading_system_messages: int
    nodes: Sequence[MessageNode]


class UncachedHistory(NamedTuple):
    """The trail of a request that is too large to be remembered."""

    raws: tuple[bytes, ...]
    history: MessageHistory

    @classmethod
    def from_messages(cls, raws: tuple[bytes, ...]) -> "UncachedHistory":
        """The trail of these messages, which nobody else finds."""
        leading = next((at for at, raw in enumerate(raws) if read_role(raw) not in _SYSTEM_ROLES), len(raws))
        return cls(
            raws, MessageHistory(leading, [MessageNode(raw, {}, is_cached=False) for raw in raws[leading:]])
        )


class _Lookup(NamedTuple):
    """A trail that was asked for, with its messages."""

    api_format: Format | None
    raws: Sequence[bytes]
    history: MessageHistory


class HistoryTree:
    """The tree, held in two generations: when the younger one is full, the older one is forgotten.

    Safe to share between threads: at worst something is found out twice.
    """

    def __init__(self, max_bytes: int = _MAX_GENERATION_BYTES) -> None:
        self._max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        """Forget all of it."""
        self._young: dict[Format, MessageNode] = {}
        self._old: dict[Format, MessageNode] = {}
        self._young_bytes = 0
        self._memos_before = _MEMO_COUNTER.count
        # The last two: a request is asked for by turns as it came and as it goes out.
        self._last = self._before_last = _Lookup(None, (), MessageHistory(0, ()))
        # Under the first message of a long conversation, how it was last walked through.
        self._recent_paths: dict[MessageNode, tuple[tuple[bytes, ...], list[MessageNode]]] = {}

    @property
    def held_bytes(self) -> int:
        """How much the younger generation holds, about."""
        return self._young_bytes + _MEMO_BYTES * (_MEMO_COUNTER.count - self._memos_before)

    def find(self, api_format: Format, raws: tuple[bytes, ...]) -> MessageHistory:
        """The trail of these messages."""
        for lookup in (self._last, self._before_last):
            if raws is lookup.raws and api_format is lookup.api_format:
                return lookup.history
        if self.held_bytes > self._max_bytes:
            self._old, self._young, self._young_bytes = self._young, {}, 0
            self._memos_before = _MEMO_COUNTER.count
            self._recent_paths = {}
        root = self._young.get(api_format)
        if root is None:
            root = self._young[api_format] = MessageNode(b"", NodeMemo())
        leading = _count_leading_system_messages(root, raws)
        conversation = raws[leading:] if leading else raws
        history = MessageHistory(leading, self._find_nodes(root, self._old.get(api_format), conversation))
        self._before_last, self._last = self._last, _Lookup(api_format, raws, history)
        return history

    def find_twin(self, history: MessageHistory, position: int) -> MessageNode | None:
        """The same message in the other of the last two trails, if that ends as this one does.

        So a request that came with a long history and goes out with a short one has its new messages read once.
        """
        last, before = self._last, self._before_last
        if last.history is not history:
            last, before = before, last
        from_end, others = position - len(history.nodes), before.history.nodes
        if last.history is not history or last.api_format is not before.api_format or len(others) < -from_end:
            return None
        twin = others[from_end]
        return twin if twin.raw == history.nodes[position].raw else None

    def _find_nodes(
        self, node: MessageNode, old: MessageNode | None, raws: tuple[bytes, ...]
    ) -> list[MessageNode]:
        """The links of these messages, from the first ones on; `old` are those of the older generation."""
        nodes: list[MessageNode] = []
        known: tuple[bytes, ...] = ()
        is_long = len(raws) > _SHORT_HISTORY_MESSAGES
        if is_long and (recent := self._recent_paths.get(node.children.get(raws[0], node))) is not None:
            size = _count_common_messages(recent[0], raws)
            # What the older generation knows of the rest is not looked for, so nothing may come from there.
            known, nodes, node, old = recent[0][:size], recent[1][:size], recent[1][size - 1], None
        can_inherit = not nodes
        for raw in raws[len(nodes) :]:
            child = node.children.get(raw)
            old = old.children.get(raw) if old is not None else None
            if child is None:
                # Notes come with models and agents that clients name, and there is no end of these. What hangs
                # on a link without its notes has none either, so that nothing is noted after what is not.
                if old is not None and node.can_inherit and len(old.memo) <= _MAX_INHERITED_MEMOS:
                    child = MessageNode(old.raw, old.memo)
                else:
                    child = MessageNode(
                        raw, NodeMemo(), can_inherit=can_inherit and node.can_inherit and old is None
                    )
                node.children[child.raw] = child
                self._young_bytes += 2 * len(raw) + _NODE_BYTES + _OBJECT_BYTES * raw.count(b"{")
            nodes.append(child)
            node = child
        if is_long:
            # With the bytes that the links hold already: those that came may be others that say the same.
            own = known + tuple([node.raw for node in nodes[len(known) :]])
            _put_bounded(self._recent_paths, nodes[0], (own, nodes), _MAX_HISTORIES)
        return nodes


def _count_leading_system_messages(root: MessageNode, raws: tuple[bytes, ...]) -> int:
    """How many system messages stand first. Later ones are part of the conversation."""
    for number, raw in enumerate(raws):
        if raw in root.children or read_role(raw) not in _SYSTEM_ROLES:
            return number
    return len(raws)


def _count_common_messages(left: tuple[bytes, ...], right: tuple[bytes, ...]) -> int:
    """How many messages two conversations that begin with the same one have in common."""
    low, high = 1, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _put_bounded(cache: dict[CacheKey, Cached], key: CacheKey, value: Cached, max_size: int) -> None:
    """Hold one more, and forget the one that has been held the longest where they are too many."""
    cache[key] = value
    if len(cache) > max_size:
        with suppress(StopIteration, KeyError, RuntimeError):  # another thread was quicker
            del cache[next(iter(cache))]


class HistoryCache(Generic[Value]):
    """What was made of whole conversations, under their last messages; of those that were last asked for.

    The next request of a conversation is a turn longer, so that all there is to do is to go on from there.
    """

    def __init__(self, max_size: int = _MAX_HISTORIES) -> None:
        self._max_size = max_size
        self.clear()

    def clear(self) -> None:
        """Forget all of it."""
        self._values: dict[tuple[MessageNode, object], Value] = {}

    def find_prefix(self, nodes: Sequence[MessageNode], key: object = None) -> tuple[int, Value] | None:
        """What was made of a beginning of these, and of how many; None where that is too long ago."""
        for size in range(len(nodes), max(0, len(nodes) - _MAX_LOOKBACK), -1):
            found = self._values.get((nodes[size - 1], key))
            if found is not None:
                return size, found
        return None

    def put(self, nodes: Sequence[MessageNode], value: Value, key: object = None, *, replaces: int = 0) -> None:
        """Hold what was made of these, in the place of what was made of the first `instead_of`."""
        if replaces:
            self._values.pop((nodes[replaces - 1], key), None)
        if not nodes or not nodes[-1].is_cached:
            return
        _put_bounded(self._values, (nodes[-1], key), value, self._max_size)


def count_memoized(nodes: Sequence[MessageNode], key: object) -> int:
    """How many of these have a note under `key`; notes are made from the first on."""
    for size in range(len(nodes), 0, -1):
        if key in nodes[size - 1].memo:
            return size
    return 0


HISTORY_TREE = HistoryTree()
register(HISTORY_TREE)


def find_history(request: Request) -> MessageHistory:
    """The messages of a request, each with what is known of it.

    Raises:
        MalformedRequest: a message cannot be read.
    """
    uncached = request.history
    if isinstance(uncached, UncachedHistory) and uncached.raws is request.messages:
        return uncached.history
    return HISTORY_TREE.find(request.format, request.messages)
