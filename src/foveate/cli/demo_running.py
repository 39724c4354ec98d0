"""A recorded session sent through a gateway to the sandbox, and what that came to.

All of it is in this process: the sandbox and the gateway listen on ports of loopback, the gateway's store is a
file that goes afterwards, and the clock that both go by is moved ahead between requests, so that an afternoon
takes seconds.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import uvicorn

from foveate.cli.demo_session import DOORS, Played
from foveate.config.settings import Settings, StoreAt
from foveate.cost.ledger import Category
from foveate.cost.price_book import PriceBook
from foveate.engine.exchange import Exchange
from foveate.engine.folds import Folds
from foveate.engine.options import AgentOptions, MoneyOptions
from foveate.engine.watch import Unwatched
from foveate.errors import FoveateError, UnwritableFile, UpstreamError
from foveate.fold.cuts import FoldOptions
from foveate.fold.journal import Outcome
from foveate.gateway.app import Gateway, GatewayOptions
from foveate.gateway.assembly import assembled
from foveate.gateway.configured import Choices
from foveate.gateway.doors import Family
from foveate.gateway.routing import Routing, Upstream
from foveate.sandbox.asks import Ask
from foveate.sandbox.server import App, address, listening
from foveate.sandbox.server import server as sandbox_server
from foveate.sandbox.stand_in import Sandbox, Taken
from foveate.session.traces import Trace
from foveate.store import Store, open_store
from foveate.upstream.pool import Pool, target, whole
from foveate.wire.refusals import Refusal

_KEY = b"sk-of-the-demo"
_BEGAN_AT = 1_794_744_000.0  # a Sunday at noon, UTC
_MOST_ANSWER_BYTES = 16 * 1024 * 1024
_PAGE = 500
_LONGEST_REASON = 200
# Anthropic's words, OpenAI's, and ours.
_TOO_LONG = ("too long", "context length", "context window", "does not fit")
TAIL_PART = 4
_LOOK_SECONDS, _MOST_LOOKS = 0.001, 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What a session came to: requests, tokens as billed, dollars, and what was done to it.

    `refused` are those that were found too long, the first of them the one with the number `refused_at` (0:
    none), and `failed` those that were not answered for another reason, of which `failure` tells the first.
    `dollars` is None where a price is not known. `summary_dollars` of it were for folds. `added_ms` is the
    median of what the gateway took of its own.
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
        """How much of the input was read from the cache."""
        return self.read / max(1, self.uncached + self.read + self.written)

    @property
    def dollars_per_answer(self) -> Decimal | None:
        """What an answer cost."""
        return None if self.dollars is None or not self.answered else self.dollars / self.answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Tallies:
    """A session in three ways: without breakpoints, with those that agents usually place, and with Foveate."""

    off: Tally
    usual: Tally
    on: Tally

    @property
    def columns(self) -> tuple[Tally, Tally, Tally]:
        """The three in their order."""
        return self.off, self.usual, self.on


class Clock:
    """A clock that runs as all do, and can be moved ahead."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._ahead = _BEGAN_AT

    def __call__(self) -> float:
        """What it says."""
        return self._ahead + time.monotonic() - self._began

    def move(self, seconds: float) -> None:
        """Let so much time pass at once."""
        self._ahead += seconds


class _NarrowSandbox(Sandbox):
    """The sandbox with a smaller window than its models have."""

    window_tokens: int | None = None

    def taken(self, ask: Ask) -> Taken | Refusal | bytes:
        """What becomes of a request before it is billed."""
        found = super().taken(ask)
        if self.window_tokens is None or not isinstance(found, Taken) or found.is_counted:
            return found
        tokens = found.prompt.tokens
        if tokens <= self.window_tokens:
            return found
        return Refusal(message=f"prompt is too long: {tokens} tokens > {self.window_tokens} maximum")


