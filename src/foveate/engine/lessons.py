"""What bills have taught, kept now and then: a gateway that starts again counts as well as before."""

import logging
from collections.abc import Callable

from foveate.engine.calibrating import MAX_CALIBRATIONS, Calibrations
from foveate.engine.exchange import Exchange
from foveate.engine.soon import Debouncer
from foveate.errors import StoreUnavailable
from foveate.tokens.calibration import CalibrationStore

_LOG = logging.getLogger(__name__)

SAVE_INTERVAL_SECONDS = 5.0


class SaveCalibrations:
    """Keeps what the bills of a process teach. Closed by `close`. For one event loop."""

    def __init__(
        self,
        store: CalibrationStore,
        calibrations: Calibrations,
        *,
        clock: Callable[[], float],
        interval_seconds: float = SAVE_INTERVAL_SECONDS,
    ) -> None:
        self._store = store
        self._calibrations = calibrations
        self._clock = clock
        self._debouncer = Debouncer(self._write, interval_seconds)

    def __call__(self, exchange: Exchange) -> None:
        """Have it kept soon what a bill has taught."""
        if self._calibrations.has_changes:
            self._debouncer.request()

    async def close(self) -> None:
        """Keep what was learnt so far."""
        await self._debouncer.close()

    async def _write(self) -> None:
        changes = self._calibrations.take_changes()
        if not changes:
            return
        try:
            await self._store.save(changes, now=self._clock())
        except StoreUnavailable as error:  # the next bill of each brings it again
            _LOG.warning("what %d models taught could not be kept: %s", len(changes), error)


async def load_calibrations(store: CalibrationStore) -> Calibrations:
    """What was learnt before; nothing where the store cannot say."""
    try:
        return Calibrations(await store.load_latest(limit=MAX_CALIBRATIONS))
    except StoreUnavailable as error:
        _LOG.warning("what earlier bills taught is not known: %s", error)
        return Calibrations()
