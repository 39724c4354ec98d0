"""What a process remembers of sessions, beside what is kept: it may forget all of it and only be colder."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TypeVar
from weakref import ReferenceType

import msgspec
from msgspec.structs import replace

from foveate.cache.rhythm import SILENT, Rhythm
from foveate.cache.simulate import Cache
from foveate.cache.tool_order import ToolOrders
from foveate.session.chain import Chain
from foveate.session.sessions import Found
from foveate.values import Request, SimulatedState
from foveate.wire.around import Around
from foveate.wire.body import role_of

_KEPT_SESSIONS = 4 * 1024
_KEPT_AGENTS = 1024
# Of all sessions together, about 150 MB. A provider that caches without breakpoints has one for each block.
MAX_ENTRIES = 500_000

# The roles of models, in the APIs of all providers.
_ANSWERING = frozenset(("assistant", "model"))

Key = TypeVar("Key")
Value = TypeVar("Value")

# Values, which all new sessions share.
_EMPTY, _NO_TOOLS = Cache(), ToolOrders()


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """What one session has left at its provider, its rhythm, and the orders that its tools had.

    `states` are its simulated caches without some of what Foveate does, as far as they differ from `cache`.
    `would_not_fit`: without Foveate it would have outgrown its model's window. `is_whole`: this process has
    served all its requests so far; `messages` and `tip` tell the last one (see `Chain`).
    `settled` is what stood around its messages when its tools were last in the order that they are to have, as
    long as somebody else remembers it. `has_bad_thoughts`: its provider is asked to leave out what no longer
    fits.
    """

    cache: Cache = _EMPTY
    rhythm: Rhythm = SILENT
    tools: ToolOrders = _NO_TOOLS
    settled: "ReferenceType[Around] | None" = None
    asked_at: float | None = None
    messages: int = 0
    tip: bytes = b""
    states: Mapping[SimulatedState, Cache] = {}
    would_not_fit: bool = False
    is_whole: bool = True
    has_bad_thoughts: bool = False

    def heard(self, now: float) -> "SessionState":
        """With a request that comes now."""
        if self.asked_at is None:
            return replace(self, asked_at=now)
        return replace(self, rhythm=self.rhythm.heard(max(0.0, now - self.asked_at)), asked_at=now)

    def listed(self, tools: ToolOrders, settled: "ReferenceType[Around] | None") -> "SessionState":
        """With the orders that its tools have by now."""
        return replace(self, tools=tools, settled=settled)

    def served(self, cache: Cache, states: Mapping[SimulatedState, Cache]) -> "SessionState":
        """With what a request has left at the provider, and would have left in other states."""
        return replace(self, cache=cache, states=states, is_whole=True)

    def kept_alive(self, cache: Cache) -> "SessionState":
        """With what a keep-alive request has left at the provider."""
        return replace(self, cache=cache, states={SimulatedState.BREAKPOINTS: self.cache, **self.states})

    def without_caches(self) -> "SessionState":
        """Without what its requests have left at the provider."""
        return replace(self, cache=_EMPTY, states={}, is_whole=False)

    @property
    def entries(self) -> int:
        """How many cache entries are remembered, at most."""
        return sum(cache.entries.size for cache in (self.cache, *self.states.values()))

    def refused_thoughts(self) -> "SessionState":
        """With thoughts that were refused."""
        return replace(self, has_bad_thoughts=True)


_NEW = SessionState()


class Remembered:
    """The states of sessions and the rhythms of agents, the ones heard of last. For one event loop."""

    def __init__(self, *, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._sessions: OrderedDict[tuple[str, str], SessionState] = OrderedDict()
        self._sizes: OrderedDict[tuple[str, str], int] = OrderedDict()  # of those with cache entries
        self._entries = 0
        self._agents: OrderedDict[str, Rhythm] = OrderedDict()

    def session(self, agent: str, session_id: str) -> SessionState:
        """What is known of a session; nothing of one that is new here."""
        return self._sessions.get((agent, session_id), _NEW)

    def has_seen_all(self, agent: str, found: Found, chain: Chain, request: Request) -> bool:
        """Whether this process has served all requests of a session before this one.

        Others may serve it too: then it has more than one answer since its last request here.
        """
        before = self.session(agent, found.session.id)
        if before.asked_at is not None:
            at = before.messages
            is_continued = 0 < at < len(chain) and chain.hashes[at - 1] == before.tip
            return not is_continued or _answers(request.messages[chain.head + at :]) <= 1
        other_id = found.known_from or found.session.parent_id
        is_other_here = other_id is not None and self.session(agent, other_id).asked_at is not None
        return not found.known or is_other_here

    def put(self, agent: str, session_id: str, state: SessionState) -> None:
        """Remember what a session is like now; of too many cache entries the oldest are forgotten."""
        key, size = (agent, session_id), state.entries
        self._entries += size - self._sizes.pop(key, 0)
        if size:
            self._sizes[key] = size
        while self._entries > self._max_entries and len(self._sizes) > 1:
            oldest, freed = self._sizes.popitem(last=False)
            self._entries -= freed
            self._sessions[oldest] = self._sessions[oldest].without_caches()
        forgotten = _keep(self._sessions, key, state, most=_KEPT_SESSIONS)
        self._entries -= self._sizes.pop(forgotten, 0) if forgotten is not None else 0

    def agent(self, agent: str) -> Rhythm:
        """The gaps between the requests of all of an agent's sessions."""
        return self._agents.get(agent, SILENT)

    def heard(self, agent: str, gap_seconds: float) -> None:
        """Another gap of one of an agent's sessions."""
        _keep(self._agents, agent, self.agent(agent).heard(gap_seconds), most=_KEPT_AGENTS)


def _answers(messages: Sequence[bytes]) -> int:
    """How many answers of a model there are; one may consist of several messages."""
    return sum(is_answer for is_answer, _ in groupby(messages, lambda raw: role_of(raw) in _ANSWERING))


def _keep(kept: OrderedDict[Key, Value], key: Key, value: Value, *, most: int) -> Key | None:
    """Put something last, and forget the first where there are more than so many; its key is given back."""
    kept[key] = value
    kept.move_to_end(key)
    return kept.popitem(last=False)[0] if len(kept) > most else None
