"""Counts that were made before, the least recently used forgotten first."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

from blake3 import blake3

Value = TypeVar("Value")

DEFAULT_CAPACITY = 1024


class Memo(Generic[Value]):
    """A bounded memory from key to value, safe to share between threads; what is long is kept by its digest."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self.capacity = capacity
        self._kept: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        """How many values are kept now."""
        return len(self._kept)

    def get(self, key: Hashable) -> Value | None:
        """What was kept under `key`, which is now the most recently used."""
        found = self._kept.get(key)
        if found is not None:  # what is new is asked for in vain, and waits for nobody
            with self._lock:
                if key in self._kept:
                    self._kept.move_to_end(key)
        return found

    def forget(self, key: Hashable) -> None:
        """Keep nothing under `key`."""
        with self._lock:
            self._kept.pop(key, None)

    def put(self, key: Hashable, value: Value) -> None:
        """Keep `value`, and forget the oldest where there is no more room."""
        with self._lock:
            self._kept[key] = value
            self._kept.move_to_end(key)
            while len(self._kept) > self.capacity:
                self._kept.popitem(last=False)


def digest(*payload: bytes) -> bytes:
    """The key of a payload. Lengths are part of it, so that two payloads never share one by their seams."""
    hasher = blake3()
    for piece in payload:
        hasher.update(len(piece).to_bytes(8, "little"))
        hasher.update(piece)
    return hasher.digest()