@dataclass
class _Seen(Unwatched):
    """How many requests are over: answered, or refused by the gateway itself."""

    over: int = 0

    def ended(self, exchange: Exchange) -> None:
        del exchange
        self.over += 1

    def refused(self, agent: str, error: FoveateError) -> None:
        del agent, error
        self.over += 1


def options_of(*, is_on: bool, window_tokens: int | None) -> AgentOptions:
    """What the gateway does with the session: nothing, or all that it can."""
    if not is_on:
        return AgentOptions(prompt_cache=False, token_counter=False)
    tail = FoldOptions().tail_keep_tokens if window_tokens is None else window_tokens // TAIL_PART
    return AgentOptions(
        compaction=True,
        fold=FoldOptions(extractive=True, tail_keep_tokens=min(tail, FoldOptions().tail_keep_tokens)),
        window_tokens=window_tokens,
    )


async def tallied(
    session: Played,
    *,
    is_on: bool,
    window_tokens: int | None,
    told: Callable[[int], None] = lambda _done: None,
) -> Tally:
    """What a session comes to through a gateway that is off or on; `told` hears how many requests are done."""
    clock, began = Clock(), time.monotonic()
    sandbox = _NarrowSandbox(clock=clock, seed=b"foveate demo")
    sandbox.window_tokens = window_tokens
    answers: list[_Answer] = []
    with temporary_folder() as folder:
        url = f"sqlite:///{folder}/foveate.sqlite"
        seen = _Seen()
        options = options_of(is_on=is_on, window_tokens=window_tokens)
        async with _serving(sandbox_server(App(sandbox)).config) as upstream:
            choices = _choices(url, upstream, options)
            async with (
                assembled(lambda: choices, environment={}, clock=clock, watch=seen) as gateway,
                _serving(_config(gateway)) as where,
                Pool() as pool,
            ):
                for at, step in enumerate(session.steps, 1):
                    clock.move(step.after_seconds)
                    before = seen.over
                    answers.append(await _sent(pool, f"{where}{DOORS[session.format]}", step.body))
                    await _settled(gateway, seen, before + 1)
                    told(at)
        async with await open_store(url) as store:
            return await _tally(store, answers, seconds=time.monotonic() - began)


def temporary_folder(within: Path | None = None) -> "TemporaryDirectory[str]":
    """A folder that goes with its block, where there are such folders or `within` one.

    Raises:
        UnwritableFile: none can be made.
    """
    try:
        return TemporaryDirectory(prefix="foveate-demo-", dir=within)
    except OSError as error:
        where = error.filename or "the temporary folder"
        raise UnwritableFile(where, f"{error.strerror}: say another folder in TMPDIR") from None


async def _settled(gateway: Gateway, seen: _Seen, ended: int) -> None:
    """Wait until all is done behind an answer, folds too: the next request would come much later."""
    for _ in range(_MOST_LOOKS):
        if seen.over >= ended:
            break
        await asyncio.sleep(_LOOK_SECONDS)
    for settle in gateway.engine.settle:
        if isinstance(settle, Folds):
            await settle.finished()


def _choices(url: str, upstream: str, options: AgentOptions) -> Choices:
    upstreams = {
        "anthropic": Upstream(
            name="anthropic", base_url=upstream, family=Family.ANTHROPIC, provider="anthropic"
        ),
        "openai": Upstream(name="openai", base_url=f"{upstream}/v1", family=Family.OPENAI, provider="openai"),
    }
    return Choices(
        settings=Settings(store=StoreAt(url=url)),
        gateway=GatewayOptions(routing=Routing(upstreams=upstreams)),
        agents=lambda _agent: options,
        cost=MoneyOptions(caps=(), prices=PriceBook()),
    )


def _config(gateway: Gateway) -> uvicorn.Config:
    return uvicorn.Config(
        gateway,
        http="foveate.gateway.http:PlainHttp",
        lifespan="off",
        log_config=None,
        access_log=False,
        ws="none",
    )


