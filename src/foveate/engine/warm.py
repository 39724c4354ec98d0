"""What a session left in its provider's cache, and the ping that would keep it: decided here, sent elsewhere.

A ping is the session's last request once more, which is answered with nothing and reads what is kept. Where its
answer was text alone, the ping may carry that too and have all of it kept for the long time, since the next
request begins with it.
"""

from dataclasses import dataclass, field, replace

from foveate import wire
from foveate.cache.block_tokens import BlockTokens
from foveate.cache.layout import kept, marked
from foveate.cache.pings import Ping, next_ping
from foveate.cache.prompts import CachedPrompt, landmarks_of
from foveate.cache.requests import cached_prompt
from foveate.cache.rhythm import Forecast
from foveate.cache.rules import Caching, Rules
from foveate.cache.simulate import Cache
from foveate.engine.calls import Incoming
from foveate.engine.exchange import Exchange
from foveate.engine.work import Work
from foveate.fold.model import Endpoint
from foveate.values import Area, Edit, Format, Insert, Mark, Place, Request, SetParameter, Text
from foveate.wire.said import texts_said

# Nothing is to be said, which is how a cache is warmed: "max_tokens: 0" (platform.claude.com, prompt caching,
# November 2026). It is not taken with streaming, nor with thinking.
_SILENT = (
    SetParameter(path=("max_tokens",), value=0, reason="a ping: nothing is to be said"),
    SetParameter(path=("stream",), value=False, reason="a ping: nothing is to be said"),
)
_NOT_THINKING = frozenset(("", "disabled"))
# What stands behind an answer, since a conversation has to end with the user.
_NEXT = "."
_REASON = "a ping: keeps the answer, and all before it, for longer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """A session whose last request can be repeated, with the key that it came with.

    `body` is what was sent, `prompt` how the cache sees it. `answer` is what the model said, where that can be
    sent with it, on top of `plain`, the request without marks, and `answer_tokens` how much it said.
    `input_tokens` are those of the request at the most. `sent` is how many pings went out since `last_at`.
    """

    agent: str
    session_id: str
    provider: str
    model: str
    endpoint: Endpoint = field(repr=False)
    body: bytes = field(repr=False)
    plain: Request = field(repr=False)
    prompt: CachedPrompt = field(repr=False)
    rules: Rules = field(repr=False)
    tokens: BlockTokens = field(repr=False)
    answer: tuple[str, ...] = field(repr=False)
    answer_tokens: int
    input_tokens: int
    last_at: float
    sent: int = 0
    is_subscription: bool = False

    @property
    def size_bytes(self) -> int:
        """How much memory it takes, about."""
        return 2 * len(self.body)


def warm_of(exchange: Exchange) -> Warm | None:
    """What an exchange left that can be kept warm; None where it cannot."""
    work, usage = exchange.work, exchange.usage
    if work is None or work.prompt is None or usage is None or not exchange.is_whole:
        return None
    if not 200 <= exchange.status < 300 or exchange.refused is not None or not _can_be_pinged(work):
        return None
    endpoint = work.incoming.endpoint
    if endpoint is None or work.count is None:
        return None
    has_own_marks = landmarks_of(work.prompt).marks or work.prompt.double_marks
    answer = () if has_own_marks or not _takes_long(work.incoming, work) else _said(exchange)
    return Warm(
        agent=work.incoming.agent,
        session_id=work.session_id,
        provider=work.incoming.provider,
        model=work.model,
        endpoint=endpoint,
        body=exchange.outgoing.body,
        plain=work.request,
        prompt=marked(work.prompt, work.marks),
        rules=work.kept_rules,
        tokens=work.block_tokens,
        answer=answer,
        answer_tokens=usage.output_tokens,
        input_tokens=max(work.count.upper, usage.cache.input_tokens),
        last_at=exchange.sent_at,
        is_subscription=exchange.is_subscription,
    )


def _can_be_pinged(work: Work) -> bool:
    is_spoken = work.request.format is Format.ANTHROPIC and work.rules.caching is Caching.MARKS
    # A ping goes to a route that reads the model from the body.
    return is_spoken and not work.incoming.served_model and work.request.thinking in _NOT_THINKING


def _takes_long(incoming: Incoming, work: Work) -> bool:
    options = work.options.layout
    wants_long = options.long_ttl and (options.ttl is None or options.ttl is work.rules.ttls[-1])
    return wants_long and incoming.provider in work.options.long_ttl_providers and not work.passing


def _said(exchange: Exchange) -> tuple[str, ...]:
    answer = exchange.answer
    return texts_said(answer, streams=exchange.streams) if answer is not None else ()


def planned(warm: Warm, cache: Cache, expected: Forecast, *, now: float, most: int) -> Ping | None:
    """The next ping of a session that is expected to pay; None where there is none."""
    ping = _next(warm, warm.rules, cache, expected, now=now, most=most)
    if ping is not None and ping.with_answer and (not warm.answer or ping.pieces < len(warm.prompt.pieces)):
        short = replace(warm.rules, ttls=warm.rules.ttls[:1])
        ping = _next(warm, short, cache, expected, now=now, most=most)
    if ping is None:
        return None
    # What stands behind the entry is sent along, and paid for.
    behind = sum(piece.tokens for piece in warm.prompt.pieces[ping.pieces :])
    saved = ping.saved_tokens - behind
    return replace(ping, saved_tokens=saved) if saved > 0 else None


def _next(warm: Warm, rules: Rules, cache: Cache, expected: Forecast, *, now: float, most: int) -> Ping | None:
    return next_ping(
        warm.prompt,
        rules,
        cache,
        expected,
        answer_tokens=warm.answer_tokens,
        last_at=warm.last_at,
        now=now,
        sent=warm.sent,
        most_pings=most,
    )


def pinging(warm: Warm, ping: Ping, cache: Cache, *, now: float) -> Warm:
    """The session with what `ping` sends as its last request, and the ping counted."""
    body = _with_answer(warm, cache, now) if ping.with_answer else warm.body
    silent = wire.write(wire.read(body, Format.ANTHROPIC), _SILENT)
    prompt = cached_prompt(wire.read(silent, Format.ANTHROPIC), warm.rules, warm.tokens)
    # What it wrote stays for the long time: after that, it is only refreshed.
    answer = () if ping.with_answer else warm.answer
    return replace(warm, body=silent, prompt=prompt, answer=answer, sent=warm.sent + 1)


def _with_answer(warm: Warm, cache: Cache, now: float) -> bytes:
    plain, long = warm.plain, warm.rules.ttls[-1]
    end = len(plain.messages)
    said = Insert(
        place=Place(Area.MESSAGES, end),
        parts=tuple(map(Text, warm.answer)),
        role="assistant",
        reason=_REASON,
    )
    told = wire.read(wire.write(plain, (said,)), Format.ANTHROPIC)
    after = Insert(place=Place(Area.MESSAGES, end + 1), parts=(Text(_NEXT),), reason=_REASON)
    live = kept(warm.prompt, cache, now)
    lasting = [warm.prompt.pieces[at].place for at, entry in sorted(live.items()) if entry.ttl is long]
    places = [place for place in lasting if place is not None][1 - warm.rules.most_marks :]
    places.append(Place(Area.MESSAGES, end, len(warm.answer) - 1))
    marks: list[Edit] = [Mark(place=place, ttl=long, reason=_REASON) for place in places]
    return wire.write(told, (*marks, after))
