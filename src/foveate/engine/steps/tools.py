"""The step that keeps the tools of a session in the same order."""

from weakref import ref

from foveate import formats
from foveate.engine.request_context import RequestContext
from foveate.engine.session_state import SessionStates
from foveate.engine.steps import TOOLS
from foveate.formats.incremental.envelope import get_envelope
from foveate.model import Area
from foveate.prompt_cache.stable_order import ListedTool, ToolList
from foveate.session.counting import run_in_thread_if_large

# Parsing more tools takes milliseconds.
_THREAD_BYTES = 64 * 1024
_TOOL_LIST_KEY = object()


class OrderTools:
    name = TOOLS

    def __init__(self, session_states: SessionStates) -> None:
        self._session_states = session_states

    async def apply(self, context: RequestContext) -> None:
        """Restore the order of the session's first request."""
        if not context.options.prompt_cache or len(context.request.tools) < 2 or context.session.match is None:
            return
        envelope = get_envelope(context.request)
        if (
            envelope is not None
            and context.session.state.settled_envelope is not None
            and context.session.state.settled_envelope() is envelope
        ):
            return
        tool_list: ToolList | None = envelope.memo.get(_TOOL_LIST_KEY) if envelope is not None else None
        if tool_list is None:
            size_bytes = sum(map(len, context.request.tools))
            tool_list = await run_in_thread_if_large(
                lambda: _list_tools(context), size_bytes, min_bytes=_THREAD_BYTES
            )
            if envelope is not None:
                envelope.memo[_TOOL_LIST_KEY] = tool_list
        edit, orders = context.session.state.tools.stabilize(tool_list)
        settled_envelope = ref(envelope) if edit is None and envelope is not None else None
        context.session.state = context.session.state.with_tools(orders, settled_envelope)
        # The stored state may be newer: a compaction or another request may have changed it meanwhile.
        state = self._session_states.session(context.incoming.agent, context.session_id)
        self._session_states.put(
            context.incoming.agent, context.session_id, state.with_tools(orders, settled_envelope)
        )
        if edit is not None:
            await context.apply_edits(self.name, (edit,))


def _list_tools(context: RequestContext) -> ToolList:
    preamble = formats.preamble_blocks(context.request, formats.message_history(context.request))
    blocks = {block.place.index: block for block in preamble if block.place.area is Area.TOOLS}
    return ToolList.from_tools(
        [
            ListedTool(
                name=formats.parse_tool(context.request.format, raw).name,
                content=blocks[place].canonical_json if place in blocks else raw,
                breakpoint_ttl=blocks[place].breakpoint_ttl if place in blocks else None,
            )
            for place, raw in enumerate(context.request.tools)
        ]
    )
