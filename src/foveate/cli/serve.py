"""`foveate serve`: start the gateway."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli.shared import console
from foveate.cli.shared.exit_codes import report_errors
from foveate.cli.shared.options import ConfigFile
from foveate.errors import BadOption, CannotListen

if TYPE_CHECKING:
    import socket

    from foveate.config.live import LiveSettings
    from foveate.config.load import LocalModel, ServeFlags
    from foveate.gateway.config import ResolvedConfig
    from foveate.gateway.server.supervisor import WorkerOrder


def command(
    config: ConfigFile = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on; 0.0.0.0 accepts connections from other machines. "
            "Default: server.host in the configuration, or 127.0.0.1.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="Port to listen on; 0 picks a free port. Default: server.port in the configuration, or 8090.",
            min=0,
            max=65535,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of worker processes. Default: server.workers in the configuration, or 1.",
            min=1,
            max=256,
        ),
    ] = None,
    local: Annotated[
        bool,
        typer.Option(
            "--local", help="Also run a small local model (SmolLM2 135M, with llama.cpp). It needs no API key."
        ),
    ] = False,
    tls_certificate: Annotated[
        str | None,
        typer.Option(
            "--tls-certificate",
            metavar="FILE",
            help="Serve HTTPS with this certificate (PEM file). Requires --tls-key.",
        ),
    ] = None,
    tls_key: Annotated[
        str | None,
        typer.Option(
            "--tls-key", metavar="FILE", help="Private key of the certificate (PEM file without a password)."
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin",
            metavar="ORIGIN",
            help="Let web pages from this origin (https://app.example) call the gateway. Can be repeated.",
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the addresses and settings as one JSON object once the gateway is ready."
        ),
    ] = False,
) -> None:
    """Run the gateway: an HTTP proxy that adds prompt caching, context limits, spending caps and cost tracking.

    Example: foveate serve --config foveate.yaml --port 8090
    """
    with report_errors(as_json=json), ExitStack() as stack:
        from foveate.config.load import ServeFlags

        if (tls_certificate is None) != (tls_key is None):
            raise BadOption("--tls-certificate and --tls-key must be given together")
        model = stack.enter_context(_local_model()) if local else None
        flags = ServeFlags(
            host=host,
            port=port,
            workers=workers,
            certificate=tls_certificate,
            key=tls_key,
            cors_origins=_check_origins(cors_origin or []),
            local=model,
        )
        _serve(config, flags, as_json=json)


@contextmanager
def _local_model() -> "Iterator[LocalModel]":
    with ExitStack() as stack:
        with console.show_progress("starting the local model"):
            from foveate.gateway.local_model import run_local_model

            model = stack.enter_context(run_local_model())
        yield model


def _serve(config: Path | None, flags: "ServeFlags", *, as_json: bool) -> None:
    with console.show_progress("starting the gateway"):
        from foveate.cli.serve_output import describe_gateway, started_screen
        from foveate.gateway.server.serve import load_live_config, serve, start_logging
        from foveate.gateway.server.supervisor import WorkerOrder
        from foveate.gateway.server.tls import create_tls_context
        from foveate.http.listening_sockets import socket_url
        from foveate.paths import data_folder, default_config_paths

        environment = dict(os.environ)
        search_paths = () if config else default_config_paths(Path(), data_folder(environment, sys.platform))
        live_config = load_live_config(config, environment, flags, default_paths=search_paths)
    config_now = live_config.current().value
    server = config_now.settings.server
    if server.tls is not None:
        create_tls_context(server.tls)
    start_logging(server)
    with _listen(server.host, server.port) as listener:
        status = describe_gateway(socket_url(listener), config_now, config=live_config.path, local=flags.local)

        def print_started() -> None:
            if as_json:
                console.print_object(asdict(status))
            else:
                console.print_text("\n".join(started_screen(status, console.display_for(sys.stdout))))

        if server.workers == 1:
            serve(listener, live_config, environment, on_ready=print_started)
        else:
            bound = replace(flags, host=server.host, port=server.port)  # even if the file changes later
            order = WorkerOrder(
                descriptor=listener.fileno(),
                config=str(config) if config else None,
                default_paths=tuple(map(str, search_paths)),
                flags=bound,
            )
            _serve_with_workers(listener, order, live_config, print_started)


def _serve_with_workers(
    listener: "socket.socket",
    order: "WorkerOrder",
    live_config: "LiveSettings[ResolvedConfig]",
    ready: Callable[[], None],
) -> None:
    from foveate.gateway.observability import access_log, worker_metrics
    from foveate.gateway.server.supervisor import run_workers

    def current_config_text() -> bytes | None:
        access_log.apply_settings(live_config.current().value.settings.server)
        return live_config.text

    server = live_config.current().value.settings.server
    environment = dict(os.environ)
    folder = worker_metrics.create_folder(environment)
    try:
        run_workers(
            listener,
            order,
            environment,
            count=server.workers,
            grace_seconds=server.grace_seconds,
            on_ready=ready,
            on_exit=lambda pid: worker_metrics.mark_worker_dead(pid, folder),
            last_valid=current_config_text,
        )
    finally:
        worker_metrics.remove_folder(folder)


@contextmanager
def _listen(host: str, port: int) -> "Iterator[socket.socket]":
    """Open a listening socket. If the port is in use, the error says how to find the process that uses it."""
    from foveate.http.listening_sockets import find_listener_command, open_listening_socket

    try:
        listener = open_listening_socket(host, port)
    except CannotListen as error:
        if "in use" not in error.reason:
            raise
        reason = (
            f"{error.reason}; choose another port with --port, or find the process that uses it: "
            f"{find_listener_command(port, sys.platform)}"
        )
        raise CannotListen(host, port, reason) from None
    with listener:
        yield listener


def _check_origins(origins: list[str]) -> tuple[str, ...]:
    if not origins:
        return ()
    from pydantic import ValidationError

    from foveate.config.settings import ServerSettings

    try:
        return tuple(ServerSettings(cors_origins=origins).cors_origins)
    except ValidationError:
        raise BadOption(
            f"--cors-origin takes an origin without a path, e.g. https://app.example, not {', '.join(origins)}"
        ) from None
