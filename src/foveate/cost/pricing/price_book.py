"""Prices of calls: custom prices first, then the price that the provider states, then the tables.

`find_differences` compares a price file with the current prices.
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

_MAX_NAME_CHARS = 1_000  # names are cached, and come from clients
_MAX_CACHED_MODELS = 1024


class PriceBook:
    """Price of a call after it was made, and its cost ceiling before.

    Custom prices override the tables; the first pattern that matches a model applies. Lookups are cached, for
    all threads, until the price file changes.
    """

    def __init__(
        self,
        custom: Sequence[CustomPrice] = (),
        *,
        load_imported: Callable[[], ImportedPrices | None] = lambda: None,
    ) -> None:
        """Create a price book with custom prices and a function that returns the current price file.

        Raises:
            BadOption: two prices are for the same models from the same day on.
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
        """Return the price of a call; None if the price of anything in its usage is unknown.

        `provider` is any of its names, `at` is in seconds since 1970. `tier` is the service tier, if the usage
        does not have it, and `region` where the call was served.
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
        """Return only the total of the price, which is many times as fast."""
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
        """Return whether a part of the price is an upper bound by a model's family."""
        if self._find_stated_dollars(model, usage, provider, at) is not None:
            return False
        rates = (
            self._find_rates(call.model or model, provider, call.usage.tier, call.region, at)
            for call in split_usage(usage)
        )
        return any(rates_or_none is not None and rates_or_none.inherited_from for rates_or_none in rates)

    def rates(self, model: str, *, provider: str, at: float, tier: str = "") -> Rates | None:
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
        """Return the most that a call with at most these tokens can cost; None if it is unknown.

        `ttl` is the longest one of its breakpoints; `tier` and `region` are those that the request asks for.
        `searches` and `units` need a known price.
        """
        if region is None:  # the provider's settings may have one
            prices = self._find_model(model, provider, "", "")
            region = prices.dearest_region if prices is not None else ""
        highest: Decimal | None = None
        for served_tier in {"", tier or ""}:  # a requested tier may not be granted
            rates = self._find_rates(model, provider, served_tier, region, at)
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
        """Load the tables, which takes most of a second, before the first price is needed."""
        load_tables()
        self._load_imported()

    def _find_stated_dollars(self, model: str, usage: Usage, provider: str, at: float) -> Decimal | None:
        """Return the cost that the provider states, if it is trusted and no custom price applies."""
        if usage.reported_dollars is None or not states_its_price(provider):
            return None
        fitting = [price for price in self._custom if price.matches(model, provider)]
        return usage.reported_dollars if find_current_price(fitting, at) is None else None

    def _find_rates(self, model: str, provider: str, tier: str, region: str, at: float) -> Rates | None:
        prices = self._find_model(model, provider, tier, region)
        return None if prices is None else prices.rates_at(at)

    def _find_model(self, model: str, provider: str, tier: str, region: str) -> "_ModelPrices | None":
        imported = self._load_imported()
        if imported is not self._imported:
            self._imported, self._model_prices = imported, {}
        key = provider, tier, region, model
        prices = self._model_prices.get(key)
        if prices is None:
            if max(map(len, key)) > _MAX_NAME_CHARS:
                return None
            if len(self._model_prices) >= _MAX_CACHED_MODELS:
                self._model_prices = {}
            custom = tuple(price for price in self._custom if price.matches(model, provider))
            prices = _ModelPrices(
                custom, partial(find_schedule, provider, model, tier=tier, region=region, imported=imported)
            )
            self._model_prices[key] = prices
        return prices


class _ModelPrices:
    def __init__(
        self, custom: tuple[CustomPrice, ...], look_up: Callable[[], PriceSchedule | FamilyPriceSchedule | None]
    ) -> None:
        self._custom = custom
        self._schedule = cache(look_up)
        self._custom_rates: dict[CustomPrice, tuple[Rates | None, Rates | None]] = {}

    @cached_property
    def dearest_region(self) -> str:
        schedule = self._schedule()
        return schedule.dearest_region() if schedule else ""

    def rates_at(self, at: float) -> Rates | None:
        custom = find_current_price(self._custom, at) if self._custom else None
        if custom is not None and custom.discount is None:
            return self._apply_custom_price(custom, None)
        schedule = self._schedule()
        table = schedule.rates_at(at) if schedule else None
        return table if custom is None else self._apply_custom_price(custom, table)

    def _apply_custom_price(self, custom: CustomPrice, table: Rates | None) -> Rates | None:
        known_table, rates = self._custom_rates.get(custom, (None, None))
        if rates is None or known_table is not table:
            rates = custom.rates(table)
            self._custom_rates[custom] = (table, rates)
        return rates


_MILLION = 1_000_000


class PriceChange(StrEnum):
    NEW = "new"
    CHANGED = "changed"
    SAME = "same"
    KEPT = "kept"  # newer tables have another price, which applies


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceDifference:
    provider: str
    model: str
    change: PriceChange
    before: Rates | None
    after: Rates | None


def find_differences(before: PriceBook, imported: ImportedPrices, *, at: float) -> list[PriceDifference]:
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
    if rates is None:
        return {}
    by_kind = {
        kind: rates.by_kind[kind].at(input_tokens) * _MILLION for kind in TokenKind if kind in rates.by_kind
    }
    return {kind: dollars.normalize() + 0 for kind, dollars in by_kind.items()}
