"""Health pages, metrics and log follow changes while the gateway runs."""

import io
import json
import logging
import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from foveate.config.live_settings import LiveSettings
from foveate.context.workspace_cache import WorkspaceCacheStats
from foveate.engine.metrics import definitions
from foveate.engine.metrics.registry import MetricsRegistry
from foveate.errors import StoreUnavailable
from foveate.gateway.config import ResolvedConfig, resolve_config
from foveate.gateway.observability import worker_metrics
from foveate.gateway.observability.access_log import LogWriter
from foveate.gateway.observability.health import DETAILS_SCOPE_KEY
from foveate.gateway.observability.instrumentation import Instrumentation, ObservedParts
from foveate.gateway.observability.otel import Telemetry
from foveate.gateway.request import AsgiApp


class Store:
    """A store that can be made unavailable."""

    def __init__(self) -> None:
        self.is_available = True

    async def probe(self) -> object:
        if not self.is_available:
            raise StoreUnavailable("db.example/foveate", "no connection")
        return None


@pytest.fixture
def foveate_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("foveate")
    before = logger.level
    yield logger
    logger.setLevel(before)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "foveate.yaml"
    path.write_text("agents: [{id: ana}]\n")
    return path


def write_config(path: Path, text: str) -> None:
    path.write_text(text)


def live_settings(path: Path) -> LiveSettings[ResolvedConfig]:
    return LiveSettings(path, lambda result: resolve_config(result, {}), check_interval_seconds=0.0)


def make_instrumentation(path: Path, *, folder: Path | None = None) -> tuple[Instrumentation, LogWriter]:
    writer = LogWriter(io.BytesIO(), as_json=False, colours=False)
    return Instrumentation(live_settings(path), version="1.2.3", log=writer, folder=folder), writer


def make_parts(store: Store) -> ObservedParts:
    return ObservedParts(
        store="db.example/foveate",
        probe=store.probe,
        count_charges=lambda: (2, 1, 3),
        workspaces=lambda: {"/w": WorkspaceCacheStats(hits=4, misses=2, invalidations=1)},
    )


async def get_page(page: AsgiApp) -> tuple[int, bytes]:
    messages: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request"}

    await page({"method": "GET", "headers": [], DETAILS_SCOPE_KEY: True}, receive, send)
    return messages[0]["status"], messages[1]["body"]


async def test_every_page_shows_whether_the_store_is_available(config: Path) -> None:
    instrumentation, _ = make_instrumentation(config)
    store = Store()
    async with instrumentation.serve_pages(make_parts(store)) as pages:
        assert (await get_page(pages["/ready"]))[0] == 200

        store.is_available = False
        assert await get_page(pages["/ready"]) == (
            503,
            b'{"ready":false,"problem":"db.example/foveate: no connection"}',
        )
        status, body = await get_page(pages["/health"])
        assert (status, json.loads(body)["store"]["reachable"]) == (200, False)
        assert b"foveate_store_up 0.0" in (await get_page(pages["/metrics"]))[1]

        store.is_available = True
        assert (await get_page(pages["/ready"]))[0] == 200
        assert b"foveate_store_up 1.0" in (await get_page(pages["/metrics"]))[1]

        instrumentation.set_shutdown_check(lambda: True)
        assert (await get_page(pages["/ready"]))[0] == 503


async def test_metrics_include_polled_values(config: Path) -> None:
    instrumentation, _ = make_instrumentation(config)
    async with instrumentation.serve_pages(make_parts(Store())) as pages:
        _, body = await get_page(pages["/metrics"])

    for line in (
        b"foveate_bills_waiting 2.0",
        b"foveate_bills_lost_total 1.0",
        b"foveate_reservations_lapsed_total 3.0",
        b'workspace_cache_hits_total{path="/w"} 4.0',
        b'workspace_cache_misses_total{path="/w"} 2.0',
        b'workspace_cache_invalidations_total{path="/w"} 1.0',
        b'foveate_build_info{version="1.2.3"} 1.0',
    ):
        assert line in body


async def test_a_changed_configuration_applies_and_an_invalid_one_is_only_reported(
    config: Path, foveate_logger: logging.Logger
) -> None:
    instrumentation, writer = make_instrumentation(config)
    async with instrumentation.serve_pages(make_parts(Store())) as pages:
        write_config(config, "server: {log: json, log_level: warning}  # changed\n")
        instrumentation.current_config()
        assert (writer.as_json, foveate_logger.level) == (True, logging.WARNING)

        write_config(config, "server: {log: lines, log_level: loud}\n")
        _, body = await get_page(pages["/health"])
        assert (writer.as_json, foveate_logger.level) == (True, logging.WARNING)
        health = json.loads(body)
        assert (health["status"], health["config"]["line"]) == ("degraded", 1)
        assert "log_level must be one of" in health["config"]["problem"]
        assert b"foveate_config_valid 0.0" in (await get_page(pages["/metrics"]))[1]


