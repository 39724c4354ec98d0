"""Cache rules of each provider and model, from a dated table (`prompt_cache/rules.toml`).

`ANTHROPIC_CACHE_BETA` overrides the part of the header `anthropic-beta` that concerns caching.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from foveate.errors import BadOption
from foveate.model import Area, CacheUsage, Ttl
from foveate.tokens.model_names import normalize_model_name, tokenizer_name_candidates

_TABLE = Path(__file__).with_name("rules.toml")
# Bounded, since a long-lived process may see many model names.
_MAX_CACHED_RULES = 256
# Each name is matched against the patterns of all providers.
_MAX_NAME_CHARS = 256


class CachingMode(StrEnum):
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
        maker = next(
            (provider_rules for provider_rules in served if re.search(provider_rules.model_pattern, name)), None
        )
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
class _ProviderRules:
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
        known, kin = tokenizer_name_candidates(name)
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
    providers: tuple[_ProviderRules, ...]
    by_name: Mapping[str, _ProviderRules]
    defaults: dict[str, Any]


def _find_host(model: str, table: _RulesTable) -> _ProviderRules | None:
    """The provider that a model's name suggests: by its path, its spelling, or the model's maker."""
    lower_name = model.lower()[:_MAX_NAME_CHARS]
    path = lower_name.split("/")[:-1]
    for part in path:
        if part in table.by_name:
            return table.by_name[part]
    by_spelling = (
        provider
        for provider in table.providers
        if provider.spelling_pattern and re.search(provider.spelling_pattern, lower_name)
    )
    name = normalize_model_name(model)
    by_maker = (
        provider
        for provider in table.providers
        if provider.model_pattern and re.search(provider.model_pattern, name)
    )
    return next(by_spelling, None) or next(by_maker, None)


@cache
def _load_table() -> _RulesTable:
    table = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    providers = tuple(_parse_provider(dict(entry)) for entry in table["provider"])
    by_name = {name: provider for provider in providers for name in (provider.name, *provider.aliases)}
    return _RulesTable(providers=providers, by_name=by_name, defaults=table["defaults"])


def _parse_provider(entry: dict[str, Any]) -> _ProviderRules:
    rows = tuple(
        _ModelRow(
            name_pattern=row.pop("names"),
            newer_pattern=row.pop("newer", ""),
            unknown=row.pop("unknown", {}),
            facts=row,
        )
        for row in map(dict, entry.pop("model", []))
    )
    return _ProviderRules(
        name=entry.pop("name"),
        aliases=tuple(entry.pop("also", ())),
        model_pattern=entry.pop("match", ""),
        spelling_pattern=entry.pop("spelling", ""),
        serves=tuple(entry.pop("serves", ())),
        facts=entry,
        rows=rows,
    )


def _make_rules(facts: Mapping[str, Any]) -> CacheRules:
    fields: dict[str, Any] = {
        **facts,
        "caching": CachingMode(facts["caching"]),
        "ttls": tuple(map(Ttl, facts["ttls"])),
        "write_prices": MappingProxyType({Ttl(ttl): price for ttl, price in facts["write_prices"].items()}),
        "breakpoint_kinds": frozenset(facts["breakpoint_kinds"]),
        "invalidating_parameters": MappingProxyType(
            {name: Area(area) for name, area in facts["invalidating_parameters"].items()}
        ),
    }
    return CacheRules(**fields)


CACHE_BETA_VARIABLE = "ANTHROPIC_CACHE_BETA"
BETA_HEADER = "anthropic-beta"
# Anthropic's caching betas until 2025. Other hosts may still require or reject them.
_CACHING_BETA = re.compile(r"(prompt-caching|extended-cache-ttl)(-|$)")
_BETA = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def resolve_beta_header(override: str | None, client_value: str = "") -> str:
    """The value of the header to send; if empty, the header is left out.

    `override` is the value of the variable. If it is None, the client's value is sent unchanged, since
    Anthropic no longer requires a beta for caching. Otherwise its comma-separated betas replace the client's
    betas about caching; others stay. An empty override means none.

    Raises:
        BadOption: the override is not a valid header value.
    """
    if override is None:
        return client_value
    override_betas = _split_betas(override)
    for beta in override_betas:
        if not _BETA.fullmatch(beta):
            raise BadOption(
                f"{CACHE_BETA_VARIABLE} must be a comma-separated list of beta names, not {override!r:.80}"
            )
    others = [beta for beta in _split_betas(client_value) if not _CACHING_BETA.match(beta)]
    return ",".join(dict.fromkeys(others + override_betas))


def _split_betas(text: str) -> list[str]:
    return [beta.strip() for beta in text.split(",") if beta.strip()]
