"""The step that counts the tokens of a request."""

from foveate.engine.counting import Counts
from foveate.engine.steps.names import COUNT
from foveate.engine.stored_sizes import StoredSizes
from foveate.engine.work import Work
from foveate.session.counting import TurnCounts, counted_beside
from foveate.session.turns import Turns
from foveate.values import Format


class Count:
    """How many tokens would be sent."""

    name = COUNT

    def __init__(self, turns: Turns, reading: Counts, sizes: StoredSizes | None = None) -> None:
        """`sizes`: what is known of conversations that providers store."""
        self._counts = TurnCounts(turns)
        self._reading = reading
        self._sizes = sizes or StoredSizes()

    async def take(self, work: Work) -> None:
        """Count what would be sent by now. Unknown: the size of what continues an unknown conversation."""
        if not work.options.token_counter:
            return
        if work.request.continues_stored:
            await self._take_stored(work)
            return
        if await self._reading.asked(work):
            return
        if work.request is work.came and work.chain is not None and work.found is not None:
            agent = work.incoming.agent
            known = await self._counts.counted(
                agent, work.request, work.chain, work.counter, known=work.found.known
            )
            if known.new:
                work.news.append(self._counts.news(agent, known))
            counted = known.count
        else:
            counted = await counted_beside(work.request, work.counter)
        self._reading.read(work, counted)

    async def _take_stored(self, work: Work) -> None:
        """Count a request together with the messages that the provider stores, if their size is known."""
        work.is_unexplained = True
        stored = self._sizes.size_of(work.incoming, work.came)
        if stored is not None:
            counted = await counted_beside(work.request, work.counter)
            work.count = stored + counted.total
        elif work.request.format is Format.RESPONSES:
            work.count = await self._reading.asked_for_stored(work)
        work.counts_stored = work.count is not None

    async def surely(self, work: Work) -> None:
        """Be sure of it where it can be had, since a decision hangs on it."""
        await self._reading.surely(work)
