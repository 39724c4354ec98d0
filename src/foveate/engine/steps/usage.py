"""The step that requests the usage of streamed chat completions."""

from foveate.engine.request_context import RequestContext
from foveate.engine.steps import USAGE
from foveate.engine.steps.cache import RejectionMemory
from foveate.formats.incremental.envelope import get_parameters
from foveate.formats.json_text.parse import parse_json
from foveate.model import Format, SetParameter


class RequestUsage:
    """Requests usage: streamed chat completions report it only on request."""

    name = USAGE

    def __init__(self, rejections: RejectionMemory) -> None:
        self._rejections = rejections

    async def apply(self, context: RequestContext) -> None:
        if context.request.format is not Format.CHAT or not self._rejections.accepts_parameter(
            context, "stream_options"
        ):
            return
        parameters = get_parameters(context.request)
        if parse_json(parameters.get("stream")) is not True:
            return
        stream_options = parse_json(parameters.get("stream_options"))
        if isinstance(stream_options, dict) and stream_options.get("include_usage") is True:
            return
        if stream_options is not None and not isinstance(stream_options, dict):
            return  # invalid; the provider reports it
        context.cache.added_parameters += (
            SetParameter(
                path=("stream_options", "include_usage"),
                value=True,
                reason="requests the usage of a streamed response; the extra chunk is not sent to the client",
            ),
        )
