"""Tree of the conversations seen before: a node is a message together with all messages before it.

A client sends its whole history with every request. The tree finds each known message by its bytes, with
everything that was memoized for it, so nothing is parsed, hashed or counted twice.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from foveate.caching import register
from foveate.formats.json_text.parse import read_role
from foveate.model import SYSTEM_ROLES, Format, Request

# Per generation: a few hundred sessions of a coding agent.
_MAX_GENERATION_BYTES = 48 * 1024 * 1024
# Approximate memory of a node without its bytes and blocks, and of a memo.
_NODE_BYTES = 512
_MEMO_BYTES = 384
# Each block is stored as several objects.
_OBJECT_BYTES = 1024
# Blocks, hash and role of a message, and the values of a few counters and caches.
_MAX_INHERITED_MEMOS = 24
# Conversations in a cache of whole histories, and the messages that a turn may add.
_MAX_HISTORIES = 128
_MAX_LOOKBACK = 16
# Walking this many nodes is as quick as comparing them with a recent path.
_SHORT_HISTORY_MESSAGES = 16

Value = TypeVar("Value")
CacheKey = TypeVar("CacheKey")
Cached = TypeVar("Cached")


class _MemoCounter:
    """Number of memoized values.

    Not a class attribute of `NodeMemo`, because changing one invalidates Python's attribute caches.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


_MEMO_COUNTER = _MemoCounter()


class NodeMemo(dict[object, Any]):
    """Values derived from a message, by key. Counts how many are stored."""

    __slots__ = ()

    def __setitem__(self, key: object, value: Any) -> None:
        _MEMO_COUNTER.count += 1
        super().__setitem__(key, value)


class MessageNode:
    """A message and all messages before it; `raw` are its bytes.

    Other packages store derived values in `memo`, each under its own key. Such a value may depend on earlier
    messages, never on later ones.
    """

    __slots__ = ("_role", "can_inherit", "children", "is_cached", "memo", "raw")

    def __init__(
        self, raw: bytes, memo: dict[object, Any], *, can_inherit: bool = True, is_cached: bool = True
    ) -> None:
        """If `can_inherit`, its children may take over memos from the older generation.

        A node that is not cached ends with its request: nothing may refer to it afterwards.
        """
        self.raw = raw
        self.memo = memo
        self.can_inherit = can_inherit
        self.is_cached = is_cached
        self.children: dict[bytes, MessageNode] = {}
        self._role: str | None = None

    @property
    def role(self) -> str:
        if self._role is None:
            self._role = read_role(self.raw)
        return self._role


class MessageHistory(msgspec.Struct, frozen=True):
    """Messages of one request as nodes, without the system messages at its start.

    Those contain the time of day, and would make every conversation a new one.
    """

    leading_system_messages: int
    nodes: Sequence[MessageNode]


class UncachedHistory(NamedTuple):
    """History of a request that is too large to cache."""

    raws: tuple[bytes, ...]
    history: MessageHistory

    @classmethod
    def from_messages(cls, raws: tuple[bytes, ...]) -> "UncachedHistory":
        leading = next((at for at, raw in enumerate(raws) if read_role(raw) not in SYSTEM_ROLES), len(raws))
        return cls(
            raws, MessageHistory(leading, [MessageNode(raw, {}, is_cached=False) for raw in raws[leading:]])
        )


class _Lookup(NamedTuple):
    api_format: Format | None
    raws: Sequence[bytes]
    history: MessageHistory


