"""Asks the best counter first and always has an answer: an endpoint behind a breaker, then the offline one."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from foveate.tokens.counter import RequestCount, RequestCounter
from foveate.tokens.endpoints import EndpointCounter, Endpoints
from foveate.tokens.memo import DEFAULT_CAPACITY, Memo, digest
from foveate.values import Request, TokenCount

Result = TypeVar("Result")

# What takes longer than a millisecond or so is counted off the event loop.
_LONG_CHARS = 16 * 1024


def _no_endpoint(model: str) -> EndpointCounter | None:
    del model
    return None


class Cascade:
    """Counts through an endpoint where there is one that answers, otherwise offline.

    The offline counter is asked for by model at every count, so a session that switches its model switches its
    counter with the next count.
    """

    def __init__(
        self,
        offline: Callable[[str], RequestCounter],
        *,
        endpoint_for: Callable[[str], EndpointCounter | None] = _no_endpoint,
        endpoints: Endpoints | None = None,
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        self._offline = offline
        self._endpoint_for = endpoint_for
        self._endpoints = endpoints or Endpoints()
        self._answers: Memo[TokenCount] = Memo(capacity)

    async def text(self, text: str, model: str) -> RequestCount:
        """The count of a text."""
        if not text:
            return RequestCount(model=model, backend="offline", total=TokenCount(0, True, 0))
        endpoint = self._endpoint_for(model)
        if endpoint is not None:
            key = digest(b"text", model.encode(), text.encode("utf-8", "surrogatepass"))
            total = await self._ask(endpoint, "text", key, lambda: endpoint.text(text, model))
            if total is not None:
                return RequestCount(model=model, backend=endpoint.name, total=total)
        counter = self._offline(model)
        total = await _off_loop(len(text), lambda: counter.text(text))
        counted = RequestCount(model=model, backend=counter.backend, total=total)
        return self._labelled(counted, endpoint, "text")

    async def request(self, request: Request) -> RequestCount:
        """The count of a whole request, with its parts where it was counted here."""
        endpoint = self._endpoint_for(request.model)
        if endpoint is not None:
            key = digest(request.format.encode(), request.body)
            total = await self._ask(endpoint, request.format, key, lambda: endpoint.request(request))
            if total is not None:
                return RequestCount(model=request.model, backend=endpoint.name, total=total)
        counter = self._offline(request.model)
        count = await _off_loop(len(request.body), lambda: counter.request(request))
        return self._labelled(count, endpoint, request.format)

    async def _ask(
        self,
        endpoint: EndpointCounter,
        subject: str,
        key: bytes,
        call: Callable[[], Awaitable[TokenCount]],
    ) -> TokenCount | None:
        found = self._answers.get(key)
        if found is None:
            found = await self._endpoints.ask(endpoint.url, subject, call)
            if found is not None:
                self._answers.put(key, found)
        return found

    def _labelled(self, count: RequestCount, endpoint: EndpointCounter | None, subject: str) -> RequestCount:
        """`count`, not called exact where it stands in for an endpoint that is failing."""
        if endpoint is None or self._endpoints.why_not(endpoint.url, subject):
            return count
        return replace(count, total=replace(count.total, exact=False))


async def _off_loop(size: int, call: Callable[[], Result]) -> Result:
    return call() if size < _LONG_CHARS else await asyncio.to_thread(call)
