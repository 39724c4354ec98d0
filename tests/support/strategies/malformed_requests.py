"""Nearly valid requests: a valid one of each API format with up to three odd changes."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.support.scenarios.images import png

Path = tuple[str | int, ...]

_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
_IMAGE = png(8, 8)

VALID_REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/messages": {
        "model": "claude-opus-4-5",
        "max_tokens": 100,
        "stream": False,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "5m"}}],
        "tools": [{"name": "look", "description": "Looks.", "input_schema": _SCHEMA}],
        "tool_choice": {"type": "auto"},
        "metadata": {"user_id": "u"},
        "messages": [
            {"role": "user", "content": "Hello"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Well", "signature": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "look", "input": {"path": "a"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "# A"}]},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": _IMAGE},
                    },
                    {"type": "text", "text": "And?"},
                ],
            },
        ],
    },
    "/v1/chat/completions": {
        "model": "gpt-4.1",
        "max_tokens": 100,
        "stream": True,
        "stream_options": {"include_usage": False},
        "n": 1,
        "tools": [{"type": "function", "function": {"name": "look", "parameters": _SCHEMA}}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hello"}], "name": "ana"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"path": "a"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "# A"},
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_IMAGE}"}},
                    {"type": "text", "text": "And?"},
                ],
            },
        ],
    },
    "/v1/responses": {
        "model": "gpt-4.1",
        "max_output_tokens": 100,
        "instructions": "Be brief.",
        "service_tier": "auto",
        "tools": [{"type": "function", "name": "look", "parameters": _SCHEMA}],
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"path": "a"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "# A"},
            {"type": "message", "role": "user", "content": "And?"},
        ],
    },
    "/v1/embeddings": {"model": "text-embedding-3-small", "input": ["Hello", "there"], "dimensions": 8},
    "/v1/messages/count_tokens": {
        "model": "claude-opus-4-5",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "Hello"}],
    },
}


def _nested_list(depth: int) -> Any:
    result: Any = "x"
    for _ in range(depth):
        result = [result]
    return result


# The smallest first: failures are reported with the first that fails.
ODD_VALUES: Sequence[Any] = (
    None, True, 0, -1, 1.5, "", "x", [], {}, [None], [[]], [{}], {"": None}, {"type": None}, {"type": "text"},
    2**31, 2**63, 2**64, -(2**63), 10**30, 10**400, 1e308, float("inf"), float("nan"), "\0", "\ud800",
    "\udfff x", "\U0001f600", "\u202e", "a" * 70_000, "-1", "1e999", [1, "x", None, {}], {"type": "tool_use"},
    {"type": "tool_result"}, {"type": "image", "source": {"type": "base64", "data": "!"}}, {"$ref": "#"},
    _nested_list(60), _nested_list(900),
)  # fmt: skip


def _paths(node: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    if isinstance(node, dict):
        for name, inner in node.items():
            yield from _paths(inner, (*path, name))
    elif isinstance(node, list):
        for number, inner in enumerate(node):
            yield from _paths(inner, (*path, number))


def _replace_at(node: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    first, *rest = path
    if isinstance(node, dict):
        return {
            name: _replace_at(inner, tuple(rest), value) if name == first else inner
            for name, inner in node.items()
        }
    return [
        _replace_at(inner, tuple(rest), value) if number == first else inner
        for number, inner in enumerate(node)
    ]


def _remove_at(node: Any, path: Path) -> Any:
    first, *rest = path
    if isinstance(node, dict):
        members = {name: inner for name, inner in node.items() if rest or name != first}
        return {
            name: _remove_at(inner, tuple(rest)) if name == first else inner for name, inner in members.items()
        }
    items = [inner for number, inner in enumerate(node) if rest or number != first]
    return [
        _remove_at(inner, tuple(rest)) if number == first and rest else inner
        for number, inner in enumerate(items)
    ]


@st.composite
def malformed_requests(draw: st.DrawFn) -> tuple[str, bytes]:
    """Paths and bodies with up to three odd changes."""
    path = draw(st.sampled_from(sorted(VALID_REQUESTS)))
    body: Any = VALID_REQUESTS[path]
    for _ in range(draw(st.integers(1, 3))):
        places = [place for place in _paths(body) if place]
        if not places:
            break
        place = draw(st.sampled_from(places))
        is_kept = draw(st.booleans())
        body = (
            _replace_at(body, place, draw(st.sampled_from(ODD_VALUES))) if is_kept else _remove_at(body, place)
        )
    text = json.dumps(body, ensure_ascii=draw(st.booleans()), separators=(",", ":"))
    data = text.encode("utf-8", "surrogatepass")
    if draw(st.booleans()):
        return path, data
    return path, draw(st.sampled_from(_CORRUPTIONS))(data)


_CORRUPTIONS = (
    lambda data: data[: len(data) // 2],
    lambda data: data + b"}",
    lambda data: b"\xef\xbb\xbf" + data,
    lambda data: data.replace(b"{", b'{"model":"claude-opus-4-5",', 1),
    lambda data: data.replace(b'"messages"', b'"messages":[],"messages"', 1),
    lambda data: data.replace(b'"role"', b'"role":"x","role"', 1),
    lambda data: data.replace(b":", b"\x00:", 1),
    lambda data: data.replace(b'"', b'"\xff', 1),
    lambda data: data.decode("utf-8", "replace").encode("utf-16"),
    lambda data: b" \n\t" * 1_000 + data,
    lambda data: b"[" + data + b"]",
)


def _messages_request(**more: Any) -> bytes:
    return json.dumps(VALID_REQUESTS["/v1/messages"] | more).encode()


HUGE_REQUESTS: dict[str, tuple[str, bytes]] = {
    "ten thousand empty messages": (
        "/v1/messages",
        _messages_request(messages=[{"role": "user", "content": ""}] * 10_000),
    ),
    "ten thousand odd messages": ("/v1/messages", _messages_request(messages=[{}] * 10_000)),
    "five hundred tools": (
        "/v1/messages",
        _messages_request(tools=[{"name": f"t{number}", "input_schema": _SCHEMA} for number in range(500)]),
    ),
    "five hundred tools of one name": (
        "/v1/messages",
        _messages_request(tools=[{"name": "t", "input_schema": _SCHEMA}] * 500),
    ),
    "ten thousand chat messages": (
        "/v1/chat/completions",
        json.dumps({"model": "gpt-4.1", "messages": [{"role": "user", "content": ""}] * 10_000}).encode(),
    ),
    "a tower of lists": ("/v1/messages", b"[" * 100_000),
    "a tower of objects": ("/v1/chat/completions", b'{"a":' * 100_000),
    "a deep tool": (
        "/v1/messages",
        b'{"model":"m","messages":[],"tools":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    ),
    "a deep message": (
        "/v1/messages",
        b'{"model":"claude-opus-4-5","max_tokens":1,"messages":[{"role":"user","content":'
        + b"[" * 5_000
        + b"]" * 5_000
        + b"}]}",
    ),
    "a long number": ("/v1/messages", b'{"model":"m","messages":[],"max_tokens":' + b"9" * 100_000 + b"}"),
    "a long name": ("/v1/messages", b'{"model":"' + b"m" * 1_000_000 + b'","messages":[]}'),
    "a megabyte of one letter": (
        "/v1/messages",
        _messages_request(messages=[{"role": "user", "content": "a" * 1_000_000}]),
    ),
    "a megabyte of quotes": (
        "/v1/messages",
        _messages_request(messages=[{"role": "user", "content": '"' * 500_000}]),
    ),
    "a megabyte of spaces": ("/v1/messages", b" " * 1_000_000),
}
