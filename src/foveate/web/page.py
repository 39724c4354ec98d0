"""What a browser asks of a page, and what a page answers with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from foveate.errors import BadOption
from foveate.web.viewer import Viewer

# No page asks for more.
_MAX_PARAMETERS, _MAX_PARAMETER_CHARS = 10, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """The names in a page's path (`/-/sessions/{id}`) and what its query says.

    `viewer` is who asks. `address` is that of the gateway, as whoever asks knows it.
    """

    viewer: Viewer
    path_parameters: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    gateway_url: str = ""

    def text(self, name: str, *, max_chars: int = 500) -> str:
        """What the query says of a name, without blanks around it; empty where it says nothing."""
        return self.query.get(name, "").strip()[:max_chars]

    def agent(self) -> str:
        """The agent that the page is about; empty for all of them.

        Raises:
            Forbidden: the viewer may not see that agent.
        """
        return self.viewer.restrict(self.text("agent"))

    def number(self, name: str, default: int, *, min_value: int, max_value: int) -> int:
        """A whole number of the query.

        Raises:
            BadOption: it is none, or not between `least` and `most`.
        """
        text = self.text(name)
        if not text:
            return default
        if not text.isdecimal() or not min_value <= int(text) <= max_value:
            raise BadOption(f"{name}: a whole number from {min_value} to {max_value}, not {text[:40]!r}")
        return int(text)

    def choice(self, name: str, default: str, choices: Mapping[str, Any] | frozenset[str]) -> str:
        """One of a few words of the query.

        Raises:
            BadOption: it is none of them.
        """
        text = self.text(name) or default
        if text not in choices:
            raise BadOption(f"{name}: one of {', '.join(sorted(choices))}, not {text[:40]!r}")
        return text

    def link(self, **changes: object) -> str:
        """The address of the same page with something else in its query; what is empty is left out."""
        # Only as far as a page reads it: hundreds of links may repeat it, however long it is.
        parameters = {
            name: self.text(name)
            for name in list(self.query)[:_MAX_PARAMETERS]
            if len(name) <= _MAX_PARAMETER_CHARS
        }
        query = {name: str(value) for name, value in {**parameters, **changes}.items()}
        return f"?{urlencode({name: value for name, value in query.items() if value}, errors='replace')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPage:
    """A page to be shown: its template, its title, and what the template is given.

    `watches` is the session whose changes it shows; None: all changes. One that is not `live` is shown once.
    """

    template: str
    title: str
    context: Mapping[str, Any]
    status: int = 200
    watches: str | None = None
    live: bool = True


class PageNotFound(Exception):
    """There is no such page, or nothing that it could show."""
