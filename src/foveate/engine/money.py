"""Money on the way of a call: a cap is held before it is made, and its bill is booked after."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from foveate.cost.admission import Admission
from foveate.cost.caps import Cap, unchecked
from foveate.cost.ledger import Call, Category, Entry
from foveate.cost.price_book import PriceBook
from foveate.engine.exchange import Exchange
from foveate.engine.work import Work
from foveate.errors import CallRefused
from foveate.values import CacheUsage, Ttl, Usage

# What an answer may be where the request sets it no limit: more than most models can say.
_USUAL_OUTPUT_TOKENS = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions:
    """The caps that hold, and the prices."""

    caps: Sequence[Cap]
    prices: PriceBook


class HoldCaps:
    """What a call may cost is reserved under its caps, or the call is refused."""

    name = "cost"

    def __init__(self, admission: Admission, options: Callable[[], CostOptions]) -> None:
        self._admission = admission
        self._options = options

    async def take(self, work: Work) -> None:
        """Reserve it.

        Raises:
            CapExceeded: a cap has no room for it.
            CapUncheckable: its price is not known, or what was spent so far.
        """
        incoming, options = work.incoming, self._options()
        work.call = Call(
            id=incoming.id,
            agent=incoming.agent,
            session_id=work.session_id,
            provider=incoming.provider,
            model=work.model,
            category=Category.MAIN,
            at=work.now,
        )
        try:
            work.ceiling = _ceiling(work, options.prices)
            work.admitted = await self._admission.admit(work.call, work.ceiling, options.caps)
        except CallRefused:
            raise
        except Exception as error:  # a cap is held whatever fails: then nobody can say that there is room
            held = [cap for cap in options.caps if cap.holds(work.call)]
            if not held:
                raise
            raise unchecked(held[0], f"{type(error).__name__}: {error}", "look into the log") from error


def _ceiling(work: Work, prices: PriceBook) -> Decimal | None:
    """The most that a call can cost; None where that is not known."""
    if work.count is None:
        return None
    return prices.ceiling(
        work.model,
        provider=work.incoming.provider,
        input_tokens=work.count.upper,
        output_tokens=work.output_reserve or _USUAL_OUTPUT_TOKENS,
        at=work.now,
        ttl=_longest(work),
    )


def _longest(work: Work) -> Ttl | None:
    asked = [mark.ttl for mark in work.marks if mark.ttl is not None]
    if work.prompt is not None:
        asked += [piece.mark for piece in work.prompt.pieces if piece.mark is not None]
    return max(asked, key=lambda ttl: ttl.seconds, default=None)


class Book:
    """What a call was billed goes into the ledger."""

    def __init__(self, admission: Admission, options: Callable[[], CostOptions]) -> None:
        self._admission = admission
        self._options = options

    async def __call__(self, exchange: Exchange) -> None:
        """Book it, or free what was reserved where nothing is billed."""
        work = exchange.work
        if work is None or work.call is None:
            return
        usage = exchange.usage
        if usage is None:
            if work.admitted is not None and not _may_be_billed(exchange):
                await self._admission.release(work.admitted)
                return
            usage = Usage(cache=CacheUsage())
        await self._admission.settle(self._entry(exchange, work, work.call, usage))

    def _entry(self, exchange: Exchange, work: Work, call: Call, usage: Usage) -> Entry:
        is_known = exchange.usage is not None
        price = (
            self._options().prices.price(call.model, usage, provider=call.provider, at=call.at)
            if is_known
            else None
        )
        return Entry(
            call=call,
            usage=usage,
            dollars=price.dollars if price is not None else None,
            estimated_input_tokens=work.count.tokens if work.count is not None else None,
            estimated_dollars=work.ceiling,
            is_partial=not exchange.is_whole,
        )


def _may_be_billed(exchange: Exchange) -> bool:
    """Whether something may be billed of which we were not told: the provider has begun to answer."""
    return 200 <= exchange.status < 300
