"""The gateway as an ASGI app: a request in, through the engine, to its provider, and the answer back."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace

import msgspec

from foveate.engine.calls import Incoming
from foveate.engine.cost_features import cost_headers
from foveate.engine.embeddings import Embeddings
from foveate.engine.engine import Engine
from foveate.engine.exchange import Exchange
from foveate.errors import (
    FoveateError,
    KeyRefused,
    MethodRefused,
    OperationRefused,
    UpstreamBroken,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnreachable,
    WebSocketRefused,
)
from foveate.fold.model import Endpoint
from foveate.gateway.asks import KIND, SESSION, Ask, Receive, Scope, Send, ask_of
from foveate.gateway.audience import audience_of
from foveate.gateway.aws_signing import CLIENT_HEADERS, AwsSigner
from foveate.gateway.body_errors import BodyRefused, TooLarge
from foveate.gateway.body_memory import BodyMemory, HeldBody
from foveate.gateway.callers import agent_of, caller_of, check_payer, key_headers, name_scope, sent_query
from foveate.gateway.client import Client
from foveate.gateway.cloud_endpoints import azure_endpoint, google_endpoint
from foveate.gateway.counting import NoCounts, own_count
from foveate.gateway.credentials import check_credentials, is_subscription
from foveate.gateway.cycle import CYCLE, Served
from foveate.gateway.doors import SIGNED, Asks, Door, Family, plain_path
from foveate.gateway.encodings import encodings_of, read_beside, without_encodings
from foveate.gateway.headers import KEYS, Headers, sent_on, signed_names
from foveate.gateway.keys import Keys, NoKeys
from foveate.gateway.named import model_in, model_of, renamed, with_path_model
from foveate.gateway.operations import METHODS, check_operation, check_request_line
from foveate.gateway.refusing import may_retry, reason_of, refusal_for
from foveate.gateway.request_body import BodyLimits, read_body
from foveate.gateway.routing import KNOWN_UPSTREAMS, Routed, Routing, Upstream
from foveate.gateway.telling import told_in
from foveate.gateway.threads import Threads, ThreadTurn, begin_turn
from foveate.gateway.traffic import UNSEEN, Traffic
from foveate.session.counting import beside
from foveate.session.naming import HEADERS as NAMING_HEADERS
from foveate.upstream.pool import Answer, Pool, target
from foveate.values import Format
from foveate.wire.large_json import LARGE_BYTES
from foveate.wire.limits import RequestLimits

BELOW = "/-/"
"""No provider has anything there."""
# An error that says something about marks is no longer than this.
_MOST_ERROR_BYTES = 64 * 1024
_STREAM = b"text/event-stream"
_FRAMES = b"application/vnd.amazon.eventstream"
# What a provider has to be told with every request of a client.
_ASKING = KEYS | {b"anthropic-version", b"anthropic-beta", b"openai-organization", b"openai-project"}

# What is read, held to caps and booked; of all else, only what these do costs nothing for sure.
_READ = frozenset((Asks.ANSWER, Asks.EMBEDDINGS, Asks.COUNT))
# RFC 9110, 15.5.22 and 15.5.6: these name what to use instead.
_HEADERS_OF_REFUSALS: Mapping[type[FoveateError], Headers] = {
    WebSocketRefused: ((b"upgrade", b"HTTP/1.1"),),
    MethodRefused: ((b"allow", ", ".join(METHODS).encode()),),
}
_SUMMARY_PATHS = {
    Format.ANTHROPIC: "/v1/messages",
    Format.CHAT: "/v1/chat/completions",
    Format.RESPONSES: "/v1/responses",
}
_CONVERSATION_PATH = re.compile(r"/v1/conversations/([^/]+)")
_FREE_METHODS = frozenset(("GET", "HEAD", "OPTIONS", "DELETE"))

Page = Callable[[Scope, Receive, Send], Awaitable[None]]
_Relay = Callable[[Ask, Routed, Exchange, Client, ThreadTurn | None], Awaitable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """What is decided by configuration, as it is now."""

    routing: Routing = field(default_factory=lambda: Routing(upstreams=KNOWN_UPSTREAMS))
    keys: Keys = field(default_factory=NoKeys)
    user_agents: Sequence[tuple[str, str]] = ()
    body: BodyLimits = field(default_factory=BodyLimits)
    limits: RequestLimits = RequestLimits()  # noqa: RUF009 - it is frozen


class Gateway:
    """The ASGI app. Other machines reach one that `is_open`.

    `pages` are what is its own, by their paths; the one at `BELOW` has all that is below it.
    """

    def __init__(
        self,
        engine: Engine,
        pool: Pool,
        *,
        embeddings: Embeddings,
        options: Callable[[], GatewayOptions] = GatewayOptions,
        pages: Mapping[str, Page] | None = None,
        traffic: Traffic = UNSEEN,
        is_open: bool = False,
        threads: Threads | None = None,
    ) -> None:
        """`threads` are the message threads that it keeps."""
        self._engine = engine
        self._pool = pool
        self._embeddings = embeddings
        self._options = options
        self._pages = pages or {}
        self._traffic = traffic
        self._is_open = is_open
        self._no_counts = NoCounts()
        self._body_memory = BodyMemory()
        self._threads = threads or Threads(time.monotonic)
        self._signer = AwsSigner()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        served: Served | None = scope.pop(CYCLE, None)
        page = self._page(scope["path"])
        if page is not None:
            await page(scope, receive, send)
            return
        ask = ask_of(scope)
        client = Client(ask, send)
        options = self._options()
        self._traffic.came(client)
        try:
            # Whatever the headers decide is decided before any of the body is read.
            check_request_line(ask)
            if ask.asks_for_websocket:
                raise WebSocketRefused(ask.path[:100])
            client.agent = agent_of(ask, options.keys, options.user_agents)
            self._check_keys(ask, options)
            body = await read_body(served, receive, ask.headers, limits=options.body, memory=self._body_memory)
            if body is not None:
                client.received_bytes = len(body.data)
                try:
                    serving = self._served(ask, body.data, client, options, body.held)
                    await _until_gone(served, receive, client, serving)
                finally:
                    body.held.release()
        except BodyRefused as error:
            client.refused, client.reason = error.code, str(error)
            await client.refuse(error.response(client.spoken), retry=error.may_retry, headers=error.headers)
        except FoveateError as error:
            client.refused, client.reason = error.code, reason_of(error)
            if client.has_begun:
                return  # the server cuts the connection, so that nobody takes it for the whole answer
            headers = _HEADERS_OF_REFUSALS.get(type(error), ())
            audience = audience_of(
                ask.raw_headers, has_key=ask.key is not None and bool(client.agent), is_open=self._is_open
            )
            refusal = refusal_for(error, client.spoken, audience)
            await client.refuse(refusal, retry=may_retry(error), headers=headers)
        except Exception as error:  # a fault of ours: told, and left to the server, which answers it
            client.refused, client.reason = "internal_error", type(error).__name__
            client.status = client.status or 500
            raise
        finally:
            self._traffic.went(ask, client)

    def _page(self, path: str) -> Page | None:
        page = self._pages.get(path) or self._pages.get(plain_path(path))
        return page or (self._pages.get(BELOW) if path.startswith(BELOW) else None)

    @property
    def engine(self) -> Engine:
        """What every request goes through."""
        return self._engine

    async def previewed(self, scope: Scope, body: bytes) -> Exchange:
        """What would be sent for a request, without a trace; only a counting endpoint that is on is asked.

        Raises:
            FoveateError: it would be refused.
        """
        ask, options = ask_of(scope), self._options()
        model = ask.door.model or await beside(lambda: model_in(body), len(body), least_bytes=LARGE_BYTES)
        routed = self._routed(ask, model, options)
        engine = self._engine.preview or self._engine
        agent = agent_of(ask, options.keys, options.user_agents)
        turn = await begin_turn(self._threads, routed.upstream.threads, ask, agent, body, claims=False)
        if turn is not None:
            ask, body = turn.ask, turn.body
        found = await engine.prepare(_incoming(ask, ask.spoken, agent, body, routed, model, options.limits))
        if found.work is not None and self._engine.recount is not None:
            await self._engine.recount(found.work)
        return found

    async def _served(
        self, ask: Ask, body: bytes, client: Client, options: GatewayOptions, held: HeldBody
    ) -> None:
        if ask.door.asks not in _READ:
            said = f"what {ask.method} {ask.path} costs is not known"
            await self._passed(ask, body, client, options, held, "" if ask.method in _FREE_METHODS else said)
            return
        encodings = encodings_of(ask.raw_headers)
        plain = await read_beside(body, encodings, limit_bytes=options.body.max_bytes, grow=held.grow)
        if plain is None or (encodings and ask.door.family in SIGNED):
            said = f"the request cannot be read (its content-encoding is {', '.join(encodings)})"
            await self._passed(ask, body, client, options, held, "" if ask.door.asks is Asks.COUNT else said)
            return
        if encodings:
            del body
            held.resize(len(plain))
            ask = msgspec.structs.replace(ask, raw_headers=without_encodings(ask.raw_headers))
        await self._answered(ask, ask.spoken, client.agent, plain, client, options, held)

    def _routed(self, ask: Ask, model: str, options: GatewayOptions) -> Routed:
        routed = options.routing.of(ask.door, model)
        self._check_upstream(ask, routed.upstream)
        if routed.model is not None and _is_unchanged(ask, routed.upstream):
            raise KeyRefused(
                f"the gateway's route gives the model {model!r} another name, but the client's credential"
                " covers the request as it is: use a key of the gateway, or name the model as the upstream does"
            )
        return routed

    def _check_upstream(self, ask: Ask, upstream: Upstream) -> None:
        check_payer(ask, upstream, is_open=self._is_open)
        check_operation(ask, upstream)
        check_credentials(ask, upstream)

    def _check_keys(self, ask: Ask, options: GatewayOptions) -> None:
        """Refuse a request that none of the upstreams would be asked, whatever model its body names."""
        refused: KeyRefused | OperationRefused | None = None
        for upstream in options.routing.possible(ask.door):
            try:
                self._check_upstream(ask, upstream)
                return
            except (KeyRefused, OperationRefused) as error:
                refused = refused or error
        if refused is not None:
            raise refused

    async def _passed(
        self,
        ask: Ask,
        body: bytes,
        client: Client,
        options: GatewayOptions,
        held: HeldBody,
        uncounted: str,
    ) -> None:
        """Relay what the engine has no hand in; `uncounted` says why nobody knows what it costs, if it does."""
        model, plain = ask.door.model, b""
        if options.routing.routes and not model:
            encodings = encodings_of(ask.raw_headers)
            limit_bytes = options.body.max_bytes
            plain = await read_beside(body, encodings, limit_bytes=limit_bytes, grow=held.grow) or b""
            model = await beside(lambda: model_of(ask, plain), len(plain))
        routed = self._routed(ask, model, options)
        if routed.model is not None and ask.door.model:
            ask = with_path_model(ask, routed.model)
        elif routed.model is not None and plain:
            ask = msgspec.structs.replace(ask, raw_headers=without_encodings(ask.raw_headers))
            name = routed.model
            body = await beside(lambda: renamed(plain, name, options.limits), len(plain))
        if uncounted:
            await self._engine.uncounted(ask.id, client.agent, uncounted)
        changed = _CONVERSATION_PATH.match(ask.path) if ask.method != "GET" else None
        if changed is not None and self._engine.forget_conversation is not None:
            self._engine.forget_conversation(client.agent, routed.upstream.name, changed[1])
        client.provider = routed.upstream.provider
        async with await self._asked(ask, routed, body, {}, reads_answer=False) as answer:
            await client.begin(answer, is_changed=False)
            while piece := await answer.piece():
                await client.piece(piece)
        await client.end()

    async def _answered(
        self,
        ask: Ask,
        spoken: Format,
        agent: str,
        body: bytes,
        client: Client,
        options: GatewayOptions,
        held: HeldBody,
    ) -> None:
        """Relay an answer that the engine has a hand in."""
        is_embeddings = ask.door.asks is Asks.EMBEDDINGS
        model = ask.door.model
        if not model and (options.routing.routes or ask.door.family is Family.AZURE):
            model = await beside(lambda: model_in(body), len(body), least_bytes=LARGE_BYTES)
        routed = self._routed(ask, model, options)
        if routed.model is not None and ask.door.model:
            ask = with_path_model(ask, routed.model)
        is_count = ask.door.asks is Asks.COUNT
        engine = self._engine.preview if is_count and self._engine.preview is not None else self._engine
        prepare = self._embeddings.prepare if is_embeddings else engine.prepare
        relay = self._counted if is_count else self._relayed
        client.provider = routed.upstream.provider
        turn = await begin_turn(self._threads, routed.upstream.threads, ask, agent, body, claims=not is_count)
        try:
            if turn is not None:
                if len(turn.body) > options.body.max_bytes:
                    raise TooLarge(options.body.max_bytes)
                held.grow(len(turn.body))
                ask, body = turn.ask, turn.body
            incoming = _incoming(
                ask, spoken, agent, body, routed, model, options.limits, keeps_answer=turn is not None
            )
            client.exchange = exchange = await prepare(incoming)
            await self._answered_by(exchange, relay, ask, routed, client, turn)
        finally:
            if turn is not None:
                turn.close()

    async def _answered_by(
        self,
        exchange: Exchange,
        relay: _Relay,
        ask: Ask,
        routed: Routed,
        client: Client,
        turn: ThreadTurn | None,
    ) -> None:
        is_broken = True
        try:
            rest = await relay(ask, routed, exchange, client, turn)
            if turn is not None and not exchange.streams:
                await turn.finish(exchange)
            is_broken = False
        except KeyRefused:
            exchange.unsent()
            raise
        except UpstreamError as error:
            if self._is_unsent(error):
                exchange.unsent()
            raise
        finally:
            exchange.over(is_broken=is_broken)
            if is_broken:
                await exchange.settled()  # what was reserved is free again before anybody tries once more
        await client.end(rest)

    async def _relayed(
        self, ask: Ask, routed: Routed, exchange: Exchange, client: Client, turn: ThreadTurn | None
    ) -> bytes:
        """Relay all but the end of an answer, which is given back."""
        while True:
            sent = exchange.outgoing
            async with await self._asked(ask, routed, sent.body, sent.headers, reads_answer=True) as answer:
                said = await _error_in(answer)
                if not said or not await exchange.goes_again(answer.status, said):
                    return await _passed_on(exchange, answer, client, said, ask.door, turn)

    async def _counted(
        self, ask: Ask, routed: Routed, exchange: Exchange, client: Client, _turn: ThreadTurn | None
    ) -> bytes:
        """Relay a count; where the upstream has no route for it, answer with our own."""
        sent, own, where = exchange.outgoing, own_count(exchange), (routed.upstream, exchange.incoming.spoken)
        if own is None or not self._no_counts.has(*where):
            async with await self._asked(ask, routed, sent.body, sent.headers, reads_answer=True) as answer:
                said = await _error_in(answer)
                if own is None or not self._no_counts.heard(*where, answer.status, said):
                    return await _passed_on(exchange, answer, client, said, ask.door)
        await client.counted(*own)
        return b""

    def _is_unsent(self, error: UpstreamError) -> bool:
        """Whether nothing can have been done for a request: no connection, or one that was soon closed."""
        if isinstance(error, UpstreamTimeout):
            waits = self._pool.timeouts
            seconds = error.timeout_seconds
            return seconds == waits.connect_seconds and seconds not in (waits.idle_seconds, waits.total_seconds)
        return isinstance(error, UpstreamUnreachable) and not isinstance(error, UpstreamBroken)

    async def _asked(
        self, ask: Ask, routed: Routed, body: bytes, headers: Mapping[str, str], *, reads_answer: bool
    ) -> AbstractAsyncContextManager[Answer]:
        upstream = routed.upstream
        changed = {name.encode("latin-1"): said.encode("latin-1") for name, said in headers.items()}
        sent = sent_on(ask.raw_headers, reads_answer=reads_answer, key=key_headers(ask, upstream), set_=changed)
        where = target(upstream.url(ask.raw_path, sent_query(ask, upstream)))
        if upstream.aws_region:
            sent = [pair for pair in sent if pair[0] not in CLIENT_HEADERS]
            sent += await self._signer.sign(ask.method, where.url, sent, body, region=upstream.aws_region)
        elif b"host" in signed_names(sent):
            where = replace(where, authority=ask.headers.get("host", "").encode("latin-1"))
        return self._pool.asked(ask.method, where, sent, body, reuse=upstream.reuse)


async def _until_gone(
    served: Served | None, receive: Receive, client: Client, serving: Awaitable[None]
) -> None:
    """Serve a request until it is served, or its client has gone; then all that is under way for it ends."""
    own = asyncio.current_task()
    assert own is not None
    has_gone = is_served = False

    def leave(_: object = None) -> None:
        nonlocal has_gone
        has_gone = not is_served and not client.has_ended
        if has_gone:
            own.cancel()

    if served is not None:
        served.when_gone(leave)
    else:  # the next thing to come is that the client has gone
        listening = asyncio.ensure_future(receive())
        listening.add_done_callback(leave)
    try:
        await serving
    except asyncio.CancelledError:
        if not has_gone:
            raise
        own.uncancel()
    finally:
        is_served = True
        if served is not None:
            served.when_gone(None)
        else:
            listening.cancel()


async def _error_in(answer: Answer) -> bytes:
    """What an answer says that is an error of the client's; nothing of any other."""
    if not 400 <= answer.status < 500:
        return b""
    said = b""
    while len(said) < _MOST_ERROR_BYTES and (piece := await answer.piece()):
        said += piece
    return said


