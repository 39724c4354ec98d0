"""Facts about prices that the tables of genai-prices lack: a small dated table (`prices.toml`).

Also normalizes the names of providers and models, as clients and price tables write them.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from foveate.cost.pricing.rates import TokenKind
from foveate.formats.response.usage import BillableUnit

_FACTS_PATH = Path(__file__).with_name("prices.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceFact:
    """A fact about the models of a provider whose full names match `names`, with source and date."""

    provider: str
    names: str
    source: str
    as_of: str

    def applies_to(self, provider: str, model: str) -> bool:
        return provider == self.provider and re.fullmatch(self.names, model, re.DOTALL) is not None


@dataclass(frozen=True, slots=True)
class LongInputTier:
    """Multiples for all tokens of a request whose input exceeds `over_tokens`."""

    over_tokens: int
    input_times: Decimal
    output_times: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class DatedModel(PriceFact):
    """Prices of a model in dollars per million tokens; `times` are multiples of `input`."""

    id: str
    input: Decimal
    output: Decimal
    times: Mapping[TokenKind, Decimal]
    over: tuple[LongInputTier, ...] = ()
    web_searches: Decimal | None = None

    @property
    def day(self) -> date:
        return date.fromisoformat(self.as_of)


@dataclass(frozen=True, slots=True)
class PriceFamily:
    """Models that succeed each other; `names` is a pattern to search in their plain names."""

    id: str
    names: str


@dataclass(frozen=True, slots=True)
class CacheMultiples:
    """Prices of cache reads and writes as multiples of uncached input, for models without their own."""

    names: str
    times: Mapping[TokenKind, Decimal]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamePriceAs(PriceFact):
    like: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KindPricedAs(PriceFact):
    kind: TokenKind
    other: TokenKind


# Anthropic reports "not_available" for models that are not bound to a region.
_UNKNOWN_OR_GLOBAL = frozenset(("", "global", "not_available"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeModel(PriceFact):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceMultiple(PriceFact):
    """Multiple of all token prices for a service tier or a region.

    The region `regional` means any but global. `by_host`: the host of the provider tells the region, so that
    no setting of an account can change it.
    """

    multiple: Decimal
    tier: str = ""
    region: str = ""
    by_host: bool = False

    def applies_in(self, region: str) -> bool:
        if self.region == "regional":
            return region not in _UNKNOWN_OR_GLOBAL
        return bool(self.region) and self.region == region


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFee(PriceFact):
    """Dollars per thousand searches of models for which the tables have no fee."""

    unit: BillableUnit
    dollars: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekendPrice(PriceFact):
    """A model that costs at weekends what it costs on weekdays at the hour `at` (UTC)."""

    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceFacts:
    """All facts of the table.

    `as_of` is the day on which the installed tables were last compared with the providers' pages. Models whose
    names match `other_kinds` (images, audio, embeddings) belong to no family. A match of `variants` makes a
    model more expensive than others of its family. `price_stating_providers` report what they charge;
    `providers` maps all names of a provider to its id.
    """

    as_of: date
    models: tuple[DatedModel, ...]
    families: tuple[PriceFamily, ...]
    other_kinds: re.Pattern[str]
    variants: re.Pattern[str]
    cache_times: tuple[CacheMultiples, ...]
    likes: tuple[SamePriceAs, ...]
    costs_as: tuple[KindPricedAs, ...]
    free: tuple[FreeModel, ...]
    multiples: tuple[PriceMultiple, ...]
    search_fees: tuple[SearchFee, ...]
    weekends: tuple[WeekendPrice, ...]
    price_stating_providers: frozenset[str]
    providers: Mapping[str, str]


@cache
def load_price_facts() -> PriceFacts:
    table = tomllib.loads(_FACTS_PATH.read_text(encoding="utf-8"))
    return PriceFacts(
        as_of=date.fromisoformat(table["as_of"]),
        models=tuple(_parse_dated_model(dict(entry)) for entry in table["model"]),
        families=tuple(PriceFamily(entry["id"], entry["names"]) for entry in table["family"]),
        other_kinds=re.compile(table["other_kinds"]),
        variants=re.compile(table["variants"]),
        cache_times=tuple(
            CacheMultiples(entry["names"], _parse_multiples(entry["times"])) for entry in table["times"]
        ),
        likes=tuple(SamePriceAs(**entry) for entry in table["like"]),
        costs_as=tuple(
            KindPricedAs(**entry | {"kind": TokenKind(entry["kind"]), "other": TokenKind(entry.pop("as"))})
            for entry in table["as"]
        ),
        free=tuple(FreeModel(**entry) for entry in table["free"]),
        multiples=tuple(
            PriceMultiple(**entry | {"multiple": Decimal(entry["multiple"])}) for entry in table["multiple"]
        ),
        search_fees=tuple(
            SearchFee(**entry | {"unit": BillableUnit(entry["unit"]), "dollars": Decimal(entry["dollars"])})
            for entry in table["search"]
        ),
        weekends=tuple(WeekendPrice(**entry) for entry in table["weekend"]),
        price_stating_providers=frozenset(entry["provider"] for entry in table["says"]),
        providers={name: entry["id"] for entry in table["provider"] for name in (entry["id"], *entry["also"])},
    )


def _parse_dated_model(entry: dict[str, Any]) -> DatedModel:
    times = _parse_multiples(entry.pop("times"))
    over = tuple(
        LongInputTier(tier["over_tokens"], Decimal(tier["input_times"]), Decimal(tier["output_times"]))
        for tier in entry.pop("over", ())
    )
    searches = entry.pop("web_searches", None)
    return DatedModel(
        input=Decimal(entry.pop("input")),
        output=Decimal(entry.pop("output")),
        times=times,
        over=over,
        web_searches=None if searches is None else Decimal(searches),
        **entry,
    )


def _parse_multiples(table: Mapping[str, str]) -> Mapping[TokenKind, Decimal]:
    return {TokenKind(kind): Decimal(times) for kind, times in table.items()}


def normalize_provider(name: str) -> str:
    lowered = name.strip().lower()
    return load_price_facts().providers.get(lowered, lowered)


def states_its_price(name: str) -> bool:
    """Only trusted providers count."""
    return normalize_provider(name) in load_price_facts().price_stating_providers


def price_name_candidates(provider: str, model: str) -> Iterator[tuple[str, str]]:
    """Yield providers and names under which to look up a model: as written, then without its path.

    A path that names another provider is kept, because the price may differ.
    """
    name = model.strip().lower().removesuffix("[1m]")  # Claude Code's suffix for a long window
    prefix, slash, rest = name.partition("/")
    if provider == "litellm":
        if slash:
            yield from price_name_candidates(normalize_provider(prefix), rest)
        return
    if provider == "huggingface":
        name, _, host = name.rpartition(":")
        yield f"huggingface_{host}", name
        return
    yield provider, name
    _, models, last = name.rpartition("models/")  # models/…, publishers/…/models/…, accounts/…/models/…
    if models:
        yield provider, last
    if slash and normalize_provider(prefix) == provider:
        yield from price_name_candidates(provider, rest)
