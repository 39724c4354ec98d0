"""Cache breakpoints: large new requests are read in a thread."""

import json
from typing import Any

import pytest

from foveate import formats
from foveate.engine.options import AgentOptions
from foveate.engine.request import IncomingRequest
from foveate.engine.request_context import RequestContext
from foveate.engine.session_state import SessionStates
from foveate.engine.steps.cache import PlaceBreakpoints, PrefixLogs, RejectionMemory
from foveate.engine.steps.tools import OrderTools
from foveate.model import Format
from foveate.prompt_cache.rejections import Rejection
from foveate.session.matching import SessionMatch
from foveate.session.store import Session
from foveate.tokens import drop_caches
from tests.support.oracles.event_loop import turns_while


def make_context(fields: dict[str, Any]) -> RequestContext:
    body = json.dumps({"model": "claude-opus-4-5", "max_tokens": 9, **fields}).encode()
    request = formats.parse_request(body, Format.ANTHROPIC)
    incoming = IncomingRequest(
        id="r", agent="ana", api_format=Format.ANTHROPIC, provider="anthropic", upstream="a", body=body
    )
    return RequestContext(
        incoming=incoming, options=AgentOptions(), received_at=1.0, original=request, request=request
    )


def make_large_body(messages: int, tools: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"path": {"type": "string", "description": "which file"}}}
    roles = ("user", "assistant")
    return {
        "messages": [{"role": roles[number % 2], "content": f"{number}"} for number in range(messages)],
        "tools": [
            {"name": f"t{number}", "description": "It reads. " * 20, "input_schema": schema}
            for number in range(tools)
        ],
    }


@pytest.mark.parametrize(("tools", "is_in_thread"), [(20, False), (300, True)])
async def test_many_tools_are_parsed_in_a_thread(tools: int, is_in_thread: bool) -> None:
    """Defect: ordering hundreds of tools blocked all other requests."""
    context = make_context(make_large_body(1, tools))
    session = Session(id="s", agent="ana", tip=b"", messages=1, created_at=0.0, seen_at=0.0)
    context.session.match = SessionMatch(session=session, known_messages=0, is_new=True, is_fork=False)

    assert (await turns_while(OrderTools(SessionStates()).apply(context)) > 0) == is_in_thread


@pytest.mark.parametrize(
    ("messages", "tools", "is_in_thread"), [(21, 3, False), (501, 3, True), (1, 100, True)]
)
async def test_many_new_messages_or_tools_are_read_in_a_thread(
    messages: int, tools: int, is_in_thread: bool
) -> None:
    """Defect: thousands of short messages, or hundreds of tools, blocked all other requests."""
    step = PlaceBreakpoints(SessionStates(), RejectionMemory(), PrefixLogs())
    drop_caches()
    first, second = (make_context(make_large_body(messages, tools)) for _ in range(2))

    assert (await turns_while(step.apply(first)) > 0) == is_in_thread
    assert await turns_while(step.apply(second)) == 0  # nothing is new
    assert second.cache.prompt == first.cache.prompt


@pytest.mark.parametrize("is_rejected", [False, True])
async def test_client_breakpoints_are_replaced_only_if_ours_are_accepted(is_rejected: bool) -> None:
    block = {"type": "text", "text": "Be careful. " * 4_000, "cache_control": {"type": "ephemeral"}}
    context = make_context({"system": [block], "messages": [{"role": "user", "content": "Go on."}]})
    context.options = AgentOptions(replace_breakpoints=True)
    rejections = RejectionMemory()
    if is_rejected:
        rejections.known = rejections.known.with_rejection(
            Rejection.BREAKPOINTS, "a", context.model, session="r", at=0.0
        )

    await PlaceBreakpoints(SessionStates(), rejections, PrefixLogs()).apply(context)

    assert (context.request is context.original) == is_rejected
