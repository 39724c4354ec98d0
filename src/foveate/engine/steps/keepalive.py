"""The step that cancels the keep-alive request of a session while a request of it is under way."""

from foveate.engine.pinging import Pings
from foveate.engine.steps.names import PINGS
from foveate.engine.work import Work


class HoldPings:
    """No ping is sent while a request of its session is under way."""

    name = PINGS

    def __init__(self, pings: Pings) -> None:
        self._pings = pings

    async def take(self, work: Work) -> None:
        """Take back what was planned. This is the last step: whatever passes it is sent, and has an end."""
        if work.options.sends_pings:
            self._pings.came(work)
