"""Viewers of pages: an agent's key sees that agent; an admin key, or loopback, sees everything."""

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

_VIEWER_SCOPE_KEY = "foveate.viewer"


class Forbidden(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Viewer:
    """A viewer of pages. `agent` is the only agent that they may see; None sees everything."""

    agent: str | None

    @property
    def sees_everything(self) -> bool:
        return self.agent is None

    def can_see(self, agent: str) -> bool:
        return self.agent in (None, agent)

    def restrict(self, agent: str) -> str:
        """Return the agent to query for if the viewer asks for `agent`; empty means all agents.

        Raises:
            Forbidden: it is not the viewer's own agent.
        """
        if self.agent is None:
            return agent
        if agent and not self.can_see(agent):
            raise Forbidden(f"This gateway key may only see the agent {self.agent!r}.")
        return self.agent


ADMIN = Viewer(None)


def set_viewer(scope: MutableMapping[str, Any], viewer: Viewer) -> MutableMapping[str, Any]:
    return {**scope, _VIEWER_SCOPE_KEY: viewer}


def get_viewer(scope: MutableMapping[str, Any]) -> Viewer:
    """Return the viewer that the gateway set. Fails without one: then nobody has checked the key."""
    viewer = scope[_VIEWER_SCOPE_KEY]
    assert isinstance(viewer, Viewer)
    return viewer
