"""The protocol of a step."""

from typing import Protocol

from foveate.engine.work import Work


class Step(Protocol):
    """One thing that is done with every request."""

    name: str

    async def take(self, work: Work) -> None:
        """Do it, as far as it applies."""
