"""Send a recorded session through a gateway to the sandbox, and add up the results.

Everything runs in this process: the sandbox listens on a loopback port, and the gateway's store is a temporary
file. The clock of both is moved ahead between requests, so that hours take seconds.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import uvicorn

from foveate.compaction.plan import CompactionOptions
from foveate.compaction.store import CompactionOutcome
from foveate.config.settings import Settings, StoreSettings
from foveate.cost.ledger import Category
from foveate.cost.pricing.price_book import PriceBook
from foveate.demo.recording import ENDPOINT_PATHS, DemoSession
from foveate.engine.background.compaction import SessionCompactor
from foveate.engine.exchange import Exchange
from foveate.engine.observer import NullObserver
from foveate.engine.options import AgentOptions, SpendingOptions
from foveate.engine.relay import CallPrepared, ResponseChunk, ResponseFinished, ResponseStarted
from foveate.errors import FoveateError, UnwritableFile
from foveate.formats.response.errors import ErrorResponse
from foveate.gateway.app import Gateway, GatewayOptions
from foveate.gateway.build import open_gateway
from foveate.gateway.config import ResolvedConfig
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.request import parse_request
from foveate.gateway.routing import Routing, Upstream
from foveate.sandbox.http import SandboxRequest
from foveate.sandbox.sandbox import AcceptedRequest, Sandbox
from foveate.sandbox.server import SandboxApp, build_server, open_listening_socket, socket_url
from foveate.session.traces import Trace
from foveate.store import Store, open_store

_KEY = b"sk-of-the-demo"
_STARTED_AT = 1_794_744_000.0
_PAGE = 500
_MAX_REASON_CHARS = 200
# Messages of Anthropic, OpenAI and Foveate.
_TOO_LONG_MESSAGES = ("too long", "context length", "context window", "does not fit")
TAIL_PART = 4
_POLL_SECONDS, _MAX_POLLS = 0.001, 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantResult:
    """Results of a session: requests, usage, dollars and edits.

    `refused` requests were too long; `refused_at` is the number of the first one (0 if none). `failed` requests
    had another error; `failure` is the first message. `dollars` is None if a price is unknown, and includes
    `summary_dollars`. `added_ms` is the median latency that the gateway added.
    """

    requests: int
    answered: int
    refused: int
    failed: int
    uncached: int
    read: int
    written: int
    output: int
    dollars: Decimal | None
    summary_dollars: Decimal
    largest_context: int
    folds: int
    edits: int
    added_ms: float
    seconds: float
    refused_at: int = 0
    failure: str = ""

    @property
    def hit_ratio(self) -> float:
        return self.read / max(1, self.uncached + self.read + self.written)

    @property
    def dollars_per_answer(self) -> Decimal | None:
        return None if self.dollars is None or not self.answered else self.dollars / self.answered


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantResults:
    """Results of the three variants: without breakpoints, with client breakpoints, with Foveate."""

    off: VariantResult
    usual: VariantResult
    on: VariantResult

    @property
    def columns(self) -> tuple[VariantResult, VariantResult, VariantResult]:
        return self.off, self.usual, self.on


class MovableClock:
    def __init__(self) -> None:
        self._started = time.monotonic()
        self._offset = _STARTED_AT

    def __call__(self) -> float:
        return self._offset + time.monotonic() - self._started

    def advance(self, seconds: float) -> None:
        self._offset += seconds


class _LimitedWindowSandbox(Sandbox):
    window_tokens: int | None = None

    def accept(self, http_request: SandboxRequest) -> AcceptedRequest | ErrorResponse | bytes:
        found = super().accept(http_request)
        if self.window_tokens is None or not isinstance(found, AcceptedRequest) or found.is_count:
            return found
        tokens = found.prompt.tokens
        if tokens <= self.window_tokens:
            return found
        return ErrorResponse(message=f"prompt is too long: {tokens} tokens > {self.window_tokens} maximum")


@dataclass
class _FinishedCounter(NullObserver):
    finished: int = 0

    def on_finished(self, exchange: Exchange) -> None:
        del exchange
        self.finished += 1


def make_agent_options(*, is_on: bool, window_tokens: int | None) -> AgentOptions:
    if not is_on:
        return AgentOptions(prompt_cache=False, token_counter=False)
    tail = CompactionOptions().tail_keep_tokens if window_tokens is None else window_tokens // TAIL_PART
    return AgentOptions(
        compaction=True,
        compaction_options=CompactionOptions(
            extractive=True, tail_keep_tokens=min(tail, CompactionOptions().tail_keep_tokens)
        ),
        window_tokens=window_tokens,
    )


async def run_session(
    session: DemoSession,
    *,
    is_on: bool,
    window_tokens: int | None,
    report_progress: Callable[[int], None] = lambda _done: None,
) -> VariantResult:
    """Send a session through a gateway. `report_progress` gets the number of requests done."""
    clock, started = MovableClock(), time.monotonic()
    sandbox = _LimitedWindowSandbox(clock=clock, seed=b"foveate demo")
    sandbox.window_tokens = window_tokens
    responses: list[_DemoResponse] = []
    with temporary_folder() as folder:
        url = f"sqlite:///{folder}/foveate.sqlite"
        counter = _FinishedCounter()
        options = make_agent_options(is_on=is_on, window_tokens=window_tokens)
        async with _serve(build_server(SandboxApp(sandbox)).config) as upstream:
            config = _make_config(url, upstream, options)
            async with open_gateway(lambda: config, environment={}, clock=clock, observer=counter) as gateway:
                for number, step in enumerate(session.requests, 1):
                    clock.advance(step.after_seconds)
                    before = counter.finished
                    response = await _send(gateway, ENDPOINT_PATHS[session.format], step.body)
                    responses.append(response)
                    await _wait_until_settled(gateway, counter, before + (not response.is_rejected))
                    report_progress(number)
        async with await open_store(url) as store:
            return await _add_up(store, responses, seconds=time.monotonic() - started)


def temporary_folder(within: Path | None = None) -> "TemporaryDirectory[str]":
    """Create a temporary folder, by default in the system's folder for them.

    Raises:
        UnwritableFile: it cannot be created.
    """
    try:
        return TemporaryDirectory(prefix="foveate-demo-", dir=within)
    except OSError as error:
        where = error.filename or "the temporary folder"
        raise UnwritableFile(where, f"{error.strerror}: set TMPDIR to another folder") from None


async def _wait_until_settled(gateway: Gateway, counter: _FinishedCounter, expected: int) -> None:
    """Wait for all background work of a request, compactions too: the next request is much later."""
    for _ in range(_MAX_POLLS):
        if counter.finished >= expected:
            break
        await asyncio.sleep(_POLL_SECONDS)
    for settle in gateway.engine.hooks.in_background:
        if isinstance(settle, SessionCompactor):
            await settle.wait()


def _make_config(url: str, upstream: str, options: AgentOptions) -> ResolvedConfig:
    upstreams = {
        "anthropic": Upstream(
            name="anthropic", base_url=upstream, family=ApiFamily.ANTHROPIC, provider="anthropic"
        ),
        "openai": Upstream(
            name="openai", base_url=f"{upstream}/v1", family=ApiFamily.OPENAI, provider="openai"
        ),
    }
    return ResolvedConfig(
        settings=Settings(store=StoreSettings(url=url)),
        gateway=GatewayOptions(routing=Routing(upstreams=upstreams)),
        agents=lambda _agent: options,
        cost=SpendingOptions(caps=(), prices=PriceBook()),
    )


class _SignalFreeServer(uvicorn.Server):
    """Leaves signals to the program."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def _serve(config: uvicorn.Config) -> AsyncIterator[str]:
    with open_listening_socket("127.0.0.1", 0) as listener:
        server = _SignalFreeServer(config)
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            while not server.started:
                if task.done():
                    task.result()
                await asyncio.sleep(0.002)
            yield socket_url(listener)
        finally:
            server.should_exit = True
            await task


