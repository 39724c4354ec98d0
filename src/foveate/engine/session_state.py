"""In-memory state of sessions. Losing it only loses cache hits and comparisons."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TypeVar
from weakref import ReferenceType

import msgspec
from msgspec.structs import replace

from foveate.compaction.forecast import NO_AGENT_ACTIVITY, AgentActivity
from foveate.formats.incremental.envelope import Envelope
from foveate.formats.json_text.parse import read_role
from foveate.model import Request, SimulatedState
from foveate.prompt_cache.placement.arrival_times import NO_GAPS, GapHistogram
from foveate.prompt_cache.simulator import SimulatedCache
from foveate.prompt_cache.stable_order import ToolOrders
from foveate.session.hash_chain import HashChain
from foveate.session.matching import SessionMatch

_MAX_SESSIONS = 4 * 1024
_MAX_AGENTS = 1024
# About 150 MB for all sessions. A provider that caches without breakpoints has an entry per block.
MAX_ENTRIES = 500_000

# In the APIs of all providers.
_MODEL_ROLES = frozenset(("assistant", "model"))

# A history that lost this share of at least so many messages, and of which less than a quarter was seen before,
# was compacted by the client.
_MIN_COMPACTED_MESSAGES, _KEPT_SHARE, _KNOWN_SHARE = 12, 0.5, 0.25

Key = TypeVar("Key")
Value = TypeVar("Value")

# Shared by all new sessions.
_EMPTY_CACHE, _NO_TOOLS = SimulatedCache(), ToolOrders()


class SessionProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a session so far, their growth, and the dollars spent on them.

    `saved_dollars` is what edits of the history have saved, less what they cost. `last_tokens` is the size of
    the last request, `compacted_tokens` that after the last compaction, and `judged_tokens` that when tool
    results were last judged. `edits` are the ids of the edits that the last request was sent with.
    `compacts_itself`: the client has replaced its own history by something shorter.
    """

    requests: int = 0
    last_tokens: int = 0
    grown_tokens: int = 0
    spent_dollars: float = 0.0
    saved_dollars: float = 0.0
    compacted_tokens: int | None = None
    judged_tokens: int = 0
    edits: frozenset[str] = frozenset()
    compacts_itself: bool = False

    def with_response(
        self,
        *,
        requests: int,
        tokens: int,
        spent_dollars: float,
        saved_dollars: float,
        edits: frozenset[str],
    ) -> "SessionProgress":
        """`requests` is the least number of requests that the history shows."""
        return replace(
            self,
            requests=max(self.requests + 1, requests),
            last_tokens=tokens,
            grown_tokens=self.grown_to(tokens),
            spent_dollars=self.spent_dollars + spent_dollars,
            saved_dollars=self.saved_dollars + saved_dollars,
            edits=edits,
        )

    def grown_to(self, tokens: int) -> int:
        """`grown_tokens` after a request of so many tokens."""
        return self.grown_tokens + (max(tokens - self.last_tokens, 0) if self.last_tokens else 0)


_NO_PROGRESS = SessionProgress()


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """The cache of one session at its provider, the rhythm of its requests, and the order of its tools.

    `simulated_caches` are caches without some of Foveate's features, as far as they differ from `cache`.
    `would_exceed_window`: without Foveate the session would have outgrown the window. `has_served_all`: this
    process has served all requests of the session; `messages` and `last_hash` identify the last one.
    `settled_envelope` is the request without its messages when the tools were last in order, as long as it is
    cached elsewhere. `has_invalid_thinking`: the provider is asked to drop thinking blocks that no longer fit.
    """

    cache: SimulatedCache = _EMPTY_CACHE
    rhythm: GapHistogram = NO_GAPS
    tools: ToolOrders = _NO_TOOLS
    settled_envelope: "ReferenceType[Envelope] | None" = None
    last_request_at: float | None = None
    messages: int = 0
    last_hash: bytes = b""
    simulated_caches: Mapping[SimulatedState, SimulatedCache] = {}
    would_exceed_window: bool = False
    has_served_all: bool = True
    has_invalid_thinking: bool = False
    progress: SessionProgress = _NO_PROGRESS

    def with_request(self, now: float) -> "SessionState":
        if self.last_request_at is None:
            return replace(self, last_request_at=now)
        return replace(
            self, rhythm=self.rhythm.with_gap(max(0.0, now - self.last_request_at)), last_request_at=now
        )

    def with_tools(
        self, tools: ToolOrders, settled_envelope: "ReferenceType[Envelope] | None"
    ) -> "SessionState":
        return replace(self, tools=tools, settled_envelope=settled_envelope)

    def with_response(
        self, cache: SimulatedCache, simulated_caches: Mapping[SimulatedState, SimulatedCache]
    ) -> "SessionState":
        return replace(self, cache=cache, simulated_caches=simulated_caches, has_served_all=True)

    def with_keep_alive(self, cache: SimulatedCache) -> "SessionState":
        return replace(
            self,
            cache=cache,
            simulated_caches={SimulatedState.BREAKPOINTS: self.cache, **self.simulated_caches},
        )

    def without_caches(self) -> "SessionState":
        return replace(self, cache=_EMPTY_CACHE, simulated_caches={}, has_served_all=False)

    @property
    def entries(self) -> int:
        return sum(len(cache.entries) for cache in (self.cache, *self.simulated_caches.values()))

    def with_invalid_thinking(self) -> "SessionState":
        return replace(self, has_invalid_thinking=True)