async def _passed_on(
    exchange: Exchange,
    answer: Answer,
    client: Client,
    said: bytes,
    door: Door,
    turn: ThreadTurn | None = None,
) -> bytes:
    """Pass an answer on, of which `said` was read before; what is left for its end is given back.

    That is the last piece, where it does not stream: its client has all of it only once its bill is noted.
    Before a client has all of a stream, the thread of its `turn` can be continued.
    """
    kind = answer.header(b"content-type") or b""
    is_framed = kind.startswith(_FRAMES)
    streams = kind.startswith(_STREAM) or is_framed or (door.streams and 200 <= answer.status < 300)
    exchange.begun(answer.status, streams=streams, is_framed=is_framed, headers=answer.headers)
    await client.begin(answer, is_changed=exchange.changes_answer)
    streams = exchange.streams
    held = exchange.passed(said) if said else b""
    try:
        while piece := await answer.piece():
            if held:
                await client.piece(held)
            held = exchange.passed(piece)
            if turn is not None and streams and exchange.has_ended:
                await turn.finish(exchange)
            if held and (streams or held.isspace()):  # some send blanks while the model thinks, to be heard
                await client.piece(held)
                held = b""
    except UpstreamError:
        if held:
            await client.piece(held)
        raise
    return held + exchange.rest()


