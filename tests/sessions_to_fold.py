"""Long conversations to be folded, and what a folder is told of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from foveate import wire
from foveate.fold.cuts import FoldOptions, Subject
from foveate.fold.journal import Fold
from foveate.fold.replacing import fold_of, folded_edits
from foveate.session.chain import chain_of
from foveate.tokens import counter_for
from foveate.values import Format, Request

MODEL = "claude-opus-5-5"
AGENT = "ana"
RULE = "Never push to the main branch."
TOOL = {
    "name": "read_file",
    "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
# Small enough for a short conversation to be a long one.
OPTIONS = FoldOptions(tail_keep_tokens=400)

Body = dict[str, Any]


def claude_body(steps: int, *, model: str = MODEL, marked: bool = True) -> Body:
    """Two questions, so many calls each with its result and a word on it, and another question."""
    messages = _asked()
    for step in range(steps):
        call = {"type": "tool_use", "id": f"toolu_{step}", "name": "read_file", "input": {"path": path(step)}}
        said = {"type": "text", "text": f"Step {step}: I look into {path(step)}."}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{step}", "content": _found(step)}
        messages += [{"role": "assistant", "content": [said, call]}, {"role": "user", "content": [result]}]
    messages.append({"role": "assistant", "content": "That was all of it."})
    last: Body = {"type": "text", "text": "Which one was it?"}
    if marked:
        last["cache_control"] = {"type": "ephemeral"}
    messages.append({"role": "user", "content": [last]})
    return {"model": model, "max_tokens": 2_000, "tools": [TOOL], "system": "Be brief.", "messages": messages}


def chat_body(steps: int, *, model: str = "gpt-4o") -> Body:
    """The same as a chat, streamed, as most clients ask for it."""
    messages: list[Body] = [{"role": "system", "content": "Be brief."}, *_asked()]
    for step in range(steps):
        arguments = f'{{"path": "{path(step)}"}}'
        call = {"id": f"call_{step}", "type": "function", "function": {"name": "read", "arguments": arguments}}
        messages += [
            {"role": "assistant", "content": f"Step {step}: I look into {path(step)}.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{step}", "content": _found(step)},
        ]
    messages += [
        {"role": "assistant", "content": "That was all of it."},
        {"role": "user", "content": "Which one was it?"},
    ]
    tool = {"type": "function", "function": {"name": "read", "parameters": TOOL["input_schema"]}}
    return {
        "model": model,
        "messages": messages,
        "tools": [tool],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def responses_body(steps: int, *, model: str = "gpt-5.2") -> Body:
    """The same as a Responses request, streamed, with reasoning items, as Codex sends it."""
    items: list[Body] = [{"role": "developer", "content": "Say which."}, *_asked()]
    for step in range(steps):
        items += [
            {"type": "reasoning", "id": f"rs_{step}", "summary": [], "encrypted_content": "gAAAA" * 20},
            {"role": "assistant", "content": f"Step {step}: I look into {path(step)}."},
            {
                "type": "function_call",
                "call_id": f"call_{step}",
                "name": "read",
                "arguments": f'{{"path": "{path(step)}"}}',
            },
            {"type": "function_call_output", "call_id": f"call_{step}", "output": _found(step)},
        ]
    items += [
        {"role": "assistant", "content": "That was all of it."},
        {"role": "user", "content": "Which one was it?"},
    ]
    return {
        "model": model,
        "instructions": "Be brief.",
        "input": items,
        "tools": [{"type": "function", "name": "read", "parameters": TOOL["input_schema"]}],
        "reasoning": {"effort": "medium"},
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "stream": True,
        "prompt_cache_key": "k",
    }


def _asked() -> list[Body]:
    return [
        {"role": "user", "content": f"Find the slow parser. {RULE}"},
        {"role": "assistant", "content": "Where shall I look for it?"},
        {"role": "user", "content": "In src/parsers, one part after the other."},
    ]


def path(step: int) -> str:
    return f"src/parsers/part_{step}.py"


def _found(step: int) -> str:
    return "\n".join(f"def parse_{step}_{line}(text): return text.split({line})" for line in range(12))


def subject_of(body: Body | bytes, folds: Sequence[Fold] = (), *, spoken: Format | None = None) -> Subject:
    """What a folder is told of a request whose window is so small that it is to be folded."""
    request = wire.read(body, spoken)
    chain = chain_of(request)
    sent = sent_after(request, folds)
    tokens = counter_for(request.model).request(sent).total.tokens
    return Subject(
        agent=AGENT,
        session_id="a session",
        request=request,
        chain=chain,
        sent=sent,
        sent_tokens=tokens,
        window_tokens=tokens + 100,
        output_reserve=0,
        earlier=fold_of(chain, folds),
    )


def sent_after(request: Request, folds: Sequence[Fold]) -> Request:
    """The request as it goes out."""
    return wire.read(wire.write(request, folded_edits(request, chain_of(request), folds)), request.format)


def must_fit(subject: Subject) -> Subject:
    return replace(subject, must_fit=True)
