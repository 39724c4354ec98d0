"""Valid requests for every provider, to be modified by tests."""

from typing import Any

from foveate import formats
from foveate.model import Format
from foveate.sandbox import ErrorResponse, validate_request

Json = dict[str, Any]

CLAUDE = "claude-sonnet-4-5"
BINDING = "claude-opus-5-5"
GPT = "gpt-4o"
MARKING_GPT = "gpt-5.6-sol"

MARK = {"type": "ephemeral"}
LONG_MARK = {"type": "ephemeral", "ttl": "1h"}
POINT = {"mode": "explicit"}


def text(said: str, mark: Json | None = None) -> Json:
    return {"type": "text", "text": said} | ({"cache_control": mark} if mark else {})


def user(*blocks: Json | str) -> Json:
    return {"role": "user", "content": [text(b) if isinstance(b, str) else b for b in blocks]}


def assistant(*blocks: Json | str) -> Json:
    return user(*blocks) | {"role": "assistant"}


def call(call_id: str = "toolu_1", **more: Any) -> Json:
    return {"type": "tool_use", "id": call_id, "name": "look", "input": {}} | more


def result(call_id: str = "toolu_1", **more: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "found"} | more


def tool(name: str = "look", **more: Any) -> Json:
    return {"name": name, "description": "Looks.", "input_schema": {"type": "object"}} | more


def claude(*messages: Json, **more: Any) -> Json:
    return {"model": CLAUDE, "max_tokens": 1024, "messages": list(messages or [user("Hello")])} | more


def chat(*messages: Json, **more: Any) -> Json:
    said = list(messages or [{"role": "user", "content": "Hello"}])
    return {"model": GPT, "messages": said} | more


def response(*items: Json, **more: Any) -> Json:
    return {"model": GPT, "input": list(items) or "Hello"} | more


def verdict(api_format: Format, body: Json, **more: Any) -> ErrorResponse | None:
    return validate_request(formats.parse_request(body, api_format), **more)


def refusal(api_format: Format, body: Json, **more: Any) -> ErrorResponse:
    found = verdict(api_format, body, **more)
    assert found is not None, f"taken: {body}"
    return found


def takes(api_format: Format, body: Json, **more: Any) -> bool:
    found = verdict(api_format, body, **more)
    assert found is None, f"refused: {found}"
    return True
