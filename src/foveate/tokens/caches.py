"""All that is remembered of texts in this process, so that one call can forget it."""

from threading import Lock
from typing import Protocol
from weakref import WeakSet

from foveate.wire.around import ENVELOPES
from foveate.wire.blocks import BLOCK_CACHE
from foveate.wire.grown import BODY_CACHE
from foveate.wire.trails import HISTORY_TREE


class Cache(Protocol):
    """Something that remembers, and can forget while others use it."""

    def clear(self) -> None:
        """Forget everything."""


_caches: WeakSet[Cache] = WeakSet([BLOCK_CACHE, HISTORY_TREE, ENVELOPES, BODY_CACHE])
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
