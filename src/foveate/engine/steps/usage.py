"""The step that asks for the usage of streamed chat completions."""

from foveate.engine.steps.cache import RefusalsHeld
from foveate.engine.steps.names import USAGE
from foveate.engine.work import Work
from foveate.values import Format, SetParameter
from foveate.wire.around import parameters_of
from foveate.wire.body import value


class AskForUsage:
    """A streamed chat tells its bill only where it is asked to."""

    name = USAGE

    def __init__(self, refusals: RefusalsHeld) -> None:
        self._refusals = refusals

    async def take(self, work: Work) -> None:
        """Ask, where the client has not."""
        if work.request.format is not Format.CHAT or not self._refusals.take_parameter(work, "stream_options"):
            return
        found = parameters_of(work.request)
        if value(found.get("stream")) is not True:
            return
        asked = value(found.get("stream_options"))
        if isinstance(asked, dict) and asked.get("include_usage") is True:
            return
        if asked is not None and not isinstance(asked, dict):
            return  # nothing can be set in it, and the provider says so
        work.parameters += (
            SetParameter(
                path=("stream_options", "include_usage"),
                value=True,
                reason="a streamed chat is billed in silence unless it is asked; the extra chunk is taken out",
            ),
        )
