"""`foveate serve`: the gateway, which agents reach by changing one base URL."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli import screen
from foveate.cli.exits import telling
from foveate.cli.usual import ConfigFile
from foveate.errors import BadOption, CannotListen

if TYPE_CHECKING:
    import socket

    from foveate.config.live import LiveSettings
    from foveate.config.overriding import Flags, LocalModel
    from foveate.gateway.configured import Choices
    from foveate.gateway.workers import Order


def command(
    config: ConfigFile = None,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on; default: as configured, else 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="The port to listen on, 0 for any that is free; default: as configured, else 8090.",
            min=0,
            max=65535,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="How many processes serve; default: as configured, else 1.", min=1, max=256),
    ] = None,
    local: Annotated[
        bool,
        typer.Option("--local", help="Have a small model on this machine as well, to talk to without a key."),
    ] = False,
    tls_certificate: Annotated[
        str | None, typer.Option("--tls-certificate", metavar="FILE", help="Serve HTTPS with this certificate.")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option("--tls-key", metavar="FILE", help="The key of that certificate.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin", metavar="ORIGIN", help="Let pages of this origin call it; may be given again."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object when it is ready.")] = False,
) -> None:
    """Stand between agents and their providers: cheaper, within the window, under caps, and every call booked.

    Example: foveate serve --config foveate.yaml --port 8090
    """
    with telling(as_json=json), ExitStack() as stack:
        from foveate.config.overriding import Flags

        if (tls_certificate is None) != (tls_key is None):
            raise BadOption("--tls-certificate and --tls-key go together: one is not enough")
        model = stack.enter_context(_local_model()) if local else None
        flags = Flags(
            host=host,
            port=port,
            workers=workers,
            certificate=tls_certificate,
            key=tls_key,
            cors_origins=_origins(cors_origin or []),
            local=model,
        )
        _serve(config, flags, as_json=json)


@contextmanager
def _local_model() -> "Iterator[LocalModel]":
    with ExitStack() as stack:
        with screen.patience("starting the model"):
            from foveate.gateway.local import running_model

            found = stack.enter_context(running_model())
        yield found


def _serve(config: Path | None, flags: "Flags", *, as_json: bool) -> None:
    with screen.patience("starting"):
        from foveate.cli.serve_lines import started, started_lines
        from foveate.config.overriding import usual_places
        from foveate.gateway.certificates import tls_context
        from foveate.gateway.serving import live_choices, serve, start_logging
        from foveate.gateway.workers import Order
        from foveate.memory.paths import data_folder
        from foveate.upstream.sockets import address

        environment = dict(os.environ)
        usual = () if config else usual_places(Path(), data_folder(environment, sys.platform))
        choices = live_choices(config, environment, flags, usual=usual)
    now = choices.now().made
    server = now.settings.server
    if server.tls is not None:
        tls_context(server.tls)
    start_logging(server)
    with _listening(server.host, server.port) as where:
        shown = started(address(where), now, config=choices.path, local=flags.local)

        def tell() -> None:
            if as_json:
                screen.print_object(asdict(shown))
            else:
                screen.print_text("\n".join(started_lines(shown, screen.look(sys.stdout))))

        if server.workers == 1:
            serve(where, choices, environment, ready=tell)
        else:
            bound = replace(flags, host=server.host, port=server.port)  # whatever the file says later
            order = Order(
                descriptor=where.fileno(),
                config=str(config) if config else None,
                usual=tuple(map(str, usual)),
                flags=bound,
            )
            _by_workers(where, order, choices, tell)


def _by_workers(
    where: "socket.socket",
    order: "Order",
    choices: "LiveSettings[Choices]",
    ready: Callable[[], None],
) -> None:
    from foveate.gateway import logs, metrics_folder
    from foveate.gateway.workers import serve_by_workers

    def held() -> bytes | None:
        logs.follow(choices.now().made.settings.server)
        return choices.text

    server = choices.now().made.settings.server
    environment = dict(os.environ)
    folder = metrics_folder.prepare(environment)
    try:
        serve_by_workers(
            where,
            order,
            environment,
            count=server.workers,
            grace_seconds=server.grace_seconds,
            ready=ready,
            ended=lambda pid: metrics_folder.mark_dead(pid, folder),
            held=held,
        )
    finally:
        metrics_folder.remove(folder)


@contextmanager
def _listening(host: str, port: int) -> "Iterator[socket.socket]":
    """A socket there; where the port is taken, the error says how to find out by whom."""
    from foveate.upstream.sockets import listening

    try:
        found = listening(host, port)
    except CannotListen as error:
        if "in use" not in error.reason:
            raise
        asked = f"lsof -i :{port}" if sys.platform == "darwin" else f"ss -ltnp 'sport = :{port}'"
        reason = f"{error.reason}; `{asked}` says by whom, and --port takes another"
        raise CannotListen(host, port, reason) from None
    with found:
        yield found


def _origins(said: list[str]) -> tuple[str, ...]:
    """Origins, checked as those of the file are."""
    if not said:
        return ()
    from pydantic import ValidationError

    from foveate.config.settings import Server

    try:
        return tuple(Server(cors_origins=said).cors_origins)
    except ValidationError:
        raise BadOption(
            f"--cors-origin takes an origin such as https://app.example, without a path, not {', '.join(said)}"
        ) from None
