"""What was saved on a call by the cache, by folds and by cuts; where it cost more, that is below zero.

Each is the price of another call less the price of this one: the same call without the cache, without its cuts,
without its cuts and folds. The other call is a bill like this one, with its input tokens billed otherwise, and
whoever prices bills prices it, so that tiers hold for it as well. What a summary itself costs is a call of its
own in the ledger.

The numbers in examples are for a model at $10 for a million uncached tokens, $1 for reads, $12.50 for writes.
"""

from collections.abc import Callable
from decimal import Decimal

from msgspec.structs import replace

from foveate.cost.ledger import NOTHING, Call, Entry, LeftOut, Removed, Savings
from foveate.cost.money import MOST_DOLLARS
from foveate.cost.price_book import PriceBook
from foveate.cost.prices import EXACT, ZERO
from foveate.values import CacheUsage, Usage
from foveate.wire.bills import billed_calls
from foveate.wire.body import compact

PriceOf = Callable[[Usage], Decimal | None]
"""The dollars of a bill; None where they are not known."""


def savings_of(
    usage: Usage,
    price: PriceOf,
    *,
    folds: Removed = NOTHING,
    cuts: Removed = NOTHING,
    known_tokens: int = 0,
    was_warm: bool = False,
    dollars: Decimal | None = None,
) -> Savings:
    """What the cache, folds and cuts saved on the call that `usage` is the bill of; None where nobody knows.

    `known_tokens` are all input tokens of the call before, and `was_warm` says that what it left in the
    provider's cache was still there. `dollars` is its price, where that was asked for already.
    """
    paid = usage.cache
    if folds.is_nothing and cuts.is_nothing and paid.uncached == paid.input_tokens:
        return _NONE_SAVED
    without_cuts = _without_cuts(paid, folds, cuts, known_tokens, was_warm=was_warm)
    without_both = _without_folds(without_cuts, paid, folds, cuts, known_tokens, was_warm=was_warm)
    prices = _Prices(usage, price, dollars)
    return Savings(
        # 100,000 tokens, of which 90,000 are read ($0.09) and 10,000 written ($0.125), would be $1.00 uncached:
        # $0.785 are saved. Were all of them written, $1.25, and nobody reads them, $0.25 would be lost.
        cache=prices.more(CacheUsage(uncached=paid.input_tokens), paid),
        folds=ZERO if folds.is_nothing else prices.more(without_both, without_cuts),
        cuts=ZERO if cuts.is_nothing else prices.more(without_cuts, paid),
    )


_NONE_SAVED = Savings(cache=ZERO, folds=ZERO, cuts=ZERO)


def with_savings(entry: Entry, prices: PriceBook) -> Entry:
    """A bill, and what was saved on its call by what was left out of it."""
    left_out = entry.left_out or LeftOut()
    savings = savings_of(
        entry.usage,
        pricing(prices, entry.call),
        folds=left_out.folds,
        cuts=left_out.cuts,
        known_tokens=left_out.known_tokens,
        was_warm=left_out.was_warm,
        dollars=entry.dollars,
    )
    return replace(entry, savings=savings, left_out=None)


def pricing(book: PriceBook, call: Call) -> PriceOf:
    """The dollars of a bill, had it been that of `call`; more than can be kept are not known."""

    def price(usage: Usage) -> Decimal | None:
        dollars = book.dollars(call.model, usage, provider=call.provider, at=call.at)
        return dollars if dollars is None or dollars <= MOST_DOLLARS else None

    return price


