"""Runs the gateway at a socket until it is shut down."""

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

import foveate
from foveate import count
from foveate.config.live_settings import LiveSettings
from foveate.config.load import LOCAL_UPSTREAM, Configuration, ServeFlags, apply_overrides
from foveate.config.price_file import default_price_file
from foveate.config.settings import ServerSettings
from foveate.cost.pricing.price_book import PriceBook
from foveate.gateway.build import open_gateway
from foveate.gateway.config import ResolvedConfig, resolve_config
from foveate.gateway.local_model import LocalModelMiddleware
from foveate.gateway.observability import access_log, worker_metrics
from foveate.gateway.observability.instrumentation import Instrumentation
from foveate.gateway.request import Receive, Scope, Send
from foveate.gateway.server.balancing import BalancedServer, ConnectionCounts
from foveate.gateway.server.cors import CorsMiddleware
from foveate.gateway.server.tls import create_tls_context, reload_certificates
from foveate.paths import data_folder
from foveate.session.recent_sessions import Broadcast

# One of each family that has its own vocabulary.
_WARM_UP_MODELS = ("claude-opus-4-5", "gpt-4.1")
# A request creates thousands of objects, hardly any of which are cyclic garbage. Looking at 1,000 objects takes
# one millisecond, in which nobody is served: so a few thousand at once, and all of them rarely.
_GC_THRESHOLDS = (5_000, 80, 50)


def warm_up(prices: PriceBook) -> None:
    """Load price tables and vocabularies, which takes most of a second."""
    import numpy as np  # noqa: F401  # reads large bodies; commands that serve nobody need not load it

    prices.preload()
    for model in _WARM_UP_MODELS:
        count("Hello", model=model)


def freeze_garbage_collector() -> None:
    """Exclude all present objects from garbage collection.

    Code, tables and vocabularies live until the end. Scanning them blocked the event loop for about 90 ms every
    few thousand new conversations (Python 3.11, November 2026).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def shorten_thread_switches() -> None:
    """Let threads of the store run while the event loop is busy.

    They need the GIL after every statement, and get it from a busy event loop only after the switch interval, 5
    ms by default. So a transaction of ten statements blocked other processes for 50 ms, and a request waited
    as long for a lookup (two workers, Python 3.11, November 2026).
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)


_SWITCH_INTERVAL_SECONDS = 0.0005


def return_freed_memory() -> None:
    """Make the C library return large freed blocks to the system at once.

    When the first large body is freed, glibc raises its thresholds to 32 and 64 MB. From then on the arena of
    each thread keeps as much free memory, and `malloc_trim` returns only that of the main one (glibc 2.36,
    November 2026).
    """
    with suppress(OSError, AttributeError):  # only glibc has it
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, _MAX_POOLED_BYTES)
        set_option(_M_TRIM_THRESHOLD, _MAX_POOLED_BYTES)


# As in glibc's malloc.h. Setting one of them keeps glibc from changing either.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Larger than most requests, whose memory is reused without a system call.
_MAX_POOLED_BYTES = 4 * 1024 * 1024
# Time for cancelled requests to record their charges.
_CHARGE_SECONDS = 5.0
# Longer than usual load balancers wait, so that agents keep their connection between turns.
_KEEP_ALIVE_SECONDS = 75
# Each stream needs two descriptors, and the default limit of many systems is 1,024.
_TARGET_DESCRIPTORS = 65_536

_LOG = logging.getLogger(__name__)


