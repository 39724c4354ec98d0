"""Counts that were made before, the least recently used forgotten first."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

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
