"""Log of the prefixes that an agent requested recently: which of them are shared, and what was written for
them.

The log is bounded. It first drops conversations that were not continued, and counts what it drops as not
requested again.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import inf

import msgspec
from msgspec.structs import replace

from foveate.model import Place, Ttl
from foveate.prompt_cache.placement.prefix_reuse import (
    SHARED_LAYERS,
    UNKNOWN_AGENT,
    AgentReuse,
    CacheReach,
    PrefixLevel,
    PromptLayer,
    RequestShape,
    find_best_reach,
    prior_probability,
)
from foveate.prompt_cache.prompt.cached_prompt import (
    CachedPrompt,
    PromptPiece,
    find_pieces,
    prefix_keys,
    prompt_layout,
    token_ends,
)
from foveate.prompt_cache.rules import CacheRules, input_price
from foveate.prompt_cache.simulator import CacheEntry, SimulatedCache, write_entry

MAX_KEYS = 2048
_MAX_CONVERSATION_KEYS = 64
_MAX_PENDING = 1024
_MAX_ENTRIES = 256
# An earlier request that this one continues ends at most this many pieces before the end of the shared
# prefix.
_LOOKBACK_PIECES = 32
_IN_FLIGHT = inf
# The session's own gaps predict best when these layers are requested again; for others, those of all
# sessions.
_SESSION_LAYERS = frozenset((PromptLayer.HISTORY, PromptLayer.SHARED_CONTEXT))
_CONVERSATION_LAYERS = _SESSION_LAYERS | {PromptLayer.CONTEXT}


class _PrefixConversation:
    """Requests that continue each other: the keys of their last prefixes, and the pieces of the latest."""

    __slots__ = ("keys", "last_at", "pieces")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.last_at = 0.0
        self.pieces = 0


class _PendingPrefix(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A prefix that waits to be requested again, within the short TTL (`until`) and then within the long one.

    `has_response`: the response has begun, so what the request wrote can be read.
    """

    layer: PromptLayer
    new_tokens: int
    at: float
    until: float
    late_until: float
    has_response: bool = False


class ObservedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request in the log, and how much of it is worth a breakpoint.

    `keys` are those of its levels. `cache` is what the request can read. `cost` is the price of what its
    breakpoints write, less what they save now.
    """

    levels: tuple[PrefixLevel, ...]
    keys: tuple[bytes, ...]
    reach: CacheReach
    cache: SimulatedCache
    cost: float = 0.0


class PrefixLog:
    """The log of one agent, for one event loop. `reuse` is what its requests have shown so far."""

    def __init__(self, reuse: AgentReuse = UNKNOWN_AGENT) -> None:
        self.reuse = reuse.without_credit()
        self._by_key: dict[bytes, _PrefixConversation] = {}
        self._single: OrderedDict[int, _PrefixConversation] = OrderedDict()
        self._shared: OrderedDict[int, _PrefixConversation] = OrderedDict()
        self._pending: OrderedDict[bytes, _PendingPrefix] = OrderedDict()
        self._overdue: OrderedDict[bytes, _PendingPrefix] = OrderedDict()
        self._entries: dict[bytes, CacheEntry] = {}

    def observe(
        self,
        prompt: CachedPrompt,
        rules: CacheRules,
        cache: SimulatedCache,
        *,
        now: float,
        short_ttl_share: float = 1.0,
        long_ttl: bool = True,
        transient: Collection[Place] = (),
    ) -> ObservedRequest:
        """Add a request that is sent at `now`, and decide how much of it is worth a breakpoint.

        `cache` is what the session is known to have at the provider. If the session continues, it does so
        within the short TTL with the probability `short_ttl_share`. `long_ttl`: the long TTL may be used.
        `transient` are the places of blocks that the next request will not repeat.
        """
        keys, ends = prefix_keys(prompt), token_ends(prompt)
        tools_end, system_end, _, client_breakpoints = prompt_layout(prompt)
        stable_pieces = (
            min(find_pieces(prompt, transient).values(), default=len(keys)) if transient else len(keys)
        )
        last = _last_accepting_breakpoint(prompt.pieces, range(stable_pieces))
        if last < 0 or not rules.ttls:
            return ObservedRequest(levels=(), keys=(), reach=CacheReach(), cache=cache)
        self.reuse = self.reuse.with_request(ends[-1])
        self._expire(rules, now)
        shared = self._find_shared(keys, last, since=now - rules.ttls[-1].seconds)
        conversation = self._by_key.get(keys[shared]) if shared >= system_end else None
        # A request continues another one if it repeats that up to its last block and adds to it.
        continued = (
            conversation
            if conversation is not None and conversation.pieces - 2 <= shared and conversation.pieces <= last
            else None
        )
        places = list(_layer_ends(prompt, shared, last, is_continued=continued is not None))
        self._count_returns(keys, shared, [at for at, _ in places], rules, now)
        level_keys = tuple([keys[at] for at, _ in places])
        merged = self.merge(cache, level_keys, now=now)
        read_at = merged.entries.last_readable(
            keys, max(shared, *(at for at, _ in places if at < last), -1) + 1, now
        )
        read_tokens = ends[read_at] if read_at >= 0 else 0
        shape = RequestShape(
            has_tools=tools_end > 0,
            has_history=_has_history(prompt.pieces, system_end),
            has_breakpoints=bool(client_breakpoints),
            tokens=ends[last],
        )
        levels = []
        for at, layer in places:
            prior = prior_probability(layer, shape)
            short_probability, long_probability = self.reuse.rate(layer).probabilities(
                prior, is_optimistic=self.reuse.balance < 0
            )
            if continued is not None and layer in _SESSION_LAYERS:
                short_probability, long_probability = (
                    (short_probability + long_probability) * short_ttl_share,
                    (short_probability + long_probability) * (1 - short_ttl_share),
                )
            levels.append(
                PrefixLevel(
                    layer=layer,
                    pieces=at + 1,
                    tokens=ends[at],
                    short_probability=short_probability,
                    long_probability=long_probability,
                    is_written=self._has_entry(keys[at], now),
                )
            )
        reach = find_best_reach(
            levels,
            rules,
            self.reuse,
            read_pieces=read_at + 1,
            read_tokens=read_tokens,
            long_ttl=long_ttl and len(rules.ttls) > 1,
        )
        self._add_request(keys, last, continued, now, is_shared=shared >= system_end)
        self._add_pending(levels, level_keys, rules, now)
        self._record_writes(levels, level_keys, reach, rules, now)
        if (
            client_breakpoints and max(client_breakpoints) >= reach.pieces
        ):  # the client's breakpoint writes that far, so shorter prefixes cost nothing more
            reach = replace(reach, pieces=max(client_breakpoints) + 1)
        return ObservedRequest(levels=tuple(levels), keys=level_keys, reach=reach, cache=merged)

    def merge(self, cache: SimulatedCache, keys: Iterable[bytes], *, now: float) -> SimulatedCache:
        """A session's cache with what other sessions of the agent wrote for these prefixes."""
        more = {}
        for key in keys:
            entry, known = self._entries.get(key), cache.entries.find(key)
            if entry is not None and entry.is_readable(now) and (known is None or not known.is_readable(now)):
                more[key] = entry
        return SimulatedCache(cache.entries.with_changes(more, at=now)) if more else cache

    def record_cost(
        self,
        observed: ObservedRequest,
        prompt: CachedPrompt,
        breakpoints: Mapping[int, Ttl],
        rules: CacheRules,
        *,
        now: float,
    ) -> ObservedRequest:
        """Add to the account what a request costs with `breakpoints`, less what it costs with the client's
        own.
        """
        client_breakpoints = prompt_layout(prompt).breakpoints
        if breakpoints == client_breakpoints:
            return observed
        cost = input_price(
            observed.cache.serve_with_breakpoints(prompt, breakpoints, rules, at=now).usage, rules
        )
        cost -= input_price(
            observed.cache.serve_with_breakpoints(prompt, client_breakpoints, rules, at=now).usage, rules
        )
        self.reuse = self.reuse.with_cost(cost)
        return replace(observed, cost=cost)

    def record_response(self, observed: ObservedRequest, cache: SimulatedCache) -> None:
        """Record what a request with a response left at the provider, according to its session's `cache`."""
        for key in observed.keys:
            for waiting in (self._pending, self._overdue):
                if key in waiting:
                    waiting[key] = replace(waiting[key], has_response=True)
            entry, known = cache.entries.find(key), self._entries.get(key)
            if entry is None:
                self._drop_in_flight(key)
            elif (
                known is None or known.expires_at <= entry.expires_at
            ):  # another session may have used it since
                self._entries[key] = entry

    def record_failure(self, observed: ObservedRequest) -> None:
        """Forget a request without a response: it wrote nothing and shows nothing."""
        for key in observed.keys:
            self._pending.pop(key, None)
            self._drop_in_flight(key)
        self.reuse = self.reuse.with_cost(-observed.cost)

    def _has_entry(self, key: bytes, at: float) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.is_live(at)

    def _drop_in_flight(self, key: bytes) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.readable_at == _IN_FLIGHT:
            del self._entries[key]

    def _expire(self, rules: CacheRules, now: float) -> None:
        """Count what is overdue as not requested again, and drop it after the long TTL."""
        write_cost = min(rules.write_prices.values(), default=1.0) - 1
        while self._pending:
            key, pending = next(iter(self._pending.items()))
            until = min(pending.until, pending.at + self.reuse.patience_seconds)
            if until >= now and len(self._pending) <= _MAX_PENDING:
                break
            del self._pending[key]
            rate = self.reuse.rate(pending.layer).with_outcome(is_again=False)
            self.reuse = self.reuse.with_rate(pending.layer, rate)
            if not self._has_entry(key, pending.at):
                self.reuse = self.reuse.with_spared_write(pending.new_tokens * write_cost)
            self._overdue[key] = pending
        while self._overdue:
            key, pending = next(iter(self._overdue.items()))
            if pending.late_until >= now and len(self._overdue) <= _MAX_PENDING:
                break
            del self._overdue[key]

    def _find_shared(self, keys: Sequence[bytes], last: int, *, since: float) -> int:
        """The last piece of the longest prefix that was requested since then, or -1."""
        for at in range(last, -1, -1):
            conversation = self._by_key.get(keys[at])
            if conversation is not None and conversation.last_at >= since:
                return at
        return -1

    def _count_returns(
        self, keys: Sequence[bytes], shared: int, places: Iterable[int], rules: CacheRules, now: float
    ) -> None:
        """Count the prefixes of this request that earlier ones requested.

        Those whose first request has no response yet could not be read: they show nothing.
        """
        missed_tokens = 0
        near = max(0, shared + 1 - _LOOKBACK_PIECES)
        for key in (*(keys[at] for at in places if at < near), *keys[near : shared + 1]):
            pending = self._pending.get(key) or self._overdue.get(key)
            if pending is None or not pending.has_response:
                continue
            is_overdue = self._pending.pop(key, None) is None
            if is_overdue:
                del self._overdue[key]
            rate, is_late = self.reuse.rate(pending.layer), now > pending.until
            if is_late:
                self.reuse = self.reuse.with_rate(pending.layer, rate.with_late_outcome())
                continue
            rate = rate.with_return() if is_overdue else rate.with_outcome(is_again=True)
            self.reuse = self.reuse.with_rate(pending.layer, rate)
            if pending.layer in _CONVERSATION_LAYERS:
                self.reuse = self.reuse.with_return(now - pending.at)
            if not self._has_entry(key, now):
                missed_tokens += pending.new_tokens
        net_saving = 2 - rules.read_price - min(rules.write_prices.values(), default=1.0)
        self.reuse = self.reuse.with_missed_read(missed_tokens * net_saving)

    def _add_request(
        self,
        keys: Sequence[bytes],
        last: int,
        continued: _PrefixConversation | None,
        now: float,
        *,
        is_shared: bool,
    ) -> None:
        conversation = continued or _PrefixConversation()
        for key in keys[max(0, last + 1 - _MAX_CONVERSATION_KEYS) : last + 1]:
            known = self._by_key.get(key)
            if known is None:
                self._by_key[key] = conversation
                conversation.keys.append(key)
            elif known is not conversation:
                self._touch(known, now, is_shared=True)
        conversation.pieces = last + 1
        self._touch(conversation, now, is_shared=is_shared)
        for key in conversation.keys[:-_MAX_CONVERSATION_KEYS]:
            del self._by_key[key]
        del conversation.keys[:-_MAX_CONVERSATION_KEYS]
        while len(self._by_key) > MAX_KEYS:
            more = self._single if len(self._single) > len(self._shared) else self._shared
            _, oldest = more.popitem(last=False)
            for key in oldest.keys:
                del self._by_key[key]

    def _touch(self, conversation: _PrefixConversation, now: float, *, is_shared: bool) -> None:
        conversation.last_at = now
        is_shared = is_shared or id(conversation) in self._shared
        self._single.pop(id(conversation), None)
        group = self._shared if is_shared else self._single
        group[id(conversation)] = conversation
        group.move_to_end(id(conversation))

    def _add_pending(
        self, levels: Sequence[PrefixLevel], keys: Sequence[bytes], rules: CacheRules, now: float
    ) -> None:
        """Make the request's own prefixes wait to be requested again."""
        before = 0
        for level, key in zip(levels, keys, strict=True):
            if level.tokens < rules.minimum_tokens:
                continue
            self._pending.pop(key, None)
            self._overdue.pop(key, None)
            self._pending[key] = _PendingPrefix(
                layer=level.layer,
                new_tokens=level.tokens - before,
                at=now,
                until=now + rules.ttls[0].seconds,
                late_until=now + rules.ttls[-1].seconds,
            )
            before = level.tokens

    def _record_writes(
        self,
        levels: Sequence[PrefixLevel],
        keys: Sequence[bytes],
        reach: CacheReach,
        rules: CacheRules,
        now: float,
    ) -> None:
        """Add entries for what the request writes; they are in flight until the response begins."""
        if reach.layer is None or not reach.written_tokens:
            return
        for level, key in zip(levels, keys, strict=True):
            if level.pieces <= reach.pieces and not level.is_written:
                self._entries[key] = write_entry(level.tokens, rules.ttls[0], at=now, readable_at=_IN_FLIGHT)
        if len(self._entries) > _MAX_ENTRIES:
            self._entries = {key: entry for key, entry in self._entries.items() if entry.is_live(now)}
            for key in list(self._entries)[: -_MAX_ENTRIES // 2]:
                del self._entries[key]


def _last_accepting_breakpoint(pieces: Sequence[PromptPiece], among: range) -> int:
    return next((at for at in reversed(among) if pieces[at].accepts_breakpoint), -1)


def _has_history(pieces: Sequence[PromptPiece], system_end: int) -> bool:
    if system_end >= len(pieces):
        return False
    first, last = pieces[system_end].place, pieces[-1].place
    return first is not None and last is not None and first.index != last.index


def _layer_ends(
    prompt: CachedPrompt, shared: int, last: int, *, is_continued: bool
) -> Iterator[tuple[int, PromptLayer]]:
    """The ends of the layers of a request, of what it shares with an earlier one, and of all of it."""
    tools_end, system_end, _, _ = prompt_layout(prompt)
    pieces = prompt.pieces
    layers_by_end = {
        _last_accepting_breakpoint(pieces, range(last + 1)): PromptLayer.HISTORY
        if is_continued
        else PromptLayer.CONTEXT,
        _last_accepting_breakpoint(pieces, range(shared + 1)): _layer_at(shared, tools_end, system_end),
        _last_accepting_breakpoint(pieces, range(tools_end, min(system_end, last + 1))): PromptLayer.SYSTEM,
        _last_accepting_breakpoint(pieces, range(min(tools_end, last + 1))): PromptLayer.TOOLS,
    }
    layers_by_end.pop(-1, None)
    for at, layer in sorted(layers_by_end.items()):
        yield at, SHARED_LAYERS[layer] if at <= shared else layer


def _layer_at(at: int, tools_end: int, system_end: int) -> PromptLayer:
    if at < tools_end:
        return PromptLayer.TOOLS
    return PromptLayer.SYSTEM if at < system_end else PromptLayer.CONTEXT