def load_live_config(
    path: Path | None,
    environment: Mapping[str, str],
    flags: ServeFlags = ServeFlags(),  # noqa: B008 - it is frozen
    *,
    default_paths: Sequence[Path] = (),
    last_valid: bytes | None = None,
    logs_changes: bool = True,
    clock: Callable[[], float] = time.time,
) -> LiveSettings[ResolvedConfig]:
    """Load the configuration with overrides, and reload it whenever its file changes.

    Without a path, the first existing file of `default_paths` is used, now or later. If the file is invalid at
    startup, its `last_valid` content is used. `logs_changes`: reloads are logged. `clock` dates the
    configuration in force.

    Raises:
        FoveateError: the configuration is invalid.
    """
    prices = default_price_file(environment)

    def resolve(configuration: Configuration) -> ResolvedConfig:
        if configuration.settings.server.tls is not None and flags.certificate is None:
            create_tls_context(configuration.settings.server.tls)
        return resolve_config(apply_overrides(configuration, environment, flags), environment, prices)

    return LiveSettings(
        path,
        resolve,
        default_paths=default_paths,
        last_valid=last_valid,
        logs_changes=logs_changes,
        read_fixed=settings_fixed_at_start,
        clock=clock,
    )


def settings_fixed_at_start(config: ResolvedConfig) -> Mapping[str, object]:
    """Return settings that take effect only at the next start, by their keys."""
    server = config.settings.server
    names = ("host", "port", "workers", "proxy", "tls", "grace_seconds")
    return {f"server.{name}": getattr(server, name) for name in names} | {
        "store.url": config.settings.store.url
    }


def start_logging(server: ServerSettings) -> None:
    """Log to standard error, as configured, until the process ends."""
    access_log.start_writer(as_json=server.log == "json", level=server.log_level)


def serve(
    listener: socket.socket,
    live_config: LiveSettings[ResolvedConfig],
    environment: Mapping[str, str],
    *,
    on_ready: Callable[[], None] = lambda: None,
    lifeline: int | None = None,
    worker: int = 0,
    counts: ConnectionCounts | None = None,
    broadcast: Broadcast | None = None,
) -> None:
    """Run the gateway at a socket until it is shut down; running responses are finished first.

    `on_ready` is called once clients are served. The gateway also ends if the descriptor `lifeline` is closed.
    `worker` is the number of this process at the socket, `counts` are the connections of all of them, and
    `broadcast` reaches the others. The first one runs retention.

    Raises:
        StoreUnavailable: the store cannot be opened.
        BadOption: the certificate or its key is invalid.
        KeyboardInterrupt: Ctrl-C ended it.
    """
    _raise_descriptor_limit()
    shorten_thread_switches()
    return_freed_memory()
    main = _run_server(listener, live_config, environment, on_ready, lifeline, worker, counts, broadcast)
    try:
        import uvloop
    except ImportError:  # not on Windows
        signal_number = asyncio.run(main)
    else:
        signal_number = uvloop.run(main)
    if signal_number == signal.SIGINT:
        raise KeyboardInterrupt


def _raise_descriptor_limit() -> None:
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _TARGET_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_TARGET_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        with suppress(ValueError, OSError):  # some systems have a lower limit of their own
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


