"""What calls cost: by prices of one's own, by what the provider says itself, or by the tables."""

from collections.abc import Callable, Collection, Sequence
from decimal import Decimal
from functools import cache, cached_property, partial

from foveate.cost.own_prices import OwnPrice, check_own_prices, price_in_force
from foveate.cost.price_names import says_its_price
from foveate.cost.price_table import FamilySchedule, Schedule, load, schedule_of
from foveate.cost.price_update import PriceUpdate
from foveate.cost.prices import EXACT, Price, Rates, ceiling_of, dollars_of, price_of, said_price
from foveate.values import Ttl, Usage
from foveate.wire.bills import Unit, billed_calls

_LONGEST_NAME_CHARS = 1_000  # names are kept, and anybody may send one
_MOST_FOUND = 1024


class PriceBook:
    """The price of a call after it was made, and the most that it can be before.

    Prices of one's own go over those of the tables; of several that fit a model, the first does. What was found
    once is kept, whoever asks next and from whichever thread, until there is another price file.
    """

    def __init__(
        self, own: Sequence[OwnPrice] = (), *, updates: Callable[[], PriceUpdate | None] = lambda: None
    ) -> None:
        """Take prices of one's own, and the price file that holds at the time it is asked for.

        Raises:
            BadOption: two of them are for the same models from the same day on.
        """
        check_own_prices(own)
        self._own = tuple(own)
        self._updates = updates
        self._update: PriceUpdate | None = None
        self._found: dict[tuple[str, str, str, str], _Found] = {}

    def price(
        self,
        model: str,
        usage: Usage,
        *,
        provider: str,
        at: float,
        tier: str | None = None,
        region: str = "",
    ) -> Price | None:
        """What a call cost; None where its price, or that of anything it was billed for, is not known.

        `provider` is who was called, by any of its usual names, and `at` when, in seconds since 1970. `tier` is
        its word for how the call was served, where the usage does not say it, and `region` its word for where.
        """
        said = self._said(model, usage, provider, at)
        if said is not None:
            return said_price(said, provider)
        whole: Price | None = None
        for call in billed_calls(usage):
            where = region or call.region
            rates = self._rates(call.model or model, provider, tier or call.usage.tier, where, at)
            price = None if rates is None else price_of(rates, call)
            if price is None:
                return None
            whole = price if whole is None else whole.plus(price)
        return whole

    def dollars(
        self, model: str, usage: Usage, *, provider: str, at: float, region: str = ""
    ) -> Decimal | None:
        """All dollars of that price, which is many times as fast."""
        said = self._said(model, usage, provider, at)
        if said is not None:
            return said
        whole: Decimal | None = None
        for call in billed_calls(usage):
            rates = self._rates(call.model or model, provider, call.usage.tier, region or call.region, at)
            dollars = None if rates is None else dollars_of(rates, call)
            if dollars is None:
                return None
            whole = dollars if whole is None else EXACT.add(whole, dollars)
        return whole

    def is_inherited(self, model: str, usage: Usage, *, provider: str, at: float) -> bool:
        """Tell whether a part of that price is an upper bound by a model's family."""
        if self._said(model, usage, provider, at) is not None:
            return False
        rates = (
            self._rates(call.model or model, provider, call.usage.tier, call.region, at)
            for call in billed_calls(usage)
        )
        return any(found is not None and found.inherited_from for found in rates)

    def rates(self, model: str, *, provider: str, at: float, tier: str = "") -> Rates | None:
        """What one of each thing costs in such calls at that time; None where nobody knows."""
        return self._rates(model, provider, tier, "", at)

    def ceiling(
        self,
        model: str,
        *,
        provider: str,
        input_tokens: int,
        output_tokens: int,
        at: float,
        ttl: Ttl | None = None,
        tier: str | None = None,
        region: str | None = None,
        searches: int = 0,
        units: Collection[Unit] = (),
    ) -> Decimal | None:
        """The most dollars that a call can cost which has at most so many tokens; None where that is not known.

        `ttl` is the longest time that a mark in it asks for, `tier` and `region` are the provider's words for
        how and where it is asked to be served. `searches` and `units` need a price.
        """
        if region is None:  # one may be set with the provider
            found = self._find(model, provider, "", "")
            region = found.dearest_region if found is not None else ""
        most: Decimal | None = None
        for served in {"", tier or ""}:  # a tier that is asked for may not be had
            rates = self._rates(model, provider, served, region, at)
            if rates is None:
                return None
            dollars = ceiling_of(
                rates,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                ttl=ttl,
                searches=searches,
                units=units,
            )
            if dollars is None:
                return None
            most = dollars if most is None else max(most, dollars)
        return most

    def warm(self) -> None:
        """Loads the tables now, which takes most of a second, and not when the first price is asked for."""
        load()
        self._updates()

    def _said(self, model: str, usage: Usage, provider: str, at: float) -> Decimal | None:
        """What the provider says that a call cost, where that holds."""
        if usage.said_dollars is None or not says_its_price(provider):
            return None
        fitting = [price for price in self._own if price.fits(model, provider)]
        return usage.said_dollars if price_in_force(fitting, at) is None else None

    def _rates(self, model: str, provider: str, tier: str, region: str, at: float) -> Rates | None:
        found = self._find(model, provider, tier, region)
        return None if found is None else found.at(at)

    def _find(self, model: str, provider: str, tier: str, region: str) -> "_Found | None":
        update = self._updates()
        if update is not self._update:
            self._update, self._found = update, {}
        key = provider, tier, region, model
        found = self._found.get(key)
        if found is None:
            if max(map(len, key)) > _LONGEST_NAME_CHARS:
                return None
            if len(self._found) >= _MOST_FOUND:
                self._found = {}
            own = tuple(price for price in self._own if price.fits(model, provider))
            found = _Found(own, partial(schedule_of, provider, model, tier=tier, region=region, update=update))
            self._found[key] = found
        return found


class _Found:
    """What was found of a model: the prices of one's own that fit it, and the table's once they are needed."""

    def __init__(
        self, own: tuple[OwnPrice, ...], look_up: Callable[[], Schedule | FamilySchedule | None]
    ) -> None:
        self._own = own
        self._schedule = cache(look_up)
        self._made: dict[OwnPrice, tuple[Rates | None, Rates | None]] = {}

    @cached_property
    def dearest_region(self) -> str:
        """Where the table has it dearest."""
        schedule = self._schedule()
        return schedule.dearest_region() if schedule else ""

    def at(self, at: float) -> Rates | None:
        """The rates in force at a time."""
        own = price_in_force(self._own, at) if self._own else None
        if own is not None and own.discount is None:
            return self._with(own, None)
        schedule = self._schedule()
        table = schedule.at(at) if schedule else None
        return table if own is None else self._with(own, table)

    def _with(self, own: OwnPrice, table: Rates | None) -> Rates | None:
        """What a price of one's own makes of the table's, made once for each of them."""
        under, made = self._made.get(own, (None, None))
        if made is None or under is not table:
            made = own.rates(table)
            self._made[own] = (table, made)
        return made
