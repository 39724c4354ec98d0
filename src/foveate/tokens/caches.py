"""All that is remembered of texts in this process, so that one call can forget it."""

from threading import Lock
from typing import Protocol
from weakref import WeakSet

from foveate.wire.around import AROUNDS
from foveate.wire.blocks import SEEN
from foveate.wire.grown import GROWN
from foveate.wire.trails import TRAILS


class Cache(Protocol):
    """Something that remembers, and can forget while others use it."""

    def drop(self) -> None:
        """Forget everything."""


_caches: WeakSet[Cache] = WeakSet([SEEN, TRAILS, AROUNDS, GROWN])
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
        cache.drop()
