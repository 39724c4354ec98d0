"""Ordering tools changes nothing else in the state of a session."""

import msgspec

from foveate import formats
from foveate.engine.options import AgentOptions
from foveate.engine.request import IncomingRequest
from foveate.engine.request_context import RequestContext
from foveate.engine.session_state import SessionProgress, SessionStates
from foveate.engine.steps.tools import OrderTools
from foveate.model import Format
from foveate.session.matching import SessionMatch
from foveate.session.store import Session


async def test_what_an_edit_of_the_history_cost_is_still_known_after_the_tools_are_ordered() -> None:
    """Defect: the state from the start of the request replaced what a compaction had noted since."""
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("read", "write")]
    body = msgspec.json.encode(
        {"model": "claude-opus-4-5", "tools": tools, "messages": [{"role": "user", "content": "Go on."}]}
    )
    request = formats.parse_request(body, Format.ANTHROPIC)
    incoming = IncomingRequest(
        id="r", agent="ana", api_format=Format.ANTHROPIC, provider="anthropic", upstream="anthropic", body=body
    )
    context = RequestContext(
        incoming=incoming, options=AgentOptions(), received_at=1.0, original=request, request=request
    )
    session = Session(id="s", agent="ana", tip=b"", messages=1, created_at=0.0, seen_at=0.0)
    context.session.match = SessionMatch(session=session, known_messages=0, is_new=True, is_fork=False)
    states, progress = SessionStates(), SessionProgress(compacted_tokens=9_000, saved_dollars=-0.2)
    states.put("ana", "s", msgspec.structs.replace(context.session.state, progress=progress))

    await OrderTools(states).apply(context)

    assert states.session("ana", "s").progress == progress
    assert states.session("ana", "s").tools == context.session.state.tools