_NEW_SESSION = SessionState()


class SessionStates:
    """The most recently used session states, and the rhythms and activities of agents. For one event loop."""

    def __init__(self, *, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._sessions: OrderedDict[tuple[str, str], SessionState] = OrderedDict()
        self._sizes: OrderedDict[tuple[str, str], int] = OrderedDict()  # of sessions with cache entries
        self._entries = 0
        self._agents: OrderedDict[str, GapHistogram] = OrderedDict()
        self._activities: Mapping[str, AgentActivity] = {}

    def session(self, agent: str, session_id: str) -> SessionState:
        return self._sessions.get((agent, session_id), _NEW_SESSION)

    def has_served_all(
        self, agent: str, session_match: SessionMatch, chain: HashChain, request: Request
    ) -> bool:
        """Return whether this process has served all earlier requests of a session.

        If another one did, the session has more than one response since its last request here.
        """
        previous = self.session(agent, session_match.session.id)
        if previous.last_request_at is not None:
            known_messages = previous.messages
            is_continued = (
                0 < known_messages < len(chain) and chain.hashes[known_messages - 1] == previous.last_hash
            )
            return (
                not is_continued
                or _count_responses(request.messages[chain.leading_system_messages + known_messages :]) <= 1
            )
        other_id = session_match.known_from_session_id or session_match.session.parent_id
        is_other_known = other_id is not None and self.session(agent, other_id).last_request_at is not None
        return not session_match.known_messages or is_other_known

    def put(self, agent: str, session_id: str, state: SessionState) -> None:
        """Evict the oldest cache entries if there are too many."""
        key, size = (agent, session_id), state.entries
        self._entries += size - self._sizes.pop(key, 0)
        if size:
            self._sizes[key] = size
        while self._entries > self._max_entries and len(self._sizes) > 1:
            oldest, freed_entries = self._sizes.popitem(last=False)
            self._entries -= freed_entries
            self._sessions[oldest] = self._sessions[oldest].without_caches()
        evicted_key = _put_last(self._sessions, key, state, limit=_MAX_SESSIONS)
        self._entries -= self._sizes.pop(evicted_key, 0) if evicted_key is not None else 0

    def agent_rhythm(self, agent: str) -> GapHistogram:
        return self._agents.get(agent, NO_GAPS)

    def agent_activity(self, agent: str) -> AgentActivity:
        return self._activities.get(agent, NO_AGENT_ACTIVITY)

    def set_activities(self, activities: Mapping[str, AgentActivity]) -> None:
        """Set what the store knows about agents; their gaps too, as long as this process has seen none."""
        self._activities = activities
        for agent, activity in activities.items():
            if agent not in self._agents and activity.gaps.counts:
                _put_last(self._agents, agent, activity.gaps, limit=_MAX_AGENTS)

    def add_gap(self, agent: str, gap_seconds: float) -> None:
        _put_last(self._agents, agent, self.agent_rhythm(agent).with_gap(gap_seconds), limit=_MAX_AGENTS)


def is_compacted_by_client(previous_messages: int, messages: int, known_messages: int) -> bool:
    """Return whether a client has replaced its history by something shorter that was not sent before."""
    return (
        previous_messages >= _MIN_COMPACTED_MESSAGES
        and messages < _KEPT_SHARE * previous_messages
        and known_messages < _KNOWN_SHARE * messages
    )


def _count_responses(messages: Sequence[bytes]) -> int:
    return sum(is_response for is_response, _ in groupby(messages, lambda raw: read_role(raw) in _MODEL_ROLES))


def _put_last(entries: OrderedDict[Key, Value], key: Key, value: Value, *, limit: int) -> Key | None:
    """Insert an entry as the newest one; evict the oldest beyond `limit` and return its key."""
    entries[key] = value
    entries.move_to_end(key)
    return entries.popitem(last=False)[0] if len(entries) > limit else None
