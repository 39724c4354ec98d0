"""Start screen of `foveate serve`: the URL of the dashboard, how to use the gateway, and which features are on.

Text is wrapped to the width of the terminal. Commands are not, so that they can be copied.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from textwrap import wrap
from typing import TYPE_CHECKING

from foveate.cli.shared import console
from foveate.web.formatting import export_lines

if TYPE_CHECKING:
    from foveate.config.load import LocalModel
    from foveate.gateway.config import ResolvedConfig

_LABEL_CELLS = 10
_MIN_COLUMNS = 40
_LOOPBACK = ("127.", "localhost", "::1")


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
    from foveate.config.effective import redact_url
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
