"""Metrics, log and health pages of a gateway process."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from foveate.config.live_settings import ActiveConfig, LiveSettings
from foveate.engine.metrics.collector import MetricsCollector, WorkspaceCacheCounts
from foveate.engine.metrics.registry import Sample, merge_samples
from foveate.gateway.config import ResolvedConfig
from foveate.gateway.observability import access_log, worker_metrics
from foveate.gateway.observability.health import HealthStatus, build_health_pages, probe_store
from foveate.gateway.observability.otel import Telemetry, create_telemetry
from foveate.gateway.observability.request_observer import RequestRecorder
from foveate.gateway.request import AsgiApp

_LOG = logging.getLogger(__name__)

# How often the configuration is checked without requests, and workers write their metrics.
_REFRESH_SECONDS = 1.0
# How often the store is probed.
_PROBE_EVERY_SECONDS = 10.0
# Time for sending telemetry at shutdown.
_TELEMETRY_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedParts:
    """Parts of a gateway that health checks and metrics read.

    `probe` calls the store. `count_charges` returns how many charges wait and are lost, and how many
    reservations expired.
    """

    store: str
    probe: Callable[[], Awaitable[object]]
    count_charges: Callable[[], tuple[int, int, int]]
    workspaces: Callable[[], Mapping[str, WorkspaceCacheCounts]] = dict


class Instrumentation:
    """Observes one process of a gateway. Workers share their metrics in `folder`, if there are any."""

    def __init__(
        self,
        settings: LiveSettings[ResolvedConfig],
        *,
        version: str,
        log: access_log.LogWriter,
        folder: Path | None = None,
        clock: Callable[[], float] = time.time,
        export: Callable[[str], Telemetry] = create_telemetry,
    ) -> None:
        self.settings = settings
        self.version = version
        self._log = log
        self._folder = folder
        self._has_write_failed = False
        self._clock = clock
        self._export = export
        self._current: ActiveConfig[ResolvedConfig] | None = None
        self._shutdown_check: Callable[[], bool] = lambda: False
        self.metrics = MetricsCollector(version=version, clock=clock)
        self._telemetry: Telemetry | None = None
        self.request_observer = RequestRecorder(self.metrics, clock=clock, listener=lambda: self._telemetry)
        self.last_config = self.current_config()
        """The configuration at the last check; every request checks at its start."""

    def reload_config(self) -> None:
        """Check for a changed configuration now, however recent the last check is."""
        self.settings.check_next_time()
        self.current_config()

    def current_config(self) -> ResolvedConfig:
        """Return the configuration in force, and apply changes to log, metrics and telemetry."""
        current = self.settings.current()
        if current is not self._current:
            self._current, self.last_config = current, current.value
            server = current.value.settings.server
            access_log.set_level(server.log_level)
            self._log.as_json = server.log == "json"
            self.metrics.add_known_agents(agent.id for agent in current.value.settings.agents)
            self.metrics.set_health(config=current.problem is None)
            self._switch_telemetry(server.opentelemetry)
        return current.value

    def _switch_telemetry(self, is_on: bool) -> None:
        telemetry = self._telemetry
        if is_on and telemetry is None:
            try:
                self._telemetry = self._export(self.version)
            except Exception:  # noqa: BLE001 - third-party code, which must not affect requests
                _LOG.exception("OpenTelemetry could not be set up, continuing without it")
        if not is_on and telemetry is not None:
            self._telemetry = None
            Thread(target=telemetry.close, name="foveate telemetry", daemon=True).start()

    def is_shutting_down(self) -> bool:
        return self._shutdown_check()

    def set_shutdown_check(self, is_shutting_down: Callable[[], bool]) -> None:
        self._shutdown_check = is_shutting_down

    @asynccontextmanager
    async def serve_pages(self, parts: ObservedParts) -> AsyncIterator[dict[str, AsgiApp]]:
        """Yield the health pages, and keep their data up to date until the end of the block."""

        def poll() -> None:
            waiting, lost, expired = parts.count_charges()
            self.metrics.set_charges(waiting=waiting, lost=lost, expired=expired)
            self.metrics.set_workspace_counts(parts.workspaces())

        self.metrics.add_poll(poll)
        refresh_task = asyncio.create_task(self._refresh_loop(parts))
        try:
            yield build_health_pages(lambda: self.check_health(parts), self.samples)
        finally:
            refresh_task.cancel()
            await asyncio.wait([refresh_task])
            if self._folder is not None:
                self._write_samples(self._folder, self.metrics.samples())
            if self._telemetry is not None:
                close_task = asyncio.ensure_future(asyncio.to_thread(self._telemetry.close))
                await asyncio.wait([close_task], timeout=_TELEMETRY_SECONDS)

    async def check_health(self, parts: ObservedParts) -> HealthStatus:
        self.current_config()
        problem = await self._probe_store(parts)
        waiting, lost, _ = parts.count_charges()
        return HealthStatus(
            version=self.version,
            config=self._current.problem if self._current is not None else None,
            store=parts.store,
            store_problem=problem,
            failures=self.metrics.recent_failures.count_by_step(self._clock()),
            charges_waiting=waiting,
            charges_lost=lost,
            log_problem=self._log.problem,
            log_lines_lost=self._log.lost_lines,
            is_shutting_down=self._shutdown_check(),
        )

    async def _probe_store(self, parts: ObservedParts) -> str:
        problem = await probe_store(parts.probe)
        self.metrics.set_health(store=not problem)
        return problem

    def samples(self) -> list[Sample]:
        own = self.metrics.samples()
        return (
            own
            if self._folder is None
            else merge_samples([(own, True), *worker_metrics.read_other_workers(self._folder)])
        )

    async def _refresh_loop(self, parts: ObservedParts) -> None:
        probed_at = -_PROBE_EVERY_SECONDS
        while True:
            self.current_config()
            if time.monotonic() - probed_at >= _PROBE_EVERY_SECONDS:
                await self._probe_store(parts)
                probed_at = time.monotonic()
            if self._folder is not None:
                await asyncio.to_thread(self._write_samples, self._folder, self.metrics.samples())
            await asyncio.sleep(_REFRESH_SECONDS)

    def _write_samples(self, folder: Path, samples: list[Sample]) -> None:
        try:
            worker_metrics.write_samples(folder, samples)
        except OSError as error:
            if not self._has_write_failed:
                _LOG.warning(
                    "metrics of this worker cannot be written, so other workers do not report them: %s", error
                )
            self._has_write_failed = True
        else:
            self._has_write_failed = False
