"""Corrects an estimate by what providers billed: a value that is fed pairs and can be stored.

The bill is taken to be a straight line over the estimate, `billed ≈ rate · estimated + extra`: a tokenizer that
cuts finer moves the rate, an unknown preamble is the extra. The line is fitted on relative errors by least
squares, held near `billed = estimated` by a prior that weighs about as much as one response, with old responses
forgotten slowly. Everything needed is a few running sums, so a response costs nothing and nothing else is kept.
"""

import math
from collections.abc import Mapping
from typing import Protocol

import msgspec

from foveate.model import TokenCount

# How sure we are beforehand that the rate is 1 and the extra 0, as standard deviations.
_RATE_SPREAD = 0.25
_EXTRA_SPREAD_TOKENS = 200.0
# What one response tells is taken to be uncertain by this much, relative.
_NOISE = 0.04
# So much all of these weigh.
_RATE_WEIGHT, _EXTRA_WEIGHT, _RESPONSE_WEIGHT = 1 / _RATE_SPREAD**2, 1 / _EXTRA_SPREAD_TOKENS**2, 1 / _NOISE**2
# The weight of a response halves after about 35 more, that of how far off it was after 7: the first ones are
# off because the line was not known yet.
_RESPONSE_DECAY = 0.98
_ERROR_DECAY = 0.9
# A bill this far off is believed to come from something the estimate could not see (a server-side tool).
_MAX_RATIO = 4.0
_MIN_RATIO = 1 / _MAX_RATIO
# Once this many responses are known, one that is off by more than this, and by more than `upper` covers, moves
# the line only as far as one that is off by just so much.
_SETTLED_RESPONSES = 4
_MAX_STEP = 0.15
# `upper` covers this many standard deviations of what was observed.
_UPPER_DEVIATIONS = 3.0


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one provider and model: feed it with `observed`, use it with `applied`."""

    responses: int = 0
    weight: float = 0.0
    sum_inverse: float = 0.0
    sum_inverse_squared: float = 0.0
    sum_ratio: float = 0.0
    sum_ratio_inverse: float = 0.0
    spread_weight: float = 0.0
    sum_error_squared: float = 0.0
    drift_percent: float = 0.0

    def observe(self, estimated_tokens: int, actual_tokens: int) -> "Calibration":
        """The calibration after one more response; a pair that cannot be compared changes nothing."""
        if estimated_tokens <= 0 or actual_tokens <= 0:
            return self
        ratio = actual_tokens / estimated_tokens
        if not _MIN_RATIO <= ratio <= _MAX_RATIO:
            return self
        inverse = 1 / estimated_tokens
        drift_percent = 100 * (ratio - 1)
        error = 0.0
        if self.responses:
            predicted = self._predict_ratio(inverse)
            error = self._limit_error(ratio - predicted)
            ratio = predicted + error
        return Calibration(
            responses=self.responses + 1,
            weight=self.weight * _RESPONSE_DECAY + 1,
            sum_inverse=self.sum_inverse * _RESPONSE_DECAY + inverse,
            sum_inverse_squared=self.sum_inverse_squared * _RESPONSE_DECAY + inverse**2,
            sum_ratio=self.sum_ratio * _RESPONSE_DECAY + ratio,
            sum_ratio_inverse=self.sum_ratio_inverse * _RESPONSE_DECAY + ratio * inverse,
            spread_weight=self.spread_weight * _ERROR_DECAY + (1 if self.responses else 0),
            sum_error_squared=self.sum_error_squared * _ERROR_DECAY + error**2,
            drift_percent=drift_percent,
        )

    def correct(self, count: TokenCount) -> TokenCount:
        """`count` corrected; an exact one stays as it is."""
        if count.exact or count.tokens <= 0 or not self.responses:
            return count
        predicted = self._predict_ratio(1 / count.tokens)
        tokens = max(1, round(count.tokens * predicted))
        # The estimate's own margin counts as much as one response against what was observed.
        relative_margin = max(0.0, count.upper / count.tokens - 1)
        variance = ((relative_margin / _UPPER_DEVIATIONS) ** 2 + self.sum_error_squared) / (
            1 + self.spread_weight
        )
        margin = tokens * _UPPER_DEVIATIONS * math.sqrt(variance)
        return TokenCount(tokens, False, tokens + math.ceil(margin))

    def _limit_error(self, error: float) -> float:
        """An error as far as it is believed: a single bill must not turn a line that many others drew."""
        if self.responses < _SETTLED_RESPONSES:
            return error
        deviation = math.sqrt(self.sum_error_squared / self.spread_weight)
        max_error = max(_MAX_STEP, _UPPER_DEVIATIONS * deviation)
        return min(max_error, max(-max_error, error))

    def _predict_ratio(self, inverse: float) -> float:
        """Bill over estimate for an estimate of `1 / inverse` tokens, never beyond what is believable."""
        a = self.weight * _RESPONSE_WEIGHT + _RATE_WEIGHT
        b = self.sum_inverse * _RESPONSE_WEIGHT
        d = self.sum_inverse_squared * _RESPONSE_WEIGHT + _EXTRA_WEIGHT
        x = self.sum_ratio * _RESPONSE_WEIGHT + _RATE_WEIGHT
        y = self.sum_ratio_inverse * _RESPONSE_WEIGHT
        determinant = a * d - b * b
        rate = (x * d - y * b) / determinant
        extra = (a * y - b * x) / determinant
        return min(_MAX_RATIO, max(_MIN_RATIO, rate + extra * inverse))

    def to_dict(self) -> dict[str, float]:
        """What a store keeps."""
        return msgspec.structs.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, float]) -> "Calibration":
        """What a store kept."""
        sums = {name: value for name, value in values.items() if name != "responses"}
        return cls(responses=int(values["responses"]), **sums)


CalibrationKey = tuple[str, str]
"""Whose count is corrected: an upstream, and a counter by the name that its counts are kept under."""


class CalibrationStore(Protocol):
    """Keeps what bills have taught."""

    async def load_latest(self, *, limit: int) -> Mapping[CalibrationKey, Calibration]:
        """What was kept last, the newest at the end."""

    async def save(self, calibrations: Mapping[CalibrationKey, Calibration], *, now: float) -> None:
        """Keep these, unless what is there has been learnt from more responses."""
