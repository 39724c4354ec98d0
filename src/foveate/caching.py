"""Bounded, thread-safe caches, and one call that clears them all."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock, RLock
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from blake3 import blake3

Value = TypeVar("Value")

DEFAULT_CAPACITY = 1024


class LruCache(Generic[Value]):
    """Thread-safe LRU cache. Callers use a digest as the key for long values.

    `capacity` limits the number of entries and, with `weigh`, the sum of their weights, such as bytes. The
    weight of an entry must not change. `on_evict` is called with each entry beyond the capacity.
    """

    def __init__(
        self,
        capacity: int = DEFAULT_CAPACITY,
        *,
        weigh: Callable[[Any, Value], int] | None = None,
        on_evict: Callable[[Any, Value], object] | None = None,
    ) -> None:
        self.capacity = capacity
        self.weight = 0
        """Sum of the weights; 0 without `weigh`."""
        self.generation = 0
        """Number of clears. Builders of expensive values read it first, and pass it to `put_if_absent`."""
        self._weigh = weigh
        self._on_evict = on_evict
        self._entries: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Value | None:
        value = self._entries.get(key)
        if value is not None:  # a miss does not wait for the lock
            with self._lock:
                if key in self._entries:
                    self._entries.move_to_end(key)
        return value

    def peek(self, key: Hashable) -> Value | None:
        """Return a value without making it the most recently used one."""
        return self._entries.get(key)

    def put(self, key: Hashable, value: Value) -> None:
        with self._lock:
            if self._weigh is not None:
                previous = self._entries.get(key)
                self.weight += self._weigh(key, value) - (0 if previous is None else self._weigh(key, previous))
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self.capacity or self.weight > self.capacity:
                evicted_key, evicted = self._entries.popitem(last=False)
                if self._weigh is not None:
                    self.weight -= self._weigh(evicted_key, evicted)
                if self._on_evict is not None:
                    self._on_evict(evicted_key, evicted)

    def put_if_absent(self, key: Hashable, value: Value, generation: int | None = None) -> Value:
        """Return the value for `key`: `value`, or the one that was stored first.

        A value whose build started before the last clear is not stored.
        """
        with self._lock:
            stored = self.get(key)
            if stored is None and (generation is None or generation == self.generation):
                self.put(key, value)
            return value if stored is None else stored

    def remove(self, key: Hashable) -> None:
        with self._lock:
            value = self._entries.pop(key, None)
            if value is not None and self._weigh is not None:
                self.weight -= self._weigh(key, value)

    def clear(self) -> None:
        with self._lock:
            self.generation += 1
            self.weight = 0
            self._entries.clear()


def hash_bytes(*parts: bytes) -> bytes:
    """Hash byte strings, including their lengths, so that different splits never collide."""
    pieces = [piece for part in parts for piece in (len(part).to_bytes(8, "little"), part)]
    return blake3(b"".join(pieces)).digest()


class Cache(Protocol):
    """A cache that can be cleared while others use it."""

    def clear(self) -> None: ...


_caches: WeakSet[Cache] = WeakSet()
_lock = Lock()


def register(cache: Cache) -> None:
    """Register a cache with `drop_caches`, for as long as it is referenced elsewhere."""
    with _lock:
        _caches.add(cache)


def drop_caches() -> None:
    """Clear all texts and counts that this process has cached.

    These are the caches of counters, vocabularies, request blocks and prompt parts. Other threads may continue;
    what they are counting may be cached afterwards.
    """
    with _lock:
        caches = list(_caches)
    for cache in caches:
        cache.clear()
