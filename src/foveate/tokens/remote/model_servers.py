"""Tokenize endpoints of model servers: llama.cpp and vLLM (both as of November 2026). Opt-in.

Both have `POST /tokenize`, outside `/v1`, with different bodies: llama.cpp takes `{"content"}` and returns ids,
vLLM takes `{"prompt"}` or `{"messages", "tools"}` and returns the count. llama.cpp does not reject vLLM's body
but returns no tokens for it, so the server is detected first by tokenising one letter.
"""

from collections.abc import Mapping

import msgspec

from foveate.errors import UpstreamError, UpstreamGarbled, UpstreamStatus
from foveate.formats.json_text.parse import parse_fields, to_json
from foveate.http import JsonClient, JsonReply
from foveate.model import Format, Request, TokenCount
from foveate.tokens.remote.endpoints import (
    REJECTED_BODY_STATUSES,
    TEXT,
    CountQuery,
    EndpointRegistry,
    TokenizeServer,
    Unsupported,
    is_permanent_failure,
    is_unknown_model,
    parse_field,
    parse_token_number,
    select_count_fields,
    to_sorted_json,
)
from foveate.tokens.tokenizers.bpe import replace_surrogates

# Routes of llama.cpp that count a whole request, by format. vLLM has the first one too.
_COUNT_ROUTES: dict[str, str] = {
    Format.ANTHROPIC: "/v1/messages/count_tokens",
    Format.CHAT: "/v1/chat/completions/input_tokens",
    Format.RESPONSES: "/v1/responses/input_tokens",
}
_CHAT_FIELDS = frozenset(
    ("messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt",
     "continue_final_message", "add_special_tokens")
)  # fmt: skip
# Fields that only concern the response, and do not change the prompt.
_RESPONSE_FIELDS = frozenset(
    ("max_tokens", "max_completion_tokens", "max_output_tokens", "temperature", "top_p", "top_k", "min_p",
     "stream", "stream_options", "stop", "stop_sequences", "seed", "n", "user", "metadata", "store",
     "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs", "service_tier",
     "prompt_cache_key", "safety_identifier")
)  # fmt: skip
_PROBE_TEXT = to_json("a")
_TEMPLATE_ROUTE = "/apply-template"
_NO_TEMPLATE_REASON = "it has /tokenize but not /apply-template, which is needed to count a chat"


