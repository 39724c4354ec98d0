"""Detects and explains cache misses: requests that did not read what the previous one had cached.

The last body of each session is kept while there is room for all of them, and beyond that, or if it is very
large, the hashes and lengths of its blocks. Bodies are parsed only if the usage shows that much was not read.
"""

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from foveate import formats
from foveate.caching import LruCache
from foveate.engine.exchange import Exchange
from foveate.engine.observer import NO_OBSERVER, SHORT_MESSAGE, Observer, SessionCacheMiss
from foveate.engine.options import SpendingOptions
from foveate.engine.request_context import RequestContext
from foveate.engine.steps import LIMIT_TURNS, OVERFLOW
from foveate.errors import FoveateError
from foveate.model import Area, CacheUsage, Format, Place, ReplaceMessages, ReplaceText, Usage
from foveate.prompt_cache.misses.causes import MissCause, describe_cause
from foveate.prompt_cache.misses.explain import ExplainedMiss, NoMiss, explain_miss
from foveate.prompt_cache.misses.snapshot import RequestSnapshot, take_snapshot
from foveate.prompt_cache.prompt.blocks import BlockTokens
from foveate.prompt_cache.rules import CacheRules, CachingMode
from foveate.tokens.worker_threads import run_in_thread

_LOG = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Total size of the bodies that are kept."""
# A few larger ones would displace all others.
_MAX_SINGLE_BODY_BYTES = 8 * 1024 * 1024
_MAX_SESSIONS = 4 * 1024
_MAX_HASHED = 256
_MAX_RECENT = 100
# A miss reads less than this share of what was cached, and at least so many tokens less.
_MIN_READ_SHARE = 0.8
_MIN_LOST_TOKENS = 1024
# Hashing a body that is dropped takes milliseconds, so it is not done more often.
_HASH_INTERVAL_SECONDS = 0.1
_PRICE_SAMPLE_TOKENS = 1000
_SHORT_ID_CHARS = 8
# How truncated tool results and dropped messages appear in the bodies.
_TRIMMING_CAUSES = frozenset(
    (
        *(MissCause.EDITED, MissCause.SHORTENED, MissCause.EXTENDED),
        *(
            MissCause.MESSAGES_REPLACED,
            MissCause.MESSAGES_DROPPED,
            MissCause.MESSAGES_INSERTED,
            MissCause.OTHER_CONVERSATION,
        ),
    )
)
# Causes that are named after what changed.
_CHANGED_CAUSES = frozenset(
    (
        *(MissCause.MODEL, MissCause.PARAMETER, MissCause.IMAGES, MissCause.KEY_ORDER, MissCause.CACHE_KEY),
        *(MissCause.TIMESTAMP, MissCause.DATE, MissCause.TIME, MissCause.UUID, MissCause.RANDOM_ID),
        *(MissCause.COUNTER, MissCause.NUMBER, MissCause.WHITESPACE, MissCause.UNICODE, MissCause.ROLE),
        MissCause.JSON_SPELLING,
    )
)
_TEXT_CAUSES = frozenset((MissCause.EDITED, MissCause.SHORTENED, MissCause.EXTENDED))
_SessionKey = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LastRequest:
    """A session's last request: what it cached by its usage, and its body or fingerprint, if any.

    `compaction_id` is the compaction at the head of its history, `trimmed` what was truncated or dropped from
    the rest.
    """

    request_id: str
    api_format: Format
    served_model: str
    sent_at: float
    compaction_id: str | None
    trimmed: frozenset[Place | tuple[int, int]]
    cached_tokens: int
    rules: CacheRules
    block_tokens: BlockTokens = field(repr=False)
    body: bytes | None = field(repr=False)
    fingerprint: RequestSnapshot | None = field(default=None, repr=False)

    def load_fingerprint(self) -> RequestSnapshot | None:
        """The request as the explanation needs it; None if too little is known."""
        return self.fingerprint if self.body is None else _fingerprint_request(self, self.body, warm=True)


def _fingerprint_request(last: _LastRequest, body: bytes, *, warm: bool) -> RequestSnapshot:
    request = formats.parse_request(body, last.api_format, model=last.served_model)
    return take_snapshot(request, last.rules, last.block_tokens, keep_contents=warm)


class CacheMissDetector:
    def __init__(
        self,
        spending: Callable[[], SpendingOptions],
        *,
        observer: Observer = NO_OBSERVER,
        on_miss: Callable[[SessionCacheMiss], None] | None = None,
        max_bytes: int = MAX_BODY_BYTES,
        max_single_body_bytes: int = _MAX_SINGLE_BODY_BYTES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spending = spending
        self._observer = observer
        self._on_miss = on_miss
        self._monotonic = monotonic
        self._last_requests: OrderedDict[_SessionKey, _LastRequest] = OrderedDict()
        self._body_sizes: LruCache[int] = LruCache(
            max_bytes, weigh=lambda _, size_bytes: size_bytes, on_evict=self._drop_body
        )
        self._max_single_body_bytes = max_single_body_bytes
        self._hashed: OrderedDict[_SessionKey, None] = OrderedDict()
        self._hashed_at = float("-inf")
        self._recent: deque[SessionCacheMiss] = deque(maxlen=_MAX_RECENT)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def recent(self) -> Sequence[SessionCacheMiss]:
        return tuple(reversed(self._recent))

    @property
    def body_bytes(self) -> int:
        return self._body_sizes.weight

    def __call__(self, exchange: Exchange) -> None:
        context, usage = exchange.context, exchange.usage
        if (
            context is None
            or usage is None
            or not exchange.has_complete_usage
            or not 200 <= exchange.status < 300
        ):
            return
        rules = context.rules
        if (
            rules.caching is CachingMode.NONE
            or context.session.match is None
            or context.session.match.is_side_request
        ):
            return
        key = (context.incoming.agent, context.session_id)
        previous, cached_tokens = self._last_requests.get(key), _cached_tokens(usage.cache, rules)
        if previous is None and not cached_tokens:  # nothing was cached, and nothing is now
            return
        current = _LastRequest(
            request_id=exchange.incoming.id,
            api_format=exchange.incoming.api_format,
            served_model=exchange.incoming.served_model,
            sent_at=exchange.sent_at,
            compaction_id=None if context.compaction is None else context.compaction.id,
            trimmed=_trimmed_places(context),
            cached_tokens=cached_tokens,
            rules=rules,
            block_tokens=context.block_tokens,
            body=exchange.upstream_request.body,
        )
        if previous is not None and previous.sent_at > current.sent_at:  # the requests were concurrent
            return
        if previous is not None and _is_miss(usage.cache.read, previous.cached_tokens):
            self._start_task(self._explain(previous, current, context, usage))
        self._remember(key, current)

    async def close(self) -> None:
        """Wait for running explanations."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _remember(self, key: _SessionKey, current: _LastRequest) -> None:
        self._last_requests[key] = current
        self._last_requests.move_to_end(key)
        size_bytes = len(current.body or b"")
        if size_bytes <= self._max_single_body_bytes:
            self._body_sizes.put(key, size_bytes)
        else:
            self._body_sizes.remove(key)
            self._drop_body(key, size_bytes)
        while len(self._last_requests) > _MAX_SESSIONS:
            removed_key, _ = self._last_requests.popitem(last=False)
            self._body_sizes.remove(removed_key)

    def _drop_body(self, key: _SessionKey, _: int) -> None:
        """Drop a body, and hash it first if the last one is not too recent."""
        last, now = self._last_requests[key], self._monotonic()
        self._last_requests[key] = replace(last, body=None)
        if last.body is not None and now - self._hashed_at >= _HASH_INTERVAL_SECONDS:
            self._hashed_at = now
            self._start_task(self._store_fingerprint(key, last, last.body))

    async def _store_fingerprint(self, key: _SessionKey, last: _LastRequest, body: bytes) -> None:
        fingerprint = await run_in_thread(lambda: _fingerprint_request(last, body, warm=False), len(body))
        current = self._last_requests.get(key)
        if current is not None and current.request_id == last.request_id:
            self._last_requests[key] = replace(current, fingerprint=fingerprint)
            self._hashed[key] = None
            self._hashed.move_to_end(key)
        while len(self._hashed) > _MAX_HASHED:
            oldest, _ = self._hashed.popitem(last=False)
            if oldest in self._last_requests:
                self._last_requests[oldest] = replace(self._last_requests[oldest], fingerprint=None)

    async def _explain(
        self, previous: _LastRequest, current: _LastRequest, context: RequestContext, usage: Usage
    ) -> None:
        price = _price_per_token(self._spending(), context)
        size_bytes = len(previous.body or b"") + len(current.body or b"")
        verdict = await run_in_thread(lambda: _explain_miss(previous, current, usage.cache, price), size_bytes)
        if not isinstance(verdict, ExplainedMiss) or verdict.lost_tokens < _MIN_LOST_TOKENS:
            return
        miss = SessionCacheMiss(
            at=current.sent_at,
            request_id=current.request_id,
            previous_id=previous.request_id,
            agent=context.incoming.agent,
            session_id=context.session_id,
            provider=context.incoming.provider,
            model=context.model,
            verdict=verdict,
        )
        self._recent.append(miss)
        self._observer.on_cache_miss(miss)
        if self._on_miss is not None:
            self._on_miss(miss)
        _LOG.info("%s", describe_miss(miss), extra={SHORT_MESSAGE: describe_miss_briefly(miss)})

    def _start_task(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.warning("a cache miss could not be explained", exc_info=error)


def describe_miss(miss: SessionCacheMiss) -> str:
    verdict = miss.verdict
    place = "" if verdict.place is None else f" at {verdict.place.area} {verdict.place.index}"
    side = verdict.after or verdict.before
    extent = "" if side is None else f", bytes {side.start_byte} to {side.end_byte}"
    cost = "" if verdict.lost_dollars is None else f", ${verdict.lost_dollars:.6f}"
    if miss.is_planned:
        return (
            f"{miss.request_id}: planned rewrite of session {miss.session_id}: {verdict.cause}{place};"
            f" {verdict.lost_tokens} of {verdict.kept_tokens} cached tokens are written again"
        )
    return (
        f"{miss.request_id}: cache miss in session {miss.session_id}: {verdict.cause}{place}{extent};"
        f" {verdict.lost_tokens} of {verdict.kept_tokens} cached tokens are charged again{cost}"
    )


def describe_miss_briefly(miss: SessionCacheMiss) -> str:
    """Return the line for a terminal, without positions and ids of requests."""
    verdict = miss.verdict
    cause = verdict.cause.name.lower().replace("_", " ")
    if verdict.cause in _CHANGED_CAUSES:
        cause += " changed"
    elif verdict.cause in _TEXT_CAUSES:
        cause = f"text {cause}"
    if verdict.place is not None and verdict.place.area is not Area.TOOLS:
        cause += f" in {verdict.place.area}"
    session = miss.session_id[:_SHORT_ID_CHARS]
    tokens = f"{verdict.lost_tokens:,} of {verdict.kept_tokens:,} tokens"
    if miss.is_planned:
        return f"planned rewrite {session}: {cause}; {tokens} written again"
    cost = "" if verdict.lost_dollars is None else f", ${verdict.lost_dollars:.4f}"
    return f"cache miss {session}: {cause}; {tokens} lost{cost}"


def _trimmed_places(context: RequestContext) -> frozenset[Place | tuple[int, int]]:
    places: set[Place | tuple[int, int]] = set()
    for applied in context.applied_edits:
        if isinstance(applied.edit, ReplaceText):
            places.add(applied.edit.place)
        elif isinstance(applied.edit, ReplaceMessages) and applied.step in (OVERFLOW, LIMIT_TURNS):
            places.add((applied.edit.start, applied.edit.end))
    return frozenset(places)


def _cached_tokens(usage: CacheUsage, rules: CacheRules) -> int:
    """The tokens that a request has cached for the next one, by its usage."""
    cached = usage.read + usage.written_5m + usage.written_1h
    if rules.caching is not CachingMode.BREAKPOINTS:  # it caches everything it is sent, and does not report it
        cached = max(cached, usage.input_tokens)
    return cached if cached >= rules.minimum_tokens else 0


def _is_miss(read_tokens: int, cached_tokens: int) -> bool:
    return read_tokens < _MIN_READ_SHARE * cached_tokens and cached_tokens - read_tokens >= _MIN_LOST_TOKENS


def _explain_miss(
    previous_request: _LastRequest,
    current_request: _LastRequest,
    reported_usage: CacheUsage,
    price_per_token: Decimal | None,
) -> ExplainedMiss | NoMiss | None:
    """None if too little is known."""
    try:
        previous, current = previous_request.load_fingerprint(), current_request.load_fingerprint()
        if previous is None or current is None:
            return None
        verdict = explain_miss(
            previous,
            current,
            current_request.rules,
            gap_seconds=max(0.0, current_request.sent_at - previous_request.sent_at),
            usage=reported_usage,
            price_per_token=price_per_token,
        )
        return _with_planned_cause(verdict, previous_request, current_request)
    except FoveateError as error:
        _LOG.info(
            "%s: the cache miss of this request could not be explained: %s", current_request.request_id, error
        )
        return None


def _with_planned_cause(
    verdict: ExplainedMiss | NoMiss, previous: _LastRequest, current: _LastRequest
) -> ExplainedMiss | NoMiss:
    """Set the cause if Foveate itself rewrote the history: bodies alone do not show it."""
    if (
        not isinstance(verdict, ExplainedMiss)
        or verdict.place is None
        or verdict.place.area is not Area.MESSAGES
    ):
        return verdict
    if previous.compaction_id != current.compaction_id:
        cause = MissCause.COMPACTION_UNDONE if current.compaction_id is None else MissCause.COMPACTION
    elif previous.trimmed != current.trimmed and verdict.cause in _TRIMMING_CAUSES:
        cause = MissCause.TRIMMING
    else:
        return verdict
    return replace(verdict, cause=cause, because=f"{describe_cause(cause)} (planned)")


def _price_per_token(options: SpendingOptions, context: RequestContext) -> Decimal | None:
    usage = Usage(cache=CacheUsage(uncached=_PRICE_SAMPLE_TOKENS))
    incoming = context.incoming
    price = options.prices.price(
        context.model, usage, provider=incoming.provider, at=context.received_at, region=incoming.region
    )
    return None if price is None or price.dollars is None else price.dollars / _PRICE_SAMPLE_TOKENS
