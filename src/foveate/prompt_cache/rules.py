"""Cache rules of each provider and model, from a dated table (`prompt_cache/rules.toml`)."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from foveate.model import Area, CacheUsage, Ttl
from foveate.tokens.families import candidate_names, normalize_model_name

_TABLE = Path(__file__).with_name("rules.toml")
# Bounded, since a long-lived process may see many model names.
_MAX_CACHED_RULES = 256
# Each name is matched against the patterns of all providers.
_MAX_NAME_CHARS = 256


class CachingMode(StrEnum):
    """How a provider decides what to cache."""

    BREAKPOINTS = "marks"  # only prefixes that end at a breakpoint (Anthropic)
    AUTOMATIC = "automatic"  # every prefix, in steps (OpenAI before GPT-5.6, DeepSeek, Mistral, xAI, Gemini)
    BOTH = "both"  # automatic, and breakpoints in addition (OpenAI from GPT-5.6)
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """The cache of one model. Prices are multiples of the price of an uncached input token.

    `source` and `as_of` say where the rules come from. `inherited`: the table does not list this model, so
    these are the rules of its `family`. A `lookback_positions` of 0 means no limit. `ttls` are the TTLs that
    a breakpoint may request, the default first; for automatic caches, how long an unused entry is kept.
    `invalidating_parameters` maps each parameter whose change invalidates the prefix to the area from which
    on it does. `binds_thinking`: the provider rejects a replayed thinking block if anything before it has
    changed. `drops_thinking`: the provider drops all thinking before the last user message that contains more
    than tool results, so the prefix ends at the first thinking block. `rejects_breakpoints`: a request with a
    breakpoint is an error.
    """

    provider: str
    family: str
    source: str
    as_of: str
    inherited: bool
    caching: CachingMode
    max_breakpoints: int
    rejects_breakpoints: bool
    lookback_positions: int
    runs_are_one_position: bool
    minimum_tokens: int
    step_tokens: int
    ttls: tuple[Ttl, ...]
    read_price: float
    write_prices: Mapping[Ttl, float]
    breakpoint_kinds: frozenset[str]
    invalidating_parameters: Mapping[str, Area]
    binds_thinking: bool
    drops_thinking: bool
    key_parameter: str
    key_header: str
    takes_blocks: bool


def input_price(usage: CacheUsage, rules: CacheRules) -> float:
    """Price the input of a request, in uncached input tokens."""
    price = usage.uncached + usage.read * rules.read_price
    if usage.written_5m:
        price += usage.written_5m * rules.write_prices[rules.ttls[0]]
    if usage.written_1h:
        price += usage.written_1h * rules.write_prices[rules.ttls[-1]]
    return price


@lru_cache(_MAX_CACHED_RULES)
def rules_for(model: str, provider: str | None = None) -> CacheRules:
    """The rules of a model at a provider, or at the provider that the model's name suggests.

    A model that the table does not list gets the rules of its family with the least favourable price and
    minimum. A model without a family gets a cache that accepts no breakpoints and saves nothing. Both are
    `inherited`.
    """
    table = _load_table()
    host = table.by_name.get(provider.lower()) if provider is not None else _find_host(model, table)
    name = normalize_model_name(model)
    maker = host
    if host is not None and host.serves:
        served = [table.by_name[other] for other in host.serves]
        maker = next((found for found in served if re.search(found.model_pattern, name)), None)
    if host is None or maker is None:
        return _make_rules(
            table.defaults | {"provider": host.name if host else provider or "", "inherited": True}
        )
    row, is_known = maker.find_row(name)
    facts = table.defaults | maker.facts | {"inherited": not is_known}
    if row is not None:
        facts = facts | row.facts | ({} if is_known else row.unknown)
    if host is not maker:
        exception, _ = host.find_row(name)
        facts = facts | host.facts | (exception.facts if exception else {})
    return _make_rules(facts | {"provider": host.name})


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModelRow:
    """Rules of the models that match `name_pattern`, and of newer ones that match `newer_pattern`.

    `unknown` applies only to models that `name_pattern` does not match.
    """

    name_pattern: str
    newer_pattern: str
    unknown: dict[str, Any]
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Provider:
    """A provider that serves its own models (`model_pattern`), those of others (`serves`), or any (neither).

    `spelling_pattern` matches its own way of writing model names.
    """

    name: str
    aliases: tuple[str, ...]
    model_pattern: str
    spelling_pattern: str
    serves: tuple[str, ...]
    facts: dict[str, Any]
    rows: tuple[_ModelRow, ...]

    def find_row(self, name: str) -> tuple[_ModelRow | None, bool]:
        """The first row that matches a model's name, or else that of a related model; and whether the name
        matched.
        """
        known, kin = candidate_names(name)
        for row in self.rows:
            if any(re.fullmatch(row.name_pattern, part) for part in known):
                return row, True
        for row in self.rows:
            if any(re.fullmatch(row.name_pattern, part) for part in kin):
                return row, False
        for row in self.rows:
            if row.newer_pattern and re.search(row.newer_pattern, name):
                return row, False
        return None, not self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _RulesTable:
    providers: tuple[_Provider, ...]
    by_name: Mapping[str, _Provider]
    defaults: dict[str, Any]


def _find_host(model: str, table: _RulesTable) -> _Provider | None:
    """The provider that a model's name suggests: by its path, its spelling, or the model's maker."""
    spelled = model.lower()[:_MAX_NAME_CHARS]
    path = spelled.split("/")[:-1]
    for part in path:
        if part in table.by_name:
            return table.by_name[part]
    by_spelling = (
        found
        for found in table.providers
        if found.spelling_pattern and re.search(found.spelling_pattern, spelled)
    )
    name = normalize_model_name(model)
    by_maker = (
        found for found in table.providers if found.model_pattern and re.search(found.model_pattern, name)
    )
    return next(by_spelling, None) or next(by_maker, None)


@cache
def _load_table() -> _RulesTable:
    table = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    providers = tuple(_parse_provider(dict(entry)) for entry in table["provider"])
    by_name = {name: provider for provider in providers for name in (provider.name, *provider.aliases)}
    return _RulesTable(providers=providers, by_name=by_name, defaults=table["defaults"])


def _parse_provider(entry: dict[str, Any]) -> _Provider:
    rows = tuple(
        _ModelRow(
            name_pattern=row.pop("names"),
            newer_pattern=row.pop("newer", ""),
            unknown=row.pop("unknown", {}),
            facts=row,
        )
        for row in map(dict, entry.pop("model", []))
    )
    return _Provider(
        name=entry.pop("name"),
        aliases=tuple(entry.pop("also", ())),
        model_pattern=entry.pop("match", ""),
        spelling_pattern=entry.pop("spelling", ""),
        serves=tuple(entry.pop("serves", ())),
        facts=entry,
        rows=rows,
    )


def _make_rules(facts: Mapping[str, Any]) -> CacheRules:
    return CacheRules(
        **{
            **facts,
            "caching": CachingMode(facts["caching"]),
            "ttls": tuple(map(Ttl, facts["ttls"])),
            "write_prices": MappingProxyType({Ttl(ttl): price for ttl, price in facts["write_prices"].items()}),
            "breakpoint_kinds": frozenset(facts["breakpoint_kinds"]),
            "invalidating_parameters": MappingProxyType(
                {name: Area(area) for name, area in facts["invalidating_parameters"].items()}
            ),
        }
    )
