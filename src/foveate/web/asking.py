"""What a browser asks of a page, and what a page answers with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from foveate.errors import BadOption
from foveate.web.viewer import Viewer

# No page asks for more.
_MOST_NAMES, _LONGEST_NAME = 10, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The names in a page's path (`/-/sessions/{id}`) and what its query says.

    `viewer` is who asks. `address` is that of the gateway, as whoever asks knows it.
    """

    viewer: Viewer
    names: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    address: str = ""

    def text(self, name: str, *, longest: int = 500) -> str:
        """What the query says of a name, without blanks around it; empty where it says nothing."""
        return self.query.get(name, "").strip()[:longest]

    def agent(self) -> str:
        """The agent that the page is about; empty for all of them.

        Raises:
            Forbidden: the viewer may not see that agent.
        """
        return self.viewer.restrict(self.text("agent"))

    def number(self, name: str, default: int, *, least: int, most: int) -> int:
        """A whole number of the query.

        Raises:
            BadOption: it is none, or not between `least` and `most`.
        """
        said = self.text(name)
        if not said:
            return default
        if not said.isdecimal() or not least <= int(said) <= most:
            raise BadOption(f"{name}: a whole number from {least} to {most}, not {said[:40]!r}")
        return int(said)

    def choice(self, name: str, default: str, among: Mapping[str, Any] | frozenset[str]) -> str:
        """One of a few words of the query.

        Raises:
            BadOption: it is none of them.
        """
        said = self.text(name) or default
        if said not in among:
            raise BadOption(f"{name}: one of {', '.join(sorted(among))}, not {said[:40]!r}")
        return said

    def link(self, **changes: object) -> str:
        """The address of the same page with something else in its query; what is empty is left out."""
        # Only as far as a page reads it: hundreds of links may repeat it, however long it is.
        kept = {name: self.text(name) for name in list(self.query)[:_MOST_NAMES] if len(name) <= _LONGEST_NAME}
        query = {name: str(said) for name, said in {**kept, **changes}.items()}
        return f"?{urlencode({name: said for name, said in query.items() if said}, errors='replace')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A page to be shown: its template, its title, and what the template is given.

    `watches` is the session whose changes it shows; None: all changes. One that is not `live` is shown once.
    """

    template: str
    title: str
    given: Mapping[str, Any]
    status: int = 200
    watches: str | None = None
    live: bool = True


class NoSuchPage(Exception):
    """There is no such page, or nothing that it could show."""
