"""Sessions in all API formats, long enough to be cached, and helpers that explain cache misses."""

import copy
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from foveate import formats
from foveate.model import CacheUsage
from foveate.prompt_cache.misses.explain import ExplainedMiss, NoMiss, explain_miss
from foveate.prompt_cache.misses.snapshot import RequestSnapshot, take_snapshot
from foveate.prompt_cache.prompt.build import block_tokens_for
from foveate.prompt_cache.rules import rules_for
from foveate.tokens import with_model

Body = dict[str, Any]
CACHE_CONTROL = {"type": "ephemeral"}
HANDBOOK = "\n".join(
    f"Rule {number}: the lamp of bay {number} is green when its vent is shut, and the log says who shut it."
    for number in range(90)
)
REPORT = " ".join(f"Bay {number} was dry and the vent stood open." for number in range(40))


def schema(*names: str) -> Body:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": [*names]}


TOOLS = {name: f"Does what {name} says." for name in ("read_sensor", "set_vent", "set_lamp", "read_log")}
CONVERSATION = [
    ("user", "Is it too warm for the orchids?"),
    ("assistant", "It is not."),
    ("user", "And how is the west bay? " + REPORT),
    ("assistant", "The west bay is dry."),
    ("user", "Shut its vent."),
    ("assistant", "It is shut."),
    ("user", "Thank you. What else? " + REPORT),
]


def claude() -> Body:
    """Return a request with breakpoints on the last tool, the system prompt and the last message."""
    tools = [{"name": n, "description": d, "input_schema": schema("bay", "what")} for n, d in TOOLS.items()]
    messages: list[Body] = [{"role": role, "content": text} for role, text in CONVERSATION]
    messages[3]["content"] = [
        {"type": "thinking", "thinking": "I should look.", "signature": "sealed"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "read_log", "input": {"bay": "west", "what": "all"}},
    ]
    messages[4]["content"] = [
        {"type": "tool_result", "tool_use_id": "t1", "content": REPORT},
        {"type": "text", "text": "Shut its vent."},
    ]
    tail = {"type": "text", "text": CONVERSATION[-1][1], "cache_control": CACHE_CONTROL}
    messages[-1]["content"] = [tail]
    system = [
        {"type": "text", "text": HANDBOOK, "cache_control": CACHE_CONTROL},
        {"type": "text", "text": "Be brief."},
    ]
    return {
        "model": "claude-sonnet-4-6",
        "max_tokens": 9,
        "tools": tools,
        "system": system,
        "messages": messages,
    }


def chat() -> Body:
    tools = [
        {"type": "function", "function": {"name": n, "description": d, "parameters": schema("bay", "what")}}
        for n, d in TOOLS.items()
    ]
    messages = [{"role": "system", "content": HANDBOOK}, *({"role": r, "content": t} for r, t in CONVERSATION)]
    return {"model": "gpt-4o", "tools": tools, "messages": messages}


def responses() -> Body:
    tools = [
        {"type": "function", "name": n, "description": d, "parameters": schema("bay", "what")}
        for n, d in TOOLS.items()
    ]
    items: list[Body] = [{"role": role, "content": text} for role, text in CONVERSATION]
    items.insert(3, {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"})
    return {"model": "gpt-5", "instructions": HANDBOOK, "tools": tools, "input": items}


def gemini() -> Body:
    tools = [{"name": n, "description": d, "parameters": schema("bay", "what")} for n, d in TOOLS.items()]
    roles = {"user": "user", "assistant": "model"}
    contents = [{"role": roles[role], "parts": [{"text": text}]} for role, text in CONVERSATION]
    return {
        "model": "models/gemini-2.5-pro",
        "systemInstruction": {"parts": [{"text": HANDBOOK}]},
        "tools": [{"functionDeclarations": tools}],
        "contents": contents,
    }


SESSIONS = {"anthropic": claude, "openai-chat": chat, "openai-responses": responses, "gemini": gemini}


def snapshot_of(body: Body, *, keep_contents: bool = True, model: str | None = None) -> RequestSnapshot:
    request = with_model(formats.parse_request(body), model)
    return take_snapshot(
        request, rules_for(request.model), block_tokens_for(request.model), keep_contents=keep_contents
    )


def explain(
    before: Body,
    after: Body,
    *,
    keep_contents: bool = True,
    model: str | None = None,
    gap_seconds: float | None = None,
    usage: CacheUsage | None = None,
    price_per_token: Decimal | None = None,
) -> ExplainedMiss | NoMiss:
    """Explain the difference between two consecutive requests."""
    earlier, later = (snapshot_of(body, keep_contents=keep_contents, model=model) for body in (before, after))
    rules = rules_for(later.prompt.model)
    return explain_miss(
        earlier, later, rules, gap_seconds=gap_seconds, usage=usage, price_per_token=price_per_token
    )


def explain_cache_miss(before: Body, after: Body, **options: Any) -> ExplainedMiss:
    """Return the only cache miss between two requests."""
    miss = explain(before, after, **options)
    assert isinstance(miss, ExplainedMiss), miss
    return miss


def next_turn(body: Body) -> Body:
    """Return the session one turn later; Anthropic breakpoints move to the new end."""
    later = copy.deepcopy(body)
    if "input" in later:
        later["input"] += [{"role": "assistant", "content": "It is on."}, {"role": "user", "content": "Good."}]
    elif "contents" in later:
        later["contents"] += [
            {"role": "model", "parts": [{"text": "It is on."}]},
            {"role": "user", "parts": [{"text": "Good."}]},
        ]
    else:
        last = later["messages"][-1]["content"]
        has_breakpoint = isinstance(last, list) and last[-1].pop("cache_control", None) is not None
        tail = [
            {"type": "text", "text": "Good.", **({"cache_control": CACHE_CONTROL} if has_breakpoint else {})}
        ]
        later["messages"] += [{"role": "assistant", "content": "It is on."}, {"role": "user", "content": tail}]
    return later


def change_next_turn(change: Callable[[Body], object], body: Body | None = None) -> Body:
    """Return the session one turn later, with a change."""
    session = next_turn(body or claude())
    change(session)
    return session