def _incoming(
    ask: Ask,
    spoken: Format,
    agent: str,
    body: bytes,
    routed: Routed,
    model: str,
    limits: RequestLimits,
    *,
    keeps_answer: bool = False,
) -> Incoming:
    # The engine reads `served_model` in the place of this name, which the upstream knows.
    name = (routed.model or model) if routed.served_model else ""
    return Incoming(
        id=ask.id,
        agent=agent,
        spoken=spoken,
        provider=routed.upstream.provider,
        upstream=routed.upstream.name,
        body=body,
        session=ask.headers.get(SESSION),
        naming={name: value for name, value in ask.headers.items() if name in NAMING_HEADERS},
        caller=caller_of(ask),
        name_scope=name_scope(ask),
        kind=ask.headers.get(KIND, ""),
        told=told_in(ask.headers),
        model=None if ask.door.model else routed.model,
        served_model=routed.served_model,
        region=ask.door.region,
        is_unchanged=_is_unchanged(ask, routed.upstream),
        betas=ask.headers.get("anthropic-beta", ""),
        find_endpoint=None
        if ask.door.family in SIGNED
        else lambda: _endpoint(ask, routed.upstream, spoken, name),
        limits=limits,
        keeps_answer=keeps_answer,
        is_subscription=is_subscription(ask, routed.upstream),
        cost_headers=cost_headers(ask.raw_headers),
    )


