"""Views of a memory: the result of rendering, and its options."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from foveate.errors import BadOption
from foveate.model import TokenCount

DEFAULT_LIMIT_TOKENS = 2000
THRESHOLD_VARIABLE = "CONTEXT_SEMANTIC_THRESHOLD"
DEFAULT_THRESHOLD = 0.75


class DetailLevel(StrEnum):
    FULL = "full"
    EXCERPT = "excerpt"
    TITLE = "title"
    HIDDEN = "hidden"


class ViewFormat(StrEnum):
    ORG = "org"
    MARKDOWN = "markdown"


@dataclass(frozen=True, slots=True)
class ViewNode:
    """A shown node with its relevance from 0 to 1 and its tokens."""

    id: str
    title: str
    level: DetailLevel
    score: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A memory as text, with the shown nodes in document order."""

    text: str
    count: TokenCount
    limit_tokens: int | None
    nodes: tuple[ViewNode, ...]

    @property
    def tokens(self) -> int:
        return self.count.tokens


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
        raise BadOption(f"{THRESHOLD_VARIABLE} is a number from 0 to 1, not {value!r:.40}; or unset it")
    return threshold
