"""The step that drops thinking blocks that the provider rejects, so that the session can go on."""

from foveate.compaction.thinking import drop_all_thinking, let_provider_drop_thinking
from foveate.engine.context import RequestContext
from foveate.engine.steps.names import THINKING
from foveate.formats.json_text.large_json import LARGE_BYTES
from foveate.session.counting import run_in_thread_if_large


class DropInvalidThinking:
    """Drops thinking blocks of a session if some were rejected. Runs after all edits before them."""

    name = THINKING

    async def apply(self, context: RequestContext) -> None:
        """Ask the provider to drop those that do not fit; if it cannot be asked, drop all of them."""
        if context.session.state.has_invalid_thinking:
            request, model = context.request, context.model
            edits = await run_in_thread_if_large(
                lambda: let_provider_drop_thinking(request, model) or drop_all_thinking(request, model),
                len(request.body),
                min_bytes=LARGE_BYTES,
            )
            await context.apply_edits(self.name, edits)
