"""Counts corrected by what providers billed, for each counter of each upstream.

A counter is one of a model: where its rules or its vocabulary change, it is another one, and learns anew.

What is kept of a turn is its raw count; the correction is made where a count is read. Nothing is learnt from a
bill that the request alone does not explain: one that is not whole, or holds what the provider has added.

What bills have taught, kept now and then: a gateway that starts again counts as well as before.
"""

import logging
from collections.abc import Callable, Mapping

from foveate.engine.background.debounce import Debouncer
from foveate.engine.context import RequestContext
from foveate.engine.exchange import Exchange
from foveate.errors import StoreUnavailable
from foveate.model import TokenCount
from foveate.session.counting import get_counter_name
from foveate.tokens.calibration import Calibration, CalibrationKey, CalibrationStore

MAX_CALIBRATIONS = 256
"""So many are remembered: models are named by clients, who may name as many as they like."""
# No tokenizer is farther than this from the one that stands in for it; what says so is not to be believed.
_MAX_CORRECTION = 2.0
_UNCALIBRATED = Calibration()


class Calibrations:
    """What the bills of each counter have taught, the ones heard of last. `learnt` is what was known before."""

    def __init__(self, known: Mapping[CalibrationKey, Calibration] | None = None) -> None:
        self._by_counter = dict(known or {})
        self._changed: dict[CalibrationKey, Calibration] = {}

    def get(self, learner: CalibrationKey) -> Calibration:
        """What is known of a counter at an upstream."""
        return self._by_counter.get(learner, _UNCALIBRATED)

    def observe(self, learner: CalibrationKey, estimated_tokens: int, reported_tokens: int) -> None:
        """One more bill of something that was estimated at so many tokens, raw."""
        calibration = self._by_counter.pop(learner, _UNCALIBRATED)  # so that it is the last one
        self._by_counter[learner] = self._changed[learner] = calibration.observe(
            estimated_tokens, reported_tokens
        )
        if len(self._by_counter) > MAX_CALIBRATIONS:
            oldest = next(iter(self._by_counter))
            del self._by_counter[oldest]
            self._changed.pop(oldest, None)

    @property
    def has_changes(self) -> bool:
        """Whether anything was learnt since `news`."""
        return bool(self._changed)

    def take_changes(self) -> Mapping[CalibrationKey, Calibration]:
        """What was learnt since this was last asked."""
        changes, self._changed = self._changed, {}
        return changes

    def correct(self, learner: CalibrationKey, count: TokenCount) -> TokenCount:
        """`count` as the bills have it, an exact one as it is; never more than twice as many, or half."""
        if count.exact:
            return count
        corrected = self.get(learner).correct(count)
        min_tokens, max_tokens = (
            int(count.tokens / _MAX_CORRECTION),
            max(int(_MAX_CORRECTION * count.tokens), count.upper),
        )
        if min_tokens <= corrected.tokens <= max_tokens and corrected.upper <= _MAX_CORRECTION * max_tokens:
            return corrected
        tokens = min(max(corrected.tokens, min_tokens, 1), max_tokens)
        upper = min(max(corrected.upper, tokens), int(_MAX_CORRECTION * max_tokens))
        return TokenCount(tokens, False, max(tokens, upper))


class Calibrate:
    """Has each bill correct the counts that come after it, and says how far the count before it was off."""

    def __init__(self, calibrations: Calibrations) -> None:
        self._calibrations = calibrations

    def __call__(self, exchange: Exchange) -> None:
        """Learn from the bill, where it is whole and can be compared."""
        context, usage = exchange.context, exchange.usage
        if context is None or context.token_count is None or usage is None or not 200 <= exchange.status < 300:
            return
        if not exchange.has_complete_usage or not exchange.is_complete or context.has_unexplained_input:
            return
        reported_tokens = usage.cache.input_tokens
        if reported_tokens <= 0 or context.token_count.tokens <= 0:
            return
        context.reported_tokens = reported_tokens
        context.drift_percent = 100 * (reported_tokens / context.token_count.tokens - 1)
        calibrate(self._calibrations, context, reported_tokens)


def calibrate(calibrations: Calibrations, context: RequestContext, tokens: int) -> None:
    """Have the true number of tokens of what is sent correct the estimate, where there was one."""
    raw_count = context.raw_count
    if raw_count is not None and not raw_count.total.exact and not raw_count.unexplained:
        calibrations.observe(calibration_key(context), raw_count.total.tokens, tokens)


def calibration_key(context: RequestContext) -> CalibrationKey:
    """Whose count the one of a request is."""
    return context.incoming.upstream, get_counter_name(context.counter)


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
