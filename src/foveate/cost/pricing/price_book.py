"""What calls cost: by prices of one's own, by what the provider says itself, or by the tables.

What a price file changes: the models that it gives a price, and those whose price is another then.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import cache, cached_property, partial

from foveate.cost.pricing.custom_prices import CustomPrice, check_custom_prices, find_current_price
from foveate.cost.pricing.price_facts import states_its_price
from foveate.cost.pricing.price_file import ImportedPrices
from foveate.cost.pricing.price_table import FamilyPriceSchedule, PriceSchedule, find_schedule, load_tables
from foveate.cost.pricing.rates import (
    EXACT,
    Price,
    Rates,
    TokenKind,
    compute_ceiling,
    compute_dollars,
    make_stated_price,
    price_call,
)
from foveate.formats.response.usage import BillableUnit, split_usage
from foveate.model import Ttl, Usage

_MAX_NAME_CHARS = 1_000  # names are kept, and anybody may send one
_MAX_CACHED_MODELS = 1024


class PriceBook:
    """The price of a call after it was made, and the most that it can be before.

    Prices of one's own go over those of the tables; of several that fit a model, the first does. What was found
    once is kept, whoever asks next and from whichever thread, until there is another price file.
    """

    def __init__(
        self,
        custom: Sequence[CustomPrice] = (),
        *,
        load_imported: Callable[[], ImportedPrices | None] = lambda: None,
    ) -> None:
        """Take prices of one's own, and the price file that holds at the time it is asked for.

        Raises:
            BadOption: two of them are for the same models from the same day on.
        """
        check_custom_prices(custom)
        self._custom = tuple(custom)
        self._load_imported = load_imported
        self._imported: ImportedPrices | None = None
        self._model_prices: dict[tuple[str, str, str, str], _ModelPrices] = {}

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
        stated = self._find_stated_dollars(model, usage, provider, at)
        if stated is not None:
            return make_stated_price(stated, provider)
        total: Price | None = None
        for call in split_usage(usage):
            call_region = region or call.region
            rates = self._find_rates(call.model or model, provider, tier or call.usage.tier, call_region, at)
            price = None if rates is None else price_call(rates, call)
            if price is None:
                return None
            total = price if total is None else total.add(price)
        return total

    def dollars(
        self, model: str, usage: Usage, *, provider: str, at: float, region: str = ""
    ) -> Decimal | None:
        """All dollars of that price, which is many times as fast."""
        stated = self._find_stated_dollars(model, usage, provider, at)
        if stated is not None:
            return stated
        total: Decimal | None = None
        for call in split_usage(usage):
            rates = self._find_rates(call.model or model, provider, call.usage.tier, region or call.region, at)
            dollars = None if rates is None else compute_dollars(rates, call)
            if dollars is None:
                return None
            total = dollars if total is None else EXACT.add(total, dollars)
        return total

    def is_inherited(self, model: str, usage: Usage, *, provider: str, at: float) -> bool:
        """Tell whether a part of that price is an upper bound by a model's family."""
        if self._find_stated_dollars(model, usage, provider, at) is not None:
            return False
        rates = (
            self._find_rates(call.model or model, provider, call.usage.tier, call.region, at)
            for call in split_usage(usage)
        )
        return any(found is not None and found.inherited_from for found in rates)

    def rates(self, model: str, *, provider: str, at: float, tier: str = "") -> Rates | None:
        """What one of each thing costs in such calls at that time; None where nobody knows."""
        return self._find_rates(model, provider, tier, "", at)

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
        units: Collection[BillableUnit] = (),
    ) -> Decimal | None:
        """The most dollars that a call can cost which has at most so many tokens; None where that is not known.

        `ttl` is the longest time that a mark in it asks for, `tier` and `region` are the provider's words for
        how and where it is asked to be served. `searches` and `units` need a price.
        """
        if region is None:  # one may be set with the provider
            found = self._find_model(model, provider, "", "")
            region = found.dearest_region if found is not None else ""
        highest: Decimal | None = None
        for served in {"", tier or ""}:  # a tier that is asked for may not be had
            rates = self._find_rates(model, provider, served, region, at)
            if rates is None:
                return None
            dollars = compute_ceiling(
                rates,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                ttl=ttl,
                searches=searches,
                units=units,
            )
            if dollars is None:
                return None
            highest = dollars if highest is None else max(highest, dollars)
        return highest

    def preload(self) -> None:
        """Loads the tables now, which takes most of a second, and not when the first price is asked for."""
        load_tables()
        self._load_imported()

    def _find_stated_dollars(self, model: str, usage: Usage, provider: str, at: float) -> Decimal | None:
        """What the provider says that a call cost, where that holds."""
        if usage.said_dollars is None or not states_its_price(provider):
            return None
        fitting = [price for price in self._custom if price.matches(model, provider)]
        return usage.said_dollars if find_current_price(fitting, at) is None else None

    def _find_rates(self, model: str, provider: str, tier: str, region: str, at: float) -> Rates | None:
        found = self._find_model(model, provider, tier, region)
        return None if found is None else found.rates_at(at)

    def _find_model(self, model: str, provider: str, tier: str, region: str) -> "_ModelPrices | None":
        imported = self._load_imported()
        if imported is not self._imported:
            self._imported, self._model_prices = imported, {}
        key = provider, tier, region, model
        found = self._model_prices.get(key)
        if found is None:
            if max(map(len, key)) > _MAX_NAME_CHARS:
                return None
            if len(self._model_prices) >= _MAX_CACHED_MODELS:
                self._model_prices = {}
            custom = tuple(price for price in self._custom if price.matches(model, provider))
            found = _ModelPrices(
                custom, partial(find_schedule, provider, model, tier=tier, region=region, imported=imported)
            )
            self._model_prices[key] = found
        return found


