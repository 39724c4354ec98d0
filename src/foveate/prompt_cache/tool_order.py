"""The order of tools: the same ones are sent in the same order, since the cache holds only that far."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeVar

from foveate.model import ReorderTools, Ttl
from foveate.prompt_cache.prompt.cached_prompt import compute_digest

MAX_TOOL_SETS = 4
"""How many sets of tools a session remembers the order of: agents switch between a few (plan and edit)."""

REASON = "the order in which this session sent the same tools first"


class NamedTool(Protocol):
    """A tool of any kind."""

    @property
    def name(self) -> str:
        """What it is called by."""


AnyTool = TypeVar("AnyTool", bound=NamedTool)


def sort_tools(tools: Iterable[AnyTool]) -> tuple[AnyTool, ...]:
    """Sort a list that Foveate builds by name, and tools of one name by what they say."""
    return tuple(sorted(tools, key=lambda tool: (tool.name, repr(tool))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTool:
    """A tool as a client listed it: its name, empty where it has none, its JSON without its mark, and that."""

    name: str
    content: bytes
    breakpoint_ttl: Ttl | None = None


class ToolList(NamedTuple):
    """A client's list of tools: a key of each, no two the same, and its mark."""

    keys: tuple[bytes, ...]
    breakpoint_ttls: tuple[Ttl | None, ...]

    @classmethod
    def from_tools(cls, tools: Sequence[ListedTool]) -> "ToolList":
        """The list of these tools."""
        return cls(_tool_keys(tools), tuple([tool.breakpoint_ttl for tool in tools]))


@dataclass(frozen=True, slots=True)
class ToolOrders:
    """The orders in which a session sent its tools: of each of its last sets the first, the latest set last.

    A tool is known by the digest of its name, so that one whose description has changed keeps its place.
    """

    sent: tuple[tuple[bytes, ...], ...] = ()

    def stabilize(self, tools: ToolList) -> tuple[ReorderTools | None, "ToolOrders"]:
        """What to do with a client's list, and what is known after it was sent.

        A list is touched only where the session has sent the very same set in another order: it gets the order
        that the set had first. A set to which a tool came, or from which one went, is another set.
        """
        listed = tools.keys
        wanted = self._known_order(listed)
        places = {key: place for place, key in enumerate(listed)}
        order = tuple(places[key] for key in wanted)
        # A mark moves with its tool, and a short-lived one may not come before one that lasts.
        if not _ttls_descend([tools.breakpoint_ttls[place] for place in order]):
            wanted, order = listed, tuple(range(len(listed)))
        edit = ReorderTools(order=order, reason=REASON) if wanted != listed else None
        return edit, self._remember(wanted)

    def _known_order(self, listed: tuple[bytes, ...]) -> tuple[bytes, ...]:
        present = set(listed)
        for known in reversed(self.sent):
            if len(known) == len(listed) and present.issuperset(known):
                return known
        return listed

    def _remember(self, order: tuple[bytes, ...]) -> "ToolOrders":
        if not order or (self.sent and self.sent[-1] == order):
            return self
        tools = set(order)
        others = [known for known in self.sent if set(known) != tools]
        return ToolOrders((*others, order)[-MAX_TOOL_SETS:])


def _tool_keys(tools: Sequence[ListedTool]) -> tuple[bytes, ...]:
    """What each tool is known by, no two the same: its name, or all it says where that is not its alone."""
    names = Counter(tool.name for tool in tools)
    seen: Counter[tuple[str, bytes]] = Counter()
    found = []
    for tool in tools:
        name = tool.name.encode("utf-8", "surrogatepass")
        if name and names[tool.name] == 1:
            found.append(compute_digest(b"0\0" + name))
            continue
        seen[tool.name, tool.content] += 1
        found.append(compute_digest(b"%d\0%b\0%b" % (seen[tool.name, tool.content], name, tool.content)))
    return tuple(found)


def _ttls_descend(ttls: Iterable[Ttl | None]) -> bool:
    ttl_seconds = [ttl.seconds for ttl in ttls if ttl is not None]
    return all(before >= after for before, after in pairwise(ttl_seconds))
