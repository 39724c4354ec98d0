"""Values that were built before, by what they were built from; the least recently used is forgotten first."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

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