async def _run_server(
    listener: socket.socket,
    live_config: LiveSettings[ResolvedConfig],
    environment: Mapping[str, str],
    on_ready: Callable[[], None],
    lifeline: int | None,
    worker: int,
    counts: ConnectionCounts | None,
    broadcast: Broadcast | None,
) -> int:
    """Return the signal that ended the server; 0 if it was the lifeline."""
    settings = live_config.current().value.settings.server
    context = None if settings.tls is None else create_tls_context(settings.tls)
    instrumentation = Instrumentation(
        live_config,
        version=foveate.__version__,
        log=access_log.current_writer(),
        folder=worker_metrics.find_folder(environment),
    )
    async with open_gateway(
        lambda: instrumentation.last_config,
        environment=environment,
        runs_retention=worker == 0,
        broadcast=broadcast,
        instrumentation=instrumentation,
        outbox_folder=data_folder(environment, sys.platform) / "spool",
    ) as gateway:
        await asyncio.to_thread(warm_up, live_config.current().value.cost.prices)
        freeze_garbage_collector()
        has_local = LOCAL_UPSTREAM in live_config.current().value.settings.upstreams
        app = CorsMiddleware(
            LocalModelMiddleware(gateway, instrumentation.request_observer) if has_local else gateway,
            lambda: instrumentation.last_config.settings.server.cors_origins,
            host=settings.host,
            host_names=lambda: instrumentation.last_config.settings.server.host_names,
            observer=instrumentation.request_observer,
        )
        prices = live_config.current().value.price_file

        async def refresh_config() -> None:
            instrumentation.reload_config()
            if prices is not None:
                await prices.refresh()

        server = _Server(
            app,
            refresh_config,
            grace_seconds=settings.grace_seconds,
            context=context,
            on_ready=on_ready,
            worker=worker,
            counts=counts,
        )
        instrumentation.set_shutdown_check(lambda: server.should_exit)
        certificate_reload = (
            nullcontext()
            if context is None or settings.tls is None
            else reload_certificates(context, settings.tls)
        )
        with server.handle_signals(lifeline) as signals:
            async with certificate_reload:
                await server.serve(sockets=[listener])
            await server.cancel_and_wait()
        return signals[0] if signals else 0


class _Server(uvicorn.Server):
    """A server that finishes running responses at the first signal, and cancels them at the second."""

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        on_request: Callable[[], Awaitable[None]],
        *,
        grace_seconds: float,
        context: ssl.SSLContext | None,
        on_ready: Callable[[], None],
        worker: int,
        counts: ConnectionCounts | None,
    ) -> None:
        """Call `on_request` at the start of each request."""

        async def run_app(scope: Scope, receive: Receive, send: Send) -> None:
            await on_request()
            try:
                await app(scope, receive, send)
            except asyncio.CancelledError:
                if not self.should_exit:
                    raise
                _LOG.warning("a response was cut off by the shutdown")  # the connection is closed too

        super().__init__(
            uvicorn.Config(
                run_app,
                http="foveate.gateway.server.protocol:HttpProtocol",
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=max(1, round(grace_seconds)),
            )
        )
        self.config.load()
        self.config.ssl = context
        self._on_ready = on_ready
        self._worker = worker
        self._counts = counts

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Call `on_ready` once clients are served."""
        if self._counts is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            self.servers += [self._share(listener, self._counts) for listener in sockets or ()]
        self._on_ready()

    def _share(self, listener: socket.socket, counts: ConnectionCounts) -> Any:
        make_protocol: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return BalancedServer(
            listener,
            counts,
            self._worker,
            make_protocol=partial(
                make_protocol,
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            ),
            count_connections=lambda: len(self.server_state.connections),
            tls_context=self.config.ssl,
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: uvicorn's handlers would end the process before charges are recorded."""
        yield

    @contextmanager
    def handle_signals(self, lifeline: int | None) -> Iterator[list[int]]:
        """Shut down at a signal or at the end of the lifeline; yield the signals received."""
        loop = asyncio.get_running_loop()
        signals: list[int] = []

        def shut_down(number: int) -> None:
            signals.append(number)
            if self.should_exit:
                self.force_exit = True
                self._cancel_requests()
            else:
                _LOG.info(
                    "shutting down when running requests have finished; press Ctrl-C again to cancel them"
                )
            self.should_exit = True

        def on_lifeline_closed() -> None:
            loop.remove_reader(lifeline or 0)
            shut_down(0)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, shut_down, int(number))
        if lifeline is not None:
            os.set_blocking(lifeline, False)
            loop.add_reader(lifeline, on_lifeline_closed)
        try:
            yield signals
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            if lifeline is not None:
                loop.remove_reader(lifeline)

    def _cancel_requests(self) -> None:
        for task in self.server_state.tasks:
            task.cancel()

    async def cancel_and_wait(self) -> None:
        """Cancel running requests, and wait until their charges are recorded."""
        self._cancel_requests()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=_CHARGE_SECONDS)
