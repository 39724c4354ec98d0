"""What bills have taught, kept now and then: a gateway that starts again counts as well as before."""

import logging
from collections.abc import Callable

from foveate.engine.calibrating import MOST_LEARNERS, Calibrations
from foveate.engine.exchange import Exchange
from foveate.engine.soon import Soon
from foveate.errors import StoreUnavailable
from foveate.tokens.calibration import Lessons

_LOG = logging.getLogger(__name__)

EVERY_SECONDS = 5.0


class KeepLessons:
    """Keeps what the bills of a process teach. Closed by `close`. For one event loop."""

    def __init__(
        self,
        lessons: Lessons,
        calibrations: Calibrations,
        *,
        clock: Callable[[], float],
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        self._lessons = lessons
        self._calibrations = calibrations
        self._clock = clock
        self._soon = Soon(self._write, every_seconds)

    def __call__(self, exchange: Exchange) -> None:
        """Have it kept soon what a bill has taught."""
        if self._calibrations.has_news:
            self._soon.want()

    async def close(self) -> None:
        """Keep what was learnt so far."""
        await self._soon.close()

    async def _write(self) -> None:
        news = self._calibrations.news()
        if not news:
            return
        try:
            await self._lessons.keep(news, now=self._clock())
        except StoreUnavailable as error:  # the next bill of each brings it again
            _LOG.warning("what %d models taught could not be kept: %s", len(news), error)


async def calibrations_of(lessons: Lessons) -> Calibrations:
    """What was learnt before; nothing where the store cannot say."""
    try:
        return Calibrations(await lessons.learnt(limit=MOST_LEARNERS))
    except StoreUnavailable as error:
        _LOG.warning("what earlier bills taught is not known: %s", error)
        return Calibrations()
