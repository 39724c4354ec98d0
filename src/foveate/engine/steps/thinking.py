"""The step that keeps a session from being refused for ever, since some of its thoughts do not fit any more."""

from foveate.compaction.thinking import drop_all_thinking, let_provider_drop_thinking
from foveate.engine.context import RequestContext
from foveate.engine.steps.names import THINKING
from foveate.formats.json_text.large_json import LARGE_BYTES
from foveate.session.counting import run_in_thread_if_large


class DropInvalidThinking:
    """Thoughts of a session of which some were refused are left out: once all else stands before them."""

    name = THINKING

    async def apply(self, context: RequestContext) -> None:
        """By the provider, which knows which of them do not fit; where it cannot be asked to, all of them."""
        if context.session_state.has_invalid_thinking:
            request, model = context.request, context.model
            edits = await run_in_thread_if_large(
                lambda: let_provider_drop_thinking(request, model) or drop_all_thinking(request, model),
                len(request.body),
                min_bytes=LARGE_BYTES,
            )
            await context.apply_edits(self.name, edits)
