"""The ASGI app: passes requests through the engine to their upstreams, and responses back to clients."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field, replace

import msgspec

from foveate.engine.embeddings import EmbeddingsEngine
from foveate.engine.engine import Engine
from foveate.engine.exchange import Exchange
from foveate.engine.relay import (
    CallPrepared,
    CountedLocally,
    ResponseChunk,
    ResponseEvent,
    ResponseFinished,
    ResponseStarted,
)
from foveate.engine.request import IncomingRequest
from foveate.engine.spending.unknown_costs import cost_headers
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
from foveate.formats.json_text.large_json import LARGE_BYTES
from foveate.formats.request_limits import RequestLimits
from foveate.gateway.auth.callers import (
    Keys,
    NoKeys,
    build_upstream_query,
    check_payer,
    find_summary_endpoint,
    hash_account,
    hash_caller,
    hash_name_scope,
    identify_agent,
    replacement_key_headers,
)
from foveate.gateway.auth.credentials import (
    ALLOWED_METHODS,
    CLIENT_SIGNATURE_HEADERS,
    AwsSigner,
    check_credentials,
    check_operation,
    check_request_line,
    is_subscription,
    needs_chatgpt,
)
from foveate.gateway.endpoints import SIGNED_FAMILIES, ApiFamily, Operation, normalize_slashes
from foveate.gateway.forwarded_headers import Headers, forward_request_headers, signed_header_names
from foveate.gateway.message_threads import ThreadStore, ThreadTurn, begin_turn
from foveate.gateway.model_name import find_requested_model, read_model, replace_body_model, replace_path_model
from foveate.gateway.observability.request_observer import NO_REQUEST_OBSERVER, RequestObserver
from foveate.gateway.request import (
    KIND_HEADER,
    SESSION_HEADER,
    AsgiApp,
    ClientRequest,
    Receive,
    Scope,
    Send,
    parse_request,
    parse_section_headers,
)
from foveate.gateway.request_body import (
    BodyLimits,
    BodyMemory,
    BodyRejected,
    BodyReservation,
    TooLarge,
    decompress_in_thread,
    parse_content_encodings,
    read_body,
    strip_content_encoding,
)
from foveate.gateway.response import (
    ClientResponse,
    build_error_response,
    classify_audience,
    log_reason,
    may_retry,
)
from foveate.gateway.routing import CHATGPT, KNOWN_UPSTREAMS, RouteMatch, Routing, Upstream
from foveate.gateway.server.protocol import CONNECTION_SCOPE_KEY, RequestConnection
from foveate.http.pool import ConnectionPool, HttpResponse, PendingResponse, Timeouts, parse_url
from foveate.session.client_names import NAMING_HEADERS
from foveate.session.counting import run_in_thread_if_large

PAGES_PREFIX = "/-/"
"""Path prefix of the gateway's own pages. No provider uses it."""
# Operations that the engine parses, checks against caps and charges.
_PARSED_OPERATIONS = frozenset((Operation.GENERATE, Operation.EMBEDDINGS, Operation.COUNT_TOKENS))
# RFC 9110, 15.5.22 and 15.5.6: these responses name what to use instead.
_ERROR_HEADERS: Mapping[type[FoveateError], Headers] = {
    WebSocketRefused: ((b"upgrade", b"HTTP/1.1"),),
    MethodRefused: ((b"allow", ", ".join(ALLOWED_METHODS).encode()),),
}
_CONVERSATION_PATH = re.compile(r"/v1/conversations/([^/]+)")
_FREE_METHODS = frozenset(("GET", "HEAD", "OPTIONS", "DELETE"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    routing: Routing = field(default_factory=lambda: Routing(upstreams=KNOWN_UPSTREAMS))
    keys: Keys = field(default_factory=NoKeys)
    user_agents: Sequence[tuple[str, str]] = ()
    body: BodyLimits = field(default_factory=BodyLimits)
    limits: RequestLimits = RequestLimits()  # noqa: RUF009 - it is frozen


class Gateway:
    """The ASGI app. `is_open`: other machines can reach it.

    `pages` are the gateway's own pages by path; the one at `PAGES_PREFIX` serves everything below it.
    """

    def __init__(
        self,
        engine: Engine,
        pool: ConnectionPool,
        *,
        embeddings: EmbeddingsEngine,
        options: Callable[[], GatewayOptions] = GatewayOptions,
        pages: Mapping[str, AsgiApp] | None = None,
        observer: RequestObserver = NO_REQUEST_OBSERVER,
        is_open: bool = False,
        threads: ThreadStore | None = None,
    ) -> None:
        self._engine = engine
        self._pool = pool
        self._embeddings = embeddings
        self._options = options
        self._pages = pages or {}
        self._observer = observer
        self._is_open = is_open
        self._body_memory = BodyMemory()
        self._threads = threads or ThreadStore(time.monotonic)
        self._signer = AwsSigner()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        connection: RequestConnection | None = scope.pop(CONNECTION_SCOPE_KEY, None)
        page = self._find_page(scope["path"])
        if page is not None:
            await page(scope, receive, send)
            return
        request = parse_request(scope)
        client_response = ClientResponse(request, send)
        options = self._options()
        self._observer.on_start(client_response)
        try:
            # Everything that depends only on headers is checked before the body is read.
            check_request_line(request)
            if request.is_websocket_upgrade:
                raise WebSocketRefused(request.path[:100])
            client_response.agent = identify_agent(request, options.keys, options.user_agents)
            self._check_possible_upstreams(request, options)
            body = await read_body(
                connection, receive, request.headers, limits=options.body, memory=self._body_memory
            )
            if body is not None:
                client_response.received_bytes = len(body.data)
                try:
                    serving = self._serve(request, body.take(), client_response, options, body.reservation)
                    await _serve_until_disconnect(connection, receive, client_response, serving)
                finally:
                    body.reservation.release()
        except BodyRejected as error:
            client_response.error_code, client_response.error_reason = error.code, str(error)
            await client_response.send_error(
                error.response(client_response.api_format), retry=error.may_retry, headers=error.headers
            )
        except FoveateError as error:
            client_response.error_code, client_response.error_reason = error.code, log_reason(error)
            if client_response.has_started:
                return  # the server closes the connection, so the client sees that the response is incomplete
            headers = _ERROR_HEADERS.get(type(error), ())
            audience = classify_audience(
                request.raw_headers,
                has_key=request.key is not None and bool(client_response.agent),
                is_open=self._is_open,
            )
            error_response = build_error_response(error, client_response.api_format, audience)
            await client_response.send_error(error_response, retry=may_retry(error), headers=headers)
        except Exception as error:  # a bug: record it, and let the server respond
            client_response.error_code, client_response.error_reason = "internal_error", type(error).__name__
            client_response.status = client_response.status or 500
            raise
        finally:
            self._observer.on_end(request, client_response)

    def _find_page(self, path: str) -> AsgiApp | None:
        page = self._pages.get(path) or self._pages.get(normalize_slashes(path))
        return page or (self._pages.get(PAGES_PREFIX) if path.startswith(PAGES_PREFIX) else None)

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def timeouts(self) -> Timeouts:
        return self._pool.timeouts

    async def send(self, request: ClientRequest, body: bytes) -> AsyncGenerator[ResponseEvent]:
        """Send a request of this process and return the events of its response.

        Raises:
            FoveateError: the request is rejected, here or when the events are read.
        """
        options = self._options()
        agent = identify_agent(request, options.keys, options.user_agents)
        request, route, model = await self._find_route(request, body, options)
        return await self._open_call(request, route, model, agent, body, options)

    async def preview(self, request: ClientRequest, body: bytes) -> Exchange:
        """Prepare a request as if it were sent, and store nothing. Only a counting endpoint may be called.

        Raises:
            FoveateError: the request would be rejected.
        """
        options = self._options()
        agent = identify_agent(request, options.keys, options.user_agents)
        request, route, model = await self._find_route(request, body, options)
        turn = await begin_turn(self._threads, route.upstream.threads, request, agent, body, claims=False)
        if turn is not None:
            request, body = turn.request, turn.body
        engine = self._engine.preview or self._engine
        exchange = await engine.prepare(
            _build_incoming_request(request, agent, body, route, model, options.limits)
        )
        if exchange.context is not None and self._engine.recount is not None:
            await self._engine.recount(exchange.context)
        return exchange

    async def _serve(
        self,
        request: ClientRequest,
        body: bytes,
        client_response: ClientResponse,
        options: GatewayOptions,
        reservation: BodyReservation,
    ) -> None:
        if request.endpoint.operation not in _PARSED_OPERATIONS:
            unknown_cost_reason = f"the cost of {request.method} {request.path} is unknown"
            await self._relay_unparsed(
                request,
                body,
                client_response,
                options,
                reservation,
                "" if request.method in _FREE_METHODS else unknown_cost_reason,
            )
            return
        encodings = parse_content_encodings(request.raw_headers)
        plain = await decompress_in_thread(
            body, encodings, limit_bytes=options.body.max_bytes, grow=reservation.grow
        )
        if plain is None or (encodings and request.endpoint.family in SIGNED_FAMILIES):
            unknown_cost_reason = f"the request cannot be read (its content-encoding is {', '.join(encodings)})"
            await self._relay_unparsed(
                request,
                body,
                client_response,
                options,
                reservation,
                "" if request.endpoint.operation is Operation.COUNT_TOKENS else unknown_cost_reason,
            )
            return
        if encodings:
            del body
            reservation.resize(len(plain))
            request = msgspec.structs.replace(request, raw_headers=strip_content_encoding(request.raw_headers))
        request, route, model = await self._find_route(request, plain, options)
        client_response.provider = route.upstream.provider
        events = await self._open_call(
            request, route, model, client_response.agent, plain, options, reservation
        )
        async with aclosing(events):
            await _forward_events(events, client_response)

    def _route(self, request: ClientRequest, model: str, options: GatewayOptions) -> RouteMatch:
        route = options.routing.match(request.endpoint, model)
        chatgpt = options.routing.upstreams.get(CHATGPT)
        if chatgpt is not None and needs_chatgpt(request, route.upstream):
            route = msgspec.structs.replace(route, upstream=chatgpt)
        self._check_upstream(request, route.upstream)
        if route.model is not None and _is_sent_unchanged(request, route.upstream):
            raise KeyRefused(
                f"the route for the model {model!r} renames it, but requests with the client's own cloud"
                " credentials are sent unchanged: use a gateway key, or the upstream's name of the model"
            )
        return route

    def _check_upstream(self, request: ClientRequest, upstream: Upstream) -> None:
        check_payer(request, upstream, is_open=self._is_open)
        check_operation(request, upstream)
        check_credentials(request, upstream)

    def _check_possible_upstreams(self, request: ClientRequest, options: GatewayOptions) -> None:
        """Reject a request that no upstream would accept, whatever model its body names."""
        first_error: KeyRefused | OperationRefused | None = None
        for upstream in options.routing.possible_upstreams(request.endpoint):
            try:
                self._check_upstream(request, upstream)
                return
            except (KeyRefused, OperationRefused) as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    async def _relay_unparsed(
        self,
        request: ClientRequest,
        body: bytes,
        client_response: ClientResponse,
        options: GatewayOptions,
        reservation: BodyReservation,
        unknown_cost_reason: str,
    ) -> None:
        """Relay a request that the engine does not process.

        `unknown_cost_reason` says why its cost is unknown; empty if it is free.
        """
        model, plain = request.endpoint.model, b""
        if options.routing.routes and not model:
            encodings = parse_content_encodings(request.raw_headers)
            limit_bytes = options.body.max_bytes
            plain = (
                await decompress_in_thread(body, encodings, limit_bytes=limit_bytes, grow=reservation.grow)
                or b""
            )
            model = await run_in_thread_if_large(lambda: find_requested_model(request, plain), len(plain))
        route = self._route(request, model, options)
        if route.model is not None and (
            request.endpoint.model or request.endpoint.operation is Operation.LIST_MODELS
        ):
            request = replace_path_model(request, route.model)
        elif route.model is not None and plain:
            request = msgspec.structs.replace(request, raw_headers=strip_content_encoding(request.raw_headers))
            name = route.model
            body = await run_in_thread_if_large(
                lambda: replace_body_model(request, plain, name, options.limits), len(plain)
            )
        if unknown_cost_reason:
            await self._engine.admit_uncounted(request.id, client_response.agent, unknown_cost_reason)
        changed_conversation = _CONVERSATION_PATH.match(request.path) if request.method != "GET" else None
        if changed_conversation is not None and self._engine.forget_conversation is not None:
            self._engine.forget_conversation(
                client_response.agent, route.upstream.name, changed_conversation[1]
            )
        client_response.provider = route.upstream.provider
        async with await self.send_upstream(
            request, route, body, {}, reads_response=False
        ) as upstream_response:
            await client_response.start(upstream_response.status, upstream_response.headers, is_changed=False)
            while chunk := await upstream_response.read_chunk():
                await client_response.send_chunk(chunk)
        await client_response.finish()

    async def _find_route(
        self, request: ClientRequest, body: bytes, options: GatewayOptions
    ) -> tuple[ClientRequest, RouteMatch, str]:
        """Return the request as it is routed, its route, and the model that it names."""
        model = request.endpoint.model
        if not model and (options.routing.routes or request.endpoint.family is ApiFamily.AZURE):
            model = await run_in_thread_if_large(lambda: read_model(body), len(body), min_bytes=LARGE_BYTES)
        route = self._route(request, model, options)
        if route.model is not None and request.endpoint.model:
            request = replace_path_model(request, route.model)
        return request, route, model

    async def _open_call(
        self,
        request: ClientRequest,
        route: RouteMatch,
        model: str,
        agent: str,
        body: bytes,
        options: GatewayOptions,
        reservation: BodyReservation | None = None,
    ) -> AsyncGenerator[ResponseEvent]:
        """Return the events of a call. A request with a thread becomes that of the whole conversation."""
        operation = request.endpoint.operation
        turn = await begin_turn(
            self._threads,
            route.upstream.threads,
            request,
            agent,
            body,
            claims=operation is not Operation.COUNT_TOKENS,
        )
        if turn is not None:
            try:
                if len(turn.body) > options.body.max_bytes:
                    raise TooLarge(options.body.max_bytes)
                if reservation is not None:
                    reservation.grow(len(turn.body))
            except BaseException:
                turn.close()
                raise
            request, body = turn.request, turn.body
        incoming = _build_incoming_request(
            request, agent, body, route, model, options.limits, keeps_response=turn is not None
        )
        transport = _GatewayTransport(self, request, route)
        if operation is Operation.COUNT_TOKENS:
            events = self._engine.count(incoming, transport)
        elif operation is Operation.EMBEDDINGS:
            events = self._embeddings.send(incoming, transport)
        else:
            events = self._engine.send(incoming, transport)
        return events if turn is None else _continue_thread(events, turn)

    async def send_upstream(
        self,
        request: ClientRequest,
        route: RouteMatch,
        body: bytes,
        headers: Mapping[str, str],
        *,
        reads_response: bool,
    ) -> PendingResponse:
        upstream = route.upstream
        override_headers = {name.encode("latin-1"): value.encode("latin-1") for name, value in headers.items()}
        forwarded = forward_request_headers(
            request.raw_headers,
            reads_response=reads_response,
            key=replacement_key_headers(request, upstream),
            overrides=override_headers,
        )
        destination = parse_url(upstream.url(request.raw_path, build_upstream_query(request, upstream)))
        if upstream.aws_region:
            forwarded = [pair for pair in forwarded if pair[0] not in CLIENT_SIGNATURE_HEADERS]
            forwarded += await self._signer.sign(
                request.method, destination.url, forwarded, body, region=upstream.aws_region
            )
        elif b"host" in signed_header_names(forwarded):
            destination = replace(destination, authority=request.headers.get("host", "").encode("latin-1"))
        return self._pool.stream(request.method, destination, forwarded, body, reuse=upstream.reuse)


async def _serve_until_disconnect(
    connection: RequestConnection | None,
    receive: Receive,
    client_response: ClientResponse,
    serving: Awaitable[None],
) -> None:
    """Serve a request; cancel everything done for it if the client disconnects."""
    current_task = asyncio.current_task()
    assert current_task is not None
    is_disconnected = is_served = False

    def cancel(_: object = None) -> None:
        nonlocal is_disconnected
        is_disconnected = not is_served and not client_response.has_finished
        if is_disconnected:
            current_task.cancel()

    disconnect_task = None
    if connection is not None:
        connection.on_disconnect(cancel)
    else:  # the next message is the disconnect
        disconnect_task = asyncio.ensure_future(receive())
        disconnect_task.add_done_callback(cancel)
    try:
        await serving
    except asyncio.CancelledError:
        if not is_disconnected:
            raise
        current_task.uncancel()
    finally:
        is_served = True
        if connection is not None:
            connection.on_disconnect(None)
        if disconnect_task is not None:
            disconnect_task.cancel()


@dataclass(slots=True)
class _GatewayTransport:
    gateway: Gateway
    request: ClientRequest
    route: RouteMatch
    _pending: PendingResponse | None = None

    @property
    def base_url(self) -> str:
        return self.route.upstream.base_url

    @property
    def is_streaming(self) -> bool:
        return self.request.endpoint.is_streaming

    async def send(self, body: bytes, headers: Mapping[str, str]) -> AbstractAsyncContextManager[HttpResponse]:
        self._pending = None
        self._pending = await self.gateway.send_upstream(
            self.request, self.route, body, headers, reads_response=True
        )
        return self._pending

    def is_unsent(self, error: UpstreamError | asyncio.CancelledError) -> bool:
        """Return whether no connection was established."""
        if isinstance(error, asyncio.CancelledError):
            return self._pending is None or not self._pending.is_sent
        if isinstance(error, UpstreamTimeout):
            timeouts = self.gateway.timeouts
            seconds = error.timeout_seconds
            return seconds == timeouts.connect_seconds and seconds not in (
                timeouts.idle_seconds,
                timeouts.total_seconds,
            )
        return isinstance(error, UpstreamUnreachable) and not isinstance(error, UpstreamBroken)


async def _continue_thread(
    events: AsyncGenerator[ResponseEvent], turn: ThreadTurn
) -> AsyncGenerator[ResponseEvent]:
    """Store the thread of a call, so that it can be continued before the client has all of the response."""
    exchange = None
    try:
        async with aclosing(events):
            async for event in events:
                match event:
                    case CallPrepared():
                        exchange = event.exchange
                    case ResponseFinished() if exchange is not None:
                        await turn.finish(exchange)
                    case ResponseChunk() if (
                        exchange is not None and exchange.is_streaming and exchange.has_ended
                    ):
                        await turn.finish(exchange)
                yield event
    finally:
        turn.close()


async def _forward_events(events: AsyncIterator[ResponseEvent], client_response: ClientResponse) -> None:
    async for event in events:
        match event:
            case ResponseChunk(data):
                await client_response.send_chunk(data)
            case CallPrepared(exchange):
                client_response.exchange = exchange
            case ResponseStarted(status, headers, is_changed):
                await client_response.start(status, headers, is_changed=is_changed)
            case CountedLocally(body, is_exact):
                await client_response.send_count(body, is_exact=is_exact)
            case ResponseFinished(data):
                await client_response.finish(data)


def _build_incoming_request(
    request: ClientRequest,
    agent: str,
    body: bytes,
    route: RouteMatch,
    model: str,
    limits: RequestLimits,
    *,
    keeps_response: bool = False,
) -> IncomingRequest:
    # The engine uses `served_model` instead of this name, which only the upstream knows.
    upstream_model = (route.model or model) if route.served_model else ""
    return IncomingRequest(
        id=request.id,
        agent=agent,
        api_format=request.api_format,
        provider=route.upstream.provider,
        upstream=route.upstream.name,
        body=body,
        session=request.headers.get(SESSION_HEADER),
        session_headers={name: value for name, value in request.headers.items() if name in NAMING_HEADERS},
        caller=hash_caller(request),
        session_scope=hash_name_scope(request),
        account=hash_account(request, route.upstream),
        connection=request.connection,
        kind=request.headers.get(KIND_HEADER, ""),
        section_inputs=parse_section_headers(request.headers),
        model=None if request.endpoint.model else route.model,
        served_model=route.served_model,
        region=request.endpoint.region or route.upstream.region,
        is_signed=_is_sent_unchanged(request, route.upstream),
        betas=request.headers.get("anthropic-beta", ""),
        find_endpoint=None
        if request.endpoint.family in SIGNED_FAMILIES
        else lambda: find_summary_endpoint(request, route.upstream, request.api_format, upstream_model),
        limits=limits,
        keeps_response=keeps_response,
        is_subscription=is_subscription(request, route.upstream),
        cost_headers=cost_headers(request.raw_headers),
    )


def _is_sent_unchanged(request: ClientRequest, upstream: Upstream) -> bool:
    """Return whether a request is sent unchanged: its client signed it, and the gateway does not sign."""
    return request.endpoint.family in SIGNED_FAMILIES and replacement_key_headers(request, upstream) is None