def _is_unchanged(ask: Ask, upstream: Upstream) -> bool:
    """Whether a request goes out byte for byte: its client has signed it, and not the gateway."""
    return ask.door.family in SIGNED and key_headers(ask, upstream) is None


def _endpoint(ask: Ask, upstream: Upstream, spoken: Format, model: str) -> Endpoint:
    """Where a summary of the session can be asked for: as the client asks, with whatever key it would use.

    `model` is the name of the client's model there; empty if the engine knows the model by the same name.
    """
    if ask.door.family is Family.GEMINI:
        return google_endpoint(ask, upstream, model)
    if ask.door.family is Family.AZURE:
        return azure_endpoint(ask, upstream, model)
    path = _SUMMARY_PATHS.get(spoken)
    if path is None:
        path, spoken = _SUMMARY_PATHS[Format.CHAT], Format.CHAT
    own = [(name, said) for name, said in ask.raw_headers if name in _ASKING]
    key = key_headers(ask, upstream)
    pairs = own if key is None else [*(pair for pair in own if pair[0] not in KEYS), *key]
    headers = {name.decode("latin-1"): said.decode("latin-1") for name, said in pairs}
    if (betas := ask.headers.get("anthropic-beta")) is not None:  # of all lines
        headers["anthropic-beta"] = betas
    return Endpoint(
        url=upstream.url(path),
        spoken=spoken,
        headers=headers,
        model=model,
        reuse=upstream.reuse,
    )
