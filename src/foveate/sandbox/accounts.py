"""What the sandbox keeps for each API key: a cache of its own, and the responses that it stored."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from blake3 import blake3

from foveate.cache.prompts import CachedPrompt
from foveate.cache.rules import Rules
from foveate.cache.simulate import Cache
from foveate.values import CacheUsage

# Long-lived sandboxes forget the accounts and responses that were used least recently.
_KEPT_ACCOUNTS = 256
_KEPT_RESPONSES = 1024


class Account:
    """One key's cache and stored responses."""

    def __init__(self) -> None:
        self._cache = Cache()
        self._responses: OrderedDict[str, tuple[dict[str, Any], ...]] = OrderedDict()

    def bill(self, prompt: CachedPrompt, rules: Rules, *, at: float, answers_at: float) -> CacheUsage:
        """What the cache does for a prompt, which is in it afterwards."""
        served = self._cache.serve(prompt, rules, at=at, answers_at=answers_at)
        self._cache = served.cache
        return served.usage

    def store(self, response_id: str, items: Sequence[dict[str, Any]]) -> None:
        """Keep all items of a conversation up to and with a response."""
        self._responses[response_id] = tuple(items)
        while len(self._responses) > _KEPT_RESPONSES:
            self._responses.popitem(last=False)

    def stored(self, response_id: str) -> tuple[dict[str, Any], ...] | None:
        """The items up to and with a response, or None where it is not kept."""
        return self._responses.get(response_id)


class Accounts:
    """The accounts by their keys, of which only digests are kept."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, Account] = OrderedDict()

    def of(self, key: str) -> Account:
        """The account of a key; every key has one."""
        digest = blake3(key.encode()).digest()
        account = self._kept.setdefault(digest, Account())
        self._kept.move_to_end(digest)
        while len(self._kept) > _KEPT_ACCOUNTS:
            self._kept.popitem(last=False)
        return account
