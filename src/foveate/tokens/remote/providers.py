"""The counters of Anthropic, OpenAI and Gemini (as of November 2026).

Anthropic: `POST /v1/messages/count_tokens`, free and rate-limited. OpenAI: `POST /v1/responses/input_tokens`,
opt-in. Gemini: `POST /v1beta/models/MODEL:countTokens`, opt-in.
"""

from collections.abc import Mapping
from urllib.parse import quote

from foveate.caching import LruCache, hash_bytes
from foveate.formats.json_text.parse import parse_fields, to_json
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
_ANTHROPIC_VERSION = "2023-06-01"
# Fields that the route accepts. It rejects bodies with other fields.
_ANTHROPIC_FIELDS = frozenset(
    ("messages", "system", "tools", "tool_choice", "thinking", "cache_control", "output_config",
     "output_format", "mcp_servers", "context_management")
)  # fmt: skip


class AnthropicCounter:
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
        self._headers = {"anthropic-version": _ANTHROPIC_VERSION, **auth_headers}
        self._frame_tokens_by_model: LruCache[int] = LruCache()

    def text_query(self, text: str, model: str) -> CountQuery:
        if not text.strip():
            raise Unsupported("it rejects a text without visible characters")
        return CountQuery(subject=TEXT, model=model, body=_single_message_body(text, model))

    def request_query(self, request: Request) -> CountQuery:
        if request.format is not Format.ANTHROPIC:
            raise Unsupported("it counts texts and Messages requests")
        body = select_count_fields(request.body, _ANTHROPIC_FIELDS, request.model)
        return CountQuery(subject=request.format, model=request.model, body=body)

    async def fetch_count(self, query: CountQuery) -> TokenCount:
        """A text is counted as a message minus the overhead of a message, fetched once per model."""
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


OPENAI_URL = "https://api.openai.com"
_OPENAI_FIELDS = frozenset(
    ("input", "instructions", "tools", "tool_choice", "text", "reasoning", "previous_response_id",
     "conversation", "parallel_tool_calls", "truncation")
)  # fmt: skip
_UNSUPPORTED_REASON = "it counts Responses requests only"


class OpenAICounter:
    """Asks OpenAI to count Responses requests. Texts and chats are exact offline."""

    name = "openai_api"

    def __init__(
        self,
        client: JsonClient,
        api_key: str,
        url: str = OPENAI_URL,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`headers` replace the key, to ask with a client's credentials."""
        self.url = url.rstrip("/")
        self._client = client
        self._headers = {"authorization": f"Bearer {api_key}"} if headers is None else headers

    def text_query(self, text: str, model: str) -> CountQuery:
        raise Unsupported(_UNSUPPORTED_REASON)

    def request_query(self, request: Request) -> CountQuery:
        if request.format is not Format.RESPONSES:
            raise Unsupported(_UNSUPPORTED_REASON)
        body = select_count_fields(request.body, _OPENAI_FIELDS, request.model)
        return CountQuery(subject=request.format, model=request.model, body=body)

    async def fetch_count(self, query: CountQuery) -> TokenCount:
        route = f"{self.url}/v1/responses/input_tokens"
        response = await self._client.post_json(route, query.body, self._headers)
        tokens = parse_token_number(response, "input_tokens", route)
        return TokenCount(tokens, True, tokens + max(1, tokens // 200))


GEMINI_URL = "https://generativelanguage.googleapis.com"
_GEMINI_FIELDS = frozenset(
    ("contents", "systemInstruction", "system_instruction", "tools", "toolConfig", "tool_config",
     "generationConfig", "generation_config", "cachedContent", "cached_content")
)  # fmt: skip


class GeminiCounter:
    name = "gemini_api"

    def __init__(
        self,
        client: JsonClient,
        api_key: str,
        url: str = GEMINI_URL,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`headers` replace the key, to ask with a client's credentials."""
        self.url = url.rstrip("/")
        self._client = client
        self._headers = headers or {"x-goog-api-key": api_key}

    def text_query(self, text: str, model: str) -> CountQuery:
        """A single content with the text. It has no overhead."""
        contents = [{"role": "user", "parts": [{"text": text}]}]
        return CountQuery(subject=TEXT, model=model, body=to_json({"contents": contents}))

    def request_query(self, request: Request) -> CountQuery:
        if request.format is not Format.GEMINI:
            raise Unsupported("it counts texts and generateContent requests")
        wrapped = parse_fields(request.body).get("generateContentRequest", request.body)
        inner = select_count_fields(
            bytes(wrapped), _GEMINI_FIELDS, f"models/{_strip_models_prefix(request.model)}"
        )
        body = b'{"generateContentRequest":' + inner + b"}"
        return CountQuery(subject=request.format, model=request.model, body=body)

    async def fetch_count(self, query: CountQuery) -> TokenCount:
        model = quote(_strip_models_prefix(query.model), safe="", errors="replace")
        route = f"{self.url}/v1beta/models/{model}:countTokens"
        response = await self._client.post_json(route, query.body, self._headers)
        tokens = parse_token_number(response, "totalTokens", route)
        return TokenCount(tokens, True, tokens + max(1, tokens // 200))


def _strip_models_prefix(model: str) -> str:
    return model.removeprefix("models/")
