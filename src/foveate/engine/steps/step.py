"""The protocol of a step."""

from typing import Protocol

from foveate.engine.work import RequestContext


class Step(Protocol):
    """One thing that is done with every request."""

    name: str

    async def apply(self, context: RequestContext) -> None:
        """Do it, as far as it applies."""
