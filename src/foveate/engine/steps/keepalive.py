"""The step that cancels the planned keep-alive request of a session."""

from foveate.engine.background.keepalive import KeepAliveScheduler
from foveate.engine.context import RequestContext
from foveate.engine.steps.names import KEEP_ALIVE


class CancelKeepAlive:
    name = KEEP_ALIVE

    def __init__(self, keep_alive: KeepAliveScheduler) -> None:
        self._keep_alive = keep_alive

    async def apply(self, context: RequestContext) -> None:
        """Cancel what is planned. This is the last step: a request that passes it is sent, and will be
        finished.
        """
        if context.options.sends_keep_alive:
            self._keep_alive.cancel_planned(context)
