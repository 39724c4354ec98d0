"""Gemini's own counter: `POST /v1beta/models/MODEL:countTokens` (November 2026). Asked only where opted in."""

from urllib.parse import quote

from foveate.tokens.endpoints import Unsupported, number_in
from foveate.upstream import Client
from foveate.values import Format, Request, TokenCount
from foveate.wire.body import compact, fields, selected

GEMINI_URL = "https://generativelanguage.googleapis.com"
_FIELDS = frozenset(
    ("contents", "systemInstruction", "system_instruction", "tools", "toolConfig", "tool_config",
     "generationConfig", "generation_config", "cachedContent", "cached_content")
)  # fmt: skip


class GeminiCounter:
    """Counts by asking Google."""

    name = "gemini_api"

    def __init__(self, client: Client, api_key: str, url: str = GEMINI_URL) -> None:
        self.url = url.rstrip("/")
        self._client = client
        self._headers = {"x-goog-api-key": api_key}

    async def text(self, text: str, model: str) -> TokenCount:
        """The count of a text: a content adds nothing of its own."""
        contents = [{"role": "user", "parts": [{"text": text}]}]
        return await self._ask(model, compact({"contents": contents}))

    async def request(self, request: Request) -> TokenCount:
        """The count of a generateContent request."""
        if request.format is not Format.GEMINI:
            raise Unsupported
        model = request.model.removeprefix("models/")
        wrapped = fields(request.body).get("generateContentRequest", request.body)
        inner = selected(bytes(wrapped), _FIELDS, model=f"models/{model}")
        return await self._ask(model, b'{"generateContentRequest":' + inner + b"}")

    async def _ask(self, model: str, body: bytes) -> TokenCount:
        route = f"{self.url}/v1beta/models/{quote(model, safe='')}:countTokens"
        tokens = number_in(await self._client.post_json(route, body, self._headers), "totalTokens", route)
        return TokenCount(tokens, True, tokens + max(1, tokens // 200))
