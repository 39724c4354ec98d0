"""The health pages: healthy while it works, ready while it should get requests."""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from foveate.engine.metrics.definitions import REQUESTS
from foveate.engine.metrics.registry import MetricsRegistry, Sample
from foveate.errors import BadSetting, StoreUnavailable
from foveate.gateway.observability.health import (
    DETAILS_SCOPE_KEY,
    HealthStatus,
    build_health_pages,
    health_to_json,
    probe_store,
)

HEALTHY = HealthStatus(version="1.2.3", store="/data/foveate.sqlite")


def make_samples() -> list[Sample]:
    registry = MetricsRegistry()
    registry.scalar(REQUESTS, "ana", "anthropic", "m", "200").value += 3
    return registry.samples()


async def get_page(
    path: str, health_status: HealthStatus, *, method: str = "GET", accept: bytes = b"", details: bool = True
) -> tuple[int, str, bytes]:
    """Return the status, content type and body of a page."""
    messages: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request"}

    async def get_status() -> HealthStatus:
        return health_status

    page = build_health_pages(get_status, make_samples)[path]
    await page({"method": method, "headers": [(b"accept", accept)], DETAILS_SCOPE_KEY: details}, receive, send)
    start, body = messages
    headers = dict(start["headers"])
    assert method == "HEAD" or int(headers[b"content-length"]) == len(body["body"])
    return start["status"], headers[b"content-type"].decode(), body["body"]


async def test_health_is_ok_without_problems() -> None:
    status, kind, body = await get_page("/health", HEALTHY)

    assert (status, kind) == (200, "application/json")
    health = json.loads(body)
    assert (health["status"], health["version"]) == ("ok", "1.2.3")
    assert health["store"] == {"where": "/data/foveate.sqlite", "reachable": True, "problem": None}


async def test_health_reports_problems_with_status_200() -> None:
    health_status = HealthStatus(
        version="1",
        config=BadSetting("foveate.yaml", "unknown setting 'prot'", line=7, key="server.prot"),
        store_problem="the disk is full",
        failures={"session": 3},
        charges_waiting=2,
        log_problem="No space left on device",
        log_lines_lost=7,
    )

    status, _, body = await get_page("/health", health_status)

    health = json.loads(body)
    assert (status, health["status"]) == (200, "degraded")
    assert (health["config"]["file"], health["config"]["line"]) == ("foveate.yaml", 7)
    assert health["log"] == {"written": False, "problem": "No space left on device", "lost": 7}
    assert "foveate.yaml:7: unknown setting 'prot'" in health["config"]["problem"]
    assert health["store"]["problem"] == "the disk is full"
    assert health["failures"] == {"session": 3}
    assert health["bills"] == {"waiting": 2, "lost": 0}


async def test_it_is_ready_only_while_the_store_responds_and_it_is_not_shutting_down() -> None:
    assert (await get_page("/ready", HEALTHY))[0] == 200
    assert (await get_page("/ready", HealthStatus(version="1", store_problem="gone")))[0] == 503
    status, _, body = await get_page("/ready", HealthStatus(version="1", is_shutting_down=True))
    assert (status, json.loads(body)) == (503, {"ready": False, "problem": "shutting down"})


@given(
    st.builds(
        HealthStatus,
        version=st.just("1"),
        config=st.none() | st.just(BadSetting("f", "no")),
        store_problem=st.sampled_from(["", "gone"]),
        failures=st.dictionaries(st.sampled_from(["fold", "cost"]), st.integers(1, 3), max_size=2),
        charges_waiting=st.integers(0, 1),
        charges_lost=st.integers(0, 1),
    )
)
def test_health_is_ok_only_without_any_problem(health_status: HealthStatus) -> None:
    health = health_to_json(health_status)
    problems = [
        not health["config"]["valid"],
        not health["store"]["reachable"],
        health["failures"],
        *health["bills"].values(),
    ]

    assert (health["status"] == "ok") == (not any(problems))


async def test_metrics_are_in_prometheus_format() -> None:
    status, kind, body = await get_page("/metrics", HEALTHY)
    assert (status, kind.split(";")[0]) == (200, "text/plain")
    assert b'foveate_requests_total{agent="ana",model="m",provider="anthropic",status="200"} 3.0' in body

    _, kind, body = await get_page("/metrics", HEALTHY, accept=b"application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


async def test_pages_accept_only_reads() -> None:
    assert (await get_page("/health", HEALTHY, method="POST"))[0] == 405
    assert (await get_page("/ready", HEALTHY, method="HEAD"))[::2] == (200, b"")


def make_failing_probe(error: Exception) -> Callable[[], Awaitable[object]]:
    async def probe() -> object:
        raise error

    return probe


async def test_a_failing_or_stalled_store_is_reported_without_waiting() -> None:
    assert await probe_store(lambda: asyncio.sleep(0)) == ""
    assert await probe_store(make_failing_probe(StoreUnavailable("db", "gone"))) == "db: gone"
    assert await probe_store(make_failing_probe(RuntimeError("no"))) == "RuntimeError: no"
    assert await probe_store(lambda: asyncio.sleep(60), limit_seconds=0.01) == "no response within 0.01 s"


async def test_without_details_health_has_only_the_status() -> None:
    path = "/home/ana/foveate.sqlite"
    unreachable = HealthStatus(version="1", store=path, store_problem=f"{path}: is locked")
    assert await get_page("/health", HEALTHY, details=False) == (200, "application/json", b'{"status":"ok"}')
    assert (await get_page("/health", unreachable, details=False))[2] == b'{"status":"degraded"}'
    status, _, body = await get_page("/ready", unreachable, details=False)
    assert (status, body) == (503, b'{"ready":false,"problem":"the store cannot be reached"}')
    assert path in (await get_page("/ready", unreachable))[2].decode()
