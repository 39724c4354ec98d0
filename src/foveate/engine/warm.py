"""What a session left in its provider's cache, and the ping that would keep it: decided here, sent elsewhere.

A ping is the session's last request once more, which is answered with nothing and reads what is kept. Where its
answer was text alone, the ping may carry that too and have all of it kept for the long time, since the next
request begins with it.
"""

from dataclasses import dataclass, field, replace

from foveate import wire
from foveate.cache.block_tokens import BlockTokens
from foveate.cache.layout import apply_breakpoints, readable_entries
from foveate.cache.pings import KeepAlive, plan_keepalive
from foveate.cache.prompts import CachedPrompt, prompt_layout
from foveate.cache.requests import build_cached_prompt
from foveate.cache.rhythm import ArrivalForecast
from foveate.cache.rules import CacheRules, CachingMode
from foveate.cache.simulate import SimulatedCache
from foveate.engine.calls import RoutedRequest
from foveate.engine.exchange import Exchange
from foveate.engine.work import RequestContext
from foveate.fold.model import SummarizerEndpoint
from foveate.values import Area, CacheBreakpoint, Edit, Format, InsertParts, Place, Request, SetParameter, Text
from foveate.wire.said import read_complete_texts

# Nothing is to be said, which is how a cache is warmed: "max_tokens: 0" (platform.claude.com, prompt caching,
# November 2026). It is not taken with streaming, nor with thinking.
_NO_OUTPUT_EDITS = (
    SetParameter(path=("max_tokens",), value=0, reason="a ping: nothing is to be said"),
    SetParameter(path=("stream",), value=False, reason="a ping: nothing is to be said"),
)
_NOT_THINKING = frozenset(("", "disabled"))
# What stands behind an answer, since a conversation has to end with the user.
_USER_PLACEHOLDER = "."
_KEEP_RESPONSE_REASON = "a ping: keeps the answer, and all before it, for longer"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSession:
    """A session whose last request can be repeated, with the key that it came with.

    `body` is what was sent, `prompt` how the cache sees it. `answer` is what the model said, where that can be
    sent with it, on top of `plain`, the request without marks, and `answer_tokens` how much it said.
    `input_tokens` are those of the request at the most. `sent` is how many pings went out since `last_at`.
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
        """How much memory it takes, about."""
        return 2 * len(self.body)


def warm_session(exchange: Exchange) -> WarmSession | None:
    """What an exchange left that can be kept warm; None where it cannot."""
    context, usage = exchange.context, exchange.usage
    if context is None or context.prompt is None or usage is None or not exchange.is_complete:
        return None
    if (
        not 200 <= exchange.status < 300
        or exchange.breakpoint_rejection is not None
        or not _can_be_kept_alive(context)
    ):
        return None
    endpoint = context.incoming.endpoint
    if endpoint is None or context.token_count is None:
        return None
    has_client_breakpoints = prompt_layout(context.prompt).breakpoints or context.prompt.duplicate_breakpoints
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
        prompt=apply_breakpoints(context.prompt, context.breakpoints),
        rules=context.conservative_rules,
        block_tokens=context.block_tokens,
        response_texts=response_texts,
        response_tokens=usage.output_tokens,
        input_tokens=max(context.token_count.upper, usage.cache.input_tokens),
        last_request_at=exchange.sent_at,
        is_subscription=exchange.is_subscription,
    )


def _can_be_kept_alive(context: RequestContext) -> bool:
    is_anthropic = (
        context.request.format is Format.ANTHROPIC and context.rules.caching is CachingMode.BREAKPOINTS
    )
    # A ping goes to a route that reads the model from the body.
    return is_anthropic and not context.incoming.served_model and context.request.thinking in _NOT_THINKING


def _accepts_long_ttl(incoming: RoutedRequest, context: RequestContext) -> bool:
    options = context.options.layout
    wants_long = options.long_ttl and (options.ttl is None or options.ttl is context.rules.ttls[-1])
    return (
        wants_long and incoming.provider in context.options.long_ttl_providers and not context.transient_places
    )


def _response_texts(exchange: Exchange) -> tuple[str, ...]:
    body = exchange.response_body
    return read_complete_texts(body, streams=exchange.is_streaming) if body is not None else ()


def plan_keep_alive(
    warm: WarmSession, cache: SimulatedCache, expected: ArrivalForecast, *, now: float, max_in_a_row: int
) -> KeepAlive | None:
    """The next ping of a session that is expected to pay; None where there is none."""
    ping = _next_keep_alive(warm, warm.rules, cache, expected, now=now, max_in_a_row=max_in_a_row)
    if (
        ping is not None
        and ping.includes_response
        and (not warm.response_texts or ping.pieces < len(warm.prompt.pieces))
    ):
        short_rules = replace(warm.rules, ttls=warm.rules.ttls[:1])
        ping = _next_keep_alive(warm, short_rules, cache, expected, now=now, max_in_a_row=max_in_a_row)
    if ping is None:
        return None
    # What stands behind the entry is sent along, and paid for.
    tail_tokens = sum(piece.tokens for piece in warm.prompt.pieces[ping.pieces :])
    saved = ping.saved_tokens - tail_tokens
    return replace(ping, saved_tokens=saved) if saved > 0 else None


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
        sent=warm.sent_count,
        max_keepalives=max_in_a_row,
    )


def apply_keep_alive(warm: WarmSession, ping: KeepAlive, cache: SimulatedCache, *, now: float) -> WarmSession:
    """The session with what `ping` sends as its last request, and the ping counted."""
    body = _body_with_response(warm, cache, now) if ping.includes_response else warm.body
    body_without_output = wire.apply_edits(wire.parse_request(body, Format.ANTHROPIC), _NO_OUTPUT_EDITS)
    prompt = build_cached_prompt(
        wire.parse_request(body_without_output, Format.ANTHROPIC), warm.rules, warm.block_tokens
    )
    # What it wrote stays for the long time: after that, it is only refreshed.
    response_texts = () if ping.includes_response else warm.response_texts
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
    request = wire.parse_request(wire.apply_edits(original, (response_insert,)), Format.ANTHROPIC)
    user_insert = InsertParts(
        place=Place(Area.MESSAGES, end + 1), parts=(Text(_USER_PLACEHOLDER),), reason=_KEEP_RESPONSE_REASON
    )
    live_entries = readable_entries(warm.prompt, cache, now)
    lasting = [
        warm.prompt.pieces[at].place for at, entry in sorted(live_entries.items()) if entry.ttl is long_ttl
    ]
    places = [place for place in lasting if place is not None][1 - warm.rules.max_breakpoints :]
    places.append(Place(Area.MESSAGES, end, len(warm.response_texts) - 1))
    breakpoints: list[Edit] = [
        CacheBreakpoint(place=place, ttl=long_ttl, reason=_KEEP_RESPONSE_REASON) for place in places
    ]
    return wire.apply_edits(request, (*breakpoints, user_insert))
