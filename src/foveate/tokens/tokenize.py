"""A model server's own tokenizer: llama.cpp and vLLM (both read November 2026). Asked only where opted in.

Both answer `POST /tokenize`, outside `/v1`, in two dialects: llama.cpp takes `{"content"}` and gives the ids,
vLLM takes `{"prompt"}` or `{"messages", "tools"}` and gives the count. llama.cpp does not refuse the other's
body but answers it with no tokens at all, so which of the two it is has to be learnt from a letter first.
"""

from collections.abc import Mapping
from enum import StrEnum

from foveate.errors import UpstreamError, UpstreamGarbled, UpstreamStatus
from foveate.tokens.endpoints import REFUSES_THIS, Unsupported, blames_model, is_definite_no, number_in
from foveate.upstream import Client, Reply
from foveate.values import Format, Request, TokenCount
from foveate.wire.body import as_text, compact, fields, selected, value

# Where llama.cpp counts a whole request, by its format. vLLM has the first as well.
_COUNTING_ROUTES = {
    Format.ANTHROPIC: "/v1/messages/count_tokens",
    Format.CHAT: "/v1/chat/completions/input_tokens",
    Format.RESPONSES: "/v1/responses/input_tokens",
}
_CHAT_FIELDS = frozenset(
    ("messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt",
     "continue_final_message", "add_special_tokens")
)  # fmt: skip
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
        self._no: UpstreamError | None = None
        self._missing: set[str] = set()
        self._knows_our_names = True

    async def dialect(self, model: str = "") -> Dialect:
        """Which of the two servers this is, learnt once; a definite no is learnt once as well.

        Raises:
            UpstreamError: it does not answer, or is neither.
        """
        if self._no is not None:
            raise self._no
        if self._dialect is None:
            try:
                self._dialect = await self._learnt(model)
            except UpstreamError as error:
                self._no = error if is_definite_no(error) else None
                raise
        return self._dialect

    async def text(self, text: str, model: str) -> TokenCount:
        """The count of a text, without the special tokens that a prompt begins with."""
        if await self.dialect(model) is Dialect.LLAMA_CPP:
            return _exact(await self._llama({"content": text}))
        return _exact(await self._vllm({"prompt": text, "add_special_tokens": False}, model))

    async def request(self, request: Request) -> TokenCount:
        """The count of a whole request, templates included."""
        route = _COUNTING_ROUTES.get(request.format)
        if route is None:
            raise Unsupported
        dialect = await self.dialect(request.model)
        if dialect is Dialect.VLLM and request.format is Format.CHAT:
            given = fields(request.body).items()
            chat = {name: raw for name, raw in given if name in _CHAT_FIELDS}
            return _exact(await self._vllm(chat, request.model))
        if route not in self._missing:
            try:
                reply = await self._send(route, request.body)
                return _exact(number_in(reply, "input_tokens", self.url + route))
            except UpstreamStatus as error:
                if not is_definite_no(error) or blames_model(error):
                    raise
                self._missing.add(route)
        if dialect is Dialect.LLAMA_CPP and request.format is Format.CHAT:
            return await self._templated(request)
        raise Unsupported

    async def _learnt(self, model: str) -> Dialect:
        try:
            await self._llama({"content": _PROBE})
            return Dialect.LLAMA_CPP
        except UpstreamStatus as error:
            if error.status not in REFUSES_THIS:
                raise
        try:
            await self._vllm({"prompt": _PROBE}, model)
            return Dialect.VLLM
        except UpstreamStatus as error:
            if error.status not in REFUSES_THIS:
                raise
            raise UpstreamGarbled(error.url, "takes neither llama.cpp's nor vLLM's body") from None

    async def _llama(self, body: Mapping[str, object]) -> int:
        reply = await self._send("/tokenize", compact(body))
        return _listed(bytes(reply.get("tokens", b"")), f"{self.url}/tokenize")

    async def _vllm(self, body: Mapping[str, object], model: str) -> int:
        """The count by vLLM, which refuses a name not its own, and without one counts for what it has."""
        if model and self._knows_our_names:
            try:
                return await self._vllm({"model": model, **body}, "")
            except UpstreamStatus as error:
                if not blames_model(error):
                    raise
            self._knows_our_names = False
        return number_in(await self._send("/tokenize", compact(body)), "count", f"{self.url}/tokenize")

    async def _templated(self, request: Request) -> TokenCount:
        """For a llama.cpp from before it could count a chat: its template, then its tokenizer."""
        reply = await self._send("/apply-template", selected(request.body, _CHAT_FIELDS))
        if "prompt" not in reply:
            raise UpstreamGarbled(f"{self.url}/apply-template", "no `prompt` in the answer")
        prompt = as_text(value(reply["prompt"]))
        return _exact(await self._llama({"content": prompt, "add_special": True, "parse_special": True}))

    async def _send(self, route: str, body: bytes) -> Reply:
        return await self._client.post_json(self.url + route, body, self._headers)


def _listed(tokens: bytes, url: str) -> int:
    """How many token ids a list in JSON holds, counted by its commas: it can be megabytes long."""
    if not tokens.startswith(b"[") or b"{" in tokens or b'"' in tokens:
        raise UpstreamGarbled(url, "no list of token ids as `tokens` in the answer")
    return tokens.count(b",") + 1 if tokens.strip(b"[] \t\r\n") else 0


def _exact(tokens: int) -> TokenCount:
    return TokenCount(tokens, True, tokens)
