"""Values that were built before, by what they were built from; the least recently used is forgotten first."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """A bounded memory, safe to share between threads. Its lock is never held while something is built."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.era = 0
        """How often all was dropped. Who builds notes it first, and hands it to `keep`."""
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        """How many values are kept now."""
        return len(self._kept)

    def get(self, key: Key) -> Value | None:
        """What is kept under `key`, which is now the most recently used."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def keep(self, key: Key, value: Value, era: int) -> Value:
        """What holds for `key` from now on: `value`, or what another thread has kept in the meantime.

        A value whose building began before the last drop is not kept, since a drop is about what is older.
        """
        with self._lock:
            if era != self.era:
                return value
            held = self._kept.setdefault(key, value)
            self._kept.move_to_end(key)
            while len(self._kept) > self.capacity:
                self._kept.popitem(last=False)
            return held

    def drop(self) -> None:
        """Forget everything."""
        with self._lock:
            self.era += 1
            self._kept.clear()
