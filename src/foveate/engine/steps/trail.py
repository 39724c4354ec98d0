"""The step that notes the messages of the request as it goes out, for traces."""

from foveate import wire
from foveate.engine.steps.names import TRAIL
from foveate.engine.work import Work


class SeeTrail:
    """The step that remembers the trail of what would go out, behind those that change it.

    It is at hand then, and takes long to find later.
    """

    name = TRAIL

    async def take(self, work: Work) -> None:
        """Remember it."""
        work.trail = wire.trail(work.request)
