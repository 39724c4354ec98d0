"""The provider's cache as a value: what a request would read, write and be billed, and the cache after it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from foveate.cache.prompts import CachedPrompt
from foveate.cache.rules import Rules
from foveate.values import CacheUsage, Ttl


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A prefix that the provider keeps: `tokens` long, until `expires_at`, readable from `readable_at` on."""

    tokens: int
    ttl: Ttl
    expires_at: float
    readable_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One request as it would be billed, and the cache that it leaves behind.

    `read_pieces` is how many pieces were read from the cache.
    """

    usage: CacheUsage
    read_pieces: int
    cache: "Cache"


@dataclass(frozen=True, slots=True)
class Cache:
    """Everything that is kept, by prefix (`prompts.prefixes`)."""

    entries: Mapping[bytes, Entry] = field(default_factory=dict)

    def serve(
        self, prompt: CachedPrompt, rules: Rules, *, at: float, answers_at: float | None = None
    ) -> Served:
        """`prompt` sent at `at`, its answer beginning at `answers_at` (at once where it is not said)."""
        raise NotImplementedError
