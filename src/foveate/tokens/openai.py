"""OpenAI's own counter: `POST /v1/responses/input_tokens` (November 2026). Asked only where opted in."""

from collections.abc import Mapping

from foveate.tokens.endpoints import Question, Unsupported, number_in, selected
from foveate.upstream import Client
from foveate.values import Format, Request, TokenCount

OPENAI_URL = "https://api.openai.com"
_FIELDS = frozenset(
    ("input", "instructions", "tools", "tool_choice", "text", "reasoning", "previous_response_id",
     "conversation", "parallel_tool_calls", "truncation")
)  # fmt: skip
_COUNTS = "it counts Responses requests only"


class OpenAICounter:
    """Counts Responses requests by asking OpenAI; texts and chats are exact offline."""

    name = "openai_api"

    def __init__(
        self,
        client: Client,
        api_key: str,
        url: str = OPENAI_URL,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`headers` take the place of the key, for who asks as somebody else does."""
        self.url = url.rstrip("/")
        self._client = client
        self._headers = {"authorization": f"Bearer {api_key}"} if headers is None else headers

    def text(self, text: str, model: str) -> Question:
        """Not what this route counts."""
        raise Unsupported(_COUNTS)

    def request(self, request: Request) -> Question:
        """A Responses request."""
        if request.format is not Format.RESPONSES:
            raise Unsupported(_COUNTS)
        body = selected(request.body, _FIELDS, request.model)
        return Question(subject=request.format, model=request.model, body=body)

    async def answer(self, question: Question) -> TokenCount:
        """The count of a Responses request."""
        route = f"{self.url}/v1/responses/input_tokens"
        reply = await self._client.post_json(route, question.body, self._headers)
        tokens = number_in(reply, "input_tokens", route)
        return TokenCount(tokens, True, tokens + max(1, tokens // 200))
