"""The gateway served at a socket until somebody ends it."""

import asyncio
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import uvicorn

import foveate
from foveate.config.live import LiveSettings
from foveate.config.loading import Configuration
from foveate.config.overriding import LOCAL, Flags, overridden
from foveate.config.price_file import price_file
from foveate.config.settings import Server
from foveate.gateway import logs, metrics_folder
from foveate.gateway.asks import Receive, Scope, Send
from foveate.gateway.assembly import assembled
from foveate.gateway.certificates import renewing, tls_context
from foveate.gateway.configured import Choices, choices_of
from foveate.gateway.cors import Cors
from foveate.gateway.local_models import LocalModels
from foveate.gateway.observing import Observing
from foveate.gateway.warming import set_aside, warm_up
from foveate.memory.paths import data_folder

# What is broken off still books what it knows; that takes a moment, and may not take longer.
_BOOKING_SECONDS = 5.0
# An agent thinks between two turns, and should not have to connect anew; longer than usual balancers wait.
_KEEP_ALIVE_SECONDS = 75
# Each stream needs two descriptors, and many systems give 1,024 unless they are asked.
_DESCRIPTORS = 65_536

_LOG = logging.getLogger(__name__)


def live_choices(
    path: Path | None,
    environment: Mapping[str, str],
    flags: Flags = Flags(),  # noqa: B008 - it is frozen
    *,
    usual: Sequence[Path] = (),
    held: bytes | None = None,
    tells: bool = True,
    clock: Callable[[], float] = time.time,
) -> LiveSettings[Choices]:
    """What the configuration in a file decides, and what goes over it, now and whenever it has changed.

    Without a path, it is the first that is in one of the `usual` places, now or later. Where the file cannot be
    used at the start, what it said when it `held` does. One that `tells` has changes in the log. `clock` tells
    the time since when a configuration is in force.

    Raises:
        FoveateError: it cannot be used.
    """
    prices = price_file(environment)

    def made(found: Configuration) -> Choices:
        if found.settings.server.tls is not None and flags.certificate is None:
            tls_context(found.settings.server.tls)
        return choices_of(overridden(found, environment, flags), environment, prices)

    return LiveSettings(path, made, usual=usual, held=held, tells=tells, fixed=fixed_at_start, clock=clock)


def fixed_at_start(choices: Choices) -> Mapping[str, object]:
    """What a process is made of, by its names in the file: changes of it hold from the next start on."""
    server = choices.settings.server
    names = ("host", "port", "workers", "tls", "grace_seconds")
    return {f"server.{name}": getattr(server, name) for name in names} | {
        "store.url": choices.settings.store.url
    }


def start_logging(server: Server) -> None:
    """Have what is told go to standard error, as configured, until the process ends."""
    logs.start(as_json=server.log == "json", level=server.log_level)


def serve(
    where: socket.socket,
    choices: LiveSettings[Choices],
    environment: Mapping[str, str],
    *,
    ready: Callable[[], None] = lambda: None,
    lifeline: int | None = None,
    forgets: bool = True,
) -> None:
    """Be the gateway at a socket until somebody ends it; answers under way are finished first.

    `ready` is called once clients are served. Where there is a `lifeline`, a descriptor, its end is the end.
    One process of a machine `forgets` what is old.

    Raises:
        StoreUnavailable: the store cannot be opened.
        BadOption: the certificate or its key cannot be used.
        KeyboardInterrupt: it was Ctrl-C that ended it.
    """
    _ask_for_descriptors()
    main = _served(where, choices, environment, ready, lifeline, forgets)
    try:
        import uvloop
    except ImportError:  # not on Windows
        ended_by = asyncio.run(main)
    else:
        ended_by = uvloop.run(main)
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt


def _ask_for_descriptors() -> None:
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # some systems have a limit of their own beside it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _served(
    where: socket.socket,
    choices: LiveSettings[Choices],
    environment: Mapping[str, str],
    ready: Callable[[], None],
    lifeline: int | None,
    forgets: bool,
) -> int:
    """Which signal ended it; 0 for its lifeline."""
    settings = choices.now().made.settings.server
    context = None if settings.tls is None else tls_context(settings.tls)
    observing = Observing(
        choices, version=foveate.__version__, log=logs.current(), folder=metrics_folder.folder_in(environment)
    )
    async with assembled(
        lambda: observing.chosen,
        environment=environment,
        forgets=forgets,
        observing=observing,
        spool_folder=data_folder(environment, sys.platform) / "spool",
    ) as gateway:
        await asyncio.to_thread(warm_up, choices.now().made.cost.prices)
        set_aside()
        has_local = LOCAL in choices.now().made.settings.upstreams
        app = Cors(
            LocalModels(gateway, observing.traffic) if has_local else gateway,
            lambda: observing.chosen.settings.server.cors_origins,
            host=settings.host,
            host_names=lambda: observing.chosen.settings.server.host_names,
            traffic=observing.traffic,
        )
        prices = choices.now().made.price_file

        async def begin() -> None:
            observing.begin()
            if prices is not None:
                await prices.refresh()

        server = _Server(app, begin, grace_seconds=settings.grace_seconds, context=context, ready=ready)
        observing.ends_when(lambda: server.should_exit)
        renewed = nullcontext() if context is None or settings.tls is None else renewing(context, settings.tls)
        with server.ended_by_signals(lifeline) as ended_by:
            async with renewed:
                await server.serve(sockets=[where])
            await server.broken_off()
        return ended_by[0] if ended_by else 0


class _Server(uvicorn.Server):
    """A server whose first signal lets answers under way finish, and whose second breaks them off."""

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        begins: Callable[[], Awaitable[None]],
        *,
        grace_seconds: float,
        context: ssl.SSLContext | None,
        ready: Callable[[], None],
    ) -> None:
        """`begins` is called at the beginning of each request."""

        async def until_broken_off(scope: Scope, receive: Receive, send: Send) -> None:
            await begins()
            try:
                await app(scope, receive, send)
            except asyncio.CancelledError:
                if not self.should_exit:
                    raise
                _LOG.warning("an answer under way was broken off")  # the connection is cut for it

        super().__init__(
            uvicorn.Config(
                until_broken_off,
                http="foveate.gateway.http:PlainHttp",
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
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve, and say so."""
        await super().startup(sockets)
        self._ready()

    def capture_signals(self) -> "nullcontext[None]":  # type: ignore[override]
        """Nothing: what uvicorn does with them would end the process before bills are booked."""
        return nullcontext()

    @contextmanager
    def ended_by_signals(self, lifeline: int | None) -> Iterator[list[int]]:
        """The signals that came, while they and the end of a lifeline end the server."""
        loop = asyncio.get_running_loop()
        came: list[int] = []

        def end(number: int) -> None:
            came.append(number)
            if self.should_exit:
                self.force_exit = True
                self._break_off()
            else:
                _LOG.info("ending; answers under way are finished first")
            self.should_exit = True

        def lost() -> None:
            loop.remove_reader(lifeline or 0)
            end(0)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, int(number))
        if lifeline is not None:
            os.set_blocking(lifeline, False)
            loop.add_reader(lifeline, lost)
        try:
            yield came
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            if lifeline is not None:
                loop.remove_reader(lifeline)

    def _break_off(self) -> None:
        for task in self.server_state.tasks:
            task.cancel()

    async def broken_off(self) -> None:
        """Wait until what was broken off has booked what it knows."""
        self._break_off()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=_BOOKING_SECONDS)
