"""`foveate serve`: the gateway, which agents reach by changing one base URL.

What `foveate serve` shows once it serves: where it is, how to point a client at it, what is on.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from foveate.cli import console
from foveate.web.formatting import export_lines

if TYPE_CHECKING:
    from foveate.config.overrides import LocalModel
    from foveate.gateway.config import ResolvedConfig
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli.exit_codes import report_errors
from foveate.cli.options import ConfigFile
from foveate.errors import BadOption, CannotListen

if TYPE_CHECKING:
    import socket

    from foveate.config.live import LiveSettings
    from foveate.config.overrides import LocalModel, ServeFlags
    from foveate.gateway.config import ResolvedConfig
    from foveate.gateway.server.supervisor import WorkerOrder


_LABEL_CELLS = 10
_LOOPBACK = ("127.", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStatus:
    """A gateway that serves. `keys` are the upstreams whose key it has, `agents` those with keys of their own.

    `paid` are the upstreams whose calls it pays whatever clients bring, `unkeyed` the agents that have sections
    and can be named by anybody. `local` is the name of the model on this machine. `page`, `metrics` and
    `health` are where they are, the page if there is one.
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
    """What there is to be told of a gateway at `url`."""
    from foveate.config.effective import redact_url
    from foveate.store import default_url

    settings = config_now.settings
    if settings.server.tls is not None:
        url = url.replace("http://", "https://", 1)
    switches = _features(config_now)
    return GatewayStatus(
        url=url,
        host=settings.server.host,
        workers=settings.server.workers,
        store=redact_url(settings.store.url or default_url()),
        config="" if config is None else str(config),
        on=[name for name, is_on in switches.items() if is_on],
        off=[name for name, is_on in switches.items() if not is_on],
        keys=sorted(name for name, up in config_now.gateway.routing.upstreams.items() if up.key),
        agents=[agent.id for agent in settings.agents if agent.keys],
        paid=sorted(name for name, up in config_now.gateway.routing.upstreams.items() if up.replaces_keys),
        unkeyed=[agent.id for agent in settings.agents if agent.sections is not None and not agent.keys],
        local=None if local is None else local.model,
        certificate=None if settings.server.tls is None else str(settings.server.tls.certificate),
        page=f"{url}/" if settings.server.page else None,
        metrics=f"{url}/metrics",
        health=f"{url}/health",
    )


def _features(config_now: "ResolvedConfig") -> dict[str, bool]:
    """All that can be on or off, for an agent of no name."""
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


def started_screen(status: GatewayStatus, display: console.Display) -> list[str]:
    """The start-up screen."""
    bold = ("\x1b[1m", "\x1b[0m") if display.colours else ("", "")
    dim = ("\x1b[2m", "\x1b[0m") if display.colours else ("", "")
    workers = f", {status.workers} workers" if status.workers > 1 else ""
    lines = [
        f"Foveate is at {bold[0]}{status.url}{bold[1]}{workers}. Ctrl-C ends it.",
        "",
        *(f"  {line}" for line in export_lines(status.url)),
        "",
    ]
    if status.local:
        lines += [
            "Or talk to the small model on this machine, without a key:",
            "",
            f"  {_curl_command(status)}",
            "",
        ]
    rows = {
        "keys": _describe_keys(status),
        "on": ", ".join(status.on) or "nothing",
        "off": ", ".join(status.off) or "nothing",
        "config": status.config or "none: all by default (`foveate config init` writes one)",
        "data": status.store,
        **({} if status.page is None else {"page": status.page}),
        "metrics": status.metrics,
    }
    is_open = not status.host.startswith(_LOOPBACK)
    if status.paid:
        for_whom = "for those who show a gateway key" if is_open else "whatever key clients bring"
        rows["paid here"] = f"{', '.join(status.paid)}, {for_whom}"
    if is_open:
        rows["open to"] = (
            f"other machines ({status.host}); pages of its own, such as metrics, need a gateway key"
        )
        if status.unkeyed:
            rows["careful"] = (
                f"whoever names the agent {' or '.join(status.unkeyed)} has its notes and files sent along: it "
                "has no gateway key (`foveate config key --agent NAME`)"
            )
    return lines + [
        f"{dim[0]}{name:<{_LABEL_CELLS}}{dim[1]}{display.escape(text)}" for name, text in rows.items()
    ]


