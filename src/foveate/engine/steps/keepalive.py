"""The step that cancels the keep-alive request of a session while a request of it is under way."""

from foveate.engine.background.keepalive import KeepAliveScheduler
from foveate.engine.context import RequestContext
from foveate.engine.steps.names import KEEP_ALIVE


class CancelKeepAlive:
    """No ping is sent while a request of its session is under way."""

    name = KEEP_ALIVE

    def __init__(self, keep_alive: KeepAliveScheduler) -> None:
        self._keep_alive = keep_alive

    async def apply(self, context: RequestContext) -> None:
        """Take back what was planned. This is the last step: whatever passes it is sent, and has an end."""
        if context.options.sends_keep_alive:
            self._keep_alive.cancel_planned(context)
