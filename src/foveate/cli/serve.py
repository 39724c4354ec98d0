"""`foveate serve`: the gateway, which agents reach by changing one base URL."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli import screen
from foveate.cli.exits import telling
from foveate.errors import BadOption

if TYPE_CHECKING:
    from foveate.gateway.assembly import Choices


def command(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="The configuration; without one, all is by default."
        ),
    ] = None,
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
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object when it is ready.")] = False,
) -> None:
    """Stand between agents and their providers: cheaper, within the window, under caps, and every call booked.

    Example: foveate serve --config foveate.yaml --port 8090
    """
    with telling(as_json=json):
        from foveate.gateway.serving import live_choices, serve
        from foveate.store import default_url
        from foveate.upstream.sockets import address, listening

        environment = dict(os.environ)
        with screen.patience("starting"):
            choices = live_choices(config, environment)
        now = choices.now().made
        server = now.settings.server
        if server.workers != 1:
            raise BadOption("server.workers: more than one is not there yet; start several on one PostgreSQL")
        _start_logging(server.log_level)
        with listening(server.host if host is None else host, server.port if port is None else port) as where:
            url = address(where)
            if server.tls is not None:
                url = url.replace("http://", "https://", 1)
            store = now.settings.store.url or default_url()
            if json:
                screen.print_object(
                    {"url": url, "store": _without_password(store), "config": str(config or "")}
                )
            else:
                screen.print_text("\n".join(_lines(url, store, config, now)))
            serve(where, choices, environment)


def _lines(url: str, store: str, config: Path | None, now: "Choices") -> list[str]:
    """Where it is, how a client is pointed at it, what is on, and where the data lies."""
    usual = now.agents("default")
    switches = {
        "prompt cache": usual.prompt_cache,
        "compaction": usual.compaction,
        "caps": bool(now.cost.caps),
    }
    on = ", ".join(name for name, is_on in switches.items() if is_on) or "nothing"
    off = ", ".join(name for name, is_on in switches.items() if not is_on)
    return [
        f"Foveate is at {url}. Ctrl-C ends it.",
        f"  export ANTHROPIC_BASE_URL={url}",
        f"  export OPENAI_BASE_URL={url}/v1",
        "Clients keep their own keys.",
        f"on      {on}" + (f"; off: {off}" if off else ""),
        f"config  {config or 'none: all by default'}",
        f"data    {screen.plain(_without_password(store))}",
    ]


def _without_password(store: str) -> str:
    """A URL of a store as it can be shown."""
    scheme, found, rest = store.partition("://")
    account, at, place = rest.rpartition("@")
    return f"{scheme}{found}{account.partition(':')[0]}{at}{place}" if at else store


def _start_logging(level: str) -> None:
    import logging

    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("foveate").setLevel(level.upper())