class _Prices:
    """The prices of a bill with its input tokens billed otherwise, each asked for once.

    It is nothing but tokens, so that the same holds for all of them: its own price, calls within it and units
    are of what was billed, and say nothing of what was not. Where it was served holds for all of it.
    """

    def __init__(self, usage: Usage, price: PriceOf, dollars: Decimal | None) -> None:
        first = billed_calls(usage)[0]
        self._usage = usage
        self._raw = compact({"inference_geo": first.region}) if first.region else b""
        self._price = price
        self._found: dict[CacheUsage, Decimal | None] = {}
        if first.usage is usage and not first.units and usage.said_dollars is None and dollars is not None:
            self._found[usage.cache] = dollars

    def more(self, dearer: CacheUsage, cheaper: CacheUsage) -> Decimal | None:
        """By how much one is dearer than the other."""
        if dearer == cheaper:
            return ZERO
        high, low = self._of(dearer), self._of(cheaper)
        return None if high is None or low is None else EXACT.subtract(high, low)

    def _of(self, cache: CacheUsage) -> Decimal | None:
        if cache not in self._found:
            self._found[cache] = self._price(
                Usage(
                    cache=cache,
                    output_tokens=self._usage.output_tokens,
                    reasoning_tokens=self._usage.reasoning_tokens,
                    tier=self._usage.tier,
                    raw=self._raw,
                )
            )
        return self._found[cache]


def _without_cuts(
    paid: CacheUsage, folds: Removed, cuts: Removed, known_tokens: int, *, was_warm: bool
) -> CacheUsage:
    """How the input would have been billed had nothing been cut."""
    if cuts.is_nothing:
        return paid
    if not was_warm or folds.is_new:
        # Nothing was there to be read; or a fold in front of it had all behind it written again anyway. 5,000
        # tokens that were cut of a call whose history was written would have been written: $0.0625 saved.
        return _more_cold(paid, cuts.tokens)
    if cuts.is_new:
        return _reading(paid, known_tokens + cuts.earlier_tokens, paid.input_tokens + cuts.tokens)
    # What was cut long ago would have been read by now: $0.005 for 5,000 tokens, with each call.
    return replace(paid, read=paid.read + cuts.tokens)


def _without_folds(
    without_cuts: CacheUsage,
    paid: CacheUsage,
    folds: Removed,
    cuts: Removed,
    known_tokens: int,
    *,
    was_warm: bool,
) -> CacheUsage:
    """How the input would have been billed had nothing been folded either."""
    if folds.is_nothing:
        return without_cuts
    if not was_warm:
        return _more_cold(without_cuts, folds.tokens)
    if folds.is_new:
        # A fold takes 90,000 of 100,000 known tokens away. Of the rest 5,000 in front of it are still read, and
        # 5,000 are written again, beside 2,000 new ones: $0.0925. Without it 100,000 would have been read and
        # 2,000 written, $0.125: it saved $0.0325. That is the $0.09 for reading what it took, less the $0.0575
        # for writing what would have been read. Had it taken 50,000, 45,000 would be written again, and the
        # call would have cost $0.4675 more.
        earlier_cuts = cuts.earlier_tokens if cuts.is_new else cuts.tokens
        known = known_tokens + folds.earlier_tokens + earlier_cuts
        return _reading(paid, known, paid.input_tokens + folds.tokens + cuts.tokens)
    # 90,000 tokens that would have been read: $0.09 saved, with each call.
    return replace(without_cuts, read=without_cuts.read + folds.tokens)


def _reading(paid: CacheUsage, known_tokens: int, input_tokens: int) -> CacheUsage:
    """A bill of so many tokens of which all known ones are read, and the others billed as they were.

    What was read is known, whoever says less. What is new stands at the end: there is what is not cached at
    all, before it what is kept for the short time, and in front what is kept for the long one.
    """
    read = min(max(known_tokens, paid.read), input_tokens)
    left = input_tokens - read
    uncached = min(paid.uncached, left)
    written_5m = min(paid.written_5m, left - uncached)
    written_1h = min(paid.written_1h, left - uncached - written_5m)
    found = CacheUsage(uncached=uncached, read=read, written_5m=written_5m, written_1h=written_1h)
    return _more_cold(found, input_tokens - found.input_tokens, like=paid)


def _more_cold(cache: CacheUsage, tokens: int, *, like: CacheUsage | None = None) -> CacheUsage:
    """The same bill with more tokens, which are billed as most of what was not read."""
    like = like or cache
    if like.written_1h > like.written_5m:
        return replace(cache, written_1h=cache.written_1h + tokens)
    if like.written_5m:
        return replace(cache, written_5m=cache.written_5m + tokens)
    return replace(cache, uncached=cache.uncached + tokens)
