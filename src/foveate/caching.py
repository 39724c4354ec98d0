"""Values that were built before, by what they were built from; the least recently used is forgotten first.

Counts that were made before, the least recently used forgotten first.

All that is remembered of texts in this process, so that one call can forget it.
"""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet

from blake3 import blake3

Value = TypeVar("Value")

DEFAULT_CAPACITY = 1024


class LruCache(Generic[Value]):
    """A bounded memory from key to value, safe to share between threads; what is long is kept by its digest."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self.capacity = capacity
        self._entries: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        """How many values are kept now."""
        return len(self._entries)

    def get(self, key: Hashable) -> Value | None:
        """What was kept under `key`, which is now the most recently used."""
        value = self._entries.get(key)
        if value is not None:  # what is new is asked for in vain, and waits for nobody
            with self._lock:
                if key in self._entries:
                    self._entries.move_to_end(key)
        return value

    def remove(self, key: Hashable) -> None:
        """Keep nothing under `key`."""
        with self._lock:
            self._entries.pop(key, None)

    def put(self, key: Hashable, value: Value) -> None:
        """Keep `value`, and forget the oldest where there is no more room."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self.capacity:
                self._entries.popitem(last=False)


def hash_bytes(*parts: bytes) -> bytes:
    """The key of a payload. Lengths are part of it, so that two payloads never share one by their seams."""
    hasher = blake3()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


class Cache(Protocol):
    """Something that remembers, and can forget while others use it."""

    def clear(self) -> None:
        """Forget everything."""


_caches: WeakSet[Cache] = WeakSet()
_lock = Lock()


def register(cache: Cache) -> None:
    """Have `cache` dropped with all others, as long as somebody holds it."""
    with _lock:
        _caches.add(cache)


def drop_caches() -> None:
    """Forget every text, and every count of one, that this process remembers.

    That is what counters, their vocabularies, the blocks of requests and the parts of prompts keep, whoever
    holds them. Other threads are not disturbed; some of what they are counting then may be kept afterwards.
    """
    with _lock:
        caches = list(_caches)
    for cache in caches:
        cache.clear()


BuildKey = TypeVar("BuildKey", bound=Hashable)
BuiltValue = TypeVar("BuiltValue")


class BuildCache(Generic[BuildKey, BuiltValue]):
    """A bounded memory, safe to share between threads. Its lock is never held while something is built."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.generation = 0
        """How often all was dropped. Who builds notes it first, and hands it to `keep`."""
        self._entries: OrderedDict[BuildKey, BuiltValue] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        """How many values are kept now."""
        return len(self._entries)

    def get(self, key: BuildKey) -> BuiltValue | None:
        """What is kept under `key`, which is now the most recently used."""
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def put_if_absent(self, key: BuildKey, value: BuiltValue, generation: int) -> BuiltValue:
        """What holds for `key` from now on: `value`, or what another thread has kept in the meantime.

        A value whose building began before the last drop is not kept, since a drop is about what is older.
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
        """Forget everything."""
        with self._lock:
            self.generation += 1
            self._entries.clear()
