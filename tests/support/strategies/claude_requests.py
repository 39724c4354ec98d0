"""Random valid requests to Claude, with client breakpoints or without."""

from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from foveate.sandbox import thinking_signatures

MODELS = ("claude-sonnet-4-5", "claude-opus-4-6", "claude-haiku-5-5", "claude-opus-5-5")
MAX_BREAKPOINTS = 4
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

Block = dict[str, Any]
Body = dict[str, Any]
# Signs a thinking block that follows `body`.
Sign = Callable[[Body, str], str]

# Most texts are short; some are long enough to be cached alone.
_TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).filter(str.strip),
    st.tuples(st.sampled_from(("alpha ", "β ", "x = 1\n")), st.integers(200, 3000)).map(
        lambda pair: (pair[0] * pair[1]).strip()
    ),
)


def sign_as_sandbox(body: Body, thinking: str) -> str:
    """Sign a thinking block after `body` as the sandbox does."""
    return thinking_signatures.sign_thinking(
        body["model"], thinking_signatures.hash_prefix(body).digest(), thinking
    )


def _text(draw: st.DrawFn) -> Block:
    return {"type": "text", "text": draw(_TEXTS)}


def _image(_draw: st.DrawFn) -> Block:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PIXEL}}


def _document(draw: st.DrawFn) -> Block:
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": draw(_TEXTS)}}


@st.composite
def claude_requests(
    draw: st.DrawFn,
    *,
    breakpoints: bool = True,
    max_turns: int = 4,
    max_calls: int = 30,
    sign: Sign | None = sign_as_sandbox,
) -> Body:
    """Requests that end with a user message; `sign` is None for requests without thinking."""
    thinks = sign is not None and draw(st.booleans())
    body: Body = {"model": draw(st.sampled_from(MODELS)), "max_tokens": 4096, "messages": []}
    if draw(st.booleans()):
        body["tools"] = [_tool(draw, number) for number in range(draw(st.integers(1, 4)))]
    if thinks:
        body["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    _add_system(draw, body)
    for number in range(draw(st.integers(0, max_turns))):
        body["messages"].append({"role": "user", "content": _user_content(draw)})
        calls = draw(st.one_of(st.integers(0, 3), st.integers(0, max_calls))) if "tools" in body else 0
        thinking = _thinking(draw, body, sign) if thinks and sign is not None else []
        texts = [_text(draw)] if not calls or draw(st.booleans()) else []
        tool_calls = [_call(draw, body, f"toolu_{number}_{call}") for call in range(calls)]
        body["messages"].append({"role": "assistant", "content": [*thinking, *texts, *tool_calls]})
        if tool_calls:
            results = [_result(draw, call["id"]) for call in tool_calls]
            closing = [_text(draw)] if draw(st.booleans()) else []
            body["messages"].append({"role": "user", "content": [*results, *closing]})
            body["messages"].append(
                {"role": "assistant", "content": [*_optional_thinking(draw, body, thinks, sign), _text(draw)]}
            )
    body["messages"].append({"role": "user", "content": _user_content(draw)})
    if breakpoints:
        _add_breakpoints(draw, body)
    return body


def cacheable_blocks(body: Body) -> Iterator[Block]:
    """Yield the blocks that can have a cache breakpoint, in the provider's order."""
    yield from body.get("tools", ())
    system = body.get("system", ())
    yield from (block for block in system if isinstance(block, dict))
    for message in body["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] not in ("thinking", "redacted_thinking"):
                yield block


def _add_system(draw: st.DrawFn, body: Body) -> None:
    match draw(st.integers(0, 2)):
        case 1:
            body["system"] = draw(_TEXTS)
        case 2:
            body["system"] = [_text(draw) for _ in range(draw(st.integers(1, 3)))]


def _tool(draw: st.DrawFn, number: int) -> Block:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return {"name": f"tool_{number}", "description": draw(_TEXTS), "input_schema": schema}


def _user_content(draw: st.DrawFn) -> str | list[Block]:
    if draw(st.booleans()):
        return draw(_TEXTS)
    kinds = draw(st.lists(st.sampled_from((_text, _text, _image, _document)), min_size=1, max_size=3))
    return [kind(draw) for kind in kinds]


def _call(draw: st.DrawFn, body: Body, name: str) -> Block:
    tool = draw(st.sampled_from(body["tools"]))
    return {"type": "tool_use", "id": name, "name": tool["name"], "input": {"path": draw(st.text(max_size=8))}}


def _result(draw: st.DrawFn, call: str) -> Block:
    found: Block = {"type": "tool_result", "tool_use_id": call}
    match draw(st.integers(0, 3)):
        case 0:
            found["content"] = draw(_TEXTS)
        case 1:
            found["content"] = [_text(draw)]
        case 2:
            found |= {"content": "no such file", "is_error": True}
    return found


def _thinking(draw: st.DrawFn, body: Body, sign: Sign) -> list[Block]:
    thinking = draw(_TEXTS)
    return [{"type": "thinking", "thinking": thinking, "signature": sign(body, thinking)}]


def _optional_thinking(draw: st.DrawFn, body: Body, thinks: bool, sign: Sign | None) -> list[Block]:
    return _thinking(draw, body, sign) if thinks and sign is not None and draw(st.booleans()) else []


def _add_breakpoints(draw: st.DrawFn, body: Body) -> None:
    """Add up to four valid breakpoints: long-lived ones first, perhaps one on the whole request."""
    blocks = list(cacheable_blocks(body))
    count = draw(st.integers(0, min(MAX_BREAKPOINTS, len(blocks))))
    places = sorted(
        draw(st.lists(st.integers(0, len(blocks) - 1), min_size=count, max_size=count, unique=True))
        if blocks
        else []
    )
    long_lived = draw(st.integers(0, len(places)))
    for number, place in enumerate(places):
        lasting = {"ttl": "1h"} if number < long_lived else draw(st.sampled_from(({}, {"ttl": "5m"})))
        blocks[place]["cache_control"] = {"type": "ephemeral", **lasting}
    last = body["messages"][-1]["content"]
    own = last[-1].get("cache_control") if isinstance(last, list) else None
    if len(places) < MAX_BREAKPOINTS and draw(st.booleans()):
        body["cache_control"] = dict(own or {"type": "ephemeral"})
