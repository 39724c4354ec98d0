"""The endpoints `/health`, `/ready` and `/metrics`.

`/health` and `/ready` are for load balancers, so they need no key and contain nothing about requests. Callers
who may not see other pages only learn whether the gateway is healthy and ready: no paths, and nothing about the
configuration. `/metrics` names agents and their spending.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from foveate.engine.metrics.registry import Sample, render_metrics
from foveate.errors import BadSetting, FoveateError
from foveate.gateway.request import AsgiApp, Receive, Scope, Send

HEALTH_PATH, READY_PATH, METRICS_PATH = "/health", "/ready", "/metrics"
# Browsers request it by themselves, with the key of a page; it must not reach a provider.
_ICON_PATH = "/favicon.ico"
PUBLIC_PATHS = frozenset((HEALTH_PATH, READY_PATH, _ICON_PATH))
"""Paths that need no key."""

DETAILS_SCOPE_KEY = "foveate.details"
"""Scope key that says whether the caller may see details."""

# A store that takes longer is reported as unreachable.
PROBE_TIMEOUT_SECONDS = 1.0
_JSON = b"application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthStatus:
    version: str
    config: FoveateError | None = None
    store: str = ""
    store_problem: str = ""
    failures: Mapping[str, int] = field(default_factory=dict)
    charges_waiting: int = 0
    charges_lost: int = 0
    log_problem: str = ""
    log_lines_lost: int = 0
    is_shutting_down: bool = False

    @property
    def is_healthy(self) -> bool:
        charges = self.charges_waiting or self.charges_lost
        return not (self.config or self.store_problem or self.failures or charges or self.log_problem)

    @property
    def is_ready(self) -> bool:
        """Return whether load balancers should send requests."""
        return not self.store_problem and not self.is_shutting_down


def status_word(status: HealthStatus) -> str:
    return "ok" if status.is_healthy else "degraded"


def health_to_json(status: HealthStatus) -> dict[str, Any]:
    problem = status.config
    return {
        "status": status_word(status),
        "version": status.version,
        "config": {
            "valid": problem is None,
            "problem": None if problem is None else str(problem),
            "file": problem.source if isinstance(problem, BadSetting) else None,
            "line": problem.line if isinstance(problem, BadSetting) else None,
        },
        "store": {
            "where": status.store,
            "reachable": not status.store_problem,
            "problem": status.store_problem or None,
        },
        "failures": dict(status.failures),
        "bills": {"waiting": status.charges_waiting, "lost": status.charges_lost},
        "log": {
            "written": not status.log_problem,
            "problem": status.log_problem or None,
            "lost": status.log_lines_lost,
        },
    }


async def probe_store(
    probe: Callable[[], Awaitable[object]], *, limit_seconds: float = PROBE_TIMEOUT_SECONDS
) -> str:
    """Return why the store does not respond; empty if it does."""
    probe_task = asyncio.ensure_future(probe())
    done, _ = await asyncio.wait([probe_task], timeout=limit_seconds)
    if not done:
        probe_task.cancel()
        return f"no response within {limit_seconds:g} s"
    error = probe_task.exception()
    if error is None:
        return ""
    return str(error) if isinstance(error, FoveateError) else f"{type(error).__name__}: {error}"


def build_health_pages(
    check_health: Callable[[], Awaitable[HealthStatus]], samples: Callable[[], list[Sample]]
) -> dict[str, AsgiApp]:
    async def health(scope: Scope, _receive: Receive, send: Send) -> None:
        status = await check_health()
        response = health_to_json(status) if scope.get(DETAILS_SCOPE_KEY) else {"status": status_word(status)}
        await _send_response(scope, send, 200, msgspec.json.encode(response))

    async def ready(scope: Scope, _receive: Receive, send: Send) -> None:
        status = await check_health()
        store_problem = status.store_problem or None
        if store_problem and not scope.get(DETAILS_SCOPE_KEY):
            store_problem = "the store cannot be reached"
        response = {
            "ready": status.is_ready,
            "problem": "shutting down" if status.is_shutting_down else store_problem,
        }
        await _send_response(scope, send, 200 if status.is_ready else 503, msgspec.json.encode(response))

    async def metrics(scope: Scope, _receive: Receive, send: Send) -> None:
        await check_health()
        accept = next((response for name, response in scope["headers"] if name == b"accept"), b"").decode(
            "latin-1"
        )
        body, kind = await asyncio.to_thread(render_metrics, samples(), accept)
        await _send_response(scope, send, 200, body, kind.encode())

    async def icon(scope: Scope, _receive: Receive, send: Send) -> None:
        await _send_response(scope, send, 404, b'{"error":"there is no icon"}')

    return {HEALTH_PATH: health, READY_PATH: ready, METRICS_PATH: metrics, _ICON_PATH: icon}


async def _send_response(
    scope: Scope, send: Send, status: int, body: bytes, content_type: bytes = _JSON
) -> None:
    is_allowed = scope["method"] in ("GET", "HEAD")
    if not is_allowed:
        status, body, content_type = 405, b'{"error":"this page is read-only: use GET"}', _JSON
    headers = [
        (b"content-type", content_type),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
