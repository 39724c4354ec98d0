"""Everything that comes and goes at the gateway, counted and told: what the engine has no hand in, too."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from foveate.engine.metrics import Metrics, model_of
from foveate.gateway.asks import Ask, Scope, Send, ask_of
from foveate.gateway.client import Client
from foveate.gateway.told import Told

# As others have it for a client that went away before there was an answer.
GONE_STATUS = 499

_LOG = logging.getLogger("foveate.requests")


class Traffic(Protocol):
    """Is told of requests as they come and go."""

    def came(self, client: Client) -> None:
        """Somebody asks."""

    def went(self, ask: Ask, client: Client) -> None:
        """They have their answer, or have gone."""


class Unseen:
    """Tells nobody."""

    def came(self, client: Client) -> None:
        """Nothing."""

    def went(self, ask: Ask, client: Client) -> None:
        """Nothing."""


UNSEEN = Unseen()


@contextmanager
def seen(scope: Scope, send: Send, traffic: Traffic) -> Iterator[Client]:
    """The way back for a request that is answered before the gateway's doors; it is told as all others are."""
    ask = ask_of(scope)
    client = Client(ask, send)
    traffic.came(client)
    try:
        yield client
    finally:
        traffic.went(ask, client)


class Listener(Protocol):
    """Who else is told of what became of a request."""

    def ended(self, ask: Ask, client: Client) -> None:
        """One has come to its end."""


class Seen:
    """Counts what comes and goes, and writes a line for each."""

    def __init__(
        self,
        metrics: Metrics,
        write: Callable[[Told], None],
        *,
        clock: Callable[[], float] = time.time,
        listener: Callable[[], Listener | None] = lambda: None,
    ) -> None:
        self._metrics = metrics
        self._write = write
        self._clock = clock
        self._listener = listener
        self._open: set[Client] = set()
        metrics.polls(self._poll)

    def came(self, client: Client) -> None:
        """Count it among the open ones."""
        client.came_at = self._clock()
        self._open.add(client)

    def went(self, ask: Ask, client: Client) -> None:
        """Count it, and tell it where anybody wants to know."""
        self._open.discard(client)
        metrics, exchange = self._metrics, client.exchange
        metrics.request_bytes.value += client.received_bytes
        metrics.response_bytes.value += client.sent_bytes
        model = "" if exchange is None else model_of(exchange)
        metrics.answered(client.agent, client.provider, model, client.status or GONE_STATUS)
        if client.refused:
            metrics.refused_as(client.agent, client.refused)
        if _LOG.isEnabledFor(logging.INFO):
            now = self._clock()
            self._write(_told(ask, client, model, now))
        listener = self._listener()
        if listener is not None:
            listener.ended(ask, client)

    def _poll(self) -> None:
        self._metrics.open_requests.value = len(self._open)
        self._metrics.open_streams.value = sum(
            client.exchange is not None and client.exchange.streams for client in self._open
        )


def _told(ask: Ask, client: Client, model: str, now: float) -> Told:
    exchange = client.exchange
    if exchange is None:
        return Told(
            at=now,
            id=ask.id,
            method=ask.method,
            path=ask.path,
            agent=client.agent,
            provider=client.provider,
            status=client.status,
            whole_seconds=now - client.came_at,
            refused=client.refused,
            reason=client.reason,
        )
    usage, entry = exchange.usage, exchange.entry
    cache = usage.cache if usage is not None else None
    return Told(
        at=now,
        id=ask.id,
        method=ask.method,
        path=ask.path,
        agent=client.agent,
        provider=client.provider,
        model=model,
        session=exchange.work.session_id if exchange.work is not None else exchange.incoming.session or "",
        status=client.status,
        whole_seconds=now - client.came_at,
        added_seconds=exchange.sent_at - exchange.came_at,
        input_tokens=cache.input_tokens if cache is not None else 0,
        read_tokens=cache.read if cache is not None else 0,
        written_tokens=cache.written_5m + cache.written_1h if cache is not None else 0,
        output_tokens=usage.output_tokens if usage is not None else 0,
        dollars=entry.dollars if entry is not None else None,
        is_billed=usage is not None,
        is_broken=exchange.is_broken,
        done=exchange.outgoing.done,
        problems=exchange.outgoing.problems,
        refused=client.refused,
        reason=client.reason,
    )
