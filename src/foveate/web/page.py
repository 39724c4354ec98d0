"""Pages: the data that they can read, the requests for them, and their viewers."""

import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlencode

from foveate.config.effective_settings import EffectiveSetting
from foveate.config.settings import Settings
from foveate.cost.caps import Cap
from foveate.engine.metrics.registry import Sample
from foveate.engine.options import AgentOptions, SectionOptions
from foveate.engine.sections.sources import SectionSources
from foveate.errors import BadOption, FoveateError
from foveate.store import Store

_VIEWER_SCOPE_KEY = "foveate.viewer"
# No page uses more or longer parameters.
_MAX_PARAMETERS, _MAX_PARAMETER_CHARS = 10, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSnapshot:
    """The configuration in force.

    `changes` counts reloads since the start. `waiting` maps settings that take effect at the next start to the
    values used until then.
    """

    path: Path | None
    since: float
    changes: int
    problem: FoveateError | None
    settings: Settings
    options: Callable[[str], AgentOptions]
    caps: Sequence[Cap]
    waiting: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayData:
    """Everything that pages can read.

    `sources` are the memories and workspaces of sections. `effective_settings` lists every setting with its
    source, `samples` all metrics, and `health` is the body of `/health`.
    """

    version: str
    store: Store
    sources: SectionSources
    current_config: Callable[[], ConfigSnapshot]
    effective_settings: Callable[[], Awaitable[Sequence[EffectiveSetting]]]
    samples: Callable[[], Sequence[Sample]]
    health: Callable[[], Awaitable[Mapping[str, Any]]]
    is_shutting_down: Callable[[], bool] = field(default=lambda: False)
    clock: Callable[[], float] = time.time


class Forbidden(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Viewer:
    """A viewer of pages: an agent's key sees that agent; an admin key, or loopback, sees everything.

    `agent` is the only agent that they may see; None sees everything.
    """

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

    def hide_paths(self, text: str, options: SectionOptions | None) -> str:
        """Shorten the paths of an agent's files to their names: only administrators see where files are."""
        if self.sees_everything or options is None:
            return text
        for path in sorted(_list_paths(options), key=len, reverse=True):
            text = text.replace(path, PurePath(path).name or "…")
        return text


def _list_paths(options: SectionOptions) -> list[str]:
    return [
        *([options.workspace.root] if options.workspace is not None else []),
        *([options.skills] if options.skills is not None else []),
        *(options.memory.paths if options.memory is not None else []),
        *options.logs,
    ]


ADMIN = Viewer(None)


def set_viewer(scope: MutableMapping[str, Any], viewer: Viewer) -> MutableMapping[str, Any]:
    return {**scope, _VIEWER_SCOPE_KEY: viewer}


def get_viewer(scope: MutableMapping[str, Any]) -> Viewer:
    """Return the viewer that the gateway set. Fails without one: then nobody has checked the key."""
    viewer = scope[_VIEWER_SCOPE_KEY]
    assert isinstance(viewer, Viewer)
    return viewer


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """Path parameters (`/-/sessions/{id}`) and query of a request for a page.

    `gateway_url` is the gateway's address as the viewer knows it.
    """

    viewer: Viewer
    path_parameters: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    gateway_url: str = ""

    def text(self, name: str, *, max_chars: int = 500) -> str:
        """Return a query parameter without surrounding blanks; empty if it is missing."""
        return self.query.get(name, "").strip()[:max_chars]

    def agent(self) -> str:
        """Return the agent that the page is about; empty for all agents.

        Raises:
            Forbidden: the viewer may not see that agent.
        """
        return self.viewer.restrict(self.text("agent"))

    def number(self, name: str, default: int, *, min_value: int, max_value: int) -> int:
        """Return an integer of the query.

        Raises:
            BadOption: it is not an integer, or out of range.
        """
        text = self.text(name)
        if not text:
            return default
        if not text.isdecimal() or not min_value <= int(text) <= max_value:
            raise BadOption(f"{name} must be a whole number from {min_value} to {max_value}, not {text[:40]!r}")
        return int(text)

    def choice(self, name: str, default: str, choices: Mapping[str, Any] | frozenset[str]) -> str:
        """Return a query parameter that is one of `choices`.

        Raises:
            BadOption: it is none of them.
        """
        text = self.text(name) or default
        if text not in choices:
            raise BadOption(f"{name} must be one of {', '.join(sorted(choices))}, not {text[:40]!r}")
        return text

    def link(self, **changes: object) -> str:
        """Return the URL of the same page with changed query parameters; empty ones are left out."""
        # Only what a page reads, since hundreds of links may repeat it.
        parameters = {
            name: self.text(name)
            for name in list(self.query)[:_MAX_PARAMETERS]
            if len(name) <= _MAX_PARAMETER_CHARS
        }
        query = {name: str(value) for name, value in {**parameters, **changes}.items()}
        return f"?{urlencode({name: value for name, value in query.items() if value}, errors='replace')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPage:
    """A page: its template, its title and the template's context.

    `watched_session_id` is the session whose changes it shows; None for all changes. A page that is not
    `is_live` is not updated.
    """

    template: str
    title: str
    context: Mapping[str, Any]
    status: int = 200
    watched_session_id: str | None = None
    is_live: bool = True


class PageNotFound(Exception):
    """The page, or what it would show, does not exist."""
