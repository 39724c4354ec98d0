"""Bounded, thread-safe caches, and one call that clears them all."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet

from blake3 import blake3

Value = TypeVar("Value")

DEFAULT_CAPACITY = 1024


class LruCache(Generic[Value]):
    """LRU cache. Callers use a digest as the key for long values."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self.capacity = capacity
        self._entries: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Value | None:
        value = self._entries.get(key)
        if value is not None:  # a miss does not wait for the lock
            with self._lock:
                if key in self._entries:
                    self._entries.move_to_end(key)
        return value

    def remove(self, key: Hashable) -> None:
        with self._lock:
            self._entries.pop(key, None)

    def put(self, key: Hashable, value: Value) -> None:
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self.capacity:
                self._entries.popitem(last=False)


def hash_bytes(*parts: bytes) -> bytes:
    """Hash byte strings, including their lengths, so that different splits never collide."""
    hasher = blake3()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


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


BuildKey = TypeVar("BuildKey", bound=Hashable)
BuiltValue = TypeVar("BuiltValue")


class BuildCache(Generic[BuildKey, BuiltValue]):
    """LRU cache for values that are expensive to build. Its lock is not held while a value is built."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.generation = 0
        """Number of clears. Builders read it first, and pass it to `put_if_absent`."""
        self._entries: OrderedDict[BuildKey, BuiltValue] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: BuildKey) -> BuiltValue | None:
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def put_if_absent(self, key: BuildKey, value: BuiltValue, generation: int) -> BuiltValue:
        """Return the value for `key`: `value`, or the one that another thread stored first.

        A value whose build started before the last clear is not stored.
        """
        with self._lock:
            if generation != self.generation:
                return value
            current = self._entries.setdefault(key, value)
            self._entries.move_to_end(key)
            while len(self._entries) > self.capacity:
                self._entries.popitem(last=False)
            return current

    def clear(self) -> None:
        with self._lock:
            self.generation += 1
            self._entries.clear()
