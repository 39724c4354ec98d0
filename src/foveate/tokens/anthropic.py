"""Anthropic's own counter: `POST /v1/messages/count_tokens`, free and rate-limited (November 2026)."""

from collections.abc import Mapping

from foveate.tokens.bpe import without_surrogates
from foveate.tokens.endpoints import TEXT, Question, Unsupported, number_in, selected
from foveate.tokens.memo import Memo, digest
from foveate.upstream import Client
from foveate.values import Format, Request, TokenCount
from foveate.wire.body import compact

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

    def __init__(
        self,
        client: Client,
        api_key: str,
        url: str = ANTHROPIC_URL,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`headers` take the place of the key, for who asks as somebody else does."""
        self.url = url.rstrip("/")
        self._client = client
        own = {"x-api-key": api_key} if headers is None else headers
        self._headers = {"anthropic-version": _VERSION, **own}
        self._frames: Memo[int] = Memo()

    def text(self, text: str, model: str) -> Question:
        """A message of nothing but the text."""
        if not text.strip():
            raise Unsupported("it refuses a text of blanks")
        return Question(subject=TEXT, model=model, body=_single_message(text, model))

    def request(self, request: Request) -> Question:
        """A Messages request."""
        if request.format is not Format.ANTHROPIC:
            raise Unsupported("it counts texts and Messages requests")
        body = selected(request.body, _FIELDS, request.model)
        return Question(subject=request.format, model=request.model, body=body)

    async def answer(self, question: Question) -> TokenCount:
        """The count; of a text, what a message of it costs, less what a message costs (asked once a model)."""
        if question.subject != TEXT:
            return _counted(await self._ask(question.body))
        frame_tokens = await self._frame_tokens(question.model)
        return _counted(max(1, await self._ask(question.body) - frame_tokens))

    async def _frame_tokens(self, model: str) -> int:
        key = digest(model.encode("utf-8", "surrogatepass"))
        known = self._frames.get(key)
        if known is None:
            known = await self._ask(_single_message("a", model)) - 1
            self._frames.put(key, known)
        return known

    async def _ask(self, body: bytes) -> int:
        route = f"{self.url}/v1/messages/count_tokens"
        return number_in(await self._client.post_json(route, body, self._headers), "input_tokens", route)


def _single_message(text: str, model: str) -> bytes:
    message = {"role": "user", "content": text}
    return compact({"messages": [message], "model": without_surrogates(model)})


def _counted(tokens: int) -> TokenCount:
    # Anthropic calls the number an estimate that may differ from the bill by a small amount.
    return TokenCount(tokens, True, tokens + max(3, tokens // 100))
