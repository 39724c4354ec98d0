"""Keep-alive requests: sent just before a cache entry expires, with the client's own key, while they pay.

Off by default. The request and the key are held in memory only while a keep-alive is planned: until the
session's next request, an error, or the last one that pays.

A keep-alive repeats the session's last request with no output, which refreshes what it reads. If the response
was text alone, it may be included and all of it cached for the long TTL, since the next request begins with it.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from uuid import uuid4

from foveate import formats
from foveate.caching import LruCache
from foveate.compaction.summarize.llm import SummarizerEndpoint
from foveate.cost.admission import Admission
from foveate.cost.ledger import Call, Category
from foveate.cost.savings import make_own_call_savings
from foveate.engine.exchange import Exchange
from foveate.engine.options import AgentOptions, SpendingOptions
from foveate.engine.request import IncomingRequest
from foveate.engine.request_context import RequestContext
from foveate.engine.session_state import SessionStates
from foveate.engine.spending.cost_ceiling import CostCeiling
from foveate.engine.spending.paid_client import PaidClient, PaymentOptions
from foveate.engine.steps import KEEP_ALIVE
from foveate.errors import FoveateError, MalformedRequest
from foveate.formats.response.answers import read_complete_texts
from foveate.formats.response.usage import find_usage
from foveate.http import JsonClient, JsonReply
from foveate.model import (
    Area,
    CacheBreakpoint,
    ComparisonOutcome,
    Edit,
    Format,
    InsertParts,
    Place,
    Request,
    Savings,
    SetParameter,
    Text,
)
from foveate.prompt_cache.keepalive import KeepAlive, plan_keepalive
from foveate.prompt_cache.placement.arrival_times import ArrivalForecast, forecast_next_request
from foveate.prompt_cache.placement.breakpoints import apply_breakpoints, readable_entries
from foveate.prompt_cache.prompt.blocks import BlockTokens
from foveate.prompt_cache.prompt.build import build_cached_prompt
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, prompt_layout
from foveate.prompt_cache.rules import CacheRules, CachingMode
from foveate.prompt_cache.simulator import SimulatedCache

_LOG = logging.getLogger(__name__)

# No output is how a cache is warmed: "max_tokens: 0" (platform.claude.com, prompt caching, November 2026). It
# is not accepted with streaming, nor with thinking.
_NO_OUTPUT_EDITS = (
    SetParameter(path=("max_tokens",), value=0, reason="keep-alive: no output is needed"),
    SetParameter(path=("stream",), value=False, reason="keep-alive: no output is needed"),
)
_NOT_THINKING = frozenset(("", "disabled"))
# Follows a response, since a conversation must end with the user.
_USER_PLACEHOLDER = "."
_KEEP_RESPONSE_REASON = "keep-alive: keeps the response and everything before it in the cache"
# The clock may be set, and the machine may sleep, so it is polled.
_POLL_SECONDS = 0.25
# A slower keep-alive has missed its entry.
_TIMEOUT_SECONDS = 30.0
_MAX_BYTES = 256 * 1024 * 1024
_MAX_STOPPED = 4 * 1024
# If less of an entry was read, it had expired.
_MIN_READ_SHARE = 0.5
_SessionKey = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSession:
    """A session whose last request can be repeated, with the key it was sent with.

    `body` is what was sent, `prompt` how the cache sees it. `response_texts` are those of the response if they
    can be included, after `request`, which has no breakpoints; `response_tokens` is its size. `input_tokens` is
    an upper bound. `sent_count` is the number of keep-alive requests since `last_request_at`.
    """

    agent: str
    session_id: str
    provider: str
    model: str
    endpoint: SummarizerEndpoint = field(repr=False)
    body: bytes = field(repr=False)
    request: Request = field(repr=False)
    prompt: CachedPrompt = field(repr=False)
    rules: CacheRules = field(repr=False)
    block_tokens: BlockTokens = field(repr=False)
    response_texts: tuple[str, ...] = field(repr=False)
    response_tokens: int
    input_tokens: int
    last_request_at: float
    sent_count: int = 0
    is_subscription: bool = False

    @property
    def size_bytes(self) -> int:
        return 2 * len(self.body)


def warm_session(exchange: Exchange) -> WarmSession | None:
    context, usage = exchange.context, exchange.usage
    if context is None or context.cache.prompt is None or usage is None or not exchange.is_complete:
        return None
    if (
        not 200 <= exchange.status < 300
        or exchange.breakpoint_rejection is not None
        or not _can_keep_alive(context)
    ):
        return None
    endpoint = context.incoming.endpoint
    if endpoint is None or context.count.total is None:
        return None
    has_client_breakpoints = (
        prompt_layout(context.cache.prompt).breakpoints or context.cache.prompt.duplicate_breakpoints
    )
    response_texts = (
        ()
        if has_client_breakpoints or not _accepts_long_ttl(context.incoming, context)
        else _response_texts(exchange)
    )
    return WarmSession(
        agent=context.incoming.agent,
        session_id=context.session_id,
        provider=context.incoming.provider,
        model=context.model,
        endpoint=endpoint,
        body=exchange.upstream_request.body,
        request=context.request,
        prompt=apply_breakpoints(context.cache.prompt, context.cache.breakpoints),
        rules=context.conservative_rules,
        block_tokens=context.block_tokens,
        response_texts=response_texts,
        response_tokens=usage.output_tokens,
        input_tokens=max(context.count.total.upper, usage.cache.input_tokens),
        last_request_at=exchange.sent_at,
        is_subscription=exchange.is_subscription,
    )


def _can_keep_alive(context: RequestContext) -> bool:
    is_anthropic = (
        context.request.format is Format.ANTHROPIC and context.rules.caching is CachingMode.BREAKPOINTS
    )
    # A keep-alive goes to a route that reads the model from the body.
    return is_anthropic and not context.incoming.served_model and context.request.thinking in _NOT_THINKING


def _accepts_long_ttl(incoming: IncomingRequest, context: RequestContext) -> bool:
    options = context.options.placement
    wants_long = options.long_ttl and (options.ttl is None or options.ttl is context.rules.ttls[-1])
    return (
        wants_long
        and incoming.provider in context.options.long_ttl_providers
        and not context.cache.transient_places
    )


def _response_texts(exchange: Exchange) -> tuple[str, ...]:
    body = exchange.response_body
    return read_complete_texts(body, streams=exchange.is_streaming) if body is not None else ()


def plan_keep_alive(
    warm: WarmSession, cache: SimulatedCache, expected: ArrivalForecast, *, now: float, max_in_a_row: int
) -> KeepAlive | None:
    """The next keep-alive that is expected to pay."""
    keep_alive = _next_keep_alive(warm, warm.rules, cache, expected, now=now, max_in_a_row=max_in_a_row)
    if (
        keep_alive is not None
        and keep_alive.includes_response
        and (not warm.response_texts or keep_alive.pieces < len(warm.prompt.pieces))
    ):
        short_rules = replace(warm.rules, ttls=warm.rules.ttls[:1])
        keep_alive = _next_keep_alive(warm, short_rules, cache, expected, now=now, max_in_a_row=max_in_a_row)
    if keep_alive is None:
        return None
    # What follows the entry is sent too, and charged.
    tail_tokens = sum(piece.tokens for piece in warm.prompt.pieces[keep_alive.pieces :])
    saved = keep_alive.saved_tokens - tail_tokens
    return replace(keep_alive, saved_tokens=saved) if saved > 0 else None


def _next_keep_alive(
    warm: WarmSession,
    rules: CacheRules,
    cache: SimulatedCache,
    expected: ArrivalForecast,
    *,
    now: float,
    max_in_a_row: int,
) -> KeepAlive | None:
    return plan_keepalive(
        warm.prompt,
        rules,
        cache,
        expected,
        response_tokens=warm.response_tokens,
        last_at=warm.last_request_at,
        now=now,
        sent_keepalives=warm.sent_count,
        max_keepalives=max_in_a_row,
    )


def apply_keep_alive(
    warm: WarmSession, keep_alive: KeepAlive, cache: SimulatedCache, *, now: float
) -> WarmSession:
    body = _body_with_response(warm, cache, now) if keep_alive.includes_response else warm.body
    body_without_output = formats.apply_edits(formats.parse_request(body, Format.ANTHROPIC), _NO_OUTPUT_EDITS)
    prompt = build_cached_prompt(
        formats.parse_request(body_without_output, Format.ANTHROPIC), warm.rules, warm.block_tokens
    )
    # What it wrote is cached for the long TTL and only refreshed from now on.
    response_texts = () if keep_alive.includes_response else warm.response_texts
    return replace(
        warm,
        body=body_without_output,
        prompt=prompt,
        response_texts=response_texts,
        sent_count=warm.sent_count + 1,
    )


def _body_with_response(warm: WarmSession, cache: SimulatedCache, now: float) -> bytes:
    original, long_ttl = warm.request, warm.rules.ttls[-1]
    end = len(original.messages)
    response_insert = InsertParts(
        place=Place(Area.MESSAGES, end),
        parts=tuple(map(Text, warm.response_texts)),
        role="assistant",
        reason=_KEEP_RESPONSE_REASON,
    )
    request = formats.parse_request(formats.apply_edits(original, (response_insert,)), Format.ANTHROPIC)
    user_insert = InsertParts(
        place=Place(Area.MESSAGES, end + 1), parts=(Text(_USER_PLACEHOLDER),), reason=_KEEP_RESPONSE_REASON
    )
    live_entries = readable_entries(warm.prompt, cache, now)
    long_ttl_blocks = [
        warm.prompt.pieces[at].place for at, entry in sorted(live_entries.items()) if entry.ttl is long_ttl
    ]
    places = [place for place in long_ttl_blocks if place is not None][1 - warm.rules.max_breakpoints :]
    places.append(Place(Area.MESSAGES, end, len(warm.response_texts) - 1))
    breakpoints: list[Edit] = [
        CacheBreakpoint(place=place, ttl=long_ttl, reason=_KEEP_RESPONSE_REASON) for place in places
    ]
    return formats.apply_edits(request, (*breakpoints, user_insert))


class KeepAliveScheduler:
    def __init__(
        self,
        client: JsonClient,
        admission: Admission,
        spending: Callable[[], SpendingOptions],
        options: Callable[[str], AgentOptions],
        session_states: SessionStates,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._admission = admission
        self._spending = spending
        self._options = options
        self._session_states = session_states
        self._clock = clock
        self._planned: dict[_SessionKey, tuple[KeepAlive, WarmSession]] = {}
        self._in_flight: dict[_SessionKey, int] = {}
        self._stopped: LruCache[bool] = LruCache(_MAX_STOPPED)
        self._sending: set[asyncio.Task[None]] = set()
        self._poll_task: asyncio.Task[None] | None = None

    @property
    def planned_count(self) -> int:
        return len(self._planned)

    def saved_tokens(self, context: RequestContext) -> float:
        planned = self._planned.get(_session_key(context))
        return planned[0].saved_tokens if planned is not None else 0

    def forget(self, context: RequestContext) -> Callable[[], None]:
        key = _session_key(context)
        planned = self._planned.pop(key, None)

        def plan_again() -> None:
            if planned is not None and key not in self._planned:
                self._plan(key, planned[1])

        return plan_again

    def cancel_planned(self, context: RequestContext) -> None:
        key = _session_key(context)
        self._planned.pop(key, None)
        self._in_flight[key] = self._in_flight.get(key, 0) + 1

    def __call__(self, exchange: Exchange) -> None:
        """Plan a keep-alive after a response, unless other requests of the session are in flight."""
        context = exchange.context
        if context is None or not context.options.sends_keep_alive:
            return
        key = _session_key(context)
        in_flight = self._in_flight.pop(key, 0) - 1
        if in_flight > 0:
            self._in_flight[key] = in_flight
            return
        if self._stopped.get(_key_bytes(key)):
            return
        warm = warm_session(exchange)
        if warm is not None:
            self._plan(key, warm)

    async def close(self) -> None:
        self._planned.clear()
        tasks = [*self._sending, *([self._poll_task] if self._poll_task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _plan(self, key: _SessionKey, warm: WarmSession) -> None:
        options = self._options(warm.agent).keep_alive
        state = self._session_states.session(*key)
        expected = forecast_next_request(state.rhythm, self._session_states.agent_rhythm(warm.agent))
        keep_alive = plan_keep_alive(
            warm, state.cache, expected, now=self._clock(), max_in_a_row=options.max_in_a_row
        )
        if keep_alive is None or not self._has_room(keep_alive, warm, options.max_sessions):
            return
        self._planned[key] = keep_alive, warm
        if self._poll_task is None or self._poll_task.done():
            self._poll_task = asyncio.create_task(self._poll())

    def _has_room(self, keep_alive: KeepAlive, warm: WarmSession, max_sessions: int) -> bool:
        """Return whether one more may be planned; one that saves more replaces the one that saves least."""
        if sum(other.size_bytes for _, other in self._planned.values()) + warm.size_bytes > _MAX_BYTES:
            return False
        if len(self._planned) < max_sessions:
            return True
        cheapest = min(self._planned, key=lambda other: self._planned[other][0].saved_tokens)
        if self._planned[cheapest][0].saved_tokens >= keep_alive.saved_tokens:
            return False
        del self._planned[cheapest]
        return True

    async def _poll(self) -> None:
        while self._planned:
            now = self._clock()
            due = [key for key, (keep_alive, _) in self._planned.items() if keep_alive.at <= now]
            for key in due:
                keep_alive, warm = self._planned.pop(key)
                task = asyncio.create_task(self._send(key, keep_alive, warm))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)
            if not due:
                first = min(keep_alive.at for keep_alive, _ in self._planned.values())
                await asyncio.sleep(min(_POLL_SECONDS, max(0.0, first - now)))

    async def _send(self, key: _SessionKey, keep_alive: KeepAlive, warm: WarmSession) -> None:
        """Plan the next one afterwards; any failure stops keep-alive for the session."""
        if self._in_flight.get(key) or not self._options(warm.agent).sends_keep_alive:
            return
        try:
            now = self._clock()
            state = self._session_states.session(*key)
            entry_tokens = sum(piece.tokens for piece in warm.prompt.pieces[: keep_alive.pieces])
            next_warm = apply_keep_alive(warm, keep_alive, state.cache, now=now)
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                reply = await self._post(next_warm, keep_alive)
            if _read_tokens(reply) < _MIN_READ_SHARE * entry_tokens:
                raise _EntryExpired(f"the cache entry of {entry_tokens} tokens has expired")
            state = self._session_states.session(*key)  # a request may have changed it meanwhile
            simulated = state.cache.serve(next_warm.prompt, next_warm.rules, at=now)
            self._session_states.put(*key, state.with_keep_alive(simulated.cache))
        except (FoveateError, TimeoutError, _EntryExpired) as error:
            _LOG.info("keep-alive of session %s stops: %s", key[1], error)
            self._stopped.put(_key_bytes(key), True)
        except Exception:  # noqa: BLE001 - nobody waits for it: whatever fails, the session only loses its cache
            _LOG.exception("keep-alive of session %s failed and stops", key[1])
            self._stopped.put(_key_bytes(key), True)
        else:
            if not self._in_flight.get(key) and key not in self._planned:
                self._plan(key, next_warm)

    async def _post(self, warm: WarmSession, keep_alive: KeepAlive) -> JsonReply:
        call = Call(
            id=f"ping-{uuid4().hex}",
            agent=warm.agent,
            session_id=warm.session_id,
            provider=warm.provider,
            model=warm.model,
            category=Category.PING,
            at=self._clock(),
            is_subscription=warm.is_subscription,
        )
        options = self._spending()
        cost_ceiling = CostCeiling(
            model=warm.model,
            provider=warm.provider,
            input_tokens=warm.input_tokens + (2 * warm.response_tokens if keep_alive.includes_response else 0),
            output_tokens=1,
            at=call.at,
            ttl=warm.rules.ttls[-1],
        )
        reservation = await self._admission.admit(call, cost_ceiling.dollars(options.prices), options.caps)
        payment = PaymentOptions(
            admission=self._admission,
            options=self._spending,
            make_call=lambda: call,
            api_format=Format.ANTHROPIC,
            compare=self._compare_cost,
        )
        client = PaidClient(self._client.with_reuse(warm.endpoint.reuse_connection), payment, reservation)
        return await client.post_json(warm.endpoint.url, warm.body, warm.endpoint.headers)

    def _compare_cost(self, call: Call, dollars: Decimal | None) -> Savings:
        if self._session_states.session(call.agent, call.session_id).would_exceed_window:
            return Savings(comparison=ComparisonOutcome.WOULD_NOT_FIT)
        return make_own_call_savings(call, dollars)


class _EntryExpired(Exception):
    pass


def _read_tokens(reply: JsonReply) -> int:
    try:
        usage = find_usage(Format.ANTHROPIC, reply)
    except MalformedRequest:
        return 0
    return usage.cache.read if usage is not None else 0


def _session_key(context: RequestContext) -> _SessionKey:
    return context.incoming.agent, context.session_id


def _key_bytes(key: _SessionKey) -> bytes:
    return "\0".join(key).encode("utf-8", "surrogatepass")


class CancelKeepAlive:
    name = KEEP_ALIVE

    def __init__(self, keep_alive: KeepAliveScheduler) -> None:
        self._keep_alive = keep_alive

    async def apply(self, context: RequestContext) -> None:
        """Cancel what is planned. This is the last step: a request that passes it is sent, and will be
        finished.
        """
        if context.options.sends_keep_alive:
            self._keep_alive.cancel_planned(context)
