"""OpenAI's own counter: `POST /v1/responses/input_tokens` (November 2026). Asked only where opted in."""

from foveate.tokens.endpoints import Unsupported, number_in
from foveate.upstream import Client
from foveate.values import Format, Request, TokenCount
from foveate.wire.body import selected

OPENAI_URL = "https://api.openai.com"
_FIELDS = frozenset(
    ("input", "instructions", "tools", "tool_choice", "text", "reasoning", "previous_response_id",
     "conversation", "parallel_tool_calls", "truncation")
)  # fmt: skip


class OpenAICounter:
    """Counts Responses requests by asking OpenAI; texts and chats are exact offline."""

    name = "openai_api"

    def __init__(self, client: Client, api_key: str, url: str = OPENAI_URL) -> None:
        self.url = url.rstrip("/")
        self._client = client
        self._headers = {"authorization": f"Bearer {api_key}"}

    async def text(self, text: str, model: str) -> TokenCount:
        """Not what this route counts."""
        raise Unsupported

    async def request(self, request: Request) -> TokenCount:
        """The count of a Responses request."""
        if request.format is not Format.RESPONSES:
            raise Unsupported
        route = f"{self.url}/v1/responses/input_tokens"
        body = selected(request.body, _FIELDS, model=request.model)
        tokens = number_in(await self._client.post_json(route, body, self._headers), "input_tokens", route)
        return TokenCount(tokens, True, tokens + max(1, tokens // 200))
