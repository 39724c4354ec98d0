"""Money on the way of a call: a cap is held before it is made, and its bill is booked after."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from decimal import Decimal

from msgspec.structs import replace

from foveate.cost.admission import Admission, Admitted
from foveate.cost.caps import Cap, Unknown, unchecked
from foveate.cost.ledger import Call, Category, Entry
from foveate.cost.price_book import PriceBook
from foveate.cost.savings import PriceOf, compare, pricing
from foveate.engine.bounds import at_most, unknown_features
from foveate.engine.cost_features import header_features, without_allowed
from foveate.engine.exchange import Exchange
from foveate.engine.options import MoneyOptions
from foveate.engine.output_limits import limit_output
from foveate.engine.remembered import Remembered
from foveate.engine.step_names import COST
from foveate.engine.work import Work
from foveate.errors import CallRefused, CapExceeded
from foveate.session.counting import beside
from foveate.tokens.threads import run_in_thread
from foveate.values import NOTHING, STORED_HISTORY, CacheUsage, Comparison, Savings, Usage
from foveate.wire.large_json import LARGE_BYTES

_LEAVE_OUT = (
    "leave it out, name it in `cost.allow_fields` if what it adds does not matter, or say `unknown: allow` with"
    " the cap"
)
_UNKNOWN_SIZE = "the provider keeps the earlier messages of this conversation, so its size is not known here"
_SEND_ALL = "send the whole conversation with each request, or say `unknown: allow` with the cap"


class HoldCaps:
    """What a call may cost is reserved under its caps, or the call is refused.

    Where no cap holds for it, that is worked out while its provider answers.
    """

    name = COST

    def __init__(
        self,
        admission: Admission,
        options: Callable[[], MoneyOptions],
        caught_up: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`caught_up` waits until all that is billed by now is booked."""
        self._admission = admission
        self._options = options
        self._caught_up = caught_up

    async def take(self, work: Work) -> None:
        """Reserve it.

        Raises:
            CapExceeded: a cap has no room for it.
            CapUncheckable: its price is not known, or what was spent so far.
        """
        incoming, options = work.incoming, self._options()
        call = work.call = Call(
            id=incoming.id,
            agent=incoming.agent,
            session_id=work.session_id,
            provider=incoming.provider,
            model=work.model,
            category=Category.MAIN,
            at=work.now,
            region=incoming.region,
            is_subscription=incoming.is_subscription,
        )
        held = [cap for cap in options.caps if cap.holds(call)]
        size_bytes = len(work.request.body)
        if not held:
            if size_bytes < LARGE_BYTES:
                asyncio.get_running_loop().call_soon(self._expect_meanwhile, work, options)
            else:
                await run_in_thread(lambda: _try_to_expect(work, options), size_bytes)
            return
        if work.has_unknown_size:
            for cap in held:
                if cap.unknown is Unknown.REFUSE:
                    raise unchecked(cap, _UNKNOWN_SIZE, _SEND_ALL)
        try:
            unknown = await beside(lambda: _expect(work, options), size_bytes, least_bytes=LARGE_BYTES)
            check_unknown(held, unknown)
            work.admitted = await self._admit(work, call, held, options)
        except CallRefused:
            raise
        except Exception as error:  # a cap is held whatever fails: then nobody can say that there is room
            said = f"{type(error).__name__}: {error}"
            raise unchecked(held[0], said, "look into the log", is_outage=True) from error

    def _expect_meanwhile(self, work: Work, options: MoneyOptions) -> None:
        _try_to_expect(work, options)
        self._admission.announce_ceiling(work.incoming.id, work.ceiling)

    async def _admit(self, work: Work, call: Call, caps: Sequence[Cap], options: MoneyOptions) -> Admitted:
        """Admit a call, with an output limit that fits under the caps if it has none and needs one.

        Raises:
            CallRefused: as `Admission.admit` does.
        """
        whole = work.at_most
        while True:
            try:
                return await let_through(self._admission, call, work.ceiling, caps, caught_up=self._caught_up)
            except CapExceeded as refused:
                if whole is None or work.ceiling is None or work.ceiling <= refused.room:
                    raise
                if work.is_unchanged:
                    raise
                # Another cap may then ask for a lower limit, and so may calls that were admitted meanwhile.
                work.output_limit, work.at_most = limit_output(
                    work.request,
                    whole,
                    refused,
                    caps,
                    prices=options.prices,
                    min_tokens=options.min_output_tokens,
                )
                work.ceiling = work.at_most.dollars(options.prices)


def check_unknown(caps: Iterable[Cap], unknown: str) -> None:
    """Refuse a call with something `unknown` in it, if one of the caps that hold for it says so.

    Raises:
        CapUncheckable: nobody can say what it costs.
    """
    for cap in caps:
        if unknown and cap.unknown is Unknown.REFUSE:
            raise unchecked(cap, f"nobody knows how much {unknown} may add to the cost", _LEAVE_OUT)


async def let_through(
    admission: Admission,
    call: Call,
    ceiling: Decimal | None,
    caps: Sequence[Cap],
    *,
    caught_up: Callable[[], Awaitable[None]] | None,
) -> Admitted:
    """What is let through. Before it is refused, bills take the place of what their calls had reserved.

    Raises:
        CallRefused: as `Admission.admit` does.
    """
    try:
        return await admission.admit(call, ceiling, caps)
    except CapExceeded:
        if caught_up is None:
            raise
    await caught_up()
    return await admission.admit(call, ceiling, caps)


