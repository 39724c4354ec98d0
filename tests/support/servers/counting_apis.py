"""Strict fake servers on loopback: token counting APIs, and servers that fail.

They follow the providers' documentation of November 2026 and, for vLLM, the source of its entrypoints. Each
records the requests that it receives.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Json = dict[str, Any]


def count_words(text: str) -> int:
    """Tokenizer of all fake servers: a word is a token."""
    return len(text.split())


def count_content_words(content: object) -> int:
    if isinstance(content, str):
        return count_words(content)
    assert isinstance(content, list)
    return sum(count_words(block["text"]) for block in content)


@dataclass
class FakeServer:
    """Address of a server and the requests that it received."""

    url: str = ""
    sent: list[tuple[str, Json]] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return len(self.sent)

    def body(self, number: int = -1) -> Json:
        return self.sent[number][1]


@asynccontextmanager
async def _serve(
    routes: dict[str, Callable[[web.Request, Json], Awaitable[web.Response]]],
) -> AsyncIterator[FakeServer]:
    fake = FakeServer()

    async def answer(request: web.Request) -> web.Response:
        raw = await request.read()
        body = json.loads(raw)
        fake.sent.append((request.path, body))
        for route, handle in routes.items():
            if request.path == route or (route.endswith("*") and request.path.startswith(route[:-1])):
                return await handle(request, body)
        return web.json_response({"detail": "Not Found"}, status=404)

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fake
    finally:
        await runner.cleanup()


ANTHROPIC_MODELS = ("claude-sonnet-4-5", "claude-opus-5-5", "gpt-4o")
ANTHROPIC_MESSAGE_TOKENS = 7
_ANTHROPIC_FIELDS = frozenset(
    ("model", "messages", "system", "tools", "tool_choice", "thinking", "cache_control", "output_config")
)


def _anthropic_error(status: int, kind: str, message: str) -> web.Response:
    error = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_011"}
    return web.json_response(error, status=status)


def _check_anthropic_request(request: web.Request, body: Json) -> web.Response | None:
    if "x-api-key" not in request.headers:
        return _anthropic_error(401, "authentication_error", "x-api-key header is required")
    if request.headers["x-api-key"] != "sk-ant-good":
        return _anthropic_error(401, "authentication_error", "invalid x-api-key")
    if request.headers.get("anthropic-version") != "2023-06-01":
        return _anthropic_error(400, "invalid_request_error", "anthropic-version: header is required")
    for name in body:
        if name not in _ANTHROPIC_FIELDS:
            text = f"{name}: Extra inputs are not permitted"
            return _anthropic_error(400, "invalid_request_error", text)
    if "model" not in body or "messages" not in body:
        return _anthropic_error(400, "invalid_request_error", "model: Field required")
    if body["model"] not in ANTHROPIC_MODELS:
        return _anthropic_error(404, "not_found_error", f"model: {body['model']}")
    for i, message in enumerate(body["messages"]):
        content = message["content"]
        texts = [content] if isinstance(content, str) else [b["text"] for b in content if b["type"] == "text"]
        if not all(text.strip() for text in texts):
            text = f"messages.{i}: text content blocks must contain non-whitespace text"
            return _anthropic_error(400, "invalid_request_error", text)
    return None


async def _anthropic_count(request: web.Request, body: Json) -> web.Response:
    error_response = _check_anthropic_request(request, body)
    if error_response is not None:
        return error_response
    tokens = count_content_words(body.get("system", "")) + len(body.get("tools", ())) * 50
    for message in body["messages"]:
        tokens += ANTHROPIC_MESSAGE_TOKENS + count_content_words(message["content"])
    return web.json_response({"input_tokens": tokens})


def anthropic_api() -> Any:
    """Anthropic's `count_tokens`: rejects unknown fields and models, a missing version and empty texts."""
    return _serve({"/v1/messages/count_tokens": _anthropic_count})


VLLM_MODEL = "Qwen/Qwen3-8B"
VLLM_TEMPLATE_TOKENS = 5
_VLLM_COMPLETION = frozenset(("model", "prompt", "add_special_tokens", "return_token_strs"))
_VLLM_CHAT = frozenset(
    ("model", "messages", "add_generation_prompt", "return_token_strs", "continue_final_message",
     "add_special_tokens", "chat_template", "chat_template_kwargs", "mm_processor_kwargs", "tools")
)  # fmt: skip


def _vllm_error(status: int, kind: str, message: str) -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status)


async def _vllm_tokenize(request: web.Request, body: Json) -> web.Response:
    del request
    chat = isinstance(body.get("messages"), list)
    if not chat and not isinstance(body.get("prompt"), str):
        missing = "[{'type': 'missing', 'loc': ('body', 'TokenizeCompletionRequest', 'prompt')}]"
        return _vllm_error(400, "Bad Request", missing)
    for name in body.keys() - (_VLLM_CHAT if chat else _VLLM_COMPLETION):
        forbidden = f"[{{'type': 'extra_forbidden', 'loc': ('body', '{name}')}}]"
        return _vllm_error(400, "Bad Request", forbidden)
    if body.get("continue_final_message") and body.get("add_generation_prompt", True):
        text = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        return _vllm_error(400, "Bad Request", text)
    if body.get("model") not in (None, VLLM_MODEL):
        return _vllm_error(404, "NotFoundError", f"The model `{body['model']}` does not exist.")
    if chat:
        count = sum(VLLM_TEMPLATE_TOKENS + count_content_words(m["content"]) for m in body["messages"])
        count += 3 if body.get("add_generation_prompt", True) else 0
        count += len(body.get("tools", ())) * 50
    else:
        count = count_words(body["prompt"]) + (1 if body.get("add_special_tokens", True) else 0)
    reply = {"count": count, "max_model_len": 4096, "tokens": list(range(count)), "token_strs": None}
    return web.json_response(reply)


