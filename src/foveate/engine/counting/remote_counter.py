"""Token counts by the upstream of a request, with the client's own key.

They are free, and recorded so that they are visible. A failing endpoint is not asked for a while, and a request
waits no longer than the timeout.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from decimal import Decimal
from uuid import uuid4

from foveate.caching import DEFAULT_CAPACITY
from foveate.compaction.summarize.llm import SummarizerEndpoint
from foveate.cost.admission import Admission
from foveate.cost.ledger import Call, Category, Charge
from foveate.cost.savings import make_unchanged_savings
from foveate.engine.request import IncomingRequest
from foveate.engine.request_context import RequestContext
from foveate.errors import UpstreamStatus, UpstreamTimeout
from foveate.http import JsonClient
from foveate.http.proxies import ProxyRules
from foveate.model import CacheUsage, Format, Request, TokenCount, Usage
from foveate.tokens.offline_counters import Backend, CounterOptions
from foveate.tokens.remote.counter import RemoteCount, RemoteCountCache
from foveate.tokens.remote.endpoints import (
    CountQuery,
    EndpointCounter,
    EndpointRegistry,
    Unsupported,
    shared_endpoint_registry,
)
from foveate.tokens.remote.model_servers import TokenizeCounter
from foveate.tokens.remote.providers import AnthropicCounter, GeminiCounter, OpenAICounter

_LOG = logging.getLogger(__name__)

# Paths of model calls at a server.
_API_ROUTES = ("/v1/messages", "/chat/completions", "/responses")
_GOOGLE_TOKEN_PREFIX = "Bearer ya29."
_KEY_REJECTED = frozenset((401, 403))
_NOT_COUNTED = RemoteCount(None, is_unsupported=True)
# Each configured timeout has its own connections.
_MAX_CLIENTS = 4


class RemoteCounter:
    def __init__(
        self,
        admission: Admission,
        clock: Callable[[], float],
        endpoints: EndpointRegistry | None = None,
        proxies: ProxyRules | None = None,
    ) -> None:
        """`endpoints`: the state of servers; by default that of the whole process."""
        self._admission = admission
        self._clock = clock
        self._endpoints = endpoints or shared_endpoint_registry()
        self._counts = RemoteCountCache(self._endpoints)
        self._capacity = DEFAULT_CAPACITY
        self._proxies = proxies
        self._clients: dict[int, JsonClient] = {}
        self._ledger_tasks: set[asyncio.Task[object]] = set()

    async def count_always(self, context: RequestContext) -> RemoteCount:
        """Count if the options want every request to be counted by its upstream."""
        options = context.options.counter
        if options.backend not in (Backend.ANTHROPIC_API, Backend.ENDPOINT):
            return _NOT_COUNTED
        return await self._ask(context, options)

    async def count_for_decision(self, context: RequestContext) -> TokenCount | None:
        """None if nobody may be asked, or nobody answers."""
        options = context.options.counter
        if options.backend is not Backend.AUTO:
            return None
        return (await self._ask(context, options)).total

    async def count_if_allowed(self, context: RequestContext) -> TokenCount | None:
        options = context.options.counter
        if not options.use_endpoint or options.backend not in (Backend.AUTO, Backend.ENDPOINT):
            return None
        return (await self._ask(context, options)).total

    async def close(self) -> None:
        await asyncio.gather(*self._ledger_tasks, return_exceptions=True)
        for client in self._clients.values():
            await client.close()

    async def _ask(self, context: RequestContext, options: CounterOptions) -> RemoteCount:
        target, request = context.endpoint, context.request
        if target is None:
            return _NOT_COUNTED
        client = (await self._client_for(options.timeout_ms)).with_reuse(target.reuse_connection)
        endpoint = _choose_endpoint(options, context.incoming, target, request, client, self._endpoints)
        if endpoint is None:
            return _NOT_COUNTED
        try:
            return await self._counts_with_capacity(options.cache_capacity).get_or_fetch(
                _WithTimeout(endpoint, options.timeout_ms / 1000),
                request.model,
                len(request.body),
                lambda counter: counter.request_query(request),
                lambda: self.record_count(context.incoming, context.session_id, context.model),
            )
        except Unsupported as reason:
            if self._endpoints.record_unsupported(endpoint.url, reason):
                _LOG.warning("%s cannot count this request, counting it locally: %s", endpoint.url, reason)
            return _NOT_COUNTED

    def record_count(self, incoming: IncomingRequest, session_id: str, model: str) -> None:
        """Record a count in the ledger at no cost, in the background."""
        call = Call(
            id=f"{incoming.id}-count-{uuid4().hex}",
            agent=incoming.agent,
            session_id=session_id,
            provider=incoming.provider,
            model=model,
            category=Category.COUNTING,
            at=self._clock(),
            is_subscription=incoming.is_subscription,
        )
        charge = Charge(
            call=call,
            usage=Usage(cache=CacheUsage()),
            dollars=Decimal(0),
            savings=make_unchanged_savings(Decimal(0)),
        )
        task = asyncio.create_task(self._admission.settle(charge))
        self._ledger_tasks.add(task)
        task.add_done_callback(self._ledger_tasks.discard)

    def _counts_with_capacity(self, capacity: int) -> RemoteCountCache:
        if capacity != self._capacity:
            self._counts, self._capacity = RemoteCountCache(self._endpoints, capacity), capacity
        return self._counts

    async def _client_for(self, timeout_ms: int) -> JsonClient:
        client = self._clients.get(timeout_ms)
        if client is None:
            client = JsonClient(timeout_seconds=timeout_ms / 1000, proxies=self._proxies)
            self._clients[timeout_ms] = client
            if len(self._clients) > _MAX_CLIENTS:
                await self._clients.pop(next(iter(self._clients))).close()
        return client


def _choose_endpoint(
    options: CounterOptions,
    incoming: IncomingRequest,
    target: SummarizerEndpoint,
    request: Request,
    client: JsonClient,
    endpoints: EndpointRegistry,
) -> EndpointCounter | None:
    """Choose who may be asked: Anthropic's counter for its format, all others only if opted in."""
    target_url = target.url.partition("?")[0]
    url = next(
        (target_url.removesuffix(route) for route in _API_ROUTES if target_url.endswith(route)), target_url
    )
    is_anthropic = request.format is Format.ANTHROPIC
    if is_anthropic and options.backend in (Backend.AUTO, Backend.ANTHROPIC_API):
        return AnthropicCounter(client, "", url, headers=target.headers)
    if not options.use_endpoint or options.backend is Backend.ANTHROPIC_API:
        return None
    if request.format is Format.GEMINI:
        return _gemini_counter(client, url, target.headers)
    if incoming.served_model:  # the counting route of a deployment is unknown
        return None
    if options.backend is Backend.AUTO and incoming.provider == "openai":
        return OpenAICounter(client, "", url.removesuffix("/v1"), headers=target.headers)
    return TokenizeCounter(client, url, target.headers, endpoints)


