"""Anthropic's counter: `POST /v1/messages/count_tokens`, free and rate-limited (November 2026)."""

from collections.abc import Mapping

from foveate.caching import LruCache, hash_bytes
from foveate.formats.json_text.parse import to_json
from foveate.http import JsonClient
from foveate.model import Format, Request, TokenCount
from foveate.tokens.remote.endpoints import (
    TEXT,
    CountQuery,
    Unsupported,
    parse_token_number,
    select_count_fields,
)
from foveate.tokens.tokenizers.bpe import replace_surrogates

ANTHROPIC_URL = "https://api.anthropic.com"
_API_VERSION = "2023-06-01"
# Fields that the route accepts. It rejects bodies with other fields.
_COUNTED_FIELDS = frozenset(
    ("messages", "system", "tools", "tool_choice", "thinking", "cache_control", "output_config",
     "output_format", "mcp_servers", "context_management")
)  # fmt: skip


class AnthropicCounter:
    """Asks Anthropic, or a server with the same API."""

    name = "anthropic_api"

    def __init__(
        self,
        client: JsonClient,
        api_key: str,
        url: str = ANTHROPIC_URL,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`headers` replace the key, to ask with a client's credentials."""
        self.url = url.rstrip("/")
        self._client = client
        auth_headers = {"x-api-key": api_key} if headers is None else headers
        self._headers = {"anthropic-version": _API_VERSION, **auth_headers}
        self._frame_tokens_by_model: LruCache[int] = LruCache()

    def text_query(self, text: str, model: str) -> CountQuery:
        if not text.strip():
            raise Unsupported("it rejects a text without visible characters")
        return CountQuery(subject=TEXT, model=model, body=_single_message_body(text, model))

    def request_query(self, request: Request) -> CountQuery:
        if request.format is not Format.ANTHROPIC:
            raise Unsupported("it counts texts and Messages requests")
        body = select_count_fields(request.body, _COUNTED_FIELDS, request.model)
        return CountQuery(subject=request.format, model=request.model, body=body)

    async def fetch_count(self, query: CountQuery) -> TokenCount:
        """Fetch the count. A text is counted as a message minus the overhead of a message, fetched once per
        model.
        """
        if query.subject != TEXT:
            return _with_upper_bound(await self._post(query.body))
        frame_tokens = await self._count_frame_tokens(query.model)
        return _with_upper_bound(max(1, await self._post(query.body) - frame_tokens))

    async def _count_frame_tokens(self, model: str) -> int:
        key = hash_bytes(model.encode("utf-8", "surrogatepass"))
        frame_tokens = self._frame_tokens_by_model.get(key)
        if frame_tokens is None:
            frame_tokens = await self._post(_single_message_body("a", model)) - 1
            self._frame_tokens_by_model.put(key, frame_tokens)
        return frame_tokens

    async def _post(self, body: bytes) -> int:
        route = f"{self.url}/v1/messages/count_tokens"
        return parse_token_number(
            await self._client.post_json(route, body, self._headers), "input_tokens", route
        )


def _single_message_body(text: str, model: str) -> bytes:
    message = {"role": "user", "content": text}
    return to_json({"messages": [message], "model": replace_surrogates(model)})


def _with_upper_bound(tokens: int) -> TokenCount:
    # Anthropic documents the number as an estimate that may differ slightly from the usage.
    return TokenCount(tokens, True, tokens + max(3, tokens // 100))
