"""Calibration: counts are corrected by the usage that providers report, per counter and upstream.

A counter belongs to a model; if its rules or vocabulary change, it is another counter and starts from zero.
Stored counts of turns are raw and corrected when they are read. Incomplete usage, or usage that includes input
added by the provider, is ignored. Calibrations are saved periodically, so that a restarted gateway counts as
well as before.
"""

import logging
from collections.abc import Callable, Mapping

from foveate.engine.background.debouncer import Debouncer
from foveate.engine.exchange import Exchange
from foveate.engine.request_context import RequestContext
from foveate.errors import StoreUnavailable
from foveate.model import TokenCount
from foveate.session.counting import get_counter_name
from foveate.tokens.calibration import Calibration, CalibrationKey, CalibrationStore

_LOG = logging.getLogger(__name__)


MAX_CALIBRATIONS = 256
"""A limit, since clients may name any number of models."""
# No tokenizer differs more from its substitute; larger corrections are not credible.
_MAX_CORRECTION = 2.0
_UNCALIBRATED = Calibration()
SAVE_INTERVAL_SECONDS = 5.0


class Calibrations:
    """The most recently used calibrations. `known` are saved ones."""

    def __init__(self, known: Mapping[CalibrationKey, Calibration] | None = None) -> None:
        self._by_counter = dict(known or {})
        self._changed: dict[CalibrationKey, Calibration] = {}

    def get(self, key: CalibrationKey) -> Calibration:
        return self._by_counter.get(key, _UNCALIBRATED)

    def observe(self, key: CalibrationKey, estimated_tokens: int, reported_tokens: int) -> None:
        """Learn from the reported usage of a request with this raw estimate."""
        calibration = self._by_counter.pop(key, _UNCALIBRATED)  # so that it becomes the newest
        self._by_counter[key] = self._changed[key] = calibration.observe(estimated_tokens, reported_tokens)
        if len(self._by_counter) > MAX_CALIBRATIONS:
            oldest = next(iter(self._by_counter))
            del self._by_counter[oldest]
            self._changed.pop(oldest, None)

    @property
    def has_changes(self) -> bool:
        return bool(self._changed)

    def take_changes(self) -> Mapping[CalibrationKey, Calibration]:
        changes, self._changed = self._changed, {}
        return changes

    def correct(self, key: CalibrationKey, count: TokenCount) -> TokenCount:
        """Correct a count, by a factor of two at most; an exact count is returned as it is."""
        if count.exact:
            return count
        corrected = self.get(key).correct(count)
        min_tokens = int(count.tokens / _MAX_CORRECTION)
        max_tokens = max(int(_MAX_CORRECTION * count.tokens), count.upper)
        if min_tokens <= corrected.tokens <= max_tokens and corrected.upper <= _MAX_CORRECTION * max_tokens:
            return corrected
        tokens = min(max(corrected.tokens, min_tokens, 1), max_tokens)
        upper = min(max(corrected.upper, tokens), int(_MAX_CORRECTION * max_tokens))
        return TokenCount(tokens, False, max(tokens, upper))


class Calibrate:
    def __init__(self, calibrations: Calibrations) -> None:
        self._calibrations = calibrations

    def __call__(self, exchange: Exchange) -> None:
        context, usage = exchange.context, exchange.usage
        if context is None or context.count.total is None or usage is None or not 200 <= exchange.status < 300:
            return
        if not exchange.has_complete_usage or not exchange.is_complete or context.count.has_unexplained_input:
            return
        reported_tokens = usage.cache.input_tokens
        if reported_tokens <= 0 or context.count.total.tokens <= 0:
            return
        context.count.reported_tokens = reported_tokens
        context.count.drift_percent = 100 * (reported_tokens / context.count.total.tokens - 1)
        calibrate(self._calibrations, context, reported_tokens)


def calibrate(calibrations: Calibrations, context: RequestContext, tokens: int) -> None:
    """Learn from the true number of tokens, if the count was an estimate."""
    raw_count = context.count.raw
    if raw_count is not None and not raw_count.total.exact and not raw_count.unexplained:
        calibrations.observe(calibration_key(context), raw_count.total.tokens, tokens)


def calibration_key(context: RequestContext) -> CalibrationKey:
    return context.incoming.upstream, get_counter_name(context.counter)


class SaveCalibrations:
    """Saves changed calibrations periodically. For one event loop."""

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
        if self._calibrations.has_changes:
            self._debouncer.request()

    async def close(self) -> None:
        await self._debouncer.close()

    async def _write(self) -> None:
        changes = self._calibrations.take_changes()
        if not changes:
            return
        try:
            await self._store.save(changes, now=self._clock())
        except StoreUnavailable as error:  # the next response of each model changes it again
            _LOG.warning("token count calibrations of %d models could not be saved: %s", len(changes), error)


async def load_calibrations(store: CalibrationStore) -> Calibrations:
    """Load saved calibrations; none if the store is unavailable."""
    try:
        return Calibrations(await store.load_latest(limit=MAX_CALIBRATIONS))
    except StoreUnavailable as error:
        _LOG.warning("token count calibrations could not be loaded, starting without them: %s", error)
        return Calibrations()
