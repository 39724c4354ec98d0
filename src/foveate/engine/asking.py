"""Counts that are asked for at the upstream of a request, with the client's own key.

They are free, and booked so that they can be seen. Whoever is failing is left alone for a while, and a time-out
is the longest that a request waits.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from decimal import Decimal
from uuid import uuid4

from foveate.cost.admission import Admission
from foveate.cost.ledger import Call, Category, Entry
from foveate.cost.savings import unchanged
from foveate.engine.calls import Incoming
from foveate.engine.work import Work
from foveate.errors import UpstreamStatus, UpstreamTimeout
from foveate.fold.model import Endpoint
from foveate.tokens.anthropic import AnthropicCounter
from foveate.tokens.cascade import Answered, Answers
from foveate.tokens.endpoints import EndpointCounter, Endpoints, Question, Unsupported, shared_endpoints
from foveate.tokens.gemini import GeminiCounter
from foveate.tokens.memo import DEFAULT_CAPACITY
from foveate.tokens.openai import OpenAICounter
from foveate.tokens.options import Backend, CounterOptions
from foveate.tokens.tokenize import TokenizeCounter
from foveate.upstream import Client
from foveate.values import CacheUsage, Format, Request, TokenCount, Usage

_LOG = logging.getLogger(__name__)

# Where calls are answered, behind the address of a server.
_ROUTES = ("/v1/messages", "/chat/completions", "/responses")
_GOOGLE_TOKEN = "Bearer ya29."
_KEY_REFUSED = frozenset((401, 403))
_NOBODY = Answered(None, is_no=True)
# Each time-out that was ever configured has connections of its own.
_MOST_CLIENTS = 4


class Asking:
    """Asks upstreams how many tokens a request has. Closed by `close`."""

    def __init__(
        self, admission: Admission, clock: Callable[[], float], endpoints: Endpoints | None = None
    ) -> None:
        """`endpoints`: what is known of servers already; if not given, what the whole process knows."""
        self._admission = admission
        self._clock = clock
        self._endpoints = endpoints or shared_endpoints()
        self._answers = Answers(self._endpoints)
        self._capacity = DEFAULT_CAPACITY
        self._clients: dict[int, Client] = {}
        self._booking: set[asyncio.Task[object]] = set()

    async def always(self, work: Work) -> Answered:
        """The count where the options want each request counted by its upstream."""
        options = work.options.counter
        if options.backend not in (Backend.ANTHROPIC_API, Backend.ENDPOINT):
            return _NOBODY
        return await self._asked(work, options)

    async def where_it_matters(self, work: Work) -> TokenCount | None:
        """The count for a decision that hangs on it; None where nobody may be asked, or nobody answers."""
        options = work.options.counter
        if options.backend is not Backend.AUTO:
            return None
        return (await self._asked(work, options)).total

    async def where_opted_in(self, work: Work) -> TokenCount | None:
        """The count of a request that is only shown, by an endpoint that the options allow to be asked."""
        options = work.options.counter
        if not options.use_endpoint or options.backend not in (Backend.AUTO, Backend.ENDPOINT):
            return None
        return (await self._asked(work, options)).total

    async def close(self) -> None:
        """Have all booked, and close the connections."""
        await asyncio.gather(*self._booking, return_exceptions=True)
        for client in self._clients.values():
            await client.close()

    async def _asked(self, work: Work, options: CounterOptions) -> Answered:
        where, request = work.endpoint, work.request
        if where is None:
            return _NOBODY
        client = (await self._client(options.timeout_ms)).with_reuse(where.reuse)
        endpoint = _endpoint(options, work.incoming, where, request, client, self._endpoints)
        if endpoint is None:
            return _NOBODY
        try:
            return await self._kept(options.cache_capacity).of(
                _Patiently(endpoint, options.timeout_ms / 1000),
                request.model,
                len(request.body),
                lambda asked: asked.request(request),
                lambda: self.book(work.incoming, work.session_id, work.model),
            )
        except Unsupported as reason:
            if self._endpoints.passed_over(endpoint.url, reason):
                _LOG.warning("%s cannot count this request, counting it here: %s", endpoint.url, reason)
            return _NOBODY

    def book(self, incoming: Incoming, session_id: str, model: str) -> None:
        """Have a count in the ledger, at no price; nobody waits for that."""
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
        entry = Entry(
            call=call, usage=Usage(cache=CacheUsage()), dollars=Decimal(0), savings=unchanged(Decimal(0))
        )
        task = asyncio.create_task(self._admission.settle(entry))
        self._booking.add(task)
        task.add_done_callback(self._booking.discard)

    def _kept(self, capacity: int) -> Answers:
        if capacity != self._capacity:
            self._answers, self._capacity = Answers(self._endpoints, capacity), capacity
        return self._answers

    async def _client(self, timeout_ms: int) -> Client:
        found = self._clients.get(timeout_ms)
        if found is None:
            found = self._clients[timeout_ms] = Client(timeout_seconds=timeout_ms / 1000)
            if len(self._clients) > _MOST_CLIENTS:
                await self._clients.pop(next(iter(self._clients))).close()
        return found


def _endpoint(
    options: CounterOptions,
    incoming: Incoming,
    where: Endpoint,
    request: Request,
    client: Client,
    endpoints: Endpoints,
) -> EndpointCounter | None:
    """Who may be asked: Anthropic's counter by whoever speaks its format, all others only where opted in."""
    asked = where.url.partition("?")[0]
    url = next((asked.removesuffix(route) for route in _ROUTES if asked.endswith(route)), asked)
    is_anthropic = request.format is Format.ANTHROPIC
    if is_anthropic and options.backend in (Backend.AUTO, Backend.ANTHROPIC_API):
        return AnthropicCounter(client, "", url, headers=where.headers)
    if not options.use_endpoint or options.backend is Backend.ANTHROPIC_API:
        return None
    if request.format is Format.GEMINI:
        return _gemini_counter(client, url, where.headers)
    if incoming.served_model:  # the counting route of a deployment is not known
        return None
    if options.backend is Backend.AUTO and incoming.provider == "openai":
        return OpenAICounter(client, "", url.removesuffix("/v1"), headers=where.headers)
    return TokenizeCounter(client, url, where.headers, endpoints)


