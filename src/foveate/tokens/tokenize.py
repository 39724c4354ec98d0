"""A model server's own tokenizer: llama.cpp and vLLM (both read November 2026). Asked only where opted in.

Both answer `POST /tokenize`, outside `/v1`, in two dialects: llama.cpp takes `{"content"}` and gives the ids,
vLLM takes `{"prompt"}` or `{"messages", "tools"}` and gives the count. llama.cpp does not refuse the other's
body but answers it with no tokens at all, so which of the two it is has to be learnt from a letter first.
"""

from collections.abc import Mapping

import msgspec

from foveate.errors import UpstreamError, UpstreamGarbled, UpstreamStatus
from foveate.tokens.bpe import without_surrogates
from foveate.tokens.endpoints import (
    REFUSES_THIS,
    TEXT,
    Dialect,
    Endpoints,
    Question,
    Unsupported,
    blames_model,
    in_order,
    is_definite_no,
    number_in,
    selected,
    value_in,
)
from foveate.upstream import Client, Reply
from foveate.values import Format, Request, TokenCount
from foveate.wire.body import compact, fields

# Where llama.cpp counts a whole request, by its format. vLLM has the first as well.
_COUNTING_ROUTES: dict[str, str] = {
    Format.ANTHROPIC: "/v1/messages/count_tokens",
    Format.CHAT: "/v1/chat/completions/input_tokens",
    Format.RESPONSES: "/v1/responses/input_tokens",
}
_CHAT_FIELDS = frozenset(
    ("messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt",
     "continue_final_message", "add_special_tokens")
)  # fmt: skip
# What says how to answer and not what is read: no prompt is longer for it.
_ABOUT_THE_ANSWER = frozenset(
    ("max_tokens", "max_completion_tokens", "max_output_tokens", "temperature", "top_p", "top_k", "min_p",
     "stream", "stream_options", "stop", "stop_sequences", "seed", "n", "user", "metadata", "store",
     "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs", "service_tier",
     "prompt_cache_key", "safety_identifier")
)  # fmt: skip
_PROBE = compact("a")
_TEMPLATE = "/apply-template"
_NO_TEMPLATE = "it has /tokenize but not /apply-template, so it cannot count a chat as its model reads it"


