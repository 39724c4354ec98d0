"""Calibrations are saved periodically, and an unavailable store only delays that."""

from collections.abc import Mapping

from foveate.engine.completion_queue import CompletionQueue
from foveate.engine.counting.calibration import Calibrations, SaveCalibrations, load_calibrations
from foveate.engine.exchange import Exchange
from foveate.engine.observer import NO_OBSERVER
from foveate.engine.request import IncomingRequest, UpstreamRequest
from foveate.errors import StoreUnavailable
from foveate.model import Format
from foveate.tokens.calibration import Calibration, CalibrationKey

CALIBRATION = ("anthropic", "claude-opus-9")
INCOMING = IncomingRequest(
    id="r", agent="ana", api_format=Format.ANTHROPIC, provider="anthropic", upstream="anthropic", body=b""
)


def make_exchange() -> Exchange:
    return Exchange(
        INCOMING,
        None,
        UpstreamRequest(body=b""),
        clock=lambda: 0.0,
        observer=NO_OBSERVER,
        completer=CompletionQueue(),
    )


class InMemoryStore:
    """Keeps what it saves, unless it is unavailable."""

    def __init__(self) -> None:
        self.saved: list[Mapping[CalibrationKey, Calibration]] = []
        self.is_unavailable = False

    async def load_latest(self, *, limit: int) -> Mapping[CalibrationKey, Calibration]:
        self._check_available()
        return self.saved[-1]

    async def save(self, calibrations: Mapping[CalibrationKey, Calibration], *, now: float) -> None:
        self._check_available()
        self.saved.append(calibrations)

    def _check_available(self) -> None:
        if self.is_unavailable:
            raise StoreUnavailable("the store", "it is away")


async def test_changes_are_saved_together_and_known_after_a_restart() -> None:
    store, calibrations = InMemoryStore(), Calibrations()
    saver = SaveCalibrations(store, calibrations, clock=lambda: 1.0, interval_seconds=60)
    for _ in range(3):
        calibrations.observe(CALIBRATION, 1_000, 1_300)
        saver(make_exchange())
    await saver.close()

    assert store.saved == [{CALIBRATION: calibrations.get(CALIBRATION)}]
    assert (await load_calibrations(store)).get(CALIBRATION).responses == 3


async def test_nothing_is_saved_without_changes() -> None:
    store = InMemoryStore()
    saver = SaveCalibrations(store, Calibrations(), clock=lambda: 1.0, interval_seconds=0)
    saver(make_exchange())
    await saver.close()

    assert store.saved == []


async def test_changes_during_an_outage_of_the_store_are_saved_later() -> None:
    store, calibrations = InMemoryStore(), Calibrations()
    saver = SaveCalibrations(store, calibrations, clock=lambda: 1.0, interval_seconds=60)
    store.is_unavailable = True
    assert (await load_calibrations(store)).get(CALIBRATION).responses == 0
    calibrations.observe(CALIBRATION, 1_000, 1_300)
    await saver.close()
    store.is_unavailable = False
    calibrations.observe(CALIBRATION, 1_000, 1_300)
    await saver.close()

    assert [calibrations_saved[CALIBRATION].responses for calibrations_saved in store.saved] == [2]