class TokenizeCounter:
    name = "endpoint"

    def __init__(
        self,
        client: JsonClient,
        url: str,
        headers: Mapping[str, str] | None = None,
        endpoints: EndpointRegistry | None = None,
    ) -> None:
        """`endpoints` stores what is learned about the server, for other counters of the same address."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self._client = client
        self._headers = dict(headers or {})
        self._capabilities = (endpoints or EndpointRegistry()).capabilities(self.url)

    async def detect_server(self, model: str = "") -> TokenizeServer:
        """Return which of the two servers this is. Detected once; a permanent failure is remembered too.

        Raises:
            UpstreamError: it does not respond, or is neither.
        """
        capabilities = self._capabilities
        if capabilities.unsupported_error is not None:
            raise capabilities.unsupported_error.with_traceback(None)
        if capabilities.server is None:
            try:
                capabilities.server = await self._probe(model)
            except UpstreamError as error:
                capabilities.unsupported_error = error if is_permanent_failure(error) else None
                raise
        return capabilities.server

    def text_query(self, text: str, model: str) -> CountQuery:
        """The text alone: the two servers expect it under different names."""
        return CountQuery(subject=TEXT, model=model, body=to_json(text))

    def request_query(self, request: Request) -> CountQuery:
        """The request without the fields that only concern the response."""
        if request.format not in _COUNT_ROUTES:
            raise Unsupported(f"it has no endpoint to count a {request.format} request")
        input_fields = {
            name: raw for name, raw in parse_fields(request.body).items() if name not in _RESPONSE_FIELDS
        }
        return CountQuery(subject=request.format, model=request.model, body=to_sorted_json({**input_fields}))

    async def fetch_count(self, query: CountQuery) -> TokenCount:
        """Count a text without the special tokens that begin a prompt, a request with them."""
        server = await self.detect_server(query.model)
        if query.subject == TEXT:
            return _exact_count(await self._count_text(query, server))
        if server is TokenizeServer.VLLM and query.subject == Format.CHAT:
            return _exact_count(
                await self._count_by_vllm(select_count_fields(query.body, _CHAT_FIELDS), query.model)
            )
        route = _COUNT_ROUTES[query.subject]
        if route not in self._capabilities.missing_routes:
            try:
                response = await self._post(route, query.body)
                return _exact_count(parse_token_number(response, "input_tokens", self.url + route))
            except UpstreamStatus as error:
                if not is_permanent_failure(error) or is_unknown_model(error):
                    raise
                self._capabilities.missing_routes.add(route)
        if server is TokenizeServer.LLAMA_CPP and query.subject == Format.CHAT:
            return _exact_count(await self._count_templated_chat(query.body))
        raise Unsupported(f"it has no endpoint to count a {query.subject} request")

    async def _count_text(self, query: CountQuery, server: TokenizeServer) -> int:
        if server is TokenizeServer.LLAMA_CPP:
            return await self._count_by_llama_cpp(query.body)
        return await self._count_by_vllm(
            _json_object(add_special_tokens=b"false", prompt=query.body), query.model
        )

    async def _probe(self, model: str) -> TokenizeServer:
        try:
            await self._count_by_llama_cpp(_PROBE_TEXT)
            return TokenizeServer.LLAMA_CPP
        except UpstreamStatus as error:
            if error.status not in REJECTED_BODY_STATUSES:
                raise
        try:
            await self._count_by_vllm(_json_object(prompt=_PROBE_TEXT), model)
            return TokenizeServer.VLLM
        except UpstreamStatus as error:
            if error.status not in REJECTED_BODY_STATUSES:
                raise
            raise UpstreamGarbled(error.url, "accepts neither llama.cpp's nor vLLM's request body") from None

    async def _count_by_llama_cpp(self, content: bytes, **options: bytes) -> int:
        response = await self._post("/tokenize", _json_object(content=content, **options))
        return _count_ids(bytes(response.get("tokens", b"")), f"{self.url}/tokenize")

    async def _count_by_vllm(self, body: bytes, model: str) -> int:
        """Ask vLLM, which rejects names other than its own. Without a name it counts for the model it runs."""
        if model and self._capabilities.accepts_model_names:
            body_with_model = b'{"model":' + to_json(replace_surrogates(model)) + b"," + body.removeprefix(b"{")
            try:
                return await self._count_by_vllm(body_with_model, "")
            except UpstreamStatus as error:
                if not is_unknown_model(error):
                    raise
            self._capabilities.accepts_model_names = False
        return parse_token_number(await self._post("/tokenize", body), "count", f"{self.url}/tokenize")

    async def _count_templated_chat(self, body: bytes) -> int:
        """For older versions of llama.cpp, which cannot count a chat: apply the template, then tokenise."""
        route = f"{self.url}/apply-template"
        if _TEMPLATE_ROUTE in self._capabilities.missing_routes:
            raise Unsupported(_NO_TEMPLATE_REASON)
        try:
            response = await self._post(_TEMPLATE_ROUTE, select_count_fields(body, _CHAT_FIELDS))
        except UpstreamStatus as error:
            if not is_permanent_failure(error) or is_unknown_model(error):
                raise
            self._capabilities.missing_routes.add(_TEMPLATE_ROUTE)
            raise Unsupported(_NO_TEMPLATE_REASON) from None
        if not isinstance(parse_field(response, "prompt", route), str):
            raise UpstreamGarbled(route, "the response has no `prompt`")
        return await self._count_by_llama_cpp(
            bytes(response["prompt"]), add_special=b"true", parse_special=b"true"
        )

    async def _post(self, route: str, body: bytes) -> JsonReply:
        return await self._client.post_json(self.url + route, body, self._headers)


def _json_object(**json_fields: bytes) -> bytes:
    return to_json({name: msgspec.Raw(value) for name, value in json_fields.items()})


def _count_ids(tokens: bytes, url: str) -> int:
    """Count the ids in a JSON list by its commas, since the list can be megabytes long."""
    if not tokens.startswith(b"[") or b"{" in tokens or b'"' in tokens:
        raise UpstreamGarbled(url, "the response has no list of token ids `tokens`")
    return tokens.count(b",") + 1 if tokens.strip(b"[] \t\r\n") else 0


def _exact_count(tokens: int) -> TokenCount:
    return TokenCount(tokens, True, tokens)