def test_the_configuration_changes_at_the_start_of_the_next_request(config: Path) -> None:
    live = LiveSettings(config, lambda result: resolve_config(result, {}), check_interval_seconds=60.0)
    writer = LogWriter(io.BytesIO(), as_json=False, colours=False)
    instrumentation = Instrumentation(live, version="1", log=writer)

    write_config(config, "server: {port: 9123}\n")
    assert instrumentation.last_config.settings.server.port != 9123
    instrumentation.reload_config()
    assert instrumentation.last_config.settings.server.port == 9123


class RecordingTelemetry(Telemetry):
    """Telemetry that only records whether it was closed."""

    def __init__(self) -> None:
        self.closed = Event()

    def close(self) -> None:
        self.closed.set()


async def test_telemetry_can_be_switched_on_and_off_at_run_time(config: Path) -> None:
    created: list[RecordingTelemetry] = []

    def export(_version: str) -> Telemetry:
        created.append(RecordingTelemetry())
        return created[-1]

    writer = LogWriter(io.BytesIO(), as_json=False, colours=False)
    instrumentation = Instrumentation(live_settings(config), version="1", log=writer, export=export)
    assert created == []
    write_config(config, "server: {opentelemetry: true}\n")
    instrumentation.current_config()
    instrumentation.current_config()
    assert len(created) == 1
    write_config(config, "server: {opentelemetry: false}\n")
    instrumentation.current_config()
    assert created[0].closed.wait(10)

    write_config(config, "server: {opentelemetry: true}  # again\n")
    instrumentation.current_config()
    async with instrumentation.serve_pages(make_parts(Store())):
        assert not created[1].closed.is_set()
    assert created[1].closed.is_set()


def test_failing_telemetry_is_logged_and_does_not_affect_requests(
    config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def export(_version: str) -> Telemetry:
        raise ValueError("of a variable that makes no sense")

    write_config(config, "server: {opentelemetry: true}\n")
    writer = LogWriter(io.BytesIO(), as_json=False, colours=False)
    instrumentation = Instrumentation(live_settings(config), version="1", log=writer, export=export)

    assert instrumentation.current_config().settings.server.opentelemetry
    assert "OpenTelemetry could not be set up, continuing without it" in caplog.text


async def test_a_workers_page_includes_other_workers_and_its_metrics_remain_at_its_end(
    config: Path,
) -> None:
    environment: dict[str, str] = {}
    folder = worker_metrics.create_folder(environment)
    try:
        other_registry = MetricsRegistry()
        other_registry.scalar(definitions.REQUESTS, "ana", "anthropic", "m", "200").value = 3
        worker_metrics.write_samples(folder, other_registry.samples())
        (folder / f"{os.getpid()}.live").rename(folder / "1.live")  # as another process would

        instrumentation, _ = make_instrumentation(config, folder=worker_metrics.find_folder(environment))
        async with instrumentation.serve_pages(make_parts(Store())) as pages:
            instrumentation.metrics.count_response("ana", "anthropic", "m", 200)
            _, body = await get_page(pages["/metrics"])
        assert b'foveate_requests_total{agent="ana",model="m",provider="anthropic",status="200"} 4.0' in body
        assert (folder / f"{os.getpid()}.live").exists()
    finally:
        worker_metrics.remove_folder(folder)


async def test_metrics_that_cannot_be_written_are_logged_once(
    config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: every worker warned every second."""
    (tmp_path / "file").touch()
    instrumentation, _ = make_instrumentation(config, folder=tmp_path / "file")
    for _ in range(2):  # metrics are written at the end of each
        async with instrumentation.serve_pages(make_parts(Store())):
            pass

    assert caplog.text.count("metrics of this worker cannot be written") == 1


async def test_a_configured_agent_always_has_its_own_label(config: Path) -> None:
    instrumentation, _ = make_instrumentation(config)
    for number in range(200):
        instrumentation.metrics.count_rejection(f"stranger {number}", "cap_exceeded")
    instrumentation.metrics.count_rejection("ana", "cap_exceeded")
    async with instrumentation.serve_pages(make_parts(Store())) as pages:
        _, body = await get_page(pages["/metrics"])

    assert b'foveate_refusals_total{agent="ana",code="cap_exceeded"} 1.0' in body
    assert b'foveate_refusals_total{agent="other",code="cap_exceeded"} 100.0' in body
