"""Valid requests for every provider, to be modified by tests."""

from typing import Any

from foveate import formats
from foveate.model import Format
from foveate.sandbox import ErrorResponse, validate_request

Json = dict[str, Any]

CLAUDE = "claude-sonnet-4-5"
BINDING = "claude-opus-5-5"
GPT = "gpt-4o"
BREAKPOINT_GPT = "gpt-5.6-sol"

BREAKPOINT = {"type": "ephemeral"}
LONG_BREAKPOINT = {"type": "ephemeral", "ttl": "1h"}
OPENAI_BREAKPOINT = {"mode": "explicit"}


def text(content: str, cache_breakpoint: Json | None = None) -> Json:
    return {"type": "text", "text": content} | ({"cache_control": cache_breakpoint} if cache_breakpoint else {})


def user(*blocks: Json | str) -> Json:
    return {"role": "user", "content": [text(b) if isinstance(b, str) else b for b in blocks]}


def assistant(*blocks: Json | str) -> Json:
    return user(*blocks) | {"role": "assistant"}


def call(call_id: str = "toolu_1", **fields: Any) -> Json:
    return {"type": "tool_use", "id": call_id, "name": "look", "input": {}} | fields


def result(call_id: str = "toolu_1", **fields: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "found"} | fields


def tool(name: str = "look", **fields: Any) -> Json:
    return {"name": name, "description": "Looks.", "input_schema": {"type": "object"}} | fields


def claude(*messages: Json, **fields: Any) -> Json:
    return {"model": CLAUDE, "max_tokens": 1024, "messages": list(messages or [user("Hello")])} | fields


def chat(*messages: Json, **fields: Any) -> Json:
    content = list(messages or [{"role": "user", "content": "Hello"}])
    return {"model": GPT, "messages": content} | fields


def response(*items: Json, **fields: Any) -> Json:
    return {"model": GPT, "input": list(items) or "Hello"} | fields


def validate(api_format: Format, body: Json, **fields: Any) -> ErrorResponse | None:
    return validate_request(formats.parse_request(body, api_format), **fields)


def rejection(api_format: Format, body: Json, **fields: Any) -> ErrorResponse:
    error = validate(api_format, body, **fields)
    assert error is not None, f"accepted: {body}"
    return error


def accepts(api_format: Format, body: Json, **fields: Any) -> bool:
    error = validate(api_format, body, **fields)
    assert error is None, f"rejected: {error}"
    return True
