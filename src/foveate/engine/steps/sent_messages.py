"""The step that keeps the parsed messages of the request as sent, for traces."""

from foveate import formats
from foveate.engine.context import RequestContext
from foveate.engine.steps.names import SENT_MESSAGES


class KeepSentMessages:
    """Keeps the parsed messages once no step changes them: available now, expensive to find later."""

    name = SENT_MESSAGES

    async def apply(self, context: RequestContext) -> None:
        context.sent_history = formats.message_history(context.request)
