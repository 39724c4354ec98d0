"""Gemini's counter: `POST /v1beta/models/MODEL:countTokens` (November 2026). Opt-in."""

from collections.abc import Mapping
from urllib.parse import quote

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

GEMINI_URL = "https://generativelanguage.googleapis.com"
_COUNTED_FIELDS = frozenset(
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
            bytes(wrapped), _COUNTED_FIELDS, f"models/{_strip_models_prefix(request.model)}"
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
