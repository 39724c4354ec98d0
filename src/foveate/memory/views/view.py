"""Views of a memory: the result of rendering, and its options."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from foveate.budget.sections import parse_choice
from foveate.errors import BadOption
from foveate.model import TokenCount
from foveate.notebook import format_tokens, render_text

DEFAULT_LIMIT_TOKENS = 2000
THRESHOLD_VARIABLE = "CONTEXT_SEMANTIC_THRESHOLD"
DEFAULT_THRESHOLD = 0.75


class DetailLevel(StrEnum):
    FULL = "full"
    EXCERPT = "excerpt"
    TITLE = "title"
    HIDDEN = "hidden"


ViewFormatName = Literal["auto", "org", "markdown"]


class ViewFormat(StrEnum):
    """Formats of a view. `auto`: each note in the format of its file."""

    AUTO = "auto"
    ORG = "org"
    MARKDOWN = "markdown"


def parse_view_format(name: str) -> ViewFormat:
    """Return the format with this name.

    Raises:
        BadOption: there is none.
    """
    return parse_choice(ViewFormat, name, ("format",))


@dataclass(frozen=True, slots=True)
class ViewNode:
    """A shown node with its relevance from 0 to 1 and its tokens."""

    id: str
    title: str
    level: DetailLevel
    score: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class View:
    """A memory as text, with the shown nodes in document order."""

    text: str
    count: TokenCount
    limit_tokens: int | None
    nodes: tuple[ViewNode, ...]

    @property
    def tokens(self) -> int:
        return self.count.tokens

    def __repr__(self) -> str:
        """Without the text, which can be long."""
        return f"<View: {self._heading}>"

    @property
    def _heading(self) -> str:
        limit = "" if self.limit_tokens is None else f" of {self.limit_tokens:,}"
        shown = f"{len(self.nodes):,} node{'s' * (len(self.nodes) != 1)}"
        return f"{format_tokens(self.tokens, exact=self.count.exact)}{limit} tokens, {shown}"

    def _repr_html_(self) -> str:
        return render_text(self._heading, self.text)


def read_semantic_threshold(environment: Mapping[str, str]) -> float:
    """The similarity from which a node is shown: `CONTEXT_SEMANTIC_THRESHOLD`, or 0.75.

    Raises:
        BadOption: the value is not a number from 0 to 1.
    """
    value = environment.get(THRESHOLD_VARIABLE, "").strip().strip("\"'")
    if not value:
        return DEFAULT_THRESHOLD
    try:
        threshold = float(value)
    except ValueError:
        threshold = -1.0
    if not 0 <= threshold <= 1:
        raise BadOption(f"{THRESHOLD_VARIABLE} must be a number from 0 to 1, not {value!r:.40}; or unset it")
    return threshold
