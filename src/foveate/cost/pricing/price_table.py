"""Rates of models by provider and name, at a point in time.

They come from the installed tables of genai-prices, from the dated table over them (`prices.toml`), and from
the price file that `foveate prices update` has read. Nothing is downloaded. Loading the tables takes most of a
second, so it happens when the first price is needed.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from genai_prices.types import MatchLogic, ModelInfo
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeVar

from foveate.cost.caps import DAY_SECONDS
from foveate.cost.pricing.price_facts import (
    PriceFact,
    load_price_facts,
    normalize_provider,
    price_name_candidates,
)
from foveate.cost.pricing.rates import (
    EXACT,
    ZERO,
    PriceSource,
    Rate,
    Rates,
    RateTier,
    TokenKind,
    upper_bound_by_kind,
)
from foveate.formats.response.usage import BillableUnit
from foveate.tokens.model_names import normalize_model_name

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, Provider, TieredPrices

    from foveate.cost.pricing.price_file import ImportedPrices

_EPOCH = date(1970, 1, 1)
_Fact = TypeVar("_Fact", bound=PriceFact)
# Names of genai-prices, and ours. Writes without a TTL have the short one.
_KINDS_BY_FIELD: Mapping[str, TokenKind | BillableUnit] = {
    "input_mtok": TokenKind.UNCACHED,
    "cache_read_mtok": TokenKind.READ,
    "cache_write_mtok": TokenKind.WRITTEN_5M,
    "cache_write_5m_mtok": TokenKind.WRITTEN_5M,
    "cache_write_1h_mtok": TokenKind.WRITTEN_1H,
    "output_mtok": TokenKind.OUTPUT,
    "output_reasoning_mtok": TokenKind.REASONING,
    "input_audio_mtok": BillableUnit.INPUT_AUDIO,
    "input_image_mtok": BillableUnit.INPUT_IMAGE,
    "input_video_mtok": BillableUnit.INPUT_VIDEO,
    "cache_audio_read_mtok": BillableUnit.READ_AUDIO,
    "cache_image_read_mtok": BillableUnit.READ_IMAGE,
    "cache_video_read_mtok": BillableUnit.READ_VIDEO,
    "output_audio_mtok": BillableUnit.OUTPUT_AUDIO,
    "output_image_mtok": BillableUnit.OUTPUT_IMAGE,
    "output_video_mtok": BillableUnit.OUTPUT_VIDEO,
    "output_citation_mtok": BillableUnit.CITATIONS,
    "web_searches_kcount": BillableUnit.WEB_SEARCHES,
    "storage_searches_kcount": BillableUnit.FILE_SEARCHES,
    "rerank_searches_kcount": BillableUnit.RERANKS,
    "requests_kcount": BillableUnit.REQUESTS,
}
_UNIT_SCALES = {"mtok": Decimal("1e-6"), "kcount": Decimal("1e-3")}
# Service tiers of providers: standard ones, and those with another price. Prepaid ones have none.
_STANDARD_TIERS = frozenset(("", "auto", "default", "on_demand", "standard", "standard_only"))
_TIER_CONTEXTS: Mapping[str, Mapping[str, str]] = {
    "batch": {"processing": "batch"},
    "fast": {"service_tier": "fast"},
    "flex": {"service_tier": "flex"},
    "on_demand_flex": {"service_tier": "flex"},
    "on_demand_priority": {"service_tier": "priority"},
    "priority": {"service_tier": "priority"},
    "ultrafast": {"service_tier": "ultrafast"},
}
_FINE_TUNED = "ft:"  # costs more than the model that was tuned
_PREPAID_TIERS = frozenset(("provisioned_throughput", "reserved", "scale"))
_CACHE_KINDS = {
    "cache_read_mtok": TokenKind.READ,
    "cache_write_mtok": TokenKind.WRITTEN_5M,
    "cache_write_1h_mtok": TokenKind.WRITTEN_1H,
}


def is_other_version(model: "ModelInfo", name: str) -> bool:
    """Return whether a name starts like the model's but continues with another version: 4-10 is not 4-1."""
    ends = [
        end
        for end in (_find_match_end(clause, name) for clause in _flatten_clauses(model.match))
        if end is not None
    ]
    return bool(ends) and all(_is_within_version(name, end) for end in ends)