class _ModelPrices:
    """What was found of a model: the prices of one's own that fit it, and the table's once they are needed."""

    def __init__(
        self, custom: tuple[CustomPrice, ...], look_up: Callable[[], PriceSchedule | FamilyPriceSchedule | None]
    ) -> None:
        self._custom = custom
        self._schedule = cache(look_up)
        self._custom_rates: dict[CustomPrice, tuple[Rates | None, Rates | None]] = {}

    @cached_property
    def dearest_region(self) -> str:
        """Where the table has it dearest."""
        schedule = self._schedule()
        return schedule.dearest_region() if schedule else ""

    def rates_at(self, at: float) -> Rates | None:
        """The rates in force at a time."""
        custom = find_current_price(self._custom, at) if self._custom else None
        if custom is not None and custom.discount is None:
            return self._apply_custom_price(custom, None)
        schedule = self._schedule()
        table = schedule.rates_at(at) if schedule else None
        return table if custom is None else self._apply_custom_price(custom, table)

    def _apply_custom_price(self, custom: CustomPrice, table: Rates | None) -> Rates | None:
        """What a price of one's own makes of the table's, made once for each of them."""
        known_table, rates = self._custom_rates.get(custom, (None, None))
        if rates is None or known_table is not table:
            rates = custom.rates(table)
            self._custom_rates[custom] = (table, rates)
        return rates


_MILLION = 1_000_000


class PriceChange(StrEnum):
    """What becomes of a model's price."""

    NEW = "new"
    CHANGED = "changed"
    SAME = "same"
    KEPT = "kept"  # newer tables have another price, which holds


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceDifference:
    """A model of a price file, with what holds for it before and after."""

    provider: str
    model: str
    change: PriceChange
    before: Rates | None
    after: Rates | None


def find_differences(before: PriceBook, imported: ImportedPrices, *, at: float) -> list[PriceDifference]:
    """All models of a price file, by provider, and what it changes for each of them."""
    after = PriceBook(load_imported=lambda: imported)
    differences = []
    for provider, model in sorted(imported.models()):
        old = before.rates(model, provider=provider, at=at)
        new = after.rates(model, provider=provider, at=at)
        differences.append(
            PriceDifference(
                provider=provider,
                model=model,
                change=_classify_change(old, new, imported),
                before=old,
                after=new,
            )
        )
    return differences


def _classify_change(old: Rates | None, new: Rates | None, imported: ImportedPrices) -> PriceChange:
    if new is None or new.origin != imported.origin:
        return PriceChange.KEPT
    if old is None or old.inherited_from:
        return PriceChange.NEW
    is_same = all(old.by_kind.get(kind) == new.by_kind.get(kind) for kind in TokenKind)
    return PriceChange.SAME if is_same else PriceChange.CHANGED


def dollars_per_million(rates: Rates | None, input_tokens: int = 0) -> dict[TokenKind, Decimal]:
    """Dollars per million tokens of each kind, in a request of so many input tokens."""
    if rates is None:
        return {}
    by_kind = {
        kind: rates.by_kind[kind].at(input_tokens) * _MILLION for kind in TokenKind if kind in rates.by_kind
    }
    return {kind: dollars.normalize() + 0 for kind, dollars in by_kind.items()}
