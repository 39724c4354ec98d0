"""Correction of estimates by the usage that providers report.

Usage is modelled as a line over the estimate, `actual ≈ rate · estimated + extra`: a finer tokenizer changes
the rate, an unknown preamble is the extra. The line is fitted to relative errors by least squares. A prior that
weighs about as much as one response holds it near `actual = estimated`, and old responses decay slowly. A few
running sums hold everything, so a response costs almost nothing.
"""

import math
from collections.abc import Mapping
from typing import Protocol

import msgspec

from foveate.model import TokenCount

# The prior: standard deviations of the rate around 1, and of the extra around 0.
_RATE_SPREAD = 0.25
_EXTRA_SPREAD_TOKENS = 200.0
# Relative uncertainty of one response.
_NOISE = 0.04
# Weights in the least-squares fit.
_RATE_WEIGHT, _EXTRA_WEIGHT, _RESPONSE_WEIGHT = 1 / _RATE_SPREAD**2, 1 / _EXTRA_SPREAD_TOKENS**2, 1 / _NOISE**2
# The weight of a response halves after about 35 more, that of its error after 7, because the first errors come
# from a line that was not fitted yet.
_RESPONSE_DECAY = 0.98
_ERROR_DECAY = 0.9
# Usage this far off comes from something that the estimate could not see, such as a server-side tool.
_MAX_RATIO = 4.0
_MIN_RATIO = 1 / _MAX_RATIO
# From this many responses on, an error larger than this, and larger than `upper` covers, is limited to that
# size.
_SETTLED_RESPONSES = 4
_MAX_STEP = 0.15
# `upper` covers this many standard deviations of the observed errors.
_UPPER_DEVIATIONS = 3.0


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
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
        """Return the calibration after one more response. A pair that cannot be compared changes nothing."""
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
        """An exact count is not changed."""
        if count.exact or count.tokens <= 0 or not self.responses:
            return count
        predicted = self._predict_ratio(1 / count.tokens)
        tokens = max(1, round(count.tokens * predicted))
        # The margin of the estimate weighs as much as one response.
        relative_margin = max(0.0, count.upper / count.tokens - 1)
        variance = ((relative_margin / _UPPER_DEVIATIONS) ** 2 + self.sum_error_squared) / (
            1 + self.spread_weight
        )
        margin = tokens * _UPPER_DEVIATIONS * math.sqrt(variance)
        return TokenCount(tokens, False, tokens + math.ceil(margin))

    def _limit_error(self, error: float) -> float:
        """Limit an error, so that a single response does not change a line fitted to many."""
        if self.responses < _SETTLED_RESPONSES:
            return error
        deviation = math.sqrt(self.sum_error_squared / self.spread_weight)
        max_error = max(_MAX_STEP, _UPPER_DEVIATIONS * deviation)
        return min(max_error, max(-max_error, error))

    def _predict_ratio(self, inverse: float) -> float:
        """Predict the ratio of usage to an estimate of `1 / inverse` tokens, within the plausible range."""
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
        return msgspec.structs.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, float]) -> "Calibration":
        sums = {name: value for name, value in values.items() if name != "responses"}
        return cls(responses=int(values["responses"]), **sums)


CalibrationKey = tuple[str, str]
"""The upstream, and the name of the counter whose counts are corrected."""


class CalibrationStore(Protocol):
    async def load_latest(self, *, limit: int) -> Mapping[CalibrationKey, Calibration]:
        """Load the calibrations saved last, the newest at the end."""

    async def save(self, calibrations: Mapping[CalibrationKey, Calibration], *, now: float) -> None:
        """Save calibrations, except those for which the stored one has more responses."""
