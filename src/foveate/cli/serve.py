"""`foveate serve`: start the gateway."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shlex import quote
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli.shared import console
from foveate.cli.shared.errors import report_errors
from foveate.cli.shared.options import ConfigFile
from foveate.errors import BadOption, CannotListen

if TYPE_CHECKING:
    import socket

    from foveate.config.live_settings import LiveSettings
    from foveate.config.load import LocalModel, ServeFlags
    from foveate.gateway.config import ResolvedConfig
    from foveate.gateway.server.supervisor import WorkerOrder

_LABEL_CELLS = 10
_MIN_COLUMNS = 40
_LOOPBACK = ("127.", "localhost", "::1")


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
    """If the port is in use, the error says how to find the process that uses it."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStatus:
    """A running gateway. `keys` are the upstreams whose key it has, `agents` those with gateway keys.

    `paid` are the upstreams for which the gateway replaces the keys of clients by its own. `unkeyed` are the
    agents with sections but without a gateway key. `local` is the name of the local model. `page` (the
    dashboard), `metrics` and `health` are URLs; `page` is None if it is off.
    """

    url: str
    host: str
    workers: int
    store: str
    config: str
    on: list[str]
    off: list[str]
    keys: list[str]
    agents: list[str]
    paid: list[str] = field(default_factory=list)
    unkeyed: list[str] = field(default_factory=list)
    local: str | None
    certificate: str | None
    page: str | None = None
    metrics: str
    health: str


def describe_gateway(
    url: str,
    config_now: "ResolvedConfig",
    *,
    config: Path | None,
    local: "LocalModel | None",
) -> GatewayStatus:
    from foveate.config.effective_settings import redact_url
    from foveate.store import default_url

    settings = config_now.settings
    if settings.server.tls is not None:
        url = url.replace("http://", "https://", 1)
    features = _features(config_now)
    return GatewayStatus(
        url=url,
        host=settings.server.host,
        workers=settings.server.workers,
        store=redact_url(settings.store.url or default_url()),
        config="" if config is None else str(config),
        on=[name for name, is_on in features.items() if is_on],
        off=[name for name, is_on in features.items() if not is_on],
        keys=sorted(name for name, upstream in config_now.gateway.routing.upstreams.items() if upstream.key),
        agents=[agent.id for agent in settings.agents if agent.keys],
        paid=sorted(
            name for name, upstream in config_now.gateway.routing.upstreams.items() if upstream.replaces_keys
        ),
        unkeyed=[agent.id for agent in settings.agents if agent.sections is not None and not agent.keys],
        local=None if local is None else local.model,
        certificate=None if settings.server.tls is None else str(settings.server.tls.certificate),
        page=f"{url}/" if settings.server.page else None,
        metrics=f"{url}/metrics",
        health=f"{url}/health",
    )


def _features(config_now: "ResolvedConfig") -> dict[str, bool]:
    """Return what is on or off for an agent without settings of its own."""
    settings = config_now.settings
    optimization = settings.context_optimization
    return {
        "prompt cache": optimization.prompt_cache.enabled,
        "compaction": optimization.compaction.enabled,
        "token counter": optimization.token_counter.enabled,
        "workspace cache": optimization.workspace_cache.enabled,
        "caps": bool(config_now.cost.caps),
        "kept requests": settings.keep_requests.enabled,
        "TLS": settings.server.tls is not None,
        "CORS": bool(settings.server.cors_origins),
    }


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of the table: wrapped text, and commands that are never wrapped."""

    label: str
    text: str
    commands: Sequence[str] = ()


def started_screen(status: GatewayStatus, display: console.Display) -> list[str]:
    from foveate.web.formatting import export_lines

    bold = ("\x1b[1m", "\x1b[0m") if display.colours else ("", "")
    what, url = ("Gateway", status.url) if status.page is None else ("Dashboard", status.page)
    workers = f" with {status.workers} workers" if status.workers > 1 else ""
    lines = [
        f"{what}: {bold[0]}{url}{bold[1]}",
        *_wrap(f"The gateway is running{workers}. Press Ctrl-C to stop it.", display.columns),
        "",
        "Point your agents at it:",
        "",
        *(f"  {line}" for line in export_lines(status.url)),
        "",
    ]
    if status.local:
        lines += ["Try the model on this machine:", "", f"  {_curl_command(status)}", ""]
    for row in _rows(status):
        lines += _row_lines(row, display)
    return lines


def _rows(status: GatewayStatus) -> Iterator[_Row]:
    is_open = not status.host.startswith(_LOOPBACK)
    yield _Row("on", ", ".join(status.on) or "nothing")
    yield _Row("off", ", ".join(status.off) or "nothing")
    yield _keys_row(status)
    if status.paid:
        clients = "for clients that send a gateway key" if is_open else "whatever key a client sends"
        yield _Row("pays for", f"{', '.join(status.paid)}, with its own key, {clients}")
    if status.config:
        yield _Row("config", status.config)
    else:
        yield _Row("config", "none, defaults apply; to create one:", ["foveate config init"])
    yield _Row("data", status.store)
    yield _Row("metrics", status.metrics)
    if is_open:
        text = f"other machines can connect ({status.host}); the dashboard and metrics need a gateway key"
        yield _Row("network", text)
    if is_open and status.unkeyed:
        agents = " or ".join(status.unkeyed)
        text = (
            f"any client that names the agent {agents} gets its notes and files in the prompt; to prevent that:"
        )
        yield _Row("warning", text, [f"foveate config key --agent {quote(agent)}" for agent in status.unkeyed])


def _keys_row(status: GatewayStatus) -> _Row:
    upstreams = ", ".join(name for name in status.keys if name not in status.paid)
    if not upstreams:
        return _Row("keys", "clients send their own" + ("" if status.keys else "; the gateway has none"))
    if status.agents:
        agents = ", ".join(status.agents)
        return _Row(
            "keys", f"clients send their own, or the gateway key of {agents} to use the gateway's: {upstreams}"
        )
    text = f"clients send their own, or a gateway key to use the gateway's ({upstreams}); to create one:"
    return _Row("keys", text, ["foveate config key"])


def _row_lines(row: _Row, display: console.Display) -> Iterator[str]:
    dim = ("\x1b[2m", "\x1b[0m") if display.colours else ("", "")
    first, *others = _wrap(display.escape(row.text), max(display.columns, _MIN_COLUMNS) - _LABEL_CELLS)
    yield f"{dim[0]}{row.label:<{_LABEL_CELLS}}{dim[1]}{first}"
    for line in others:
        yield " " * _LABEL_CELLS + line
    for command in row.commands:
        yield " " * _LABEL_CELLS + display.escape(command)


def _wrap(text: str, columns: int) -> list[str]:
    return wrap(text, columns, break_long_words=False, break_on_hyphens=False)


def _curl_command(status: GatewayStatus) -> str:
    body = {"model": "local", "max_tokens": 60, "messages": [{"role": "user", "content": "Who are you?"}]}
    certificate_option = "" if status.certificate is None else f" --cacert {quote(status.certificate)}"
    content_type = "-H 'content-type: application/json'"
    return f"curl -s{certificate_option} {status.url}/v1/messages {content_type} -d {quote(json.dumps(body))}"
