"""Anthropic's own counter: `POST /v1/messages/count_tokens`, free and rate-limited (November 2026)."""

from foveate.tokens.endpoints import Unsupported, number_in
from foveate.upstream import Client
from foveate.values import Format, Request, TokenCount
from foveate.wire.body import compact, selected

ANTHROPIC_URL = "https://api.anthropic.com"
_VERSION = "2023-06-01"
# What the route takes; it refuses a body with anything else in it.
_FIELDS = frozenset(
    ("messages", "system", "tools", "tool_choice", "thinking", "cache_control", "output_config",
     "output_format", "mcp_servers", "context_management")
)  # fmt: skip


class AnthropicCounter:
    """Counts by asking Anthropic, or a server that speaks its format."""

    name = "anthropic_api"

    def __init__(self, client: Client, api_key: str, url: str = ANTHROPIC_URL) -> None:
        self.url = url.rstrip("/")
        self._client = client
        self._headers = {"x-api-key": api_key, "anthropic-version": _VERSION}
        self._frames: dict[str, int] = {}

    async def text(self, text: str, model: str) -> TokenCount:
        """The count of a text: what a message of it costs, less what a message costs (asked once a model)."""
        if not text.strip():
            raise Unsupported  # the route refuses a text of spaces
        if model not in self._frames:
            self._frames[model] = await self._ask(_single_message("a", model)) - 1
        return _counted(max(1, await self._ask(_single_message(text, model)) - self._frames[model]))

    async def request(self, request: Request) -> TokenCount:
        """The count of a Messages request."""
        if request.format is not Format.ANTHROPIC:
            raise Unsupported
        return _counted(await self._ask(selected(request.body, _FIELDS, model=request.model)))

    async def _ask(self, body: bytes) -> int:
        route = f"{self.url}/v1/messages/count_tokens"
        return number_in(await self._client.post_json(route, body, self._headers), "input_tokens", route)


def _single_message(text: str, model: str) -> bytes:
    return compact({"model": model, "messages": [{"role": "user", "content": text}]})


def _counted(tokens: int) -> TokenCount:
    # Anthropic calls the number an estimate that may differ from the bill by a small amount.
    return TokenCount(tokens, True, tokens + max(3, tokens // 100))
