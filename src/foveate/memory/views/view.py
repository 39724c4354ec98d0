"""Views: what is shown of a memory, and at which level each node stands in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from foveate.errors import BadOption
from foveate.model import TokenCount

DEFAULT_LIMIT_TOKENS = 2000
"""How many tokens a view takes at most, unless somebody says otherwise."""
THRESHOLD_VARIABLE = "CONTEXT_SEMANTIC_THRESHOLD"
DEFAULT_THRESHOLD = 0.75


class DetailLevel(StrEnum):
    """How much of a node is shown."""

    FULL = "full"
    EXCERPT = "excerpt"
    TITLE = "title"
    HIDDEN = "hidden"


class ViewFormat(StrEnum):
    """What a view is written as."""

    ORG = "org"
    MARKDOWN = "markdown"


@dataclass(frozen=True, slots=True)
class ViewNode:
    """A node of a view: how much of it is shown, how relevant it is (0 to 1), and what it takes."""

    id: str
    title: str
    level: DetailLevel
    score: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A memory as a text, within its limit, and the nodes in it in their order; what is hidden is not there."""

    text: str
    count: TokenCount
    limit_tokens: int | None
    nodes: tuple[ViewNode, ...]

    @property
    def tokens(self) -> int:
        """How many tokens the text is."""
        return self.count.tokens


def read_semantic_threshold(environment: Mapping[str, str]) -> float:
    """How similar a node has to be to be shown for that: what `CONTEXT_SEMANTIC_THRESHOLD` says, 0.75 without.

    Raises:
        BadOption: it is not a number from 0 to 1.
    """
    value = environment.get(THRESHOLD_VARIABLE, "").strip().strip("\"'")
    if not value:
        return DEFAULT_THRESHOLD
    try:
        threshold = float(value)
    except ValueError:
        threshold = -1.0
    if not 0 <= threshold <= 1:
        raise BadOption(f"{THRESHOLD_VARIABLE} is a number from 0 to 1, not {value!r:.40}; or unset it")
    return threshold
