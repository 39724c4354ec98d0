"""Asks the best counter first and always has an answer: an endpoint behind a breaker, then the offline one."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from foveate.tokens.counter import RequestCount, RequestCounter
from foveate.tokens.endpoints import EndpointCounter, Endpoints, Unsupported
from foveate.tokens.memo import DEFAULT_CAPACITY, Memo, digest
from foveate.values import Request, TokenCount

# What takes longer than a millisecond or so is counted off the event loop.
_LONG_CHARS = 16 * 1024
# Of so many models it is known that their vocabulary is loaded; loading one is done off the event loop too.
_LOADED_MODELS = 64


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
        self._loaded: Memo[bool] = Memo(_LOADED_MODELS)

    async def text(self, text: str, model: str) -> RequestCount:
        """The count of a text."""

        def offline() -> RequestCount:
            counter = self._offline(model)
            return RequestCount(model=model, backend=counter.backend, total=counter.text(text))

        if not text:
            return RequestCount(model=model, backend="offline", total=TokenCount(0, True, 0))
        return await self._count(model, "text", text, lambda endpoint: endpoint.text(text, model), offline)

    async def request(self, request: Request) -> RequestCount:
        """The count of a whole request, with its parts where it was counted here."""
        return await self._count(
            request.model,
            request.format,
            request.body,
            lambda endpoint: endpoint.request(request),
            lambda: self._offline(request.model).request(request),
        )

    async def _count(
        self,
        model: str,
        subject: str,
        payload: str | bytes,
        ask: Callable[[EndpointCounter], Awaitable[TokenCount]],
        offline: Callable[[], RequestCount],
    ) -> RequestCount:
        endpoint = self._endpoint_for(model)
        if endpoint is None:
            return await self._here(model, len(payload), offline)
        key = _key(endpoint.url, subject, model, payload)
        total = self._answers.get(key)
        if total is None:
            try:
                total = await self._endpoints.ask(endpoint.url, subject, model, lambda: ask(endpoint))
            except Unsupported:
                return await self._here(model, len(payload), offline)
        if total is not None:
            self._answers.put(key, total)
            return RequestCount(model=model, backend=endpoint.name, total=total)
        count = await self._here(model, len(payload), offline)
        if self._endpoints.why_not(endpoint.url, subject, model):
            return count
        # It stands in for an endpoint that is failing, and the two kinds of counts must not be mixed.
        return replace(count, total=replace(count.total, exact=False))

    async def _here(self, model: str, size: int, offline: Callable[[], RequestCount]) -> RequestCount:
        name = model.encode("utf-8", "surrogatepass")
        if size < _LONG_CHARS and self._loaded.get(name):
            return offline()
        count = await asyncio.to_thread(offline)
        self._loaded.put(name, True)
        return count


def _key(url: str, subject: str, model: str, payload: str | bytes) -> bytes:
    """A request's own body may name another model than the one it is counted for, so that is part of it."""
    names = (name.encode("utf-8", "surrogatepass") for name in (url, subject, model))
    data = payload.encode("utf-8", "surrogatepass") if isinstance(payload, str) else payload
    return digest(*names, data)