class TokenizeCounter:
    """Counts by asking the server that runs the model."""

    name = "endpoint"

    def __init__(
        self,
        client: Client,
        url: str,
        headers: Mapping[str, str] | None = None,
        endpoints: Endpoints | None = None,
    ) -> None:
        """`endpoints`: where what is learnt of the server is kept, for the next counter of the same address."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self._client = client
        self._headers = dict(headers or {})
        self._learnt = (endpoints or Endpoints()).learnt(self.url)

    async def dialect(self, model: str = "") -> Dialect:
        """Which of the two servers this is, learnt once; a definite no is learnt once as well.

        Raises:
            UpstreamError: it does not answer, or is neither.
        """
        learnt = self._learnt
        if learnt.definite_no is not None:
            raise learnt.definite_no.with_traceback(None)
        if learnt.dialect is None:
            try:
                learnt.dialect = await self._probed(model)
            except UpstreamError as error:
                learnt.definite_no = error if is_definite_no(error) else None
                raise
        return learnt.dialect

    def text(self, text: str, model: str) -> Question:
        """The text, which the two servers want under different names."""
        return Question(subject=TEXT, model=model, body=compact(text))

    def request(self, request: Request) -> Question:
        """A whole request without what says how to answer it."""
        if request.format not in _COUNTING_ROUTES:
            raise Unsupported(f"it has no route to count a request of {request.format}")
        read = {name: raw for name, raw in fields(request.body).items() if name not in _ABOUT_THE_ANSWER}
        return Question(subject=request.format, model=request.model, body=in_order({**read}))

    async def answer(self, question: Question) -> TokenCount:
        """The count of a text without the special tokens that a prompt begins with, of a request with them."""
        dialect = await self.dialect(question.model)
        if question.subject == TEXT:
            return _exact(await self._text_tokens(question, dialect))
        if dialect is Dialect.VLLM and question.subject == Format.CHAT:
            return _exact(await self._vllm(selected(question.body, _CHAT_FIELDS), question.model))
        route = _COUNTING_ROUTES[question.subject]
        if route not in self._learnt.missing_routes:
            try:
                reply = await self._send(route, question.body)
                return _exact(number_in(reply, "input_tokens", self.url + route))
            except UpstreamStatus as error:
                if not is_definite_no(error) or blames_model(error):
                    raise
                self._learnt.missing_routes.add(route)
        if dialect is Dialect.LLAMA_CPP and question.subject == Format.CHAT:
            return _exact(await self._templated(question.body))
        raise Unsupported(f"it has no route to count a request of {question.subject}")

    async def _text_tokens(self, question: Question, dialect: Dialect) -> int:
        if dialect is Dialect.LLAMA_CPP:
            return await self._llama(question.body)
        return await self._vllm(_object(add_special_tokens=b"false", prompt=question.body), question.model)

    async def _probed(self, model: str) -> Dialect:
        try:
            await self._llama(_PROBE)
            return Dialect.LLAMA_CPP
        except UpstreamStatus as error:
            if error.status not in REFUSES_THIS:
                raise
        try:
            await self._vllm(_object(prompt=_PROBE), model)
            return Dialect.VLLM
        except UpstreamStatus as error:
            if error.status not in REFUSES_THIS:
                raise
            raise UpstreamGarbled(error.url, "takes neither llama.cpp's nor vLLM's body") from None

    async def _llama(self, content: bytes, **more: bytes) -> int:
        reply = await self._send("/tokenize", _object(content=content, **more))
        return _listed(bytes(reply.get("tokens", b"")), f"{self.url}/tokenize")

    async def _vllm(self, body: bytes, model: str) -> int:
        """The count by vLLM, which refuses a name not its own, and without one counts for what it has."""
        if model and self._learnt.knows_our_names:
            named = b'{"model":' + compact(without_surrogates(model)) + b"," + body.removeprefix(b"{")
            try:
                return await self._vllm(named, "")
            except UpstreamStatus as error:
                if not blames_model(error):
                    raise
            self._learnt.knows_our_names = False
        return number_in(await self._send("/tokenize", body), "count", f"{self.url}/tokenize")

    async def _templated(self, body: bytes) -> int:
        """For a llama.cpp from before it could count a chat: its template, then its tokenizer."""
        route = f"{self.url}/apply-template"
        if _TEMPLATE in self._learnt.missing_routes:
            raise Unsupported(_NO_TEMPLATE)
        try:
            reply = await self._send(_TEMPLATE, selected(body, _CHAT_FIELDS))
        except UpstreamStatus as error:
            if not is_definite_no(error) or blames_model(error):
                raise
            self._learnt.missing_routes.add(_TEMPLATE)
            raise Unsupported(_NO_TEMPLATE) from None
        if not isinstance(value_in(reply, "prompt", route), str):
            raise UpstreamGarbled(route, "no `prompt` in the answer")
        return await self._llama(bytes(reply["prompt"]), add_special=b"true", parse_special=b"true")

    async def _send(self, route: str, body: bytes) -> Reply:
        return await self._client.post_json(self.url + route, body, self._headers)


def _object(**fields_in_json: bytes) -> bytes:
    """A JSON object of values that are JSON already, however long."""
    return compact({name: msgspec.Raw(value) for name, value in fields_in_json.items()})


def _listed(tokens: bytes, url: str) -> int:
    """How many token ids a list in JSON holds, counted by its commas: it can be megabytes long."""
    if not tokens.startswith(b"[") or b"{" in tokens or b'"' in tokens:
        raise UpstreamGarbled(url, "no list of token ids as `tokens` in the answer")
    return tokens.count(b",") + 1 if tokens.strip(b"[] \t\r\n") else 0


def _exact(tokens: int) -> TokenCount:
    return TokenCount(tokens, True, tokens)
