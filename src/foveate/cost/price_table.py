"""The prices that genai-prices has, as rates: found by provider and model, and in force at a time.

Only its tables are read, those that were installed with it: nothing is ever fetched. They take most of a second
to load, so that happens when the first price is asked for.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeVar

from foveate.cost.caps import DAY_SECONDS
from foveate.cost.price_facts import Fact, facts
from foveate.cost.price_names import provider_id, spellings
from foveate.cost.prices import EXACT, ZERO, Kind, PriceSource, Rate, Rates, Step
from foveate.wire.bills import Unit

if TYPE_CHECKING:
    from genai_prices.types import MatchLogic, ModelInfo, ModelPrice, Provider, TieredPrices

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


def load() -> None:
    """Loads the tables, so that the first price does not wait for them."""
    _providers()


def schedule_of(provider: str, model: str, *, tier: str = "", region: str = "") -> "Schedule | None":
    """The prices of a model at a provider over time; None where it has none."""
    known = _providers()
    for host, name in spellings(provider_id(provider), model):
        name = next((fact.like for fact in facts().likes if fact.holds(host, name)), name)
        found = known[host].find_model(name, all_providers=[*known.values()]) if host in known else None
        if found and not _reads_on(found, name):
            terms = _Terms(provider=host, name=name, tier=tier.strip().lower(), region=region.strip().lower())
            return Schedule(found, terms, is_own=any(found is other for other in known[host].models))
    return None


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

    def __init__(self, model: "ModelInfo", terms: _Terms, *, is_own: bool) -> None:
        self._model, self._terms, self._is_own = model, terms, is_own
        self._moments, self._seconds = _changes(model)
        self._found: dict[tuple[int, int], Rates | None] = {}

    def at(self, at: float) -> Rates | None:
        """The rates in force at a time; None where there are none."""
        # Between two changes nothing does, so that a place among them is all that has to be known of a time.
        place = (
            bisect_right(self._moments, at) if self._moments else 0,
            bisect_right(self._seconds, at % DAY_SECONDS) if self._seconds else 0,
        )
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
            return None
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
        # Another provider's price may not be this one's, a price by the hour knows no weekends and no first
        # day, and a word for a tier that nobody has heard of may mean anything.
        tier = self._terms.tier
        assumed = not self._is_own or bool(self._seconds) or (tier not in _USUAL and tier not in _TIERS)
        rates = Rates(by_kind=by_kind, source=PriceSource.TABLE, origin=_origin(), assumed=assumed)
        return rates if multiple == 1 else rates.times(multiple)

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


def _changes(model: "ModelInfo") -> tuple[list[int], list[float]]:
    """When prices of a model change, in seconds since 1970, and the seconds of the day at which they do."""
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
    return sorted(moments), sorted(seconds)


def _second_of_day(moment: time) -> float:
    stood = datetime.combine(_EPOCH, moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    return stood.timestamp() % DAY_SECONDS


@cache
def _providers() -> "Mapping[str, Provider]":
    """The tables as they were installed: a snapshot that somebody else in this process fetched is not ours."""
    from genai_prices.data import providers

    return {provider.id: provider for provider in providers}


@cache
def _origin() -> str:
    return f"genai-prices {version('genai-prices')}"


def _reads_on(model: "ModelInfo", name: str) -> bool:
    """Whether a name only begins as the model's does, and goes on to another version: 4-10 is not 4-1."""
    ends = [end for end in (_end_in(clause, name) for clause in _clauses(model.match)) if end is not None]
    return bool(ends) and all(_is_within_version(name, end) for end in ends)


def _clauses(match: "MatchLogic") -> "Iterator[MatchLogic]":
    from genai_prices.types import ClauseAnd, ClauseOr

    match match:
        case ClauseOr():
            for clause in match.or_:
                yield from _clauses(clause)
        case ClauseAnd():
            for clause in match.and_:
                yield from _clauses(clause)
        case _:
            yield match


def _end_in(clause: "MatchLogic", name: str) -> int | None:
    """Where the part of a name ends that a clause is about; None where it is about none."""
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
    """Whether the digits around a place are a number of two; dates and builds have more."""
    before = len(name[:end]) - len(name[:end].rstrip("0123456789"))
    behind = len(name[end:]) - len(name[end:].lstrip("0123456789"))
    return min(before, behind) > 0 and before + behind == 2
