"""Random valid requests with turns of many steps, parallel calls and thinking."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from foveate import formats
from foveate.compaction.boundary import TurnStructure
from foveate.compaction.store import Compaction
from foveate.model import Request
from foveate.session.hash_chain import compute_chain
from tests.support.stores import records
from tests.support.strategies.claude_requests import sign_as_sandbox

Body = dict[str, Any]

# Models that bind thinking to the content before it, and models that do not.
CLAUDES = ("claude-opus-5-5", "claude-fable-5-1", "claude-sonnet-4-5", "claude-opus-4-6", "claude-opus-4-8")
_SYSTEM_MESSAGE_MODELS = ("claude-opus-5-5", "claude-fable-5-1", "claude-opus-4-8")
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_WORDS = st.sampled_from(("Read it.", "東京", "x = 1\n" * 40, "a 👩‍👩‍👧 b", "never touch /etc/hosts"))
_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


@st.composite
def claude_tool_loops(draw: st.DrawFn) -> Body:
    """A request to Claude that ends with a question, or within a turn, with results."""
    body: Body = {
        "model": draw(st.sampled_from(CLAUDES)),
        "max_tokens": 4096,
        "tools": [{"name": "read", "description": "Reads.", "input_schema": _SCHEMA}],
        "messages": [],
    }
    thinking = draw(st.sampled_from(("", "enabled", "adaptive", "off")))
    if thinking == "enabled":
        body["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    elif thinking == "adaptive":
        body["thinking"] = {"type": "adaptive"}
    turns = draw(st.integers(1, 3))
    for turn in range(turns):
        body["messages"] += _questions(draw)
        _add_system_message(draw, body)
        for step in range(draw(st.integers(0, 5))):
            _claude_step(draw, body, f"t{turn}_{step}", thinks=bool(thinking))
            _add_system_message(draw, body)
        if turn < turns - 1:
            thinking_blocks = _thinking_blocks(draw, body) if thinking else []
            body["messages"].append({"role": "assistant", "content": [*thinking_blocks, _text(draw)]})
            _set_effort(draw, body)
    return body


def _add_system_message(draw: st.DrawFn, body: Body) -> None:
    """Perhaps add one or two system messages, if the model accepts them and responds next."""
    if body["model"] in _SYSTEM_MESSAGE_MODELS and draw(st.integers(0, 4)) == 0:
        message = draw(st.lists(_WORDS, min_size=1, max_size=2))
        body["messages"] += [{"role": "system", "content": words} for words in message]
        _set_effort(draw, body)


def _set_effort(draw: st.DrawFn, body: Body) -> None:
    """Perhaps add an empty system message, which is valid anywhere."""
    if body["model"] in _SYSTEM_MESSAGE_MODELS and draw(st.integers(0, 4)) == 0:
        body["messages"].append({"role": "system", "content": [], "output_config": {"effort": "low"}})


def _questions(draw: st.DrawFn) -> list[Body]:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PIXEL}}
    requested = draw(st.lists(st.sampled_from(("words", "words", "blocks", "image")), min_size=1, max_size=2))
    made: dict[str, Any] = {"words": draw(_WORDS), "blocks": [_text(draw)], "image": [image, _text(draw)]}
    return [{"role": "user", "content": made[kind]} for kind in requested]


def _claude_step(draw: st.DrawFn, body: Body, name: str, *, thinks: bool) -> None:
    ids = [f"toolu_{name}_{number}" for number in range(draw(st.integers(1, 3)))]
    thinking_blocks = _thinking_blocks(draw, body) if thinks else []
    text_blocks = [_text(draw)] if draw(st.booleans()) else []
    calls = [{"type": "tool_use", "id": call_id, "name": "read", "input": {"path": "/a"}} for call_id in ids]
    body["messages"].append({"role": "assistant", "content": [*thinking_blocks, *text_blocks, *calls]})
    results = [_result(draw, call_id) for call_id in ids]
    at = draw(st.integers(0, len(results)))
    closing = [_text(draw)] if draw(st.integers(0, 3)) == 0 else []
    for some in filter(None, (results[:at], [*results[at:], *closing])):
        body["messages"].append({"role": "user", "content": some})


def _result(draw: st.DrawFn, call_id: str) -> Body:
    result: Body = {"type": "tool_result", "tool_use_id": call_id}
    match draw(st.integers(0, 3)):
        case 0:
            result["content"] = draw(_WORDS)
        case 1:
            result["content"] = [_text(draw)]
        case 2:
            result |= {"content": "no such file", "is_error": True}
    return result


def _thinking_blocks(draw: st.DrawFn, body: Body) -> list[Body]:
    if draw(st.integers(0, 5)) == 0:
        return [{"type": "redacted_thinking", "data": sign_as_sandbox(body, "")}]
    message = draw(_WORDS)
    return [{"type": "thinking", "thinking": message, "signature": sign_as_sandbox(body, message)}]


def _text(draw: st.DrawFn) -> Body:
    return {"type": "text", "text": draw(_WORDS)}


@st.composite
def chat_requests(draw: st.DrawFn) -> Body:
    """A chat completion with parallel calls, and system messages anywhere between turns."""
    messages: list[Body] = []
    if draw(st.booleans()):
        messages.append({"role": draw(st.sampled_from(("system", "developer"))), "content": "Be brief."})
    turns = draw(st.integers(1, 4))
    for turn in range(turns):
        messages += [{"role": "user", "content": draw(_WORDS)} for _ in range(draw(st.integers(1, 2)))]
        for step in range(draw(st.integers(0, 4))):
            ids = [f"call_{turn}_{step}_{number}" for number in range(draw(st.integers(1, 3)))]
            calls = [
                {"id": given, "type": "function", "function": {"name": "read", "arguments": "{}"}}
                for given in ids
            ]
            message = draw(st.sampled_from((None, "Let me see.")))
            messages.append({"role": "assistant", "content": message, "tool_calls": calls})
            messages += [
                {"role": "tool", "tool_call_id": given, "content": draw(_WORDS)} for given in reversed(ids)
            ]
            if draw(st.integers(0, 4)) == 0:
                messages.append({"role": "system", "content": "It is noon."})
        if turn < turns - 1:
            messages.append({"role": "assistant", "content": draw(_WORDS)})
    return {"model": "gpt-4.1", "messages": messages}


@st.composite
def responses_requests(draw: st.DrawFn) -> Body:
    """A Responses request, with reasoning items before the calls that they led to."""
    items: list[Body] = []
    turns = draw(st.integers(1, 3))
    for turn in range(turns):
        items.append({"role": "user", "content": draw(_WORDS)})
        for step in range(draw(st.integers(0, 4))):
            ids = [f"call_{turn}_{step}_{number}" for number in range(draw(st.integers(1, 3)))]
            if draw(st.booleans()):
                items.append({"type": "reasoning", "id": f"rs_{turn}_{step}", "summary": []})
            items += [
                {"type": "function_call", "call_id": name, "name": "read", "arguments": "{}"} for name in ids
            ]
            items += [{"type": "function_call_output", "call_id": name, "output": draw(_WORDS)} for name in ids]
        if turn < turns - 1:
            content = [{"type": "output_text", "text": draw(_WORDS)}]
            items.append({"type": "message", "role": "assistant", "content": content})
    return {"model": "gpt-5", "input": items}


def any_requests() -> st.SearchStrategy[Body]:
    return st.one_of(claude_tool_loops(), chat_requests(), responses_requests())


def claude_turn(model: str, thinking: Body | None, *, steps: int = 2) -> Body:
    """One question to Claude and some steps, each with thinking that is bound to the content before it."""
    body: Body = {"model": model, "max_tokens": 4096, "messages": [{"role": "user", "content": "Q"}]}
    if thinking:
        body["thinking"] = thinking
    for number in range(steps):
        add_thinking_step(body, number)
    return body


def add_thinking_step(body: Body, number: int) -> None:
    """Append a step with thinking that is bound to the content before it."""
    thinking = {"type": "thinking", "thinking": "hm", "signature": sign_as_sandbox(body, "hm")}
    call = {"type": "tool_use", "id": f"t{number}", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "done"}
    body["messages"] += [
        {"role": "assistant", "content": [thinking, call]},
        {"role": "user", "content": [result]},
    ]


COMPACTION = replace(
    records.COMPACTION,
    summary="The user wants a parser.",
    carried=(),
    tokens_before=900,
    tokens_after=100,
    compacted_at=1.0,
)


def make_compaction_at(request: Request, cut: int, **changes: Any) -> Compaction:
    """Build a compaction of the first `cut` messages of a request."""
    chain = compute_chain(request)
    position = cut - chain.leading_system_messages
    return replace(
        COMPACTION, boundary=chain.hashes[position - 1], messages=position, seen_messages=len(chain), **changes
    )


def find_cuts(request: Request) -> list[int]:
    """Return all positions at which the head can be compacted."""
    history = TurnStructure([formats.parse_message(request.format, raw) for raw in request.messages])
    return [cut for cut in history.cut_points() if history.replaced_messages(cut)]
