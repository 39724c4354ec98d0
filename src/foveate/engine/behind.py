"""What is done with calls behind their answers: on each beat, with all that are over by then together."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence

from foveate.cost.admission import Admission
from foveate.engine.exchange import Exchange
from foveate.errors import StoreUnavailable
from foveate.session.news import News
from foveate.session.turns import Stored, Turns

_LOG = logging.getLogger(__name__)

_SECONDS = 0.02
# By then the others have beaten too, and have written.
_OTHERS_SECONDS = 0.05
_LONGEST_SECONDS = 5.0


class Behind:
    """Books, keeps and settles what is over, a moment after the first of it is. For one event loop."""

    def __init__(
        self, admission: Admission | None = None, turns: Turns | None = None, *, seconds: float = _SECONDS
    ) -> None:
        """Bills are booked where `admission` does, and what is known of sessions then is kept in `turns`."""
        self._admission = admission
        self._turns = turns
        self._seconds = seconds
        self._over: list[Exchange] = []
        self._next: asyncio.TimerHandle | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._keeping: set[asyncio.Task[None]] = set()

    def put(self, exchange: Exchange) -> None:
        """Have all done with an exchange that is over, on the next beat."""
        self._over.append(exchange)
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(self._seconds, self._beat)

    def keep(self, exchanges: Sequence[Exchange]) -> None:
        """Begin to keep what is to be kept of requests, which may have to wait for others."""
        news = [(one, told) for one in exchanges if one.work is not None for told in one.work.news]
        if news:
            _begin(self._keeping, self._kept(news))

    async def settled(self) -> None:
        """Have all done with what is over by now."""
        self._beat()
        if self._under_way:
            await asyncio.wait(set(self._under_way))

    async def caught_up(self) -> None:
        """The same, here and in the other processes; a store that is slow is not waited for."""
        self._beat()
        await asyncio.sleep(_OTHERS_SECONDS)
        if self._under_way:
            await asyncio.wait(set(self._under_way), timeout=_LONGEST_SECONDS)

    async def end(self) -> None:
        """Wait for all of it; for what waits for others not for long."""
        while self._over or self._under_way:
            await self.settled()
        if self._keeping:
            await asyncio.wait(set(self._keeping), timeout=_LONGEST_SECONDS)

    def _beat(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._over:
            over, self._over = self._over, []
            _begin(self._under_way, self._settle(over))

    async def _settle(self, over: Sequence[Exchange]) -> None:
        self.keep(over)  # together with the bills, so that all of it is one transaction
        if self._admission is not None:
            for do in (_book, _free):
                try:
                    await do(over, self._admission)
                except Exception as error:  # noqa: BLE001 - a border: what else is to be done is done all the same
                    for exchange in over:
                        exchange.failed("book", error)
        for exchange in over:
            exchange.settle()

    async def _kept(self, news: Sequence[tuple[Exchange, News]]) -> None:
        """Keep what can be kept together in one, and then all else, each alone."""
        rows = [_rows(told) for _, told in news]
        together = [one for one, row in zip(news, rows, strict=True) if row is not None]
        alone = [one for one, row in zip(news, rows, strict=True) if row is None]
        failed: dict[Exchange, Exception] = {}  # each request is reported once
        try:
            is_kept = await self._are_kept([row for row in rows if row is not None])
            alone += () if is_kept else together
            for _, told in together:
                told.kept(is_kept)
        except StoreUnavailable as error:  # one by one, they would only keep others from the store
            failed = {exchange: error for exchange, _ in together}
        done = await asyncio.gather(*(told.alone() for _, told in alone), return_exceptions=True)
        for (exchange, _), kept in zip(alone, done, strict=True):
            if isinstance(kept, Exception):
                failed.setdefault(exchange, kept)
        for exchange, problem in failed.items():
            exchange.failed("keep", problem)

    async def _are_kept(self, rows: Sequence[Stored]) -> bool:
        try:
            if self._turns is not None:
                await self._turns.keep(rows)
            return self._turns is not None
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a border: one that cannot be kept is not the end of the others
            _LOG.info("what requests have told is kept one by one: %s", error)
            return False


def _rows(told: News) -> Stored | None:
    try:
        return told.rows()
    except Exception as error:  # noqa: BLE001 - a border: alone, it is told what is wrong with it
        _LOG.info("what a request has told is kept alone: %s", error)
        return None


def _begin(tasks: set[asyncio.Task[None]], work: Coroutine[object, object, None]) -> None:
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _book(over: Sequence[Exchange], admission: Admission) -> None:
    """Book all bills."""
    bills = [exchange.entry for exchange in over if exchange.entry is not None]
    if bills:
        await admission.settle_all(bills)


async def _free(over: Sequence[Exchange], admission: Admission) -> None:
    """Free what was reserved where nothing is billed."""
    unbilled = [admitted for exchange in over if (admitted := exchange.unbilled) is not None]
    if unbilled:
        await asyncio.gather(*(admission.release(admitted) for admitted in unbilled))
