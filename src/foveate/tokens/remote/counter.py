"""Remote counts: the endpoint behind a circuit breaker, with the offline counter as fallback."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, TypeVar

from foveate.caching import DEFAULT_CAPACITY, LruCache, hash_bytes, register
from foveate.errors import BadOption
from foveate.http import JsonClient
from foveate.model import Request, TokenCount
from foveate.tokens.counter import RequestCount, RequestCounter
from foveate.tokens.offline_counters import Backend, CounterOptions, is_claude, offline_counter_factory
from foveate.tokens.remote.endpoints import (
    CountQuery,
    EndpointCounter,
    EndpointRegistry,
    Unsupported,
    shared_endpoint_registry,
)
from foveate.tokens.remote.model_servers import TokenizeCounter
from foveate.tokens.remote.providers import (
    ANTHROPIC_URL,
    GEMINI_URL,
    OPENAI_URL,
    AnthropicCounter,
    GeminiCounter,
    OpenAICounter,
)

Result = TypeVar("Result")

# Longer texts take more than about a millisecond, and are processed off the event loop.
_MAX_INLINE_CHARS = 16 * 1024
# Hashing holds the GIL, so it is done in chunks.
_HASH_CHUNK_BYTES = 512 * 1024
# Models whose vocabulary is known to be loaded. Loading is done off the event loop too.
_MAX_LOADED_MODELS = 64


def _no_endpoint(model: str) -> EndpointCounter | None:
    del model
    return None


class RemoteCountCache:
    def __init__(self, endpoints: EndpointRegistry, capacity: int = DEFAULT_CAPACITY) -> None:
        self._endpoints = endpoints
        self._counts: LruCache[TokenCount] = LruCache(capacity)
        register(self)

    def clear(self) -> None:
        self._counts.clear()

    async def get_or_fetch(
        self,
        endpoint: EndpointCounter,
        model: str,
        size: int,
        build_query: Callable[[EndpointCounter], CountQuery],
        on_fetched: Callable[[], None] = lambda: None,
    ) -> "RemoteCount":
        """Return the count from the cache or the endpoint. `on_fetched` is called after a fetch.

        Raises:
            Unsupported: the endpoint does not count this.
        """
        counts = self._counts
        query, key = await _run_off_loop(size, lambda: _with_key(endpoint.url, build_query(endpoint)))
        total = counts.get(key)
        if total is None:
            total = await self._endpoints.try_call(
                endpoint.url, query.subject, model, lambda: endpoint.fetch_count(query)
            )
            if total is None:
                return RemoteCount(
                    None, bool(self._endpoints.unsupported_reason(endpoint.url, query.subject, model))
                )
            on_fetched()
            counts.put(key, total)
        return RemoteCount(total)


class RemoteCount(NamedTuple):
    """Count of an endpoint. Without a total, `is_unsupported` tells whether the failure is permanent."""

    total: TokenCount | None
    is_unsupported: bool = False


class FallbackCounter:
    """Counts with an endpoint if one responds, otherwise offline.

    The offline counter is chosen by model at every count, so a session can switch models at any time.
    """

    def __init__(
        self,
        offline_counter_for: Callable[[str], RequestCounter],
        *,
        endpoint_for: Callable[[str], EndpointCounter | None] = _no_endpoint,
        endpoints: EndpointRegistry | None = None,
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        self._offline_counter_for = offline_counter_for
        self._endpoint_for = endpoint_for
        self._endpoints = endpoints or EndpointRegistry()
        self._remote_counts = RemoteCountCache(self._endpoints, capacity)
        self._loaded_models: LruCache[bool] = LruCache(_MAX_LOADED_MODELS)

    async def count_text(self, text: str, model: str) -> RequestCount:
        def count_offline() -> RequestCount:
            counter = self._offline_counter_for(model)
            return RequestCount(model=model, backend=counter.backend, total=counter.text(text))

        if not text:
            return RequestCount(model=model, backend="offline", total=TokenCount(0, True, 0))
        return await self._count(
            model, len(text), lambda endpoint: endpoint.text_query(text, model), count_offline
        )

    async def count_request(self, request: Request) -> RequestCount:
        """Count a whole request, with its parts if it is counted offline."""
        return await self._count(
            request.model,
            len(request.body),
            lambda endpoint: endpoint.request_query(request),
            lambda: self._offline_counter_for(request.model).count_request(request),
        )

    async def _count(
        self,
        model: str,
        size: int,
        build_query: Callable[[EndpointCounter], CountQuery],
        count_offline: Callable[[], RequestCount],
    ) -> RequestCount:
        endpoint = self._endpoint_for(model)
        if endpoint is None:
            return await self._count_offline(model, size, count_offline)
        try:
            total, is_unsupported = await self._remote_counts.get_or_fetch(endpoint, model, size, build_query)
        except Unsupported as reason:
            self._endpoints.record_unsupported(endpoint.url, reason)
            return await self._count_offline(model, size, count_offline)
        if total is not None:
            return RequestCount(model=model, backend=endpoint.name, total=total)
        count = await self._count_offline(model, size, count_offline)
        if is_unsupported:
            return count
        # The endpoint is failing for now, and the two kinds of counts must not be mixed.
        return replace(count, total=replace(count.total, exact=False))

    async def _count_offline(
        self, model: str, size: int, count_offline: Callable[[], RequestCount]
    ) -> RequestCount:
        key = model.encode("utf-8", "surrogatepass")
        if size < _MAX_INLINE_CHARS and self._loaded_models.get(key):
            return count_offline()
        count = await asyncio.to_thread(count_offline)
        self._loaded_models.put(key, True)
        return count


async def _run_off_loop(size: int, function: Callable[[], Result]) -> Result:
    return await asyncio.to_thread(function) if size >= _MAX_INLINE_CHARS else function()


def _with_key(url: str, query: CountQuery) -> tuple[CountQuery, bytes]:
    """Return the query and its cache key. The key includes the model, since not every body names it."""
    names = (name.encode("utf-8", "surrogatepass") for name in (url, query.subject, query.model))
    body = memoryview(query.body)
    chunks = (body[start : start + _HASH_CHUNK_BYTES] for start in range(0, len(body), _HASH_CHUNK_BYTES))
    return query, hash_bytes(*names, *map(bytes, chunks))


class ConnectedCounter:
    """A fallback counter with its connections: `async with ConnectedCounter(options) as counter`."""

    def __init__(self, options: CounterOptions, endpoints: EndpointRegistry | None = None) -> None:
        """`endpoints` is what is known about servers. Default: what the whole process knows."""
        self._options = options
        self._endpoints = endpoints or shared_endpoint_registry()
        self._client = JsonClient(timeout_seconds=options.timeout_ms / 1000)

    async def __aenter__(self) -> FallbackCounter:
        """Build the counter.

        Raises:
            BadOption: the backend lacks an address or a key, or the address is invalid.
        """
        options = self._options
        return FallbackCounter(
            offline_counter_factory(options),
            endpoint_for=_endpoint_selector(options, self._client, self._endpoints),
            endpoints=self._endpoints,
            capacity=options.cache_capacity,
        )

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.close()


def _endpoint_selector(
    options: CounterOptions, client: JsonClient, endpoints: EndpointRegistry
) -> Callable[[str], EndpointCounter | None]:
    endpoint = _build_endpoint(options, client, endpoints)
    if options.backend is Backend.AUTO and isinstance(endpoint, AnthropicCounter):
        return lambda model: endpoint if is_claude(model) else None
    return lambda _: endpoint


def _build_endpoint(
    options: CounterOptions, client: JsonClient, endpoints: EndpointRegistry
) -> EndpointCounter | None:
    key, url = options.api_key, options.endpoint_url
    if url and not url.startswith(("http://", "https://")):
        raise BadOption(f"the URL of a server must start with http:// or https://, not {url!r}")
    match options.backend:
        case Backend.OFFLINE | Backend.ESTIMATE:
            return None
        case Backend.AUTO if url and options.use_endpoint:
            return TokenizeCounter(client, url, _bearer_headers(key), endpoints)
        case Backend.AUTO:
            # With an address, the key belongs to that server and must not be sent to Anthropic.
            uses_anthropic = key and not url and options.vocabulary is None
            return AnthropicCounter(client, key) if uses_anthropic else None
        case Backend.ENDPOINT:
            if not url:
                raise BadOption("the backend `endpoint` needs the URL of a server")
            return TokenizeCounter(client, url, _bearer_headers(key), endpoints)
    if not key:
        raise BadOption(f"the backend `{options.backend}` needs an API key")
    match options.backend:
        case Backend.OPENAI_API:
            return OpenAICounter(client, key, url or OPENAI_URL)
        case Backend.GEMINI_API:
            return GeminiCounter(client, key, url or GEMINI_URL)
        case _:
            return AnthropicCounter(client, key, url or ANTHROPIC_URL)


def _bearer_headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}
