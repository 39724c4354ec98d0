"""A gateway as it is watched: what is counted, what is told in the log, and what its pages say."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from foveate.config.live import InForce, LiveSettings
from foveate.engine.board import Sample, summed
from foveate.engine.metrics import Bundles, Metrics
from foveate.gateway import logs, metrics_folder
from foveate.gateway.configured import Choices
from foveate.gateway.pages import Page, Vitals, pages, probed
from foveate.gateway.telemetry import Telemetry, exporting
from foveate.gateway.traffic import Seen

_LOG = logging.getLogger(__name__)

# So often a change of the configuration is looked for where no request does, and workers write their numbers.
_TEND_SECONDS = 1.0
# And so often, in seconds, the store is asked whether it is there.
_PROBE_EVERY_SECONDS = 10.0
# So long telemetry has to be sent at the end.
_TELEMETRY_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What is looked at from outside: where the store is and whether it answers, bills, workspaces.

    Of bills: how many wait and are lost, and how many reservations ran out.
    """

    store: str
    probe: Callable[[], Awaitable[object]]
    bills: Callable[[], tuple[int, int, int]]
    workspaces: Callable[[], Mapping[str, Bundles]] = dict


class Observing:
    """Watches one process of a gateway; `folder` is where its workers put their numbers, if any."""

    def __init__(
        self,
        settings: LiveSettings[Choices],
        *,
        version: str,
        log: logs.LogWriter,
        folder: Path | None = None,
        clock: Callable[[], float] = time.time,
        export: Callable[[str], Telemetry] = exporting,
    ) -> None:
        self.settings = settings
        self.version = version
        self._log = log
        self._folder = folder
        self._is_unwritten = False
        self._clock = clock
        self._export = export
        self._now: InForce[Choices] | None = None
        self._is_ending: Callable[[], bool] = lambda: False
        self.metrics = Metrics(version=version, clock=clock)
        self._telemetry: Telemetry | None = None
        self.traffic = Seen(self.metrics, log.put, clock=clock, listener=lambda: self._telemetry)
        self.chosen = self.choices()
        """What was decided when somebody last looked, as each request does at its beginning."""

    def begin(self) -> None:
        """Look whether something has changed, however lately somebody has."""
        self.settings.look_again()
        self.choices()

    def choices(self) -> Choices:
        """What is decided now; what changed is seen here first."""
        now = self.settings.now()
        if now is not self._now:
            self._now, self.chosen = now, now.made
            server = now.made.settings.server
            logs.set_level(server.log_level)
            self._log.as_json = server.log == "json"
            self.metrics.know(agent.id for agent in now.made.settings.agents)
            self.metrics.holds(config=now.problem is None)
            self._switch_telemetry(server.opentelemetry)
        return now.made

    def _switch_telemetry(self, is_on: bool) -> None:
        before = self._telemetry
        if is_on and before is None:
            try:
                self._telemetry = self._export(self.version)
            except Exception:  # noqa: BLE001 - a border to others' code and variables, on which no request depends
                _LOG.exception("there is no OpenTelemetry: it cannot be set up")
        if not is_on and before is not None:
            self._telemetry = None
            Thread(target=before.close, name="foveate telemetry", daemon=True).start()

    def is_ending(self) -> bool:
        """Whether no more requests should be sent here."""
        return self._is_ending()

    def ends_when(self, is_ending: Callable[[], bool]) -> None:
        """Say that no more requests should be sent here, from when `is_ending` is true."""
        self._is_ending = is_ending

    @asynccontextmanager
    async def running(self, parts: Parts) -> AsyncIterator[dict[str, Page]]:
        """The pages of the gateway, while what they show is kept up to date."""

        def poll() -> None:
            waiting, lost, lapsed = parts.bills()
            self.metrics.bills(waiting=waiting, lost=lost, lapsed=lapsed)
            self.metrics.workspaces(parts.workspaces())

        self.metrics.polls(poll)
        tending = asyncio.create_task(self._tend(parts))
        try:
            yield pages(lambda: self.look(parts), self.samples)
        finally:
            tending.cancel()
            await asyncio.wait([tending])
            if self._folder is not None:
                self._write(self._folder, self.metrics.samples())
            if self._telemetry is not None:
                closing = asyncio.ensure_future(asyncio.to_thread(self._telemetry.close))
                await asyncio.wait([closing], timeout=_TELEMETRY_SECONDS)

    async def look(self, parts: Parts) -> Vitals:
        """How the gateway is."""
        self.choices()
        problem = await self._probed(parts)
        waiting, lost, _ = parts.bills()
        return Vitals(
            version=self.version,
            config=self._now.problem if self._now is not None else None,
            store=parts.store,
            store_problem=problem,
            failures=self.metrics.troubles.recent(self._clock()),
            bills_waiting=waiting,
            bills_lost=lost,
            log_problem=self._log.problem,
            log_lost=self._log.lost,
            is_ending=self._is_ending(),
        )

    async def _probed(self, parts: Parts) -> str:
        problem = await probed(parts.probe)
        self.metrics.holds(store=not problem)
        return problem

    def samples(self) -> list[Sample]:
        """All that is counted, by all workers."""
        own = self.metrics.samples()
        return own if self._folder is None else summed([(own, True), *metrics_folder.others(self._folder)])

    async def _tend(self, parts: Parts) -> None:
        asked_at = -_PROBE_EVERY_SECONDS
        while True:
            self.choices()
            if time.monotonic() - asked_at >= _PROBE_EVERY_SECONDS:
                await self._probed(parts)
                asked_at = time.monotonic()
            if self._folder is not None:
                await asyncio.to_thread(self._write, self._folder, self.metrics.samples())
            await asyncio.sleep(_TEND_SECONDS)

    def _write(self, folder: Path, samples: list[Sample]) -> None:
        try:
            metrics_folder.write(folder, samples)
        except OSError as error:
            if not self._is_unwritten:
                _LOG.warning("the numbers cannot be written for the other workers: %s", error)
            self._is_unwritten = True
        else:
            self._is_unwritten = False