def _flatten_clauses(match: "MatchLogic") -> "Iterator[MatchLogic]":
    from genai_prices.types import ClauseAnd, ClauseOr

    match match:
        case ClauseOr():
            for clause in match.or_:
                yield from _flatten_clauses(clause)
        case ClauseAnd():
            for clause in match.and_:
                yield from _flatten_clauses(clause)
        case _:
            yield match


def _find_match_end(clause: "MatchLogic", name: str) -> int | None:
    from genai_prices.types import ClauseContains, ClauseStartsWith

    if not clause.is_match(name):
        return None
    match clause:
        case ClauseStartsWith():
            return len(clause.starts_with)
        case ClauseContains():
            return name.index(clause.contains.lower()) + len(clause.contains)
        case _:
            return len(name)


def _is_within_version(name: str, end: int) -> bool:
    """Return whether the digits around a position are one two-digit number; dates and builds have more."""
    before = len(name[:end]) - len(name[:end].rstrip("0123456789"))
    after = len(name[end:]) - len(name[end:].lstrip("0123456789"))
    return min(before, after) > 0 and before + after == 2


def is_known_tier(tier: str) -> bool:
    """True for tiers whose price is known, or known not to exist."""
    return _normalize_tier(tier) in _STANDARD_TIERS | _TIER_CONTEXTS.keys() | _PREPAID_TIERS


def _normalize_tier(tier: str) -> str:
    """Gemini also writes `SERVICE_TIER_FLEX`."""
    return tier.strip().lower().removeprefix("service_tier_")


def load_tables() -> None:
    _installed_providers()


def find_schedule(
    provider: str, model: str, *, tier: str = "", region: str = "", imported: "ImportedPrices | None" = None
) -> "PriceSchedule | FamilyPriceSchedule | None":
    """Return the prices of a model over time; None if neither it nor its family has any.

    The newer of the price file and the dated table applies. The installed tables apply if the dated table has
    no entry, and an older price file if they have none.
    """
    candidates = list(price_name_candidates(normalize_provider(provider), model))
    for host, name in candidates:
        terms = _PurchaseTerms(
            provider=host, name=name, tier=_normalize_tier(tier), region=region.strip().lower()
        )
        schedule = _find_model_schedule(terms, imported)
        if schedule is not None:
            return schedule
    for host, name in candidates:
        terms = _PurchaseTerms(
            provider=host, name=name, tier=_normalize_tier(tier), region=region.strip().lower()
        )
        inherited = _find_family_schedule(terms, imported)
        if inherited is not None:
            return inherited
    return None


def _find_model_schedule(terms: "_PurchaseTerms", imported: "ImportedPrices | None") -> "PriceSchedule | None":
    dated = next(iter(terms.select_facts(load_price_facts().models)), None)
    updated = None if imported is None else _find_in_tables(imported.providers, terms, imported.origin)
    if dated is not None:
        origin = f"Foveate's table, {dated.as_of}"
        table: PriceSchedule | None = PriceSchedule(
            _dated_models()[dated.id], terms, is_own=True, origin=origin
        )
    else:
        table = _find_in_tables(_installed_providers(), terms, _installed_origin())
    if updated is None or imported is None:
        return table
    updated.derives_cache_prices = True
    if imported.day >= (dated.day if dated else load_price_facts().as_of):
        updated.table = table
        return updated
    return table or updated


def _find_in_tables(
    providers: "Mapping[str, Provider]", terms: "_PurchaseTerms", origin: str
) -> "PriceSchedule | None":
    other_models = [fact.like for fact in terms.select_facts(load_price_facts().likes)]
    for name in (terms.name, *other_models):
        host = providers.get(terms.provider)
        if host is None:
            continue
        match = host.find_model(name, all_providers=[*providers.values()])
        if match is None or is_other_version(match, name) or _is_other_variant(match, name):
            match = next((model for model in host.models if model.id.lower() == name), None)
        if match is not None:
            is_own = any(match is other for other in host.models)
            return PriceSchedule(match, replace(terms, name=name), is_own=is_own, origin=origin)
    return None