def vllm() -> Any:
    """vLLM's `/tokenize` for texts and chats; rejects other models than its own."""
    return _serve({"/tokenize": _vllm_tokenize})


_OPENAI_FIELDS = frozenset(
    ("model", "input", "instructions", "tools", "tool_choice", "text", "reasoning", "previous_response_id",
     "conversation", "parallel_tool_calls", "truncation")
)  # fmt: skip


def _openai_error(status: int, message: str, code: str | None, param: str | None = None) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return web.json_response({"error": error}, status=status)


async def _openai_count(request: web.Request, body: Json) -> web.Response:
    if request.headers.get("authorization") != "Bearer sk-good":
        return _openai_error(401, "Incorrect API key provided.", "invalid_api_key")
    for name in body.keys() - _OPENAI_FIELDS:
        return _openai_error(400, f"Unknown parameter: '{name}'.", "unknown_parameter", name)
    if not isinstance(body.get("input"), (str, list)):
        return _openai_error(400, "Missing required parameter: 'input'.", "missing_required_parameter", "input")
    given = body["input"]
    texts = [given] if isinstance(given, str) else [item["content"] for item in given]
    tokens = 8 + sum(count_words(text) for text in texts) + count_words(body.get("instructions") or "")
    return web.json_response({"object": "response.input_tokens", "input_tokens": tokens})


def openai_api() -> Any:
    """OpenAI's `/v1/responses/input_tokens`: rejects unknown parameters."""
    return _serve({"/v1/responses/input_tokens": _openai_count})


async def _gemini_count(request: web.Request, body: Json) -> web.Response:
    def error(status: int, kind: str, message: str) -> web.Response:
        fields = {"code": status, "message": message, "status": kind}
        return web.json_response({"error": fields}, status=status)

    if request.headers.get("x-goog-api-key") != "good":
        return error(403, "PERMISSION_DENIED", "Method doesn't allow unregistered callers.")
    model = request.path.removeprefix("/v1beta/models/").removesuffix(":countTokens")
    if model != "gemini-2.5-pro":
        text = f"models/{model} is not found for API version v1beta, or is not supported for countTokens."
        return error(404, "NOT_FOUND", text)
    if body.keys() - {"contents", "generateContentRequest"} or len(body) != 1:
        return error(400, "INVALID_ARGUMENT", "Invalid JSON payload received. Unknown name.")
    whole = body.get("generateContentRequest")
    if whole is not None and whole.get("model") != "models/gemini-2.5-pro":
        return error(400, "INVALID_ARGUMENT", "generate_content_request.model must match the model in the path")
    contents = (whole or body)["contents"]
    tokens = sum(count_words(part["text"]) for content in contents for part in content["parts"])
    if whole and "systemInstruction" in whole:
        tokens += sum(count_words(part["text"]) for part in whole["systemInstruction"]["parts"])
    details = [{"modality": "TEXT", "tokenCount": tokens}]
    return web.json_response({"totalTokens": tokens, "promptTokensDetails": details})


def gemini_api() -> Any:
    """Gemini's `countTokens`: contents, or a whole request that repeats the model."""
    return _serve({"/v1beta/models/*": _gemini_count})


Behaviour = Callable[[str, bytes], bytes | None]


@asynccontextmanager
async def raw_server(behave: Behaviour) -> AsyncIterator[FakeServer]:
    """Run a server that sends what `behave` returns for a path and a body; on None it never responds."""
    fake = FakeServer()
    open_connections: set[asyncio.StreamWriter] = set()

    async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            size = next(
                int(line.split(":")[1])
                for line in head.splitlines()
                if line.lower().startswith("content-length:")
            )
            body = await reader.readexactly(size)
            path = head.split()[1]
            fake.sent.append((path, json.loads(body)))
            reply = behave(path, body)
            if reply is None:
                await reader.read()
            else:
                writer.write(reply)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            open_connections.discard(writer)
            writer.close()

    server = await asyncio.start_server(handle_connection, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    fake.url = f"http://{host}:{port}"
    try:
        yield fake
    finally:
        for writer in open_connections:
            writer.close()
        server.close()
        await server.wait_closed()


def http_response(
    status: int, body: bytes = b"{}", media_type: str = "application/json", *headers: str
) -> bytes:
    lines = [
        f"HTTP/1.1 {status} Whatever",
        f"content-type: {media_type}",
        f"content-length: {len(body)}",
        "connection: close",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def always_reply(reply: bytes | None) -> Behaviour:
    return lambda _path, _body: reply


def ok_response(body: object) -> bytes:
    return http_response(200, json.dumps(body).encode())


def llama_tokenize(path: str, body: bytes) -> bytes:
    """Respond like llama.cpp's `/tokenize`, with a word as a token."""
    if path != "/tokenize":
        return http_response(404, b'{"error":{"message":"File Not Found","type":"not_found_error","code":404}}')
    content = json.loads(body).get("content", "")
    return ok_response({"tokens": list(range(count_words(content)))})
