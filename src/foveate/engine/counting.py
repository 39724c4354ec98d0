"""How a count is read: corrected by what bills have taught, or asked for at the upstream if that is wanted."""

from dataclasses import replace

from foveate.engine.asking import Asking
from foveate.engine.calibrating import Calibrations, learn, learner_of
from foveate.engine.work import Work
from foveate.session.counting import counted_beside
from foveate.tokens import RequestCount
from foveate.values import TokenCount


class Counts:
    """What stands between a raw count and the one that is decided by. Without `asking`, nobody is asked."""

    def __init__(self, calibrations: Calibrations, asking: Asking | None = None) -> None:
        self._calibrations = calibrations
        self._asking = asking

    async def asked(self, work: Work) -> bool:
        """Whether the upstream has counted the request; it is asked where the options want that each time."""
        if self._asking is None:
            return False
        total, is_no = await self._asking.always(work)
        work.is_doubtful = total is None and not is_no
        if total is None:
            return False
        work.count, work.estimate = total, None
        work.is_unexplained = bool(work.request.unexplained)
        return True

    async def asked_for_stored(self, work: Work) -> TokenCount | None:
        """Ask OpenAI for the size of a request and of what it continues; None if that is not wanted."""
        if self._asking is None or work.incoming.provider != "openai":
            return None
        return await self._asking.where_it_matters(work)

    def read(self, work: Work, counted: RequestCount) -> None:
        """Have the count of a request as it was made here be what is decided by."""
        work.estimate, work.is_unexplained = counted, bool(counted.unexplained)
        total = counted.total
        if work.is_doubtful:
            # It stands in for an endpoint that is failing, and the two kinds of counts must not be mixed.
            total = replace(total, exact=False)
        work.count = self._calibrations.applied(learner_of(work), total)

    async def surely(self, work: Work) -> None:
        """Have an estimate give way to what the upstream says, if it may be asked: a decision hangs on it."""
        if work.estimate is None and work.count is not None:
            # The upstream has counted already. What its messages come to is measured by ours.
            work.estimate = await counted_beside(work.request, work.counter)
            learn(self._calibrations, work, work.count.tokens)
        if self._asking is None or work.count is None or work.count.exact:
            return
        total = await self._asking.where_it_matters(work)
        if total is not None:
            work.count = total
            learn(self._calibrations, work, total.tokens)

    async def recount(self, work: Work) -> None:
        """Have a request that is only shown counted by its upstream, if the options allow to ask it."""
        if self._asking is None or work.count is None or work.count.exact or work.request.continues_stored:
            return
        total = await self._asking.where_opted_in(work)
        if total is not None:
            work.count = total
