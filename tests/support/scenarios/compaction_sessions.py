"""Long conversations to compact, in several API formats."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from foveate import formats
from foveate.compaction.apply import build_compaction_edits, find_active_compaction
from foveate.compaction.plan import CompactionCandidate, CompactionOptions
from foveate.compaction.store import Compaction
from foveate.model import Format, Request
from foveate.session.hash_chain import compute_chain
from foveate.tokens import counter_for

MODEL = "claude-opus-5-5"
AGENT = "ana"
RULE = "Never push to the main branch."
TOOL = {
    "name": "read_file",
    "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
# So small that short conversations count as long.
OPTIONS = CompactionOptions(tail_keep_tokens=400)

Body = dict[str, Any]


def claude_body(steps: int, *, model: str = MODEL, has_breakpoint: bool = True) -> Body:
    """Two questions, `steps` tool calls with results and comments, and another question."""
    messages = _opening_messages()
    for step in range(steps):
        call = {
            "type": "tool_use",
            "id": f"toolu_{step}",
            "name": "read_file",
            "input": {"path": source_path(step)},
        }
        text = {"type": "text", "text": f"Step {step}: I look into {source_path(step)}."}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{step}", "content": _file_text(step)}
        messages += [{"role": "assistant", "content": [text, call]}, {"role": "user", "content": [result]}]
    messages.append({"role": "assistant", "content": "That was all of it."})
    last: Body = {"type": "text", "text": "Which one was it?"}
    if has_breakpoint:
        last["cache_control"] = {"type": "ephemeral"}
    messages.append({"role": "user", "content": [last]})
    return {"model": model, "max_tokens": 2_000, "tools": [TOOL], "system": "Be brief.", "messages": messages}


def chat_body(steps: int, *, model: str = "gpt-4o") -> Body:
    """The same conversation as a streamed chat request."""
    messages: list[Body] = [{"role": "system", "content": "Be brief."}, *_opening_messages()]
    for step in range(steps):
        arguments = f'{{"path": "{source_path(step)}"}}'
        call = {"id": f"call_{step}", "type": "function", "function": {"name": "read", "arguments": arguments}}
        messages += [
            {
                "role": "assistant",
                "content": f"Step {step}: I look into {source_path(step)}.",
                "tool_calls": [call],
            },
            {"role": "tool", "tool_call_id": f"call_{step}", "content": _file_text(step)},
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
    """The same conversation as a streamed Responses request with reasoning items, as Codex sends it."""
    items: list[Body] = [{"role": "developer", "content": "Say which."}, *_opening_messages()]
    for step in range(steps):
        items += [
            {"type": "reasoning", "id": f"rs_{step}", "summary": [], "encrypted_content": "gAAAA" * 20},
            {"role": "assistant", "content": f"Step {step}: I look into {source_path(step)}."},
            {
                "type": "function_call",
                "call_id": f"call_{step}",
                "name": "read",
                "arguments": f'{{"path": "{source_path(step)}"}}',
            },
            {"type": "function_call_output", "call_id": f"call_{step}", "output": _file_text(step)},
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


def _opening_messages() -> list[Body]:
    return [
        {"role": "user", "content": f"Find the slow parser. {RULE}"},
        {"role": "assistant", "content": "Where shall I look for it?"},
        {"role": "user", "content": "In src/parsers, one part after the other."},
    ]


def source_path(step: int) -> str:
    return f"src/parsers/part_{step}.py"


def _file_text(step: int) -> str:
    return "\n".join(f"def parse_{step}_{line}(text): return text.split({line})" for line in range(12))


def make_subject(
    body: Body | bytes, compactions: Sequence[Compaction] = (), *, api_format: Format | None = None
) -> CompactionCandidate:
    """Describe a request whose window is so small that it must be compacted."""
    request = formats.parse_request(body, api_format)
    chain = compute_chain(request)
    compacted = apply_compactions(request, compactions)
    tokens = counter_for(request.model).count_request(compacted).total.tokens
    return CompactionCandidate(
        agent=AGENT,
        session_id="a session",
        original=request,
        chain=chain,
        sent_request=compacted,
        sent_tokens=tokens,
        window_tokens=tokens + 100,
        output_reserve=0,
        earlier_compaction=find_active_compaction(chain, compactions),
    )


def apply_compactions(request: Request, compactions: Sequence[Compaction]) -> Request:
    return formats.parse_request(
        formats.apply_edits(request, build_compaction_edits(request, compute_chain(request), compactions)),
        request.format,
    )


def require_fit(subject: CompactionCandidate) -> CompactionCandidate:
    return replace(subject, must_fit=True)