class _Quiet(uvicorn.Server):
    """A server that leaves signals to the program."""

    def capture_signals(self) -> "nullcontext[None]":  # type: ignore[override]
        return nullcontext()


@asynccontextmanager
async def _serving(config: uvicorn.Config) -> AsyncIterator[str]:
    """Where something is served until the end of the block."""
    with listening("127.0.0.1", 0) as where:
        server = _Quiet(config)
        task = asyncio.ensure_future(server.serve(sockets=[where]))
        try:
            while not server.started:
                if task.done():
                    task.result()
                await asyncio.sleep(0.002)
            yield address(where)
        finally:
            server.should_exit = True
            await task


@dataclass(frozen=True, slots=True)
class _Answer:
    """With which status a request was answered, and what was said where it was refused."""

    status: int
    said: str = ""

    @property
    def is_answered(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_too_long(self) -> bool:
        return any(words in self.said for words in _TOO_LONG)


async def _sent(pool: Pool, url: str, body: bytes) -> _Answer:
    headers = [
        (b"content-type", b"application/json"),
        (b"x-api-key", _KEY),
        (b"anthropic-version", b"2023-06-01"),
    ]
    if not url.endswith("/messages"):
        headers = [headers[0], (b"authorization", b"Bearer " + _KEY)]
    try:
        async with pool.asked("POST", target(url), headers, body) as answer:
            told = await whole(answer, most_bytes=_MOST_ANSWER_BYTES, url=url)
    except UpstreamError as error:
        return _Answer(0, str(error))
    if 200 <= answer.status < 300:
        return _Answer(answer.status)
    return _Answer(answer.status, _reason(told))


def _reason(told: bytes) -> str:
    try:
        return str(json.loads(told)["error"]["message"])[:_LONGEST_REASON]
    except (ValueError, KeyError, TypeError):
        return told[:_LONGEST_REASON].decode("utf-8", "replace")


async def _tally(store: Store, answers: Sequence[_Answer], *, seconds: float) -> Tally:
    failed = [answer for answer in answers if not answer.is_answered and not answer.is_too_long]
    entries = [entry async for entry in store.ledger.entries()]
    main = [entry for entry in entries if entry.call.category is Category.MAIN]
    summaries = [entry.dollars for entry in entries if entry.call.category is Category.COMPACTION]
    traces = await _traces(store)
    folds = [fold for fold in await store.journal.listed() if fold.outcome is Outcome.OK]
    bills = [entry.usage.cache for entry in entries]
    known = [entry.dollars for entry in entries if entry.dollars is not None]
    return Tally(
        requests=len(answers),
        answered=sum(answer.is_answered for answer in answers),
        refused=sum(answer.is_too_long for answer in answers),
        refused_at=next((at for at, answer in enumerate(answers, 1) if answer.is_too_long), 0),
        failed=len(failed),
        failure=failed[0].said if failed else "",
        uncached=sum(bill.uncached for bill in bills),
        read=sum(bill.read for bill in bills),
        written=sum(bill.written_5m + bill.written_1h for bill in bills),
        output=sum(entry.usage.output_tokens for entry in entries),
        dollars=sum(known, Decimal(0)) if len(known) == len(entries) else None,
        summary_dollars=sum((dollars for dollars in summaries if dollars is not None), Decimal(0)),
        largest_context=max((entry.usage.cache.input_tokens for entry in main), default=0),
        folds=len(folds),
        edits=sum(len(one.edits) + one.edits_left_out for one in traces),
        added_ms=1000 * median([one.added_seconds for one in traces]) if traces else 0.0,
        seconds=seconds,
    )


async def _traces(store: Store) -> list[Trace]:
    found: list[Trace] = []
    before: tuple[float, str] | None = None
    while True:
        page = await store.traces.listed(limit=_PAGE, before=before)
        found += [one.trace for one in page]
        if len(page) < _PAGE:
            return found
        before = page[-1].trace.at, page[-1].trace.id
