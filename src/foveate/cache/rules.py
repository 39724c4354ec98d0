"""What each provider's cache does for each model, found by name in a dated table (`cache/rules.toml`)."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from foveate.tokens.names import plain_name, stretches_of
from foveate.values import Area, CacheUsage, Ttl

_TABLE = Path(__file__).with_name("rules.toml")
# Models that come and go in a long-lived process are forgotten again.
_KEPT_RULES = 256
# Names are looked through for each provider.
_LONGEST_NAME_CHARS = 256


class Caching(StrEnum):
    """How a provider decides what to keep."""

    MARKS = "marks"  # only up to a mark (Anthropic)
    AUTOMATIC = "automatic"  # every prefix, in steps (OpenAI before GPT-5.6, DeepSeek, Mistral, xAI, Gemini)
    BOTH = "both"  # automatic, with marks on top (OpenAI from GPT-5.6)
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """One model's cache. Prices are multiples of that of an uncached input token.

    `source` and `as_of` say where the rules come from; `inherited` that nothing is known of this very model, so
    that the rules are those of its kin, `family`. A `lookback_positions` of 0 is one without a bound.
    `ttls` are the times that a mark may ask for, the usual one first; of a provider that keeps things unasked,
    how long it does so while nobody uses them. `breaks` names the parameters whose change a prefix does not
    outlive, each with the area from which on it is lost. `binds_thinking`: a replayed thinking block is refused
    where anything before it was changed. `drops_thinking`: the provider leaves out all thinking that stands
    before the last message in which the user speaks (one that holds more than tool results), so that the prefix
    ends at the first of it. `rejects_marks`: a request with a cache breakpoint is an error.
    """

    provider: str
    family: str
    source: str
    as_of: str
    inherited: bool
    caching: Caching
    most_marks: int
    rejects_marks: bool
    lookback_positions: int
    runs_are_one_position: bool
    minimum_tokens: int
    step_tokens: int
    ttls: tuple[Ttl, ...]
    read_price: float
    write_prices: Mapping[Ttl, float]
    markable: frozenset[str]
    breaks: Mapping[str, Area]
    binds_thinking: bool
    drops_thinking: bool
    key_parameter: str
    key_header: str
    takes_blocks: bool


def input_price(usage: CacheUsage, rules: Rules) -> float:
    """Price the input of a request, in uncached input tokens."""
    price = usage.uncached + usage.read * rules.read_price
    if usage.written_5m:
        price += usage.written_5m * rules.write_prices[rules.ttls[0]]
    if usage.written_1h:
        price += usage.written_1h * rules.write_prices[rules.ttls[-1]]
    return price


@lru_cache(_KEPT_RULES)
def rules_for(model: str, provider: str | None = None) -> Rules:
    """The rules of a model at a provider; where none is said, at the one that the model's name points to.

    A model that the table does not have yet gets the rules of its family, at the price and minimum of its least
    generous one, and what belongs to no family those of a cache that takes no marks and promises nothing. Both
    say that they are `inherited`.
    """
    table = _table()
    host = table.by_name.get(provider.lower()) if provider is not None else _host(model, table)
    name = plain_name(model)
    maker = host
    if host is not None and host.serves:
        served = [table.by_name[other] for other in host.serves]
        maker = next((found for found in served if re.search(found.match, name)), None)
    if host is None or maker is None:
        return _rules(table.defaults | {"provider": host.name if host else provider or "", "inherited": True})
    row, is_known = maker.row_of(name)
    facts = table.defaults | maker.facts | {"inherited": not is_known}
    if row is not None:
        facts = facts | row.facts | ({} if is_known else row.unknown)
    if host is not maker:
        exception, _ = host.row_of(name)
        facts = facts | host.facts | (exception.facts if exception else {})
    return _rules(facts | {"provider": host.name})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """What is special about some models: those whose name `names` is, and later ones, found by `newer`.

    `unknown` holds for all that are not known by their name.
    """

    names: str
    newer: str
    unknown: dict[str, Any]
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Provider:
    """One that serves models of its own (known by `match`), those of others (`serves`), or any (neither).

    `spelling` is how it writes the names of models that others write differently.
    """

    name: str
    also: tuple[str, ...]
    match: str
    spelling: str
    serves: tuple[str, ...]
    facts: dict[str, Any]
    rows: tuple[_Row, ...]

    def row_of(self, name: str) -> tuple[_Row | None, bool]:
        """The first row that is a model's name, or else one of its kin's; and whether it is known by it."""
        known, kin = stretches_of(name)
        for row in self.rows:
            if any(re.fullmatch(row.names, stretch) for stretch in known):
                return row, True
        for row in self.rows:
            if any(re.fullmatch(row.names, stretch) for stretch in kin):
                return row, False
        for row in self.rows:
            if row.newer and re.search(row.newer, name):
                return row, False
        return None, not self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    providers: tuple[_Provider, ...]
    by_name: Mapping[str, _Provider]
    defaults: dict[str, Any]


def _host(model: str, table: _Table) -> _Provider | None:
    """The provider that a model's name points to: by the path to it, by how it is spelled, by whose it is."""
    spelled = model.lower()[:_LONGEST_NAME_CHARS]
    path = spelled.split("/")[:-1]
    for part in path:
        if part in table.by_name:
            return table.by_name[part]
    by_spelling = (found for found in table.providers if found.spelling and re.search(found.spelling, spelled))
    name = plain_name(model)
    by_maker = (found for found in table.providers if found.match and re.search(found.match, name))
    return next(by_spelling, None) or next(by_maker, None)


@cache
def _table() -> _Table:
    table = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    providers = tuple(_provider(dict(entry)) for entry in table["provider"])
    by_name = {name: provider for provider in providers for name in (provider.name, *provider.also)}
    return _Table(providers=providers, by_name=by_name, defaults=table["defaults"])


def _provider(entry: dict[str, Any]) -> _Provider:
    rows = tuple(
        _Row(names=row.pop("names"), newer=row.pop("newer", ""), unknown=row.pop("unknown", {}), facts=row)
        for row in map(dict, entry.pop("model", []))
    )
    return _Provider(
        name=entry.pop("name"),
        also=tuple(entry.pop("also", ())),
        match=entry.pop("match", ""),
        spelling=entry.pop("spelling", ""),
        serves=tuple(entry.pop("serves", ())),
        facts=entry,
        rows=rows,
    )


def _rules(facts: Mapping[str, Any]) -> Rules:
    return Rules(
        **{
            **facts,
            "caching": Caching(facts["caching"]),
            "ttls": tuple(map(Ttl, facts["ttls"])),
            "write_prices": MappingProxyType({Ttl(ttl): price for ttl, price in facts["write_prices"].items()}),
            "markable": frozenset(facts["markable"]),
            "breaks": MappingProxyType({name: Area(area) for name, area in facts["breaks"].items()}),
        }
    )
