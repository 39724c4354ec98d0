"""Gemini's own counter: `POST /v1beta/models/MODEL:countTokens` (November 2026). Asked only where opted in."""

from collections.abc import Mapping
from urllib.parse import quote

from foveate.tokens.endpoints import TEXT, Question, Unsupported, number_in, selected
from foveate.upstream import Client
from foveate.values import Format, Request, TokenCount
from foveate.wire.body import compact, fields

GEMINI_URL = "https://generativelanguage.googleapis.com"
_FIELDS = frozenset(
    ("contents", "systemInstruction", "system_instruction", "tools", "toolConfig", "tool_config",
     "generationConfig", "generation_config", "cachedContent", "cached_content")
)  # fmt: skip


class GeminiCounter:
    """Counts by asking Google."""

    name = "gemini_api"

    def __init__(
        self,
        client: Client,
        api_key: str,
        url: str = GEMINI_URL,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`headers` take the place of the key."""
        self.url = url.rstrip("/")
        self._client = client
        self._headers = headers or {"x-goog-api-key": api_key}

    def text(self, text: str, model: str) -> Question:
        """A content of nothing but the text, which adds nothing of its own."""
        contents = [{"role": "user", "parts": [{"text": text}]}]
        return Question(subject=TEXT, model=model, body=compact({"contents": contents}))

    def request(self, request: Request) -> Question:
        """A generateContent request."""
        if request.format is not Format.GEMINI:
            raise Unsupported("it counts texts and generateContent requests")
        wrapped = fields(request.body).get("generateContentRequest", request.body)
        inner = selected(bytes(wrapped), _FIELDS, f"models/{_bare(request.model)}")
        body = b'{"generateContentRequest":' + inner + b"}"
        return Question(subject=request.format, model=request.model, body=body)

    async def answer(self, question: Question) -> TokenCount:
        """The count of a text or a generateContent request."""
        model = quote(_bare(question.model), safe="", errors="replace")
        route = f"{self.url}/v1beta/models/{model}:countTokens"
        reply = await self._client.post_json(route, question.body, self._headers)
        tokens = number_in(reply, "totalTokens", route)
        return TokenCount(tokens, True, tokens + max(1, tokens // 200))


def _bare(model: str) -> str:
    return model.removeprefix("models/")
