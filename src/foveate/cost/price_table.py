"""Prices of models as rates: found by provider and model, and in force at a time.

They come from the tables of genai-prices that are installed with it, from the dated table over them
(`prices.toml`), and from the price file that `foveate prices update` has read. Nothing is ever fetched. The
tables take most of a second to load, so that happens when the first price is asked for.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeVar

from foveate.cost.caps import DAY_SECONDS
from foveate.cost.price_facts import Fact, facts
from foveate.cost.price_match import reads_on
from foveate.cost.price_names import provider_id, spellings
from foveate.cost.prices import EXACT, ZERO, Kind, PriceSource, Rate, Rates, Step, upper_bound
from foveate.tokens.names import plain_name
from foveate.wire.bills import Unit

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, Provider, TieredPrices

    from foveate.cost.price_update import PriceUpdate

_EPOCH = date(1970, 1, 1)
_Fact = TypeVar("_Fact", bound=Fact)

# Its names for what has a price, and ours. Writes that it does not tell apart are for the short time.
_KINDS: Mapping[str, Kind | Unit] = {
    "input_mtok": Kind.UNCACHED,
    "cache_read_mtok": Kind.READ,
    "cache_write_mtok": Kind.WRITTEN_5M,
    "cache_write_5m_mtok": Kind.WRITTEN_5M,
    "cache_write_1h_mtok": Kind.WRITTEN_1H,
    "output_mtok": Kind.OUTPUT,
    "output_reasoning_mtok": Kind.REASONING,
    "input_audio_mtok": Unit.INPUT_AUDIO,
    "input_image_mtok": Unit.INPUT_IMAGE,
    "input_video_mtok": Unit.INPUT_VIDEO,
    "cache_audio_read_mtok": Unit.READ_AUDIO,
    "cache_image_read_mtok": Unit.READ_IMAGE,
    "cache_video_read_mtok": Unit.READ_VIDEO,
    "output_audio_mtok": Unit.OUTPUT_AUDIO,
    "output_image_mtok": Unit.OUTPUT_IMAGE,
    "output_video_mtok": Unit.OUTPUT_VIDEO,
    "output_citation_mtok": Unit.CITATIONS,
    "web_searches_kcount": Unit.WEB_SEARCHES,
    "rerank_searches_kcount": Unit.RERANKS,
    "requests_kcount": Unit.REQUESTS,
}
_ONE_OF = {"mtok": Decimal("1e-6"), "kcount": Decimal("1e-3")}

# What providers call their tiers: the usual one, and those that have another price. What is prepaid has none.
_USUAL = frozenset(("", "auto", "default", "on_demand", "standard", "standard_only"))
_TIERS: Mapping[str, Mapping[str, str]] = {
    "batch": {"processing": "batch"},
    "fast": {"service_tier": "fast"},
    "flex": {"service_tier": "flex"},
    "on_demand_flex": {"service_tier": "flex"},
    "on_demand_priority": {"service_tier": "priority"},
    "priority": {"service_tier": "priority"},
}
_PREPAID = frozenset(("provisioned_throughput", "reserved", "scale"))


def is_known_tier(tier: str) -> bool:
    """Whether the price of a tier is known, or known not to have one; any other word may mean anything."""
    return tier.strip().lower() in _USUAL | _TIERS.keys() | _PREPAID


def load() -> None:
    """Loads the tables, so that the first price does not wait for them."""
    _providers()


def schedule_of(
    provider: str, model: str, *, tier: str = "", region: str = "", update: "PriceUpdate | None" = None
) -> "Schedule | FamilySchedule | None":
    """The prices of a model at a provider over time; None where neither it nor its family has any.

    Of all sources that know a model the newest holds: the price file `update` or the dated table. The installed
    tables hold where the latter has no entry, and a price file that is older than them where they have none.
    """
    spelled = list(spellings(provider_id(provider), model))
    for host, name in spelled:
        terms = _Terms(provider=host, name=name, tier=tier.strip().lower(), region=region.strip().lower())
        schedule = _own_schedule(terms, update)
        if schedule is not None:
            return schedule
    for host, name in spelled:
        terms = _Terms(provider=host, name=name, tier=tier.strip().lower(), region=region.strip().lower())
        inherited = _family_schedule(terms, update)
        if inherited is not None:
            return inherited
    return None


def _own_schedule(terms: "_Terms", update: "PriceUpdate | None") -> "Schedule | None":
    dated = next(iter(terms.of(facts().models)), None)
    updated = None if update is None else _find_in(update.providers, terms, update.origin)
    if dated is not None:
        origin = f"Foveate's table, {dated.as_of}"
        table: Schedule | None = Schedule(_dated_models()[dated.id], terms, is_own=True, origin=origin)
    else:
        table = _find_in(_providers(), terms, _origin())
    if updated is None or update is None:
        return table
    updated.derives_cache_prices = True
    if update.day >= (dated.day if dated else facts().as_of):
        updated.table = table
        return updated
    return table or updated


def _find_in(known: "Mapping[str, Provider]", terms: "_Terms", origin: str) -> "Schedule | None":
    """Find a model in tables: by its name, or as one that it costs the same as."""
    likes = [fact.like for fact in terms.of(facts().likes)]
    for name in (terms.name, *likes):
        host = known.get(terms.provider)
        if host is None:
            continue
        found = host.find_model(name, all_providers=[*known.values()])
        if found is None or reads_on(found, name):
            found = next((model for model in host.models if model.id.lower() == name), None)
        if found is not None:
            is_own = any(found is other for other in host.models)
            return Schedule(found, replace(terms, name=name), is_own=is_own, origin=origin)
    return None


def _family_schedule(terms: "_Terms", update: "PriceUpdate | None") -> "FamilySchedule | None":
    """The prices of the family of a model, whose members are all that its provider has of it."""
    known, name = facts(), plain_name(terms.name)
    family = next((family for family in known.families if re.search(family.names, name)), None)
    if family is None or known.other_kinds.search(name):
        return None
    words = set(known.variants.findall(name))
    path = terms.name.rpartition("/")[0]  # another maker's name in it may mean another price
    members = [
        Schedule(model, terms, is_own=is_own, origin=model.id)
        for model, is_own in _models_at(terms.provider, update)
        if model.id.rpartition("/")[0].lower() == path
        and re.search(family.names, member := plain_name(model.id))
        and not known.other_kinds.search(member)
        and words.issuperset(known.variants.findall(member))
    ]
    return FamilySchedule(family.id, terms.provider, members) if members else None


def _models_at(host: str, update: "PriceUpdate | None") -> "Iterator[tuple[ModelInfo, bool]]":
    """All models of a provider with known prices, and whether these are its own prices."""
    for known in (_providers(), {} if update is None else update.providers):
        found = known.get(host)
        if found is not None:
            yield from ((model, True) for model in found.models)
            for other in found.fallback_model_providers or ():
                yield from ((model, False) for model in (known[other].models if other in known else ()))
    yield from ((_dated_models()[fact.id], True) for fact in facts().models if fact.provider == host)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """How a model is bought."""

    provider: str
    name: str
    tier: str
    region: str

    def of(self, found: Iterable[_Fact]) -> list[_Fact]:
        """The facts that hold for it."""
        return [fact for fact in found if fact.holds(self.provider, self.name)]


class Schedule:
    """The rates of one model, those that are in force at a time; what was worked out is kept."""

    def __init__(self, model: "ModelInfo", terms: _Terms, *, is_own: bool, origin: str) -> None:
        self._model, self._terms, self._is_own, self.origin = model, terms, is_own, origin
        self.changes = _changes(model)
        self.derives_cache_prices = False
        self.table: Schedule | None = None  # has what a price file leaves out: service tiers, searches
        self._weekend_hour = next((fact.at for fact in terms.of(facts().weekends)), None)
        self._found: dict[tuple[int, int], Rates | None] = {}

    def at(self, at: float) -> Rates | None:
        """The rates in force at a time; None where there are none."""
        if self._weekend_hour is not None and _is_weekend(at):
            at = at - at % DAY_SECONDS + self._weekend_hour * 3600
        place = self.changes.place(at)
        if place not in self._found:
            self._found[place] = self._rates(datetime.fromtimestamp(at, UTC))
        return self._found[place]

    def dearest_region(self) -> str:
        """Of the regions with a price of their own, the one where every token costs most; none if not more."""
        multiples = {"": Decimal(1)}
        for fact in self._terms.of(facts().multiples):
            if fact.region:
                multiples[fact.region] = EXACT.multiply(multiples.get(fact.region, Decimal(1)), fact.multiple)
        return max(multiples, key=lambda region: multiples[region])

    def _rates(self, moment: datetime) -> Rates | None:
        at_tier = self._at_tier(moment)
        if at_tier is None:
            return None if self.table is None else self.table._rates(moment)
        prices, multiple = at_tier
        by_kind = _by_kind(prices)
        for same in self._terms.of(facts().costs_as):
            if same.other in by_kind:
                by_kind.setdefault(same.kind, by_kind[same.other])
        if not by_kind:
            if not self._terms.of(facts().free):
                return None
            by_kind = dict.fromkeys(Kind, Rate(ZERO))
        for fact in self._terms.of(facts().multiples):
            if fact.is_of(self._terms.region):
                multiple = EXACT.multiply(multiple, fact.multiple)
        # Another provider's price may not be this one's, a price by the hour knows no first day, and a word for
        # a tier that nobody has heard of may mean anything.
        tier = self._terms.tier
        assumed = not self._is_own or bool(self.changes.seconds) or (tier not in _USUAL and tier not in _TIERS)
        rates = Rates(by_kind=by_kind, source=PriceSource.TABLE, origin=self.origin, assumed=assumed)
        if self.derives_cache_prices:
            rates = with_cache_prices(rates, self._model.id)
        rates = rates if multiple == 1 else rates.times(multiple)
        other = None if self.table is None else self.table._rates(moment)
        return rates if other is None else replace(rates, by_kind={**other.by_kind, **rates.by_kind})

    def _at_tier(self, moment: datetime) -> "tuple[ModelPrice, Decimal] | None":
        """The prices of the tier at a moment, and how many times they are to be paid; None: not known."""
        tier = self._terms.tier
        context = _TIERS.get(tier, {})
        if not context:
            return None if tier in _PREPAID else (self._model.get_prices(moment), Decimal(1))
        if self._is_own and _has_variant(self._model, context, moment):
            return self._model.get_prices(moment, context), Decimal(1)
        multiples = (fact.multiple for fact in self._terms.of(facts().multiples) if fact.tier == tier)
        multiple = next(multiples, None)
        return None if multiple is None else (self._model.get_prices(moment), multiple)


class FamilySchedule:
    """The most that the members of a family cost, for a model of it that has no price of its own."""

    def __init__(self, family: str, host: str, members: Sequence[Schedule]) -> None:
        self._family, self._host, self._members = family, host, members
        self._changes = _Changes(
            moments=sorted({at for member in members for at in member.changes.moments}),
            seconds=sorted({at for member in members for at in member.changes.seconds}),
        )
        self._found: dict[tuple[int, int, bool], Rates | None] = {}

    def at(self, at: float) -> Rates | None:
        """The rates in force at a time; None where no member has any."""
        place = (*self._changes.place(at), _is_weekend(at))
        if place not in self._found:
            self._found[place] = self._rates(at)
        return self._found[place]

    def dearest_region(self) -> str:
        """Of the regions with a price of their own, the one where every token costs most."""
        return self._members[0].dearest_region()

    def _rates(self, at: float) -> Rates | None:
        known = [
            with_cache_prices(found, found.origin)
            for member in self._members
            if (found := member.at(at)) is not None
        ]
        priced = [found for found in known if {Kind.UNCACHED, Kind.OUTPUT} <= found.by_kind.keys()]
        if not priced:
            return None
        dearest = max(priced, key=lambda rates: (rates.by_kind[Kind.OUTPUT].dollars, rates.origin))
        return Rates(
            by_kind=upper_bound(priced),
            source=PriceSource.TABLE,
            origin=f"the most expensive of {self._family} at {self._host} ({dearest.origin})",
            assumed=True,
            inherited_from=self._family,
        )


def with_cache_prices(rates: Rates, model: str) -> Rates:
    """The rates of a model, with prices of reads and writes if it has none."""
    name = plain_name(model)
    known = next((fact for fact in facts().cache_times if re.search(fact.names, name)), None)
    uncached = rates.by_kind.get(Kind.UNCACHED)
    if known is None or uncached is None:
        return rates
    by_kind: dict[Kind | Unit, Rate] = {kind: uncached.times(times) for kind, times in known.times.items()}
    return replace(rates, by_kind=by_kind | dict(rates.by_kind))


def _by_kind(prices: "ModelPrice") -> dict[Kind | Unit, Rate]:
    found = {}
    for name, price in vars(prices).items():
        kind = _KINDS.get(name)
        if kind is not None and price is not None:
            found[kind] = _rate(price, _ONE_OF[name.rpartition("_")[2]])
    return found


def _rate(price: "Decimal | TieredPrices", one: Decimal) -> Rate:
    if isinstance(price, Decimal):
        return Rate(EXACT.multiply(price, one))
    steps = tuple(Step(tier.start, EXACT.multiply(tier.price, one)) for tier in price.tiers)
    return Rate(EXACT.multiply(price.base, one), steps)


def _has_variant(model: "ModelInfo", context: Mapping[str, str], moment: datetime) -> bool:
    return any(
        variant.when == context and (variant.constraint is None or variant.constraint.active(moment))
        for variant in model.price_variants or ()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changes:
    """When prices change, in seconds since 1970, and the seconds of the day at which they do."""

    moments: list[int]
    seconds: list[float]

    def place(self, at: float) -> tuple[int, int]:
        """Where a time stands among them: between two changes no price does."""
        return (
            bisect_right(self.moments, at) if self.moments else 0,
            bisect_right(self.seconds, at % DAY_SECONDS) if self.seconds else 0,
        )


def _changes(model: "ModelInfo") -> _Changes:
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
    return _Changes(moments=sorted(moments), seconds=sorted(seconds))


def _is_weekend(at: float) -> bool:
    return (int(at // DAY_SECONDS) + 3) % 7 >= 5  # 1 January 1970 was a Thursday


def _second_of_day(moment: time) -> float:
    stood = datetime.combine(_EPOCH, moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    return stood.timestamp() % DAY_SECONDS


@cache
def _providers() -> "Mapping[str, Provider]":
    """The tables as they were installed: a snapshot that somebody else in this process fetched is not ours."""
    from genai_prices.data import providers

    return {provider.id: provider for provider in providers}


@cache
def _dated_models() -> "Mapping[str, ModelInfo]":
    """The models of the dated table, in the types of genai-prices."""
    from genai_prices.types import ClauseEquals, ModelInfo, ModelPrice, Tier, TieredPrices

    def price(dollars: Decimal, tiers: Sequence[tuple[int, Decimal]]) -> Decimal | TieredPrices:
        steps = [Tier(start=over, price=EXACT.multiply(dollars, times)) for over, times in tiers]
        return TieredPrices(base=dollars, tiers=steps) if steps else dollars

    found = {}
    for fact in facts().models:
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
        found[fact.id] = ModelInfo(id=fact.id, match=match, prices=ModelPrice(**prices))
    return found


_CACHE_KINDS = {
    "cache_read_mtok": Kind.READ,
    "cache_write_mtok": Kind.WRITTEN_5M,
    "cache_write_1h_mtok": Kind.WRITTEN_1H,
}


@cache
def _origin() -> str:
    return f"genai-prices {version('genai-prices')}"
