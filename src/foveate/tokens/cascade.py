"""Asks the best counter first and always has an answer: an endpoint behind a breaker, then the offline one."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeVar

from foveate.tokens.caches import register
from foveate.tokens.counter import RequestCounter
from foveate.tokens.endpoints import EndpointCounter, Endpoints, Question, Unsupported
from foveate.tokens.memo import DEFAULT_CAPACITY, Memo, digest
from foveate.tokens.request_count import RequestCount
from foveate.values import Request, TokenCount

Result = TypeVar("Result")

# What takes longer than a millisecond or so is read and counted off the event loop.
_LONG_CHARS = 16 * 1024
# Whatever hashes holds the interpreter's lock for so much at a time.
_HASHED_AT_ONCE_BYTES = 512 * 1024
# Of so many models it is known that their vocabulary is loaded; loading one is done off the event loop too.
_LOADED_MODELS = 64


def _no_endpoint(model: str) -> EndpointCounter | None:
    del model
    return None


class Answers:
    """What endpoints have answered, kept: the same is asked once."""

    def __init__(self, endpoints: Endpoints, capacity: int = DEFAULT_CAPACITY) -> None:
        self._endpoints = endpoints
        self._kept: Memo[TokenCount] = Memo(capacity)
        register(self)

    def drop(self) -> None:
        """Forget every answer."""
        self._kept = Memo(self._kept.capacity)

    async def of(
        self,
        endpoint: EndpointCounter,
        model: str,
        size: int,
        question_for: Callable[[EndpointCounter], Question],
        told: Callable[[], None] = lambda: None,
    ) -> "Answered":
        """What an endpoint answers; `told` is called where it was asked for it just now.

        Raises:
            Unsupported: it does not count such a thing.
        """
        kept = self._kept
        question, key = await _off_loop(size, lambda: _keyed(endpoint.url, question_for(endpoint)))
        total = kept.get(key)
        if total is None:
            total = await self._endpoints.ask(
                endpoint.url, question.subject, model, lambda: endpoint.answer(question)
            )
            if total is None:
                return Answered(None, bool(self._endpoints.why_not(endpoint.url, question.subject, model)))
            told()
            kept.put(key, total)
        return Answered(total)


class Answered(NamedTuple):
    """What an endpoint says; without a total, whether that is its last word (`is_no`) or it is only failing."""

    total: TokenCount | None
    is_no: bool = False


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
        self._answers = Answers(self._endpoints, capacity)
        self._loaded: Memo[bool] = Memo(_LOADED_MODELS)

    async def text(self, text: str, model: str) -> RequestCount:
        """The count of a text."""

        def offline() -> RequestCount:
            counter = self._offline(model)
            return RequestCount(model=model, backend=counter.backend, total=counter.text(text))

        if not text:
            return RequestCount(model=model, backend="offline", total=TokenCount(0, True, 0))
        return await self._count(model, len(text), lambda endpoint: endpoint.text(text, model), offline)

    async def request(self, request: Request) -> RequestCount:
        """The count of a whole request, with its parts where it was counted here."""
        return await self._count(
            request.model,
            len(request.body),
            lambda endpoint: endpoint.request(request),
            lambda: self._offline(request.model).request(request),
        )

    async def _count(
        self,
        model: str,
        size: int,
        question_for: Callable[[EndpointCounter], Question],
        offline: Callable[[], RequestCount],
    ) -> RequestCount:
        endpoint = self._endpoint_for(model)
        if endpoint is None:
            return await self._here(model, size, offline)
        try:
            total, is_no = await self._answers.of(endpoint, model, size, question_for)
        except Unsupported as reason:
            self._endpoints.passed_over(endpoint.url, reason)
            return await self._here(model, size, offline)
        if total is not None:
            return RequestCount(model=model, backend=endpoint.name, total=total)
        count = await self._here(model, size, offline)
        if is_no:
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


async def _off_loop(size: int, work: Callable[[], Result]) -> Result:
    return await asyncio.to_thread(work) if size >= _LONG_CHARS else work()


def _keyed(url: str, question: Question) -> tuple[Question, bytes]:
    """A question and what its answer is kept under. The model is part of it, as not every body names it."""
    names = (name.encode("utf-8", "surrogatepass") for name in (url, question.subject, question.model))
    body = memoryview(question.body)
    slices = (
        body[start : start + _HASHED_AT_ONCE_BYTES] for start in range(0, len(body), _HASHED_AT_ONCE_BYTES)
    )
    return question, digest(*names, *map(bytes, slices))