class HistoryTree:
    """The tree in two generations: when the younger one is full, the older one is dropped.

    Thread-safe: in the worst case a value is computed twice.
    """

    def __init__(self, max_bytes: int = _MAX_GENERATION_BYTES) -> None:
        self._max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        self._young: dict[Format, MessageNode] = {}
        self._old: dict[Format, MessageNode] = {}
        self._young_bytes = 0
        self._memos_before = _MEMO_COUNTER.count
        # The last two, because the original request and the one sent are looked up in turn.
        self._last = self._before_last = _Lookup(None, (), MessageHistory(0, ()))
        # For long conversations: the latest path by first message.
        self._recent_paths: dict[MessageNode, tuple[tuple[bytes, ...], list[MessageNode]]] = {}

    @property
    def held_bytes(self) -> int:
        """Approximate size of the younger generation."""
        return self._young_bytes + _MEMO_BYTES * (_MEMO_COUNTER.count - self._memos_before)

    def find(self, api_format: Format, raws: tuple[bytes, ...]) -> MessageHistory:
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
        """Return the same message in the other of the last two histories, if both end alike.

        A request that arrives with a long history and is sent with a short one has its new messages read once.
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
        nodes: list[MessageNode] = []
        known: tuple[bytes, ...] = ()
        is_long = len(raws) > _SHORT_HISTORY_MESSAGES
        if is_long and (recent := self._recent_paths.get(node.children.get(raws[0], node))) is not None:
            size = _count_common_messages(recent[0], raws)
            # The rest is not looked up in the older generation, so its nodes must not inherit from it.
            known, nodes, node, old = recent[0][:size], recent[1][:size], recent[1][size - 1], None
        can_inherit = not nodes
        for raw in raws[len(nodes) :]:
            child = node.children.get(raw)
            old = old.children.get(raw) if old is not None else None
            if child is None:
                # Memos depend on models and agents named by clients, so their number must be limited. The
                # children of a node that lost its memos must not inherit either.
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
            # Keep the bytes that the nodes hold already, not equal ones of this request.
            own_bytes = known + tuple([node.raw for node in nodes[len(known) :]])
            _put_bounded(self._recent_paths, nodes[0], (own_bytes, nodes), _MAX_HISTORIES)
        return nodes


def _count_leading_system_messages(root: MessageNode, raws: tuple[bytes, ...]) -> int:
    """Later system messages are part of the conversation."""
    for number, raw in enumerate(raws):
        if raw in root.children or read_role(raw) not in SYSTEM_ROLES:
            return number
    return len(raws)


def _count_common_messages(left: tuple[bytes, ...], right: tuple[bytes, ...]) -> int:
    """Count the messages that two conversations share, given that their first one is the same."""
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
    cache[key] = value
    if len(cache) > max_size:
        with suppress(StopIteration, KeyError, RuntimeError):  # another thread removed it first
            del cache[next(iter(cache))]


class HistoryCache(Generic[Value]):
    """Values derived from whole conversations, by last message, for the most recent conversations.

    The next request of a conversation is one turn longer, so its value is extended from the cached one.
    """

    def __init__(self, max_size: int = _MAX_HISTORIES) -> None:
        self._max_size = max_size
        self.clear()

    def clear(self) -> None:
        self._values: dict[tuple[MessageNode, object], Value] = {}

    def find_prefix(self, nodes: Sequence[MessageNode], key: object = None) -> tuple[int, Value] | None:
        """Return the value of the longest recent prefix, and its length."""
        for size in range(len(nodes), max(0, len(nodes) - _MAX_LOOKBACK), -1):
            value = self._values.get((nodes[size - 1], key))
            if value is not None:
                return size, value
        return None

    def put(self, nodes: Sequence[MessageNode], value: Value, key: object = None, *, replaces: int = 0) -> None:
        """Cache a value, replacing that of the first `replaces` nodes."""
        if replaces:
            self._values.pop((nodes[replaces - 1], key), None)
        if not nodes or not nodes[-1].is_cached:
            return
        _put_bounded(self._values, (nodes[-1], key), value, self._max_size)


def count_memoized(nodes: Sequence[MessageNode], key: object) -> int:
    """Count the nodes that have a memo under `key`. Memos are made from the first node on."""
    for size in range(len(nodes), 0, -1):
        if key in nodes[size - 1].memo:
            return size
    return 0


HISTORY_TREE = HistoryTree()
register(HISTORY_TREE)


def find_history(request: Request) -> MessageHistory:
    """Return the messages of a request as nodes.

    Raises:
        MalformedRequest: a message cannot be parsed.
    """
    uncached = request.history
    if isinstance(uncached, UncachedHistory) and uncached.raws is request.messages:
        return uncached.history
    return HISTORY_TREE.find(request.format, request.messages)
