"""The prefixes that an agent asked for lately: which of them are shared, and what was written for them.

The log is bounded. It first forgets conversations that nobody continued, and counts what it forgets as not
asked for again.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import inf

import msgspec
from msgspec.structs import replace

from foveate.cache.entries import Entry, written
from foveate.cache.prompts import CachedPrompt, Piece, ends_of, landmarks_of, numbers_of, prefixes
from foveate.cache.reuse import (
    SHARED,
    UNKNOWN_AGENT,
    AgentReuse,
    Level,
    PromptLayer,
    Reach,
    Shape,
    best_reach,
    prior_probability,
)
from foveate.cache.rules import Rules, input_price
from foveate.cache.simulate import Cache
from foveate.values import Place, Ttl

MAX_KEYS = 2048
_MAX_CONVERSATION_KEYS = 64
_MAX_ASKED = 1024
_MAX_ENTRIES = 256
# An earlier request that this one continues ends at most so many pieces before the end of the shared prefix.
_LOOKBACK_PIECES = 32
_IN_FLIGHT = inf
# When these are asked for again, the gaps of a session that goes on tell best; else those of all sessions.
_OF_SESSION = frozenset((PromptLayer.HISTORY, PromptLayer.SHARED_CONTEXT))
_CONVERSATION = _OF_SESSION | {PromptLayer.CONTEXT}


class _Conversation:
    """Requests that continue each other: the keys of their last prefixes, and the pieces of the latest."""

    __slots__ = ("keys", "last_at", "pieces")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.last_at = 0.0
        self.pieces = 0


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix that waits to be asked for again, within the short TTL (`until`) and then within the long one.

    `is_answered`: the response has begun, so that what the request wrote can be read.
    """

    layer: PromptLayer
    new_tokens: int
    at: float
    until: float
    late_until: float
    is_answered: bool = False


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """A request in the log, and how much of it is worth a breakpoint.

    `keys` are those of its levels. `cache` is what the request can read. `cost` is the price of what
    its breakpoints write, less what they save now.
    """

    levels: tuple[Level, ...]
    keys: tuple[bytes, ...]
    reach: Reach
    cache: Cache
    cost: float = 0.0


