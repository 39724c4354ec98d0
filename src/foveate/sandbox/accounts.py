"""State of the sandbox for each API key: its prompt cache, and its stored responses, which later requests can
continue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from foveate.caching import LruCache
from foveate.formats.json_text.parse import as_dict, as_text, parse_json, to_json
from foveate.formats.response.errors import ErrorResponse, make_status_error
from foveate.model import CacheUsage, Format
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt
from foveate.prompt_cache.rules import CacheRules
from foveate.prompt_cache.simulator import SimulatedCache

# Limits for a long-lived sandbox: the least recently used accounts and the oldest responses are dropped.
_MAX_ACCOUNTS = 256
_MAX_STORED_BYTES = 256 * 1024 * 1024


def hash_api_key(key: str) -> bytes:
    """Return a digest that identifies the owner of a key. The key itself is not stored."""
    return blake3(key.encode()).digest()


class Account:
    def __init__(self) -> None:
        self._cache = SimulatedCache()
        self.response_count = 0

    def serve(self, prompt: CachedPrompt, rules: CacheRules, *, at: float, answers_at: float) -> CacheUsage:
        """Return the cache usage of a prompt, and add the prompt to the cache."""
        served = self._cache.serve(prompt, rules, at=at, response_at=answers_at)
        self._cache = served.cache
        self.response_count += 1
        return served.usage


class Accounts:
    def __init__(self) -> None:
        self._accounts: LruCache[Account] = LruCache(_MAX_ACCOUNTS)

    def get(self, owner: bytes) -> Account:
        return self._accounts.put_if_absent(owner, Account())


@dataclass(frozen=True, slots=True)
class _StoredConversation:
    data: bytes
    item_ids: tuple[str, ...]


class StoredResponses:
    """The conversation up to each stored response, at most `limit_bytes` in total."""

    def __init__(self, *, limit_bytes: int = _MAX_STORED_BYTES) -> None:
        self._conversations: LruCache[_StoredConversation] = LruCache(
            limit_bytes, weigh=lambda _, stored: len(stored.data), on_evict=self._forget_items
        )
        self._response_by_item: dict[tuple[bytes, str], str] = {}

    def store(self, owner: bytes, response_id: str, items: Sequence[dict[str, Any]]) -> None:
        """Store the items of a conversation up to and including a response; drop the oldest if needed."""
        stored = _StoredConversation(
            to_json(list(items)), tuple(as_text(item["id"]) for item in items if "id" in item)
        )
        self._response_by_item |= {(owner, item_id): response_id for item_id in stored.item_ids}
        self._conversations.put((owner, response_id), stored)

    def find(self, owner: bytes, response_id: str) -> list[dict[str, Any]] | None:
        """Return the items up to and including a response; None if it is not stored."""
        stored = self._conversations.peek((owner, response_id))
        return None if stored is None else parse_json(stored.data)

    def find_item(self, owner: bytes, item_id: str) -> dict[str, Any] | None:
        items = self.find(owner, self._response_by_item.get((owner, item_id), "")) or []
        return next((item for item in items if item.get("id") == item_id), None)

    def _forget_items(self, key: tuple[bytes, str], stored: _StoredConversation) -> None:
        owner, response_id = key
        for item_id in stored.item_ids:
            if self._response_by_item.get((owner, item_id)) == response_id:
                del self._response_by_item[owner, item_id]


def resolve_references(
    body: dict[str, Any], responses: StoredResponses, owner: bytes
) -> dict[str, Any] | ErrorResponse:
    """Return a request with the conversation that it continues and the items that it refers to."""
    if body.get("conversation") is not None:
        return make_status_error(
            Format.RESPONSES, 404, "The sandbox does not store conversations: send `input`"
        )
    input_value = body.get("input")
    previous_id = body.get("previous_response_id")
    has_references = isinstance(input_value, list) and any(_is_reference(item) for item in input_value)
    if previous_id is None and not has_references:
        return body
    previous_items = [] if previous_id is None else responses.find(owner, as_text(previous_id))
    if previous_items is None:
        return ErrorResponse(
            message=f"Previous response with id '{previous_id}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    own_items = []
    for item in input_items(body):
        referenced = responses.find_item(owner, as_text(item.get("id"))) if _is_reference(item) else item
        if referenced is None and "id" in item:
            return ErrorResponse(message=f"Item with id '{item['id']}' not found.", status=404, param="input")
        own_items.append(item if referenced is None else referenced)
    remaining_fields = {name: value for name, value in body.items() if name != "previous_response_id"}
    return remaining_fields | {"input": [*previous_items, *own_items]}


def input_items(body: dict[str, Any]) -> tuple[Any, ...]:
    """Return the input as items; a string is a user message."""
    input_value = body.get("input")
    if isinstance(input_value, str):
        return ({"role": "user", "content": input_value},)
    return tuple(input_value) if isinstance(input_value, list) else ()


def _is_reference(item: object) -> bool:
    return as_dict(item).get("type") == "item_reference"
