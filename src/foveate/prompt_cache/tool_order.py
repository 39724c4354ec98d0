"""Stable order of tools: the same set is always sent in the same order, since reordering invalidates the
cache.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeVar

from foveate.model import ReorderTools, Ttl
from foveate.prompt_cache.prompt.cached_prompt import compute_digest

MAX_TOOL_SETS = 4
"""Number of tool sets whose order a session remembers: agents switch between a few (plan and edit)."""

REASON = "restores the order in which this session first sent these tools"


class NamedTool(Protocol):
    @property
    def name(self) -> str: ...


AnyTool = TypeVar("AnyTool", bound=NamedTool)


def sort_tools(tools: Iterable[AnyTool]) -> tuple[AnyTool, ...]:
    """Sort a list that Foveate builds by name, and tools of the same name by content."""
    return tuple(sorted(tools, key=lambda tool: (tool.name, repr(tool))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTool:
    """A tool in a client's list: its name (may be empty), its JSON without the breakpoint, and the
    breakpoint's TTL.
    """

    name: str
    content: bytes
    breakpoint_ttl: Ttl | None = None


class ToolList(NamedTuple):
    """A client's list of tools: a unique key and the breakpoint TTL of each."""

    keys: tuple[bytes, ...]
    breakpoint_ttls: tuple[Ttl | None, ...]

    @classmethod
    def from_tools(cls, tools: Sequence[ListedTool]) -> "ToolList":
        return cls(_tool_keys(tools), tuple([tool.breakpoint_ttl for tool in tools]))


@dataclass(frozen=True, slots=True)
class ToolOrders:
    """The orders in which a session sent its tools: the first order of each recent set, the latest set last.

    A tool is identified by the digest of its name, so that one whose description has changed keeps its
    position.
    """

    known_orders: tuple[tuple[bytes, ...], ...] = ()

    def stabilize(self, tools: ToolList) -> tuple[ReorderTools | None, "ToolOrders"]:
        """The edit for a client's list, if it needs one, and the orders after it is sent.

        A list is changed only if the session has sent exactly the same set in another order: it gets the
        order that the set had first. Adding or removing a tool makes another set.
        """
        listed = tools.keys
        stable_order = self._known_order(listed)
        places = {key: place for place, key in enumerate(listed)}
        order = tuple(places[key] for key in stable_order)
        # A breakpoint moves with its tool, and a short TTL must not precede a longer one.
        if not _ttls_descend([tools.breakpoint_ttls[place] for place in order]):
            stable_order, order = listed, tuple(range(len(listed)))
        edit = ReorderTools(order=order, reason=REASON) if stable_order != listed else None
        return edit, self._remember(stable_order)

    def _known_order(self, listed: tuple[bytes, ...]) -> tuple[bytes, ...]:
        present = set(listed)
        for known in reversed(self.known_orders):
            if len(known) == len(listed) and present.issuperset(known):
                return known
        return listed

    def _remember(self, order: tuple[bytes, ...]) -> "ToolOrders":
        if not order or (self.known_orders and self.known_orders[-1] == order):
            return self
        tools = set(order)
        others = [known for known in self.known_orders if set(known) != tools]
        return ToolOrders((*others, order)[-MAX_TOOL_SETS:])


def _tool_keys(tools: Sequence[ListedTool]) -> tuple[bytes, ...]:
    """A unique key for each tool: its name, or its whole content if several share the name."""
    names = Counter(tool.name for tool in tools)
    seen: Counter[tuple[str, bytes]] = Counter()
    keys = []
    for tool in tools:
        name = tool.name.encode("utf-8", "surrogatepass")
        if name and names[tool.name] == 1:
            keys.append(compute_digest(b"0\0" + name))
            continue
        seen[tool.name, tool.content] += 1
        keys.append(compute_digest(b"%d\0%b\0%b" % (seen[tool.name, tool.content], name, tool.content)))
    return tuple(keys)


def _ttls_descend(ttls: Iterable[Ttl | None]) -> bool:
    ttl_seconds = [ttl.seconds for ttl in ttls if ttl is not None]
    return all(before >= after for before, after in pairwise(ttl_seconds))
