"""Counts corrected by what providers billed, for each counter of each upstream.

A counter is one of a model: where its rules or its vocabulary change, it is another one, and learns anew.

What is kept of a turn is its raw count; the correction is made where a count is read. Nothing is learnt from a
bill that the request alone does not explain: one that is not whole, or holds what the provider has added.
"""

from collections.abc import Mapping

from foveate.engine.exchange import Exchange
from foveate.engine.work import Work
from foveate.session.counting import name_of
from foveate.tokens.calibration import Calibration, Learner
from foveate.values import TokenCount

MOST_LEARNERS = 256
"""So many are remembered: models are named by clients, who may name as many as they like."""
# No tokenizer is farther than this from the one that stands in for it; what says so is not to be believed.
_FARTHEST = 2.0
_UNKNOWN = Calibration()


class Calibrations:
    """What the bills of each counter have taught, the ones heard of last. `learnt` is what was known before."""

    def __init__(self, learnt: Mapping[Learner, Calibration] | None = None) -> None:
        self._kept = dict(learnt or {})
        self._new: dict[Learner, Calibration] = {}

    def of(self, learner: Learner) -> Calibration:
        """What is known of a counter at an upstream."""
        return self._kept.get(learner, _UNKNOWN)

    def observed(self, learner: Learner, estimated_tokens: int, billed_tokens: int) -> None:
        """One more bill of something that was estimated at so many tokens, raw."""
        known = self._kept.pop(learner, _UNKNOWN)  # so that it is the last one
        self._kept[learner] = self._new[learner] = known.observed(estimated_tokens, billed_tokens)
        if len(self._kept) > MOST_LEARNERS:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            self._new.pop(oldest, None)

    @property
    def has_news(self) -> bool:
        """Whether anything was learnt since `news`."""
        return bool(self._new)

    def news(self) -> Mapping[Learner, Calibration]:
        """What was learnt since this was last asked."""
        news, self._new = self._new, {}
        return news

    def applied(self, learner: Learner, count: TokenCount) -> TokenCount:
        """`count` as the bills have it, an exact one as it is; never more than twice as many, or half."""
        if count.exact:
            return count
        found = self.of(learner).applied(count)
        least, most = int(count.tokens / _FARTHEST), max(int(_FARTHEST * count.tokens), count.upper)
        if least <= found.tokens <= most and found.upper <= _FARTHEST * most:
            return found
        tokens = min(max(found.tokens, least, 1), most)
        upper = min(max(found.upper, tokens), int(_FARTHEST * most))
        return TokenCount(tokens, False, max(tokens, upper))


class Calibrate:
    """Has each bill correct the counts that come after it, and says how far the count before it was off."""

    def __init__(self, calibrations: Calibrations) -> None:
        self._calibrations = calibrations

    def __call__(self, exchange: Exchange) -> None:
        """Learn from the bill, where it is whole and can be compared."""
        work, usage = exchange.work, exchange.usage
        if work is None or work.count is None or usage is None or not 200 <= exchange.status < 300:
            return
        if not exchange.has_bill or not exchange.is_whole or work.is_unexplained:
            return
        billed = usage.cache.input_tokens
        if billed <= 0 or work.count.tokens <= 0:
            return
        work.billed_tokens = billed
        work.drift_percent = 100 * (billed / work.count.tokens - 1)
        learn(self._calibrations, work, billed)


def learn(calibrations: Calibrations, work: Work, tokens: int) -> None:
    """Have the true number of tokens of what is sent correct the estimate, where there was one."""
    raw = work.estimate
    if raw is not None and not raw.total.exact and not raw.unexplained:
        calibrations.observed(learner_of(work), raw.total.tokens, tokens)


def learner_of(work: Work) -> Learner:
    """Whose count the one of a request is."""
    return work.incoming.upstream, name_of(work.counter)