def _describe_keys(status: GatewayStatus) -> str:
    keys = [name for name in status.keys if name not in status.paid]
    if not keys:
        return "clients bring their own" + ("" if status.keys else "; none is in this environment")
    for_whom = f"of {', '.join(status.agents)}" if status.agents else "(`foveate config key` makes one)"
    return f"clients bring their own, or a gateway key {for_whom} for {', '.join(keys)}"


def _curl_command(status: GatewayStatus) -> str:
    body = {"model": "local", "max_tokens": 60, "messages": [{"role": "user", "content": "Who are you?"}]}
    certificate_option = "" if status.certificate is None else f" --cacert {quote(status.certificate)}"
    content_type = "-H 'content-type: application/json'"
    return f"curl -s{certificate_option} {status.url}/v1/messages {content_type} -d {quote(json.dumps(body))}"


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
    with report_errors(as_json=json), ExitStack() as stack:
        from foveate.config.overrides import ServeFlags

        if (tls_certificate is None) != (tls_key is None):
            raise BadOption("--tls-certificate and --tls-key go together: one is not enough")
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
        with console.show_progress("starting the model"):
            from foveate.gateway.local_model.process import run_local_model

            model = stack.enter_context(run_local_model())
        yield model


def _serve(config: Path | None, flags: "ServeFlags", *, as_json: bool) -> None:
    with console.show_progress("starting"):
        from foveate.config.overrides import default_paths
        from foveate.gateway.server.serve import load_live_config, serve, start_logging
        from foveate.gateway.server.supervisor import WorkerOrder
        from foveate.gateway.server.tls import create_tls_context
        from foveate.http.listening_sockets import socket_url
        from foveate.paths import data_folder

        environment = dict(os.environ)
        search_paths = () if config else default_paths(Path(), data_folder(environment, sys.platform))
        live_config = load_live_config(config, environment, flags, default_paths=search_paths)
    config_now = live_config.current().value
    server = config_now.settings.server
    if server.tls is not None:
        create_tls_context(server.tls)
    start_logging(server)
    with _listen(server.host, server.port) as listener:
        status = describe_gateway(socket_url(listener), config_now, config=live_config.path, local=flags.local)

        def tell() -> None:
            if as_json:
                console.print_object(asdict(status))
            else:
                console.print_text("\n".join(started_screen(status, console.display_for(sys.stdout))))

        if server.workers == 1:
            serve(listener, live_config, environment, on_ready=tell)
        else:
            bound = replace(flags, host=server.host, port=server.port)  # whatever the file says later
            order = WorkerOrder(
                descriptor=listener.fileno(),
                config=str(config) if config else None,
                default_paths=tuple(map(str, search_paths)),
                flags=bound,
            )
            _serve_with_workers(listener, order, live_config, tell)


def _serve_with_workers(
    listener: "socket.socket",
    order: "WorkerOrder",
    live_config: "LiveSettings[ResolvedConfig]",
    ready: Callable[[], None],
) -> None:
    from foveate.gateway.observability import access_log, worker_metrics
    from foveate.gateway.server.supervisor import run_workers

    def held() -> bytes | None:
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
            last_valid=held,
        )
    finally:
        worker_metrics.remove_folder(folder)


@contextmanager
def _listen(host: str, port: int) -> "Iterator[socket.socket]":
    """A socket there; where the port is taken, the error says how to find out by whom."""
    from foveate.http.listening_sockets import open_listening_socket

    try:
        listener = open_listening_socket(host, port)
    except CannotListen as error:
        if "in use" not in error.reason:
            raise
        command_line = f"lsof -i :{port}" if sys.platform == "darwin" else f"ss -ltnp 'sport = :{port}'"
        reason = f"{error.reason}; `{command_line}` says by whom, and --port takes another"
        raise CannotListen(host, port, reason) from None
    with listener:
        yield listener


def _check_origins(origins: list[str]) -> tuple[str, ...]:
    """Origins, checked as those of the file are."""
    if not origins:
        return ()
    from pydantic import ValidationError

    from foveate.config.settings import ServerSettings

    try:
        return tuple(ServerSettings(cors_origins=origins).cors_origins)
    except ValidationError:
        raise BadOption(
            f"--cors-origin takes an origin such as https://app.example, without a path, not {', '.join(origins)}"
        ) from None
