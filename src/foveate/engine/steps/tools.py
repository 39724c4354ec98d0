"""The step that keeps the tools of a session in one order."""

from weakref import ref

from foveate import wire
from foveate.cache.tool_order import ListedTool, ToolList
from foveate.engine.remembered import Remembered
from foveate.engine.steps.names import TOOLS
from foveate.engine.work import Work
from foveate.session.counting import beside
from foveate.values import Area
from foveate.wire.around import around_of

# To read tools of this size takes milliseconds.
_MUCH_BYTES = 64 * 1024
_TOOL_LIST = object()


class OrderTools:
    """The same tools are sent in the same order."""

    name = TOOLS

    def __init__(self, remembered: Remembered) -> None:
        self._remembered = remembered

    async def take(self, work: Work) -> None:
        """Have them in the order that the session had first."""
        if not work.options.prompt_cache or len(work.request.tools) < 2 or work.found is None:
            return
        around = around_of(work.request)
        if around is not None and work.state.settled is not None and work.state.settled() is around:
            return
        listed: ToolList | None = around.known.get(_TOOL_LIST) if around is not None else None
        if listed is None:
            size_bytes = sum(map(len, work.request.tools))
            listed = await beside(lambda: _listed(work), size_bytes, least_bytes=_MUCH_BYTES)
            if around is not None:
                around.known[_TOOL_LIST] = listed
        edit, orders = work.state.tools.settled(listed)
        settled = ref(around) if edit is None and around is not None else None
        work.state = work.state.listed(orders, settled)
        self._remembered.put(work.incoming.agent, work.session_id, work.state)
        if edit is not None:
            await work.edit(self.name, (edit,))


def _listed(work: Work) -> ToolList:
    front = wire.front_blocks(work.request, wire.trail(work.request))
    blocks = {block.place.index: block for block in front if block.place.area is Area.TOOLS}
    return ToolList.of(
        [
            ListedTool(
                name=wire.tool(work.request.format, raw).name,
                said=blocks[place].said if place in blocks else raw,
                mark=blocks[place].mark if place in blocks else None,
            )
            for place, raw in enumerate(work.request.tools)
        ]
    )