def _gemini_counter(client: Client, url: str, headers: Mapping[str, str]) -> GeminiCounter:
    """Google's counter, at the server of its endpoint for chats, with the same credential."""
    credential = headers.get("authorization", "")
    is_token = credential.startswith(_GOOGLE_TOKEN)
    key = "" if is_token else credential.removeprefix("Bearer ")
    return GeminiCounter(
        client, key, url.removesuffix("/v1beta/openai"), headers=dict(headers) if is_token else None
    )


class _Patiently:
    """An endpoint that is waited for no longer than so, however many questions one count takes it.

    That it refuses the key of one client is not held against it.
    """

    def __init__(self, endpoint: EndpointCounter, timeout_seconds: float) -> None:
        self.name = endpoint.name
        self.url = endpoint.url
        self._endpoint = endpoint
        self._timeout_seconds = timeout_seconds

    def text(self, text: str, model: str) -> Question:
        """As the endpoint."""
        return self._endpoint.text(text, model)

    def request(self, request: Request) -> Question:
        """As the endpoint."""
        return self._endpoint.request(request)

    async def answer(self, question: Question) -> TokenCount:
        """As the endpoint; a key that is refused is the client's own trouble."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._endpoint.answer(question)
        except TimeoutError:
            raise UpstreamTimeout(self.url, self._timeout_seconds) from None
        except UpstreamStatus as error:
            if error.status in _KEY_REFUSED:
                raise Unsupported(f"the client's key is refused ({error.status})") from None
            raise