def _expect(work: Work, options: MoneyOptions) -> str:
    """Work out what a call can come to; nothing is known of one that was not counted.

    Returns what makes its cost unknown, if that is a feature of the request; a cap that allows it still
    reserves the rest. What the provider stores fits into the window, whatever its size.
    """
    prices, allowed = options.prices, options.allow_fields
    features = unknown_features(work.request, work.incoming.provider, allowed)
    features += without_allowed(header_features(work.incoming.cost_headers), allowed)
    unknown = str(features[0]) if features else ""
    count = NOTHING if work.count is None and work.has_unknown_size else work.count
    if count is None:
        return unknown
    most = at_most(
        work.request,
        count,
        provider=work.incoming.provider,
        window_tokens=work.widest_tokens,
        ttl=work.longest_ttl,
        at=work.now,
        unexplained=work.unexplained,
        counted=STORED_HISTORY if work.counts_stored else frozenset(),
        region=work.incoming.region or None,
        allowed=allowed,
    )
    work.ceiling = most.dollars(prices) if most is not None else None
    work.at_most = most
    if not unknown and most is not None and work.ceiling is None:
        return most.unpriced(prices)
    return unknown


def _try_to_expect(work: Work, options: MoneyOptions) -> None:
    with suppress(Exception):  # a border: it is tried once more with the bill, and told then
        _expect(work, options)


class Book:
    """What a call was billed goes into the ledger.

    It is noted before the client has all of the answer. What was saved on it is added afterwards.
    """

    def __init__(
        self, admission: Admission, options: Callable[[], MoneyOptions], remembered: Remembered
    ) -> None:
        self._admission = admission
        self._options = options
        self._remembered = remembered

    def announce(self, work: Work) -> None:
        """Note a call before it is sent, so that it is not lost if this process ends before it does."""
        if work.call is not None:
            self._admission.announce(
                work.call,
                ceiling=work.ceiling,
                estimated_input_tokens=work.count.tokens if work.count is not None else None,
            )

    def note(self, exchange: Exchange) -> None:
        """Jot down what it was billed: whatever becomes of this process, it will be booked."""
        work = exchange.work
        if work is None or work.call is None:
            return
        has_bill = exchange.has_bill
        if not has_bill and not exchange.may_be_billed:
            self._admission.withdraw(work.call.id)
            return
        options = self._options()
        prices = options.prices
        price = pricing(prices, work.call)
        usage = exchange.usage or Usage(cache=CacheUsage())
        call = work.call
        if exchange.is_subscription and not call.is_subscription:
            call = work.call = replace(call, is_subscription=True)
        exchange.entry = Entry(
            call=call,
            usage=usage,
            dollars=price(usage) if has_bill else None,
            estimated_input_tokens=work.count.tokens if work.count is not None else None,
            estimated_dollars=work.ceiling,
            is_partial=not exchange.is_whole,
            charge=None if has_bill else _charge(exchange, work, price, options),
            is_inherited=has_bill
            and prices.is_inherited(call.model, usage, provider=call.provider, at=call.at),
        )
        self._admission.jot(exchange.entry)

    def __call__(self, exchange: Exchange) -> None:
        """Add to the bill what nobody waits for."""
        work, entry = exchange.work, exchange.entry
        if work is None or entry is None:
            return
        options = self._options()
        _know_most(exchange, work, options)
        exchange.entry = replace(
            entry, estimated_dollars=work.ceiling, savings=self._compare(exchange, work, entry, options.prices)
        )

    def _compare(self, exchange: Exchange, work: Work, entry: Entry, prices: PriceBook) -> Savings:
        if not exchange.has_bill:
            return Savings()
        if self._remembered.session(entry.call.agent, entry.call.session_id).would_not_fit:
            return Savings(comparison=Comparison.WOULD_NOT_FIT)
        if work.needs_simulation and not (exchange.simulated and work.state.is_whole):
            return Savings()
        return compare(entry.usage, entry.dollars, pricing(prices, entry.call), exchange.simulated)


def _know_most(exchange: Exchange, work: Work, options: MoneyOptions) -> None:
    """Work out what a call can come to where no cap wanted to know it before."""
    if work.admitted is not None or work.at_most is not None:
        return
    try:
        _expect(work, options)
    except Exception as error:  # noqa: BLE001 - a border: what is billed is booked, whatever was expected
        exchange.failed(COST, error)


def _charge(exchange: Exchange, work: Work, price: PriceOf, options: MoneyOptions) -> Decimal | None:
    """What a stream without a whole bill has cost by then; None where all that was reserved may be billed."""
    _know_most(exchange, work, options)
    said = exchange.usage
    if said is not None and said.is_unreadable:
        return work.ceiling
    written, most = exchange.written_tokens, work.at_most
    if written is None or most is None:
        return None
    written = min(written, most.output_tokens)
    if said is not None:
        return price(replace(said, output_tokens=max(said.output_tokens, written)))
    return replace(most, output_tokens=written).dollars(options.prices)