class PrefixLog:
    """The log of one agent, for one event loop. `reuse` is what its requests have shown so far."""

    def __init__(self, reuse: AgentReuse = UNKNOWN_AGENT) -> None:
        self.reuse = reuse.without_credit()
        self._by_key: dict[bytes, _Conversation] = {}
        self._single: OrderedDict[int, _Conversation] = OrderedDict()
        self._shared: OrderedDict[int, _Conversation] = OrderedDict()
        self._asked: OrderedDict[bytes, _Asked] = OrderedDict()
        self._overdue: OrderedDict[bytes, _Asked] = OrderedDict()
        self._entries: dict[bytes, Entry] = {}

    def observe(
        self,
        prompt: CachedPrompt,
        rules: Rules,
        cache: Cache,
        *,
        now: float,
        soon_share: float = 1.0,
        long_ttl: bool = True,
        passing: Collection[Place] = (),
    ) -> Sighting:
        """Add a request that is sent at `now`, and decide how much of it is worth a breakpoint.

        `cache` is what the request's session is known to have at the provider. If its session goes on, it does
        so within the short TTL with the probability `soon_share`. `long_ttl`: the long one may be used.
        `passing` are the places of blocks that the next request will not repeat.
        """
        keys, ends = prefixes(prompt), ends_of(prompt)
        tools_end, system_end, _, own = landmarks_of(prompt)
        stays = min(numbers_of(prompt, passing).values(), default=len(keys)) if passing else len(keys)
        last = _last_markable(prompt.pieces, range(stays))
        if last < 0 or not rules.ttls:
            return Sighting(levels=(), keys=(), reach=Reach(), cache=cache)
        self.reuse = self.reuse.with_request(ends[-1])
        self._expire(rules, now)
        shared = self._find_shared(keys, last, since=now - rules.ttls[-1].seconds)
        found = self._by_key.get(keys[shared]) if shared >= system_end else None
        # A request continues another that it repeats up to its last block, and adds to.
        continued = found if found is not None and found.pieces - 2 <= shared and found.pieces <= last else None
        places = list(_places(prompt, shared, last, is_continued=continued is not None))
        self._resolve(keys, shared, [at for at, _ in places], rules, now)
        level_keys = tuple([keys[at] for at, _ in places])
        merged = self.merge(cache, level_keys, now=now)
        read_at = merged.entries.last(keys, max(shared, *(at for at, _ in places if at < last), -1) + 1, now)
        read_tokens = ends[read_at] if read_at >= 0 else 0
        shape = Shape(
            has_tools=tools_end > 0,
            has_history=_has_history(prompt.pieces, system_end),
            has_breakpoints=bool(own),
            tokens=ends[last],
        )
        levels = []
        for at, layer in places:
            prior = prior_probability(layer, shape)
            soon, late = self.reuse.rate(layer).probabilities(prior, is_optimistic=self.reuse.balance < 0)
            if continued is not None and layer in _OF_SESSION:
                soon, late = (soon + late) * soon_share, (soon + late) * (1 - soon_share)
            levels.append(
                Level(
                    layer=layer,
                    pieces=at + 1,
                    tokens=ends[at],
                    soon=soon,
                    late=late,
                    is_written=self._has_entry(keys[at], now),
                )
            )
        reach = best_reach(
            levels,
            rules,
            self.reuse,
            read_pieces=read_at + 1,
            read_tokens=read_tokens,
            long_ttl=long_ttl and len(rules.ttls) > 1,
        )
        self._add(keys, last, continued, now, is_shared=shared >= system_end)
        self._ask(levels, level_keys, rules, now)
        self._write(levels, level_keys, reach, rules, now)
        if own and max(own) >= reach.pieces:  # the client has it written: shorter prefixes cost nothing more
            reach = replace(reach, pieces=max(own) + 1)
        return Sighting(levels=tuple(levels), keys=level_keys, reach=reach, cache=merged)

    def merge(self, cache: Cache, keys: Iterable[bytes], *, now: float) -> Cache:
        """A session's cache with what other sessions of the agent wrote for these prefixes."""
        more = {}
        for key in keys:
            entry, known = self._entries.get(key), cache.entries.found(key)
            if entry is not None and entry.reads(now) and (known is None or not known.reads(now)):
                more[key] = entry
        return Cache(cache.entries.changed(more, at=now)) if more else cache

    def place(
        self, sighting: Sighting, prompt: CachedPrompt, marks: Mapping[int, Ttl], rules: Rules, *, now: float
    ) -> Sighting:
        """Add to the account what a request costs with `marks`, less what it costs with the client's own."""
        own = landmarks_of(prompt).marks
        if marks == own:
            return sighting
        cost = input_price(sighting.cache.serve_marked(prompt, marks, rules, at=now).usage, rules)
        cost -= input_price(sighting.cache.serve_marked(prompt, own, rules, at=now).usage, rules)
        self.reuse = self.reuse.with_cost(cost)
        return replace(sighting, cost=cost)

    def served(self, sighting: Sighting, cache: Cache) -> None:
        """Note what a request that was answered left at the provider, as its session's `cache` says."""
        for key in sighting.keys:
            for waiting in (self._asked, self._overdue):
                if key in waiting:
                    waiting[key] = replace(waiting[key], is_answered=True)
            entry, known = cache.entries.found(key), self._entries.get(key)
            if entry is None:
                self._drop_in_flight(key)
            elif (
                known is None or known.expires_at <= entry.expires_at
            ):  # another session may have used it since
                self._entries[key] = entry

    def failed(self, sighting: Sighting) -> None:
        """Forget a request that the provider did not answer: it wrote nothing and shows nothing."""
        for key in sighting.keys:
            self._asked.pop(key, None)
            self._drop_in_flight(key)
        self.reuse = self.reuse.with_cost(-sighting.cost)

    def _has_entry(self, key: bytes, at: float) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.lives(at)

    def _drop_in_flight(self, key: bytes) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.readable_at == _IN_FLIGHT:
            del self._entries[key]

    def _expire(self, rules: Rules, now: float) -> None:
        """Count what is overdue as not asked for again, and forget it after the long TTL."""
        write_cost = min(rules.write_prices.values(), default=1.0) - 1
        while self._asked:
            key, asked = next(iter(self._asked.items()))
            until = min(asked.until, asked.at + self.reuse.patience_seconds)
            if until >= now and len(self._asked) <= _MAX_ASKED:
                break
            del self._asked[key]
            rate = self.reuse.rate(asked.layer).with_outcome(is_again=False)
            self.reuse = self.reuse.with_rate(asked.layer, rate)
            if not self._has_entry(key, asked.at):
                self.reuse = self.reuse.with_spared_write(asked.new_tokens * write_cost)
            self._overdue[key] = asked
        while self._overdue:
            key, asked = next(iter(self._overdue.items()))
            if asked.late_until >= now and len(self._overdue) <= _MAX_ASKED:
                break
            del self._overdue[key]

    def _find_shared(self, keys: Sequence[bytes], last: int, *, since: float) -> int:
        """The last piece of the longest prefix that was asked for since then, or -1."""
        for at in range(last, -1, -1):
            found = self._by_key.get(keys[at])
            if found is not None and found.last_at >= since:
                return at
        return -1

    def _resolve(
        self, keys: Sequence[bytes], shared: int, places: Iterable[int], rules: Rules, now: float
    ) -> None:
        """Count the prefixes of this request that earlier ones asked for: they are asked for again.

        Those whose first request is still unanswered could not be read: they tell nothing yet.
        """
        missed_tokens = 0
        near = max(0, shared + 1 - _LOOKBACK_PIECES)
        for key in (*(keys[at] for at in places if at < near), *keys[near : shared + 1]):
            found = self._asked.get(key) or self._overdue.get(key)
            if found is None or not found.is_answered:
                continue
            is_overdue = self._asked.pop(key, None) is None
            if is_overdue:
                del self._overdue[key]
            rate, is_late = self.reuse.rate(found.layer), now > found.until
            if is_late:
                self.reuse = self.reuse.with_rate(found.layer, rate.with_late_outcome())
                continue
            rate = rate.with_return() if is_overdue else rate.with_outcome(is_again=True)
            self.reuse = self.reuse.with_rate(found.layer, rate)
            if found.layer in _CONVERSATION:
                self.reuse = self.reuse.with_return(now - found.at)
            if not self._has_entry(key, now):
                missed_tokens += found.new_tokens
        net_saving = 2 - rules.read_price - min(rules.write_prices.values(), default=1.0)
        self.reuse = self.reuse.with_missed_read(missed_tokens * net_saving)

    def _add(
        self, keys: Sequence[bytes], last: int, continued: _Conversation | None, now: float, *, is_shared: bool
    ) -> None:
        """Have the request's prefixes known, as part of the conversation that it continues."""
        conversation = continued or _Conversation()
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

    def _touch(self, conversation: _Conversation, now: float, *, is_shared: bool) -> None:
        conversation.last_at = now
        is_shared = is_shared or id(conversation) in self._shared
        self._single.pop(id(conversation), None)
        group = self._shared if is_shared else self._single
        group[id(conversation)] = conversation
        group.move_to_end(id(conversation))

    def _ask(self, levels: Sequence[Level], keys: Sequence[bytes], rules: Rules, now: float) -> None:
        """Have the request's own prefixes wait to be asked for again."""
        before = 0
        for level, key in zip(levels, keys, strict=True):
            if level.tokens < rules.minimum_tokens:
                continue
            self._asked.pop(key, None)
            self._overdue.pop(key, None)
            self._asked[key] = _Asked(
                layer=level.layer,
                new_tokens=level.tokens - before,
                at=now,
                until=now + rules.ttls[0].seconds,
                late_until=now + rules.ttls[-1].seconds,
            )
            before = level.tokens

    def _write(
        self, levels: Sequence[Level], keys: Sequence[bytes], reach: Reach, rules: Rules, now: float
    ) -> None:
        """Count what the request writes, and have it known that its prefixes will be there."""
        if reach.layer is None or not reach.written_tokens:
            return
        for level, key in zip(levels, keys, strict=True):
            if level.pieces <= reach.pieces and not level.is_written:
                self._entries[key] = written(level.tokens, rules.ttls[0], at=now, readable_at=_IN_FLIGHT)
        if len(self._entries) > _MAX_ENTRIES:
            self._entries = {key: entry for key, entry in self._entries.items() if entry.lives(now)}
            for key in list(self._entries)[: -_MAX_ENTRIES // 2]:
                del self._entries[key]


def _last_markable(pieces: Sequence[Piece], among: range) -> int:
    return next((at for at in reversed(among) if pieces[at].markable), -1)


def _has_history(pieces: Sequence[Piece], system_end: int) -> bool:
    """Whether the request has more than one message."""
    if system_end >= len(pieces):
        return False
    first, last = pieces[system_end].place, pieces[-1].place
    return first is not None and last is not None and first.index != last.index


def _places(
    prompt: CachedPrompt, shared: int, last: int, *, is_continued: bool
) -> Iterator[tuple[int, PromptLayer]]:
    """The ends of the layers of a request, of what it shares with an earlier one, and of all of it."""
    tools_end, system_end, _, _ = landmarks_of(prompt)
    pieces = prompt.pieces
    found = {
        _last_markable(pieces, range(last + 1)): PromptLayer.HISTORY if is_continued else PromptLayer.CONTEXT,
        _last_markable(pieces, range(shared + 1)): _layer_at(shared, tools_end, system_end),
        _last_markable(pieces, range(tools_end, min(system_end, last + 1))): PromptLayer.SYSTEM,
        _last_markable(pieces, range(min(tools_end, last + 1))): PromptLayer.TOOLS,
    }
    found.pop(-1, None)
    for at, layer in sorted(found.items()):
        yield at, SHARED[layer] if at <= shared else layer


def _layer_at(at: int, tools_end: int, system_end: int) -> PromptLayer:
    if at < tools_end:
        return PromptLayer.TOOLS
    return PromptLayer.SYSTEM if at < system_end else PromptLayer.CONTEXT
