"""Metrics and the access log of every request, including those that the engine does not process."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from foveate.engine.metrics.collector import MetricsCollector, response_model
from foveate.gateway.observability.access_log import AccessRecord
from foveate.gateway.request import ClientRequest, Scope, Send, parse_request
from foveate.gateway.response import ClientResponse

# nginx's status for a client that disconnects before the response.
DISCONNECTED_STATUS = 499

_LOG = logging.getLogger("foveate.requests")


class RequestObserver(Protocol):
    def on_start(self, response: ClientResponse) -> None: ...

    def on_end(self, request: ClientRequest, response: ClientResponse) -> None:
        """Record a request that is answered, or whose client disconnected."""


class NullRequestObserver:
    def on_start(self, response: ClientResponse) -> None: ...

    def on_end(self, request: ClientRequest, response: ClientResponse) -> None: ...


NO_REQUEST_OBSERVER = NullRequestObserver()


@contextmanager
def observe_response(scope: Scope, send: Send, observer: RequestObserver) -> Iterator[ClientResponse]:
    """Yield a response for a request that middleware answers itself, and observe it."""
    request = parse_request(scope)
    response = ClientResponse(request, send)
    observer.on_start(response)
    try:
        yield response
    finally:
        observer.on_end(request, response)


class RequestListener(Protocol):
    def on_request_end(self, request: ClientRequest, response: ClientResponse) -> None: ...


class RequestRecorder:
    def __init__(
        self,
        metrics: MetricsCollector,
        *,
        clock: Callable[[], float] = time.time,
        listener: Callable[[], RequestListener | None] = lambda: None,
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._listener = listener
        self._open: set[ClientResponse] = set()
        metrics.add_poll(self._poll)

    def on_start(self, response: ClientResponse) -> None:
        response.received_at = self._clock()
        self._open.add(response)

    def on_end(self, request: ClientRequest, response: ClientResponse) -> None:
        self._open.discard(response)
        metrics, exchange = self._metrics, response.exchange
        metrics.request_bytes.value += response.received_bytes
        metrics.response_bytes.value += response.sent_bytes
        model = "" if exchange is None else response_model(exchange)
        metrics.count_response(response.agent, response.provider, model, response.status or DISCONNECTED_STATUS)
        if response.error_code:
            metrics.count_rejection(response.agent, response.error_code)
        if _LOG.isEnabledFor(logging.INFO):
            access_record = _build_access_record(request, response, model, self._clock())
            # `_LOG.info` would also look for its caller, which takes as long as all the rest.
            _LOG.handle(logging.LogRecord(_LOG.name, logging.INFO, "", 0, access_record, None, None))
        listener = self._listener()
        if listener is not None:
            listener.on_request_end(request, response)

    def _poll(self) -> None:
        self._metrics.open_requests.value = len(self._open)
        self._metrics.open_streams.value = sum(
            response.exchange is not None and response.exchange.is_streaming for response in self._open
        )


def _build_access_record(
    request: ClientRequest, response: ClientResponse, model: str, now: float
) -> AccessRecord:
    exchange = response.exchange
    if exchange is None:
        return AccessRecord(
            at=now,
            id=request.id,
            method=request.method,
            path=request.path,
            agent=response.agent,
            provider=response.provider,
            status=response.status,
            total_seconds=now - response.received_at,
            error_code=response.error_code,
            error_reason=response.error_reason,
        )
    usage, entry = exchange.usage, exchange.charge
    cache = usage.cache if usage is not None else None
    return AccessRecord(
        at=now,
        id=request.id,
        method=request.method,
        path=request.path,
        agent=response.agent,
        provider=response.provider,
        model=model,
        session=exchange.context.session_id
        if exchange.context is not None
        else exchange.incoming.session or "",
        status=response.status,
        total_seconds=now - response.received_at,
        added_seconds=exchange.sent_at - exchange.received_at,
        input_tokens=cache.input_tokens if cache is not None else 0,
        read_tokens=cache.read if cache is not None else 0,
        written_tokens=cache.written_5m + cache.written_1h if cache is not None else 0,
        output_tokens=usage.output_tokens if usage is not None else 0,
        dollars=entry.dollars if entry is not None else None,
        has_usage=usage is not None,
        is_broken=exchange.is_interrupted,
        applied_edits=exchange.upstream_request.applied_edits,
        problems=exchange.upstream_request.problems,
        error_code=response.error_code,
        error_reason=response.error_reason,
    )
