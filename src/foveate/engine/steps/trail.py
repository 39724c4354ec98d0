"""The step that notes the messages of the request as it goes out, for traces."""

from foveate import formats
from foveate.engine.context import RequestContext
from foveate.engine.steps.names import TRAIL


class NoteTrail:
    """The step that remembers the trail of what would go out, behind those that change it.

    It is at hand then, and takes long to find later.
    """

    name = TRAIL

    async def apply(self, context: RequestContext) -> None:
        """Remember it."""
        context.trail = formats.message_history(context.request)
