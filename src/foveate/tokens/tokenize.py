"""A model server's own tokenizer: llama.cpp and vLLM (both read November 2026). Asked only where opted in.

Both answer `POST /tokenize`, outside `/v1`, in two dialects: llama.cpp takes `{"content"}` and gives the ids,
vLLM takes `{"prompt"}` or `{"messages", "tools"}` and gives the count. llama.cpp does not refuse the other's
body but answers it with no tokens at all, so which of the two it is has to be learnt from a text first.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from foveate.errors import UpstreamGarbled, UpstreamStatus
from foveate.tokens.endpoints import DEFINITE_NO, REFUSES_THIS, Unsupported
from foveate.upstream import Client
from foveate.values import Format, Request, TokenCount
from foveate.wire.body import as_record, as_text, compact, selected

# Where llama.cpp counts a whole request, by its format. vLLM has the first as well.
_COUNTING_ROUTES = {
    Format.ANTHROPIC: "/v1/messages/count_tokens",
    Format.CHAT: "/v1/chat/completions/input_tokens",
    Format.RESPONSES: "/v1/responses/input_tokens",
}
_CHAT_FIELDS = frozenset(("model", "messages", "tools", "chat_template", "chat_template_kwargs"))
_PROBE = "a"


class Dialect(StrEnum):
    """Who answers at `/tokenize`."""

    LLAMA_CPP = "llama.cpp"
    VLLM = "vLLM"


class TokenizeCounter:
    """Counts by asking the server that runs the model."""

    name = "endpoint"

    def __init__(self, client: Client, url: str, headers: Mapping[str, str] | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._client = client
        self._headers = dict(headers or {})
        self._dialect: Dialect | None = None
        self._missing: set[str] = set()

    async def dialect(self, model: str = "") -> Dialect:
        """Which of the two servers this is, asked once."""
        if self._dialect is None:
            await self.text(_PROBE, model)
        assert self._dialect is not None
        return self._dialect

    async def text(self, text: str, model: str) -> TokenCount:
        """The count of a text, without the special tokens that a prompt begins with."""
        if self._dialect is not Dialect.VLLM:
            try:
                return await self._llama_text(text)
            except UpstreamStatus as error:
                if self._dialect is Dialect.LLAMA_CPP or error.status not in REFUSES_THIS:
                    raise
        reply = await self._post("/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})
        count = _number(reply, "count", f"{self.url}/tokenize")
        self._dialect = Dialect.VLLM
        return _exact(count)

    async def request(self, request: Request) -> TokenCount:
        """The count of a whole request, templates included."""
        route = _COUNTING_ROUTES.get(request.format)
        if route is None:
            raise Unsupported
        dialect = await self.dialect(request.model)
        if dialect is Dialect.VLLM and request.format is Format.CHAT:
            body = selected(request.body, _CHAT_FIELDS, add_generation_prompt=True)
            return _exact(_number(await self._send("/tokenize", body), "count", f"{self.url}/tokenize"))
        if route not in self._missing:
            try:
                reply = await self._send(route, request.body)
                return _exact(_number(reply, "input_tokens", self.url + route))
            except UpstreamStatus as error:
                if error.status not in DEFINITE_NO:
                    raise
                self._missing.add(route)
        if dialect is Dialect.LLAMA_CPP and request.format is Format.CHAT:
            return await self._templated(request)
        raise Unsupported

    async def _llama_text(self, text: str) -> TokenCount:
        count = _tokens(await self._post("/tokenize", {"content": text}), f"{self.url}/tokenize")
        self._dialect = Dialect.LLAMA_CPP
        return _exact(count)

    async def _templated(self, request: Request) -> TokenCount:
        """For a llama.cpp from before it could count a chat: its template, then its tokenizer."""
        reply = await self._send("/apply-template", selected(request.body, _CHAT_FIELDS))
        if "prompt" not in reply:
            raise UpstreamGarbled(f"{self.url}/apply-template", "no `prompt` in the answer")
        tokenized = await self._post(
            "/tokenize",
            {"content": as_text(reply["prompt"]), "add_special": True, "parse_special": True},
        )
        return _exact(_tokens(tokenized, f"{self.url}/tokenize"))

    async def _post(self, route: str, body: Mapping[str, object]) -> dict[str, Any]:
        return await self._send(route, compact(body))

    async def _send(self, route: str, body: bytes) -> dict[str, Any]:
        return as_record(await self._client.post_json(self.url + route, body, self._headers))


def _tokens(reply: dict[str, Any], url: str) -> int:
    tokens = reply.get("tokens")
    if not isinstance(tokens, list):
        raise UpstreamGarbled(url, "no `tokens` in the answer")
    return len(tokens)


def _number(reply: dict[str, Any], name: str, url: str) -> int:
    found = reply.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise UpstreamGarbled(url, f"no `{name}` in the answer")
    return found


def _exact(tokens: int) -> TokenCount:
    return TokenCount(tokens, True, tokens)
