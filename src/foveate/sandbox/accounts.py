"""What the sandbox keeps for each API key: a cache of its own, and the responses that it stored."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from foveate.cache.prompts import CachedPrompt
from foveate.cache.rules import CacheRules
from foveate.cache.simulate import SimulatedCache
from foveate.values import CacheUsage
from foveate.wire.body import as_text, parse_json, to_json

# Long-lived sandboxes forget the accounts that were used least recently, and the oldest responses.
_MAX_ACCOUNTS = 256
_MAX_STORED_BYTES = 256 * 1024 * 1024


def hash_api_key(key: str) -> bytes:
    """Whose key it is; no more is kept of it."""
    return blake3(key.encode()).digest()


class Account:
    """One key's cache, and how many answers it had."""

    def __init__(self) -> None:
        self._cache = SimulatedCache()
        self.response_count = 0

    def serve(self, prompt: CachedPrompt, rules: CacheRules, *, at: float, answers_at: float) -> CacheUsage:
        """What the cache does for a prompt, which is in it afterwards."""
        served = self._cache.serve(prompt, rules, at=at, response_at=answers_at)
        self._cache = served.cache
        self.response_count += 1
        return served.usage


class Accounts:
    """The accounts by their owners."""

    def __init__(self) -> None:
        self._accounts: OrderedDict[bytes, Account] = OrderedDict()

    def get(self, owner: bytes) -> Account:
        """The account of an owner; everyone has one."""
        account = self._accounts.setdefault(owner, Account())
        self._accounts.move_to_end(owner)
        while len(self._accounts) > _MAX_ACCOUNTS:
            self._accounts.popitem(last=False)
        return account


@dataclass(frozen=True, slots=True)
class _StoredConversation:
    data: bytes
    item_ids: tuple[str, ...]


class StoredResponses:
    """The conversations up to each response that was stored, all together of no more than `limit_bytes`."""

    def __init__(self, *, limit_bytes: int = _MAX_STORED_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._conversations: OrderedDict[tuple[bytes, str], _StoredConversation] = OrderedDict()
        self._response_by_item: dict[tuple[bytes, str], str] = {}

    def store(self, owner: bytes, response_id: str, items: Sequence[dict[str, Any]]) -> None:
        """Keep all items of a conversation up to and with a response; the oldest make room."""
        stored = _StoredConversation(
            to_json(list(items)), tuple(as_text(item["id"]) for item in items if "id" in item)
        )
        self._conversations[owner, response_id] = stored
        self._response_by_item |= {(owner, item_id): response_id for item_id in stored.item_ids}
        self._bytes += len(stored.data)
        while self._bytes > self._limit_bytes:
            self._drop_oldest()

    def find(self, owner: bytes, response_id: str) -> list[dict[str, Any]] | None:
        """The items up to and with a response, or None where it is not kept."""
        stored = self._conversations.get((owner, response_id))
        return None if stored is None else parse_json(stored.data)

    def find_item(self, owner: bytes, item_id: str) -> dict[str, Any] | None:
        """An item of a conversation that is kept."""
        items = self.find(owner, self._response_by_item.get((owner, item_id), "")) or []
        return next((item for item in items if item.get("id") == item_id), None)

    def _drop_oldest(self) -> None:
        (owner, response_id), stored = self._conversations.popitem(last=False)
        self._bytes -= len(stored.data)
        for item_id in stored.item_ids:
            if self._response_by_item.get((owner, item_id)) == response_id:
                del self._response_by_item[owner, item_id]
