"""Start-up screen of `foveate serve`: where the gateway is, how to use it, and which features are on."""

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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foveate.config.overrides import LocalModel
    from foveate.gateway.config import ResolvedConfig

_LABEL_CELLS = 10
_LOOPBACK = ("127.", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStatus:
    """A running gateway. `keys` are the upstreams whose key it has, `agents` those with keys of their own.

    `paid` are the upstreams whose calls it pays whatever key clients send. `unkeyed` are the agents with
    sections that anybody can name. `local` is the name of the local model. `page`, `metrics` and `health` are
    URLs; `page` is None if it is off.
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


def started_screen(status: GatewayStatus, display: console.Display) -> list[str]:
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
        condition = "for those who show a gateway key" if is_open else "whatever key clients bring"
        rows["paid here"] = f"{', '.join(status.paid)}, {condition}"
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
    key_owners = f"of {', '.join(status.agents)}" if status.agents else "(`foveate config key` makes one)"
    return f"clients bring their own, or a gateway key {key_owners} for {', '.join(keys)}"


def _curl_command(status: GatewayStatus) -> str:
    body = {"model": "local", "max_tokens": 60, "messages": [{"role": "user", "content": "Who are you?"}]}
    certificate_option = "" if status.certificate is None else f" --cacert {quote(status.certificate)}"
    content_type = "-H 'content-type: application/json'"
    return f"curl -s{certificate_option} {status.url}/v1/messages {content_type} -d {quote(json.dumps(body))}"
