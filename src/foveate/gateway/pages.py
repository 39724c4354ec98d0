"""The gateway's own pages: whether it is well, whether it can be sent requests, and its numbers.

`/health` and `/ready` are for machines that know nothing, so they need no key and tell nothing of anybody's
requests. To whoever may not see the other pages they say only whether the gateway is well and ready: no paths,
and nothing of the configuration. `/metrics` names agents and what they spend.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from foveate.engine.board import Sample, page
from foveate.errors import BadSetting, FoveateError
from foveate.gateway.asks import Receive, Scope, Send

Page = Callable[[Scope, Receive, Send], Awaitable[None]]

HEALTH, READY, METRICS = "/health", "/ready", "/metrics"
# Browsers ask for it by themselves, with the key that they were given for a page; it is no provider's.
_ICON = "/favicon.ico"
OPEN = frozenset((HEALTH, READY, _ICON))
"""Those that need no key, wherever they are asked from."""

DETAILS = "foveate.details"
"""The key of a scope that says whether its caller may see more than whether the gateway is well."""

# So long the store may take to answer before it is taken to be out of reach.
PROBE_SECONDS = 1.0
_JSON = b"application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """How a gateway is: what is wrong with its configuration and its store, and what failed of late."""

    version: str
    config: FoveateError | None = None
    store: str = ""
    store_problem: str = ""
    failures: Mapping[str, int] = field(default_factory=dict)
    bills_waiting: int = 0
    bills_lost: int = 0
    log_problem: str = ""
    log_lost: int = 0
    is_ending: bool = False

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong that anybody should look at."""
        bills = self.bills_waiting or self.bills_lost
        return not (self.config or self.store_problem or self.failures or bills or self.log_problem)

    @property
    def is_ready(self) -> bool:
        """Whether requests should be sent here."""
        return not self.store_problem and not self.is_ending


def status_of(vitals: Vitals) -> str:
    """Return the word for how a gateway is."""
    return "ok" if vitals.is_well else "degraded"


def health_object(vitals: Vitals) -> dict[str, Any]:
    """What `/health` says."""
    problem = vitals.config
    return {
        "status": status_of(vitals),
        "version": vitals.version,
        "config": {
            "valid": problem is None,
            "problem": None if problem is None else str(problem),
            "file": problem.source if isinstance(problem, BadSetting) else None,
            "line": problem.line if isinstance(problem, BadSetting) else None,
        },
        "store": {
            "where": vitals.store,
            "reachable": not vitals.store_problem,
            "problem": vitals.store_problem or None,
        },
        "failures": dict(vitals.failures),
        "bills": {"waiting": vitals.bills_waiting, "lost": vitals.bills_lost},
        "log": {
            "written": not vitals.log_problem,
            "problem": vitals.log_problem or None,
            "lost": vitals.log_lost,
        },
    }


async def probed(probe: Callable[[], Awaitable[object]], *, limit_seconds: float = PROBE_SECONDS) -> str:
    """Why a store does not answer; nothing where it does."""
    asked = asyncio.ensure_future(probe())
    done, _ = await asyncio.wait([asked], timeout=limit_seconds)
    if not done:
        asked.cancel()
        return f"no answer within {limit_seconds:g} s"
    error = asked.exception()
    if error is None:
        return ""
    return str(error) if isinstance(error, FoveateError) else f"{type(error).__name__}: {error}"


def pages(look: Callable[[], Awaitable[Vitals]], samples: Callable[[], list[Sample]]) -> dict[str, Page]:
    """The pages by their paths; `look` says how the gateway is, and `samples` all that was counted."""

    async def health(scope: Scope, _receive: Receive, send: Send) -> None:
        vitals = await look()
        said = health_object(vitals) if scope.get(DETAILS) else {"status": status_of(vitals)}
        await _answer(scope, send, 200, msgspec.json.encode(said))

    async def ready(scope: Scope, _receive: Receive, send: Send) -> None:
        vitals = await look()
        store_problem = vitals.store_problem or None
        if store_problem and not scope.get(DETAILS):
            store_problem = "the store cannot be reached"
        said = {"ready": vitals.is_ready, "problem": "ending" if vitals.is_ending else store_problem}
        await _answer(scope, send, 200 if vitals.is_ready else 503, msgspec.json.encode(said))

    async def metrics(scope: Scope, _receive: Receive, send: Send) -> None:
        await look()
        accept = next((said for name, said in scope["headers"] if name == b"accept"), b"").decode("latin-1")
        body, kind = await asyncio.to_thread(page, samples(), accept)
        await _answer(scope, send, 200, body, kind.encode())

    async def icon(scope: Scope, _receive: Receive, send: Send) -> None:
        await _answer(scope, send, 404, b'{"error":"there is none"}')

    return {HEALTH: health, READY: ready, METRICS: metrics, _ICON: icon}


async def _answer(scope: Scope, send: Send, status: int, body: bytes, kind: bytes = _JSON) -> None:
    allows = scope["method"] in ("GET", "HEAD")
    if not allows:
        status, body, kind = 405, b'{"error":"this page can only be read: use GET"}', _JSON
    headers = [
        (b"content-type", kind),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
