"""The step that keeps a session from being refused for ever, since some of its thoughts do not fit any more."""

from foveate.engine.steps.names import THOUGHTS
from foveate.engine.work import Work
from foveate.fold.thoughts import left_to_provider, thoughtless
from foveate.session.counting import beside
from foveate.wire.large_json import LARGE_BYTES


class SpareThoughts:
    """Thoughts of a session of which some were refused are left out: once all else stands before them."""

    name = THOUGHTS

    async def take(self, work: Work) -> None:
        """By the provider, which knows which of them do not fit; where it cannot be asked to, all of them."""
        if work.state.has_bad_thoughts:
            request, model = work.request, work.model
            edits = await beside(
                lambda: left_to_provider(request, model) or thoughtless(request, model),
                len(request.body),
                least_bytes=LARGE_BYTES,
            )
            await work.edit(self.name, edits)
