"""A gateway in this process, on a loopback port, in front of a sandbox or another upstream."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import uvicorn

from foveate.config.settings import ServerSettings, Settings, StoreSettings
from foveate.cost.caps import Cap
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.background.compaction import SessionCompactor
from foveate.engine.exchange import Exchange
from foveate.engine.observer import NullObserver, SessionCacheMiss
from foveate.engine.options import AgentOptions, SpendingOptions
from foveate.engine.request import IncomingRequest, StepFailure
from foveate.gateway.app import GatewayOptions
from foveate.gateway.build import open_gateway
from foveate.gateway.config import ResolvedConfig
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.request_body import BodyLimits
from foveate.gateway.routing import Route, Routing, Upstream
from foveate.sandbox.server import open_listening_socket, socket_url
from foveate.session.recent_sessions import Broadcast
from tests.support.stores.templates import ensure_store


@dataclass
class RunningGateway:
    """URL of a gateway, the steps that failed, the cache misses, and the ids of finished requests."""

    url: str
    failed_steps: list[StepFailure] = field(default_factory=list)
    cache_misses: list[SessionCacheMiss] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop | None = None

    def wait_for_compactions(self, requests: int) -> None:
        """Wait until the work after `requests` responses is done, and the compactions that it started."""
        deadline = time.monotonic() + 60
        while len(self.finished) < requests or self._count_compactions():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def _count_compactions(self) -> int:
        assert self.loop is not None
        names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks(self.loop)]
        return names.count(SessionCompactor._compact_in_background.__qualname__)

    @property
    def openai_url(self) -> str:
        """Base URL for OpenAI clients."""
        return f"{self.url}/v1"


@dataclass(frozen=True)
class _RecordingObserver(NullObserver):
    problems: list[StepFailure]
    misses: list[SessionCacheMiss]
    finished: list[str]

    def on_finished(self, exchange: Exchange) -> None:
        self.finished.append(exchange.incoming.id)

    def on_failure(self, incoming: IncomingRequest, problem: StepFailure) -> None:
        self.problems.append(problem)

    def on_cache_miss(self, miss: SessionCacheMiss) -> None:
        self.misses.append(miss)


@contextmanager
def running_gateway(
    upstream_url: str,
    folder: Path,
    *,
    clock: Callable[[], float] = time.time,
    options: AgentOptions | Callable[[], AgentOptions] = AgentOptions(),  # noqa: B008 - frozen
    caps: Sequence[Cap] = (),
    server: ServerSettings = ServerSettings(),  # noqa: B008 - frozen
    store_url: str | None = None,
    body: BodyLimits | None = None,
    upstreams: Sequence[Upstream] = (),
    routes: Sequence[Route] = (),
    config: ResolvedConfig | None = None,
    broadcast: Broadcast | None = None,
) -> Iterator[RunningGateway]:
    """Run a gateway in front of `upstream_url` with its store in `folder`, until the end of the block.

    `config` replaces all other options. `options` may change while it runs. A gateway with a `broadcast` is one
    of the workers that have it.
    """
    routing = Routing(
        upstreams={
            "anthropic": Upstream(
                name="anthropic", base_url=upstream_url, family=ApiFamily.ANTHROPIC, provider="anthropic"
            ),
            "openai": Upstream(
                name="openai", base_url=f"{upstream_url}/v1", family=ApiFamily.OPENAI, provider="openai"
            ),
            "google": Upstream(
                name="google", base_url=upstream_url, family=ApiFamily.GEMINI, provider="google"
            ),
            **{upstream.name: upstream for upstream in upstreams},
        },
        routes=routes,
    )
    problems: list[StepFailure] = []
    misses: list[SessionCacheMiss] = []
    finished: list[str] = []
    effective_config = config or ResolvedConfig(
        settings=Settings(
            store=StoreSettings(url=store_url or ensure_store(folder / "gateway.sqlite")), server=server
        ),
        gateway=GatewayOptions(routing=routing, body=body or BodyLimits(max_bytes=server.body_limit_bytes)),
        agents=lambda _agent: options() if callable(options) else options,
        cost=SpendingOptions(caps=caps, prices=PriceBook()),
    )

    loops: list[asyncio.AbstractEventLoop] = []

    async def serve(listener: socket.socket, started: Callable[[uvicorn.Server], None]) -> None:
        loops.append(asyncio.get_running_loop())
        async with open_gateway(
            lambda: effective_config,
            environment={},
            clock=clock,
            observer=_RecordingObserver(problems, misses, finished),
            broadcast=broadcast,
        ) as gateway:
            server = uvicorn.Server(
                uvicorn.Config(
                    gateway,
                    http="foveate.gateway.server.protocol:HttpProtocol",
                    lifespan="off",
                    log_config=None,
                    access_log=False,
                    ws="none",
                )
            )
            started(server)
            await server.serve(sockets=[listener])

    servers: list[uvicorn.Server] = []
    with open_listening_socket("127.0.0.1", 0) as listener:
        thread = Thread(target=lambda: asyncio.run(serve(listener, servers.append)), daemon=True)
        thread.start()
        while thread.is_alive() and not (servers and servers[0].started):
            time.sleep(0.005)
        try:
            yield RunningGateway(
                url=socket_url(listener),
                failed_steps=problems,
                cache_misses=misses,
                finished=finished,
                loop=loops[0],
            )
        finally:
            servers[0].should_exit = True
            thread.join(10)