@dataclass(frozen=True, slots=True)
class _DemoResponse:
    """`is_rejected`: the gateway did not send the request."""

    status: int
    message: str = ""
    is_rejected: bool = False

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_too_long(self) -> bool:
        return any(words in self.message for words in _TOO_LONG_MESSAGES)


async def _send(gateway: Gateway, path: str, body: bytes) -> _DemoResponse:
    is_anthropic = path.endswith("/messages")
    key = (b"x-api-key", _KEY) if is_anthropic else (b"authorization", b"Bearer " + _KEY)
    headers = [(b"content-type", b"application/json"), (b"anthropic-version", b"2023-06-01"), key]
    scope = {"method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
    status, data, is_prepared = 0, b"", False
    try:
        async with aclosing(await gateway.send(parse_request(scope), body)) as events:
            async for event in events:
                match event:
                    case CallPrepared():
                        is_prepared = True
                    case ResponseStarted():
                        status = event.status
                    case ResponseChunk(chunk) | ResponseFinished(chunk):
                        data += chunk
    except FoveateError as error:
        return _DemoResponse(0, str(error)[:_MAX_REASON_CHARS], is_rejected=not is_prepared)
    return _DemoResponse(status, "" if 200 <= status < 300 else _error_message(data))


def _error_message(data: bytes) -> str:
    try:
        return str(json.loads(data)["error"]["message"])[:_MAX_REASON_CHARS]
    except (ValueError, KeyError, TypeError):
        return data[:_MAX_REASON_CHARS].decode("utf-8", "replace")


async def _add_up(store: Store, responses: Sequence[_DemoResponse], *, seconds: float) -> VariantResult:
    failed = [response for response in responses if not response.is_success and not response.is_too_long]
    entries = [entry async for entry in store.ledger.list_charges()]
    main = [entry for entry in entries if entry.call.category is Category.MAIN]
    summaries = [entry.dollars for entry in entries if entry.call.category is Category.COMPACTION]
    traces = await _load_traces(store)
    compactions = [
        compaction
        for compaction in await store.compactions.list_compactions()
        if compaction.outcome is CompactionOutcome.OK
    ]
    cache_usages = [entry.usage.cache for entry in entries]
    known = [entry.dollars for entry in entries if entry.dollars is not None]
    return VariantResult(
        requests=len(responses),
        answered=sum(response.is_success for response in responses),
        refused=sum(response.is_too_long for response in responses),
        refused_at=next((number for number, response in enumerate(responses, 1) if response.is_too_long), 0),
        failed=len(failed),
        failure=failed[0].message if failed else "",
        uncached=sum(usage.uncached for usage in cache_usages),
        read=sum(usage.read for usage in cache_usages),
        written=sum(usage.written_5m + usage.written_1h for usage in cache_usages),
        output=sum(entry.usage.output_tokens for entry in entries),
        dollars=sum(known, Decimal(0)) if len(known) == len(entries) else None,
        summary_dollars=sum((dollars for dollars in summaries if dollars is not None), Decimal(0)),
        largest_context=max((entry.usage.cache.input_tokens for entry in main), default=0),
        folds=len(compactions),
        edits=sum(len(trace.edits) + trace.edits_left_out for trace in traces),
        added_ms=1000 * median([trace.added_seconds for trace in traces]) if traces else 0.0,
        seconds=seconds,
    )


async def _load_traces(store: Store) -> list[Trace]:
    found: list[Trace] = []
    before: tuple[float, str] | None = None
    while True:
        page = await store.traces.list_traces(limit=_PAGE, before=before)
        found += [stored.trace for stored in page]
        if len(page) < _PAGE:
            return found
        before = page[-1].trace.at, page[-1].trace.id
