"""OpenAI's counter: `POST /v1/responses/input_tokens` (November 2026). Opt-in."""

from collections.abc import Mapping

from foveate.http import JsonClient
from foveate.model import Format, Request, TokenCount
from foveate.tokens.remote.endpoints import CountQuery, Unsupported, parse_token_number, select_count_fields

OPENAI_URL = "https://api.openai.com"
_COUNTED_FIELDS = frozenset(
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
        body = select_count_fields(request.body, _COUNTED_FIELDS, request.model)
        return CountQuery(subject=request.format, model=request.model, body=body)

    async def fetch_count(self, query: CountQuery) -> TokenCount:
        route = f"{self.url}/v1/responses/input_tokens"
        response = await self._client.post_json(route, query.body, self._headers)
        tokens = parse_token_number(response, "input_tokens", route)
        return TokenCount(tokens, True, tokens + max(1, tokens // 200))
