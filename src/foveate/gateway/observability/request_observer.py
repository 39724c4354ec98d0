"""Metrics and the access log of every request, including those that the engine does not process."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from foveate.engine.metrics.collector import MetricsCollector, response_model
from foveate.gateway.observability import access_log
from foveate.gateway.request import ClientRequest, Scope, Send, parse_request
from foveate.gateway.response import ClientResponse

# nginx's status for a client that disconnects before the response.
DISCONNECTED_STATUS = 499


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
        if access_log.is_on():
            access_log.log_request(request, response, model, self._clock())
        listener = self._listener()
        if listener is not None:
            listener.on_request_end(request, response)

    def _poll(self) -> None:
        self._metrics.open_requests.value = len(self._open)
        self._metrics.open_streams.value = sum(
            response.exchange is not None and response.exchange.is_streaming for response in self._open
        )