def _is_other_variant(model: "ModelInfo", name: str) -> bool:
    """Return whether a name has a word of an expensive variant that the model's does not have."""
    variants = load_price_facts().variants
    words = variants.findall(normalize_model_name(name))
    return bool(words) and not set(variants.findall(normalize_model_name(model.id))).issuperset(words)


def _find_family_schedule(
    terms: "_PurchaseTerms", imported: "ImportedPrices | None"
) -> "FamilyPriceSchedule | None":
    known, name = load_price_facts(), normalize_model_name(terms.name)
    family = next((family for family in known.families if re.search(family.names, name)), None)
    if family is None or known.other_kinds.search(name) or terms.name.startswith(_FINE_TUNED):
        return None
    words = set(known.variants.findall(name))
    path = terms.name.rpartition("/")[0]  # a path with another provider may mean another price
    members = [
        PriceSchedule(model, terms, is_own=is_own, origin=model.id)
        for model, is_own in _list_models(terms.provider, imported)
        if model.id.rpartition("/")[0].lower() == path
        and re.search(family.names, member := normalize_model_name(model.id))
        and not known.other_kinds.search(member)
        and words.issuperset(known.variants.findall(member))
    ]
    return FamilyPriceSchedule(family.id, terms.provider, members) if members else None


def _list_models(host: str, imported: "ImportedPrices | None") -> "Iterator[tuple[ModelInfo, bool]]":
    """Yield all models of a provider with prices, and whether these are its own prices."""
    for known in (_installed_providers(), {} if imported is None else imported.providers):
        provider = known.get(host)
        if provider is not None:
            yield from ((model, True) for model in provider.models)
            for other in provider.fallback_model_providers or ():
                yield from ((model, False) for model in (known[other].models if other in known else ()))
    yield from ((_dated_models()[fact.id], True) for fact in load_price_facts().models if fact.provider == host)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PurchaseTerms:
    provider: str
    name: str
    tier: str
    region: str

    def select_facts(self, candidates: Iterable[_Fact]) -> list[_Fact]:
        return [fact for fact in candidates if fact.applies_to(self.provider, self.name)]


