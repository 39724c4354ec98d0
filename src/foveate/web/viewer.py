"""The one rule about who sees what: a key sees its own agent; an admin key, or loopback, sees everything."""

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

_VIEWER_SCOPE_KEY = "foveate.viewer"


class Forbidden(Exception):
    """The viewer may not see this."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Whoever looks at a page. `agent` is the only agent that they may see; None may see everything."""

    agent: str | None

    @property
    def sees_everything(self) -> bool:
        """Whether the viewer is an administrator."""
        return self.agent is None

    def can_see(self, agent: str) -> bool:
        """Whether the viewer may see data of an agent."""
        return self.agent in (None, agent)

    def restrict(self, agent: str) -> str:
        """The agent to query for if the viewer asks for `agent`; empty means all agents.

        Raises:
            Forbidden: it is another agent than the viewer's own.
        """
        if self.agent is None:
            return agent
        if agent and not self.can_see(agent):
            raise Forbidden(f"this gateway key sees the agent {self.agent!r} and no other")
        return self.agent


ADMIN = Viewer(None)


def set_viewer(scope: MutableMapping[str, Any], viewer: Viewer) -> MutableMapping[str, Any]:
    """Return an ASGI scope that says who looks."""
    return {**scope, _VIEWER_SCOPE_KEY: viewer}


def get_viewer(scope: MutableMapping[str, Any]) -> Viewer:
    """Who looks, as the gateway has set it. Without a viewer this fails: nobody has checked the key."""
    viewer = scope[_VIEWER_SCOPE_KEY]
    assert isinstance(viewer, Viewer)
    return viewer
