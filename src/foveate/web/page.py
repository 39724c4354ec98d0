"""Requests for pages, and the pages that are rendered for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from foveate.errors import BadOption
from foveate.web.viewer import Viewer

# No page uses more or longer parameters.
_MAX_PARAMETERS, _MAX_PARAMETER_CHARS = 10, 20


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