class PriceSchedule:
    def __init__(self, model: "ModelInfo", terms: _PurchaseTerms, *, is_own: bool, origin: str) -> None:
        self._model, self._terms, self._is_own_price, self.origin = model, terms, is_own, origin
        self.changes = _find_change_times(model)
        self.derives_cache_prices = False
        self.table: PriceSchedule | None = None  # fallback for what a price file lacks: service tiers, searches
        self._weekend_hour = next((fact.at for fact in terms.select_facts(load_price_facts().weekends)), None)
        self._rates_by_period: dict[tuple[int, int], Rates | None] = {}

    def rates_at(self, at: float) -> Rates | None:
        if self._weekend_hour is not None and _is_weekend(at):
            at = at - at % DAY_SECONDS + self._weekend_hour * 3600
        period = self.changes.find_period(at)
        if period not in self._rates_by_period:
            self._rates_by_period[period] = self._compute_rates(datetime.fromtimestamp(at, UTC))
        return self._rates_by_period[period]

    def dearest_region(self) -> str:
        """Return the region with the highest price that an account can have; empty if none is higher."""
        multiples = {"": Decimal(1)}
        for fact in self._terms.select_facts(load_price_facts().multiples):
            if fact.region and not fact.by_host:
                multiples[fact.region] = EXACT.multiply(multiples.get(fact.region, Decimal(1)), fact.multiple)
        return max(multiples, key=lambda region: multiples[region])

    def _compute_rates(self, moment: datetime) -> Rates | None:
        at_tier = self._find_tier_prices(moment)
        if at_tier is None:
            return None if self.table is None else self.table._compute_rates(moment)
        prices, multiple = at_tier
        by_kind: dict[TokenKind | BillableUnit, Rate] = _rates_by_kind(prices)
        for fact_as in self._terms.select_facts(load_price_facts().costs_as):
            if fact_as.other in by_kind:
                by_kind.setdefault(fact_as.kind, by_kind[fact_as.other])
        if not by_kind:
            if not self._terms.select_facts(load_price_facts().free):
                return None
            by_kind = {kind: Rate(ZERO) for kind in TokenKind}
        for fee in self._terms.select_facts(load_price_facts().search_fees):
            by_kind.setdefault(fee.unit, Rate(EXACT.multiply(fee.dollars, _UNIT_SCALES["kcount"])))
        for fact in self._terms.select_facts(load_price_facts().multiples):
            if fact.applies_in(self._terms.region):
                multiple = EXACT.multiply(multiple, fact.multiple)
        # Not certain: a price of another provider, a price by hour without a start date, and an unknown service
        # tier.
        tier = self._terms.tier
        assumed = (
            not self._is_own_price
            or bool(self.changes.seconds)
            or (tier not in _STANDARD_TIERS and tier not in _TIER_CONTEXTS)
        )
        rates = Rates(by_kind=by_kind, source=PriceSource.TABLE, origin=self.origin, assumed=assumed)
        if self.derives_cache_prices:
            rates = add_cache_prices(rates, self._model.id)
        rates = rates if multiple == 1 else rates.scale(multiple)
        other = None if self.table is None else self.table._compute_rates(moment)
        return rates if other is None else replace(rates, by_kind={**other.by_kind, **rates.by_kind})

    def _find_tier_prices(self, moment: datetime) -> "tuple[ModelPrice, Decimal] | None":
        """Return the prices of the service tier and a multiple for them; None if they are unknown."""
        tier = self._terms.tier
        context = _TIER_CONTEXTS.get(tier, {})
        if not context:
            return None if tier in _PREPAID_TIERS else (self._model.get_prices(moment), Decimal(1))
        if self._is_own_price and _has_variant(self._model, context, moment):
            return self._model.get_prices(moment, context), Decimal(1)
        multiples = (
            fact.multiple
            for fact in self._terms.select_facts(load_price_facts().multiples)
            if _TIER_CONTEXTS.get(fact.tier) == context
        )
        multiple = next(multiples, None)
        return None if multiple is None else (self._model.get_prices(moment), multiple)


class FamilyPriceSchedule:
    """Highest rates of a family, for a member without its own price."""

    def __init__(self, family: str, host: str, members: Sequence[PriceSchedule]) -> None:
        self._family, self._host, self._members = family, host, members
        self._changes = _ChangeTimes(
            moments=sorted({at for member in members for at in member.changes.moments}),
            seconds=sorted({at for member in members for at in member.changes.seconds}),
        )
        self._rates_by_period: dict[tuple[int, int, bool], Rates | None] = {}

    def rates_at(self, at: float) -> Rates | None:
        period = (*self._changes.find_period(at), _is_weekend(at))
        if period not in self._rates_by_period:
            self._rates_by_period[period] = self._compute_rates(at)
        return self._rates_by_period[period]

    def dearest_region(self) -> str:
        return self._members[0].dearest_region()

    def _compute_rates(self, at: float) -> Rates | None:
        known = [
            add_cache_prices(rates, rates.origin)
            for member in self._members
            if (rates := member.rates_at(at)) is not None
        ]
        priced = [rates for rates in known if {TokenKind.UNCACHED, TokenKind.OUTPUT} <= rates.by_kind.keys()]
        if not priced:
            return None
        dearest = max(priced, key=lambda rates: (rates.by_kind[TokenKind.OUTPUT].dollars, rates.origin))
        return Rates(
            by_kind=upper_bound_by_kind(priced),
            source=PriceSource.TABLE,
            origin=f"the most expensive of {self._family} at {self._host} ({dearest.origin})",
            assumed=True,
            inherited_from=self._family,
        )


def add_cache_prices(rates: Rates, model: str) -> Rates:
    """Add prices of cache reads and writes if the model has none."""
    name = normalize_model_name(model)
    known = next((fact for fact in load_price_facts().cache_times if re.search(fact.names, name)), None)
    uncached = rates.by_kind.get(TokenKind.UNCACHED)
    if known is None or uncached is None:
        return rates
    by_kind: dict[TokenKind | BillableUnit, Rate] = {
        kind: uncached.scale(times) for kind, times in known.times.items()
    }
    return replace(rates, by_kind=by_kind | dict(rates.by_kind))