def _gemini_counter(client: JsonClient, url: str, headers: Mapping[str, str]) -> GeminiCounter:
    """Google's counter, at the server of its chat endpoint, with the same credentials."""
    credential = headers.get("authorization", "")
    is_token = credential.startswith(_GOOGLE_TOKEN_PREFIX)
    key = "" if is_token else credential.removeprefix("Bearer ")
    return GeminiCounter(
        client, key, url.removesuffix("/v1beta/openai"), headers=dict(headers) if is_token else None
    )


class _WithTimeout:
    """Limits the time of a count, however many requests it takes.

    An endpoint that rejects the key of one client is not considered failing.
    """

    def __init__(self, endpoint: EndpointCounter, timeout_seconds: float) -> None:
        self.name = endpoint.name
        self.url = endpoint.url
        self._endpoint = endpoint
        self._timeout_seconds = timeout_seconds

    def text_query(self, text: str, model: str) -> CountQuery:
        return self._endpoint.text_query(text, model)

    def request_query(self, request: Request) -> CountQuery:
        return self._endpoint.request_query(request)

    async def fetch_count(self, query: CountQuery) -> TokenCount:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._endpoint.fetch_count(query)
        except TimeoutError:
            raise UpstreamTimeout(self.url, self._timeout_seconds) from None
        except UpstreamStatus as error:
            if error.status in _KEY_REJECTED:
                raise Unsupported(f"it rejects the client's key ({error.status})") from None
            raise
