"""Why a session's request did not read what the one before it left in the provider's cache, as it happens.

Of each session the last body is remembered, as long as there is room for all of them; beyond that the hashes
and lengths of its blocks. Bodies are read only where a bill says that much was not read.
"""

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from foveate import wire
from foveate.cache.cause_words import cause_in_words
from foveate.cache.causes import Cause
from foveate.cache.explain import Break, NoBreak, explain
from foveate.cache.remembered import Remembered, remember
from foveate.cache.requests import BlockTokens
from foveate.cache.rules import Caching, Rules
from foveate.engine.exchange import Exchange
from foveate.engine.options import MoneyOptions
from foveate.engine.steps.names import ROOM, TURNS
from foveate.engine.watch import UNWATCHED, SeenBreak, Watch
from foveate.engine.work import Work
from foveate.errors import FoveateError
from foveate.values import Area, CacheUsage, Format, Place, ReplaceMessages, ReplaceText, Usage

_LOG = logging.getLogger(__name__)

MOST_BYTES = 64 * 1024 * 1024
"""So many of last bodies are remembered."""
_MOST_SESSIONS = 4 * 1024
_MOST_COLD = 256
_MOST_RECENT = 100
# A bill that reads less than this share of what was left, and so many tokens less, is worth a look.
_MUCH_LESS = 0.8
_LEAST_TOKENS = 1024
# A body that there is no more room for is read once more for its hashes: not more often than that, since it
# takes milliseconds.
_COLD_EVERY_SECONDS = 0.1
_PRICED_TOKENS = 1000
# What shortened tool results and messages that made room look like in the bodies.
_TRIMMED = frozenset(
    (
        *(Cause.EDITED, Cause.SHORTENED, Cause.EXTENDED),
        *(Cause.MESSAGES_REPLACED, Cause.MESSAGES_DROPPED, Cause.MESSAGES_INSERTED, Cause.OTHER_CONVERSATION),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Last:
    """A session's last request: what it left in the cache by its bill, and its body, warm or cold, if any.

    `fold_id` is the fold that stands for the head of its history, `trimmed` what was shortened or taken out of
    the rest.
    """

    request_id: str
    spoken: Format
    served_model: str
    sent_at: float
    fold_id: str | None
    trimmed: frozenset[Place | tuple[int, int]]
    left_tokens: int
    rules: Rules
    tokens: BlockTokens = field(repr=False)
    body: bytes | None = field(repr=False)
    cold: Remembered | None = field(default=None, repr=False)

    def remembered(self) -> Remembered | None:
        """The request as the explainer needs it; None where too little is known of it."""
        return self.cold if self.body is None else _remembered(self, self.body, warm=True)


def _remembered(last: _Last, body: bytes, *, warm: bool) -> Remembered:
    request = wire.read(body, last.spoken, model=last.served_model)
    return remember(request, last.rules, last.tokens, warm=warm)


_Key = tuple[str, str]


class Breaks:
    """Sees breaks of the cache in every session of a process, and remembers the last ones."""

    def __init__(
        self,
        cost: Callable[[], MoneyOptions],
        *,
        watch: Watch = UNWATCHED,
        told: Callable[[SeenBreak], None] | None = None,
        most_bytes: int = MOST_BYTES,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cost = cost
        self._watch = watch
        self._told = told
        self._most_bytes = most_bytes
        self._ticks = ticks
        self._last: OrderedDict[_Key, _Last] = OrderedDict()
        self._warm: OrderedDict[_Key, int] = OrderedDict()
        self._warm_bytes = 0
        self._cold: deque[_Key] = deque()
        self._cooled_at = float("-inf")
        self._recent: deque[SeenBreak] = deque(maxlen=_MOST_RECENT)
        self._under_way: set[asyncio.Task[None]] = set()

    @property
    def recent(self) -> Sequence[SeenBreak]:
        """The last breaks, the newest first."""
        return tuple(reversed(self._recent))

    @property
    def warm_bytes(self) -> int:
        """How many bytes of bodies are remembered."""
        return self._warm_bytes

    def __call__(self, exchange: Exchange) -> None:
        """Hold what a request has read against what the one before it left."""
        work, usage = exchange.work, exchange.usage
        if work is None or usage is None or not exchange.has_bill or not 200 <= exchange.status < 300:
            return
        rules = work.rules
        if rules.caching is Caching.NONE or work.found is None or work.found.is_aside:
            return
        key = (work.incoming.agent, work.session_id)
        before, left_tokens = self._last.get(key), _left(usage.cache, rules)
        if before is None and not left_tokens:  # there was nothing to read, and will not be
            return
        now = _Last(
            request_id=exchange.incoming.id,
            spoken=exchange.incoming.spoken,
            served_model=exchange.incoming.served_model,
            sent_at=exchange.sent_at,
            fold_id=None if work.fold is None else work.fold.id,
            trimmed=_trimmed(work),
            left_tokens=left_tokens,
            rules=rules,
            tokens=work.block_tokens,
            body=exchange.outgoing.body,
        )
        if before is not None and before.sent_at > now.sent_at:  # they came at the same time
            return
        if before is not None and _is_much_less(usage.cache.read, before.left_tokens):
            self._beside(self._explained(before, now, work, usage))
        self._remember(key, now)

    async def close(self) -> None:
        """Wait for what is being explained."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    def _remember(self, key: _Key, now: _Last) -> None:
        self._last[key] = now
        self._last.move_to_end(key)
        self._warm_bytes += len(now.body or b"") - self._warm.pop(key, 0)
        self._warm[key] = len(now.body or b"")
        while self._warm_bytes > self._most_bytes:
            self._cool(*self._warm.popitem(last=False))
        while len(self._last) > _MOST_SESSIONS:
            gone, _ = self._last.popitem(last=False)
            self._warm_bytes -= self._warm.pop(gone, 0)

    def _cool(self, key: _Key, size_bytes: int) -> None:
        """Let go of a body, and keep its hashes where that is not done too often."""
        self._warm_bytes -= size_bytes
        last, now = self._last[key], self._ticks()
        self._last[key] = replace(last, body=None)
        if last.body is not None and now - self._cooled_at >= _COLD_EVERY_SECONDS:
            self._cooled_at = now
            self._beside(self._cooled(key, last, last.body))

    async def _cooled(self, key: _Key, last: _Last, body: bytes) -> None:
        cold = await asyncio.to_thread(_remembered, last, body, warm=False)
        there = self._last.get(key)
        if there is not None and there.request_id == last.request_id:
            self._last[key] = replace(there, cold=cold)
            self._cold.append(key)
        while len(self._cold) > _MOST_COLD:
            oldest = self._cold.popleft()
            if oldest in self._last and oldest not in self._cold:
                self._last[oldest] = replace(self._last[oldest], cold=None)

    async def _explained(self, before: _Last, now: _Last, work: Work, usage: Usage) -> None:
        price = _price_per_token(self._cost(), work)
        verdict = await asyncio.to_thread(_verdict, before, now, usage.cache, price)
        if not isinstance(verdict, Break) or verdict.lost_tokens < _LEAST_TOKENS:
            return
        seen = SeenBreak(
            at=now.sent_at,
            request_id=now.request_id,
            previous_id=before.request_id,
            agent=work.incoming.agent,
            session_id=work.session_id,
            provider=work.incoming.provider,
            model=work.model,
            verdict=verdict,
        )
        self._recent.append(seen)
        self._watch.broke(seen)
        if self._told is not None:
            self._told(seen)
        _LOG.info("%s", told(seen))

    def _beside(self, work: Coroutine[object, object, None]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.warning("a break of the cache could not be looked into", exc_info=error)


def told(seen: SeenBreak) -> str:
    """A break in one line, without a word of what the conversation says."""
    verdict = seen.verdict
    where = "" if verdict.place is None else f" at {verdict.place.area} {verdict.place.index}"
    side = verdict.after or verdict.before
    extent = "" if side is None else f", bytes {side.start_byte} to {side.end_byte}"
    cost = "" if verdict.lost_dollars is None else f", ${verdict.lost_dollars:.6f}"
    if seen.is_planned:
        return (
            f"{seen.request_id}: planned rewrite of session {seen.session_id}: {verdict.cause}{where};"
            f" {verdict.lost_tokens} of {verdict.kept_tokens} tokens are written again"
        )
    return (
        f"{seen.request_id}: session {seen.session_id} could not read its cache: {verdict.cause}{where}{extent}"
        f"; {verdict.lost_tokens} of {verdict.kept_tokens} tokens are paid for again{cost}"
    )


def _trimmed(work: Work) -> frozenset[Place | tuple[int, int]]:
    """The tool results that were shortened, and the messages that gave way to make room."""
    places: set[Place | tuple[int, int]] = set()
    for done in work.done:
        if isinstance(done.edit, ReplaceText):
            places.add(done.edit.place)
        elif isinstance(done.edit, ReplaceMessages) and done.step in (ROOM, TURNS):
            places.add((done.edit.start, done.edit.end))
    return frozenset(places)


def _left(usage: CacheUsage, rules: Rules) -> int:
    """What a request left in the cache for the next one, by its bill."""
    told = usage.read + usage.written_5m + usage.written_1h
    if rules.caching is not Caching.MARKS:  # it keeps what it is sent unasked, and says nothing of it
        told = max(told, usage.input_tokens)
    return told if told >= rules.minimum_tokens else 0


def _is_much_less(read_tokens: int, left_tokens: int) -> bool:
    return read_tokens < _MUCH_LESS * left_tokens and left_tokens - read_tokens >= _LEAST_TOKENS


def _verdict(
    before: _Last, now: _Last, billed: CacheUsage, price_per_token: Decimal | None
) -> Break | NoBreak | None:
    """Why `now` could not read what `before` left; None where too little is known."""
    try:
        previous, current = before.remembered(), now.remembered()
        if previous is None or current is None:
            return None
        verdict = explain(
            previous,
            current,
            now.rules,
            gap_seconds=max(0.0, now.sent_at - before.sent_at),
            billed=billed,
            price_per_token=price_per_token,
        )
        return _planned(verdict, before, now)
    except FoveateError as error:
        _LOG.info("%s: why it was not read from the cache cannot be said: %s", now.request_id, error)
        return None


def _planned(verdict: Break | NoBreak, before: _Last, now: _Last) -> Break | NoBreak:
    """The same verdict, with the cause if Foveate itself rewrote the history: bodies alone do not show it."""
    if not isinstance(verdict, Break) or verdict.place is None or verdict.place.area is not Area.MESSAGES:
        return verdict
    if before.fold_id != now.fold_id:
        cause = Cause.COMPACTION_UNDONE if now.fold_id is None else Cause.COMPACTION
    elif before.trimmed != now.trimmed and verdict.cause in _TRIMMED:
        cause = Cause.TRIMMING
    else:
        return verdict
    return replace(verdict, cause=cause, because=f"{cause_in_words(cause)} (planned)")


def _price_per_token(options: MoneyOptions, work: Work) -> Decimal | None:
    usage = Usage(cache=CacheUsage(uncached=_PRICED_TOKENS))
    incoming = work.incoming
    found = options.prices.price(
        work.model, usage, provider=incoming.provider, at=work.now, region=incoming.region
    )
    return None if found is None or found.dollars is None else found.dollars / _PRICED_TOKENS