def _rates_by_kind(prices: "ModelPrice") -> dict[TokenKind | BillableUnit, Rate]:
    rates = {}
    for name, price in vars(prices).items():
        kind = _KINDS_BY_FIELD.get(name)
        if kind is not None and price is not None:
            rates[kind] = _to_rate(price, _UNIT_SCALES[name.rpartition("_")[2]])
    return rates


def _to_rate(price: "Decimal | TieredPrices", unit_scale: Decimal) -> Rate:
    if isinstance(price, Decimal):
        return Rate(EXACT.multiply(price, unit_scale))
    tiers = tuple(RateTier(tier.start, EXACT.multiply(tier.price, unit_scale)) for tier in price.tiers)
    return Rate(EXACT.multiply(price.base, unit_scale), tiers)


def _has_variant(model: "ModelInfo", context: Mapping[str, str], moment: datetime) -> bool:
    return any(
        variant.when == context and (variant.constraint is None or variant.constraint.active(moment))
        for variant in model.price_variants or ()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChangeTimes:
    """Times at which prices change, in seconds since 1970, and the seconds of the day."""

    moments: list[int]
    seconds: list[float]

    def find_period(self, at: float) -> tuple[int, int]:
        return (
            bisect_right(self.moments, at) if self.moments else 0,
            bisect_right(self.seconds, at % DAY_SECONDS) if self.seconds else 0,
        )


def _find_change_times(model: "ModelInfo") -> _ChangeTimes:
    prices = model.prices if isinstance(model.prices, list) else []
    from genai_prices.types import StartDateConstraint, TimeOfDateConstraint

    moments: set[int] = set()
    seconds: set[float] = set()
    for constraint in (entry.constraint for entry in (*prices, *(model.price_variants or ()))):
        match constraint:
            case StartDateConstraint():
                moments.add((constraint.start_date - _EPOCH).days * DAY_SECONDS)
            case TimeOfDateConstraint():
                seconds.update(map(_second_of_day, (constraint.start_time, constraint.end_time)))
    return _ChangeTimes(moments=sorted(moments), seconds=sorted(seconds))


def _is_weekend(at: float) -> bool:
    return (int(at // DAY_SECONDS) + 3) % 7 >= 5  # 1 January 1970 was a Thursday


def _second_of_day(moment: time) -> float:
    combined = datetime.combine(_EPOCH, moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    return combined.timestamp() % DAY_SECONDS


@cache
def _installed_providers() -> "Mapping[str, Provider]":
    """Return the installed tables, ignoring a snapshot that other code may have downloaded."""
    from genai_prices.data import providers

    return {provider.id: provider for provider in providers}


@cache
def _dated_models() -> "Mapping[str, ModelInfo]":
    from genai_prices.types import ClauseEquals, ModelInfo, ModelPrice, Tier, TieredPrices

    def price(dollars: Decimal, tiers: Sequence[tuple[int, Decimal]]) -> Decimal | TieredPrices:
        steps = [Tier(start=over, price=EXACT.multiply(dollars, times)) for over, times in tiers]
        return TieredPrices(base=dollars, tiers=steps) if steps else dollars

    models = {}
    for fact in load_price_facts().models:
        long_input = [(tier.over_tokens, tier.input_times) for tier in fact.over]
        long_output = [(tier.over_tokens, tier.output_times) for tier in fact.over]
        prices = {
            "input_mtok": price(fact.input, long_input),
            "output_mtok": price(fact.output, long_output),
            "web_searches_kcount": fact.web_searches,
        }
        for name, kind in _CACHE_KINDS.items():
            prices[name] = price(EXACT.multiply(fact.input, fact.times[kind]), long_input)
        match = ClauseEquals(equals=fact.id)
        models[fact.id] = ModelInfo(id=fact.id, match=match, prices=ModelPrice(**prices))
    return models


@cache
def _installed_origin() -> str:
    return f"genai-prices {version('genai-prices')}"
