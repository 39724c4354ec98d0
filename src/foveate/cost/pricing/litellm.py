"""Convert LiteLLM's price list (`model_prices_and_context_window.json`) to the data format of genai-prices."""

import re
from collections.abc import Mapping
from decimal import Decimal, Inexact, InvalidOperation
from typing import Any, TypeGuard

from foveate.cost.pricing.price_facts import normalize_provider
from foveate.cost.pricing.rates import EXACT

# Kinds of models that are charged per token.
_MODES = ("chat", "completion", "responses", "embedding")
_SAMPLE = "sample_spec"
# Suffix of providers that serve models of others: vertex_ai-anthropic_models.
_SUFFIX = re.compile(r"-[a-z0-9]+[-_]models$")
_PROVIDERS = {"bedrock_mantle": "aws", "azure_text": "azure", "text-completion-openai": "openai"}
_MILLION = 1_000_000
# LiteLLM's names of prices per token, and those of genai-prices per million.
_PRICE_FIELDS = {
    "input_cost_per_token": "input_mtok",
    "output_cost_per_token": "output_mtok",
    "cache_read_input_token_cost": "cache_read_mtok",
    "cache_creation_input_token_cost": "cache_write_mtok",
    "cache_creation_input_token_cost_above_1hr": "cache_write_1h_mtok",
    "output_cost_per_reasoning_token": "output_reasoning_mtok",
    "input_cost_per_audio_token": "input_audio_mtok",
    "output_cost_per_audio_token": "output_audio_mtok",
}
_VARIANTS: Mapping[str, Mapping[str, str]] = {
    "batches": {"processing": "batch"},
    "flex": {"service_tier": "flex"},
    "priority": {"service_tier": "priority"},
}
_FIELD_NAME = re.compile(
    r"(?P<kind>.+?)(?:_above_(?P<thousands>\d{1,5})k_tokens)?(?:_(?P<tier>batches|flex|priority))?"
)
_SEARCH_FIELD = "search_context_cost_per_query"


def is_litellm_list(document: object) -> TypeGuard[Mapping[str, Any]]:
    """LiteLLM's list is an object of models that name their provider."""
    if not isinstance(document, dict) or not document:
        return False
    return any(isinstance(entry, dict) and "litellm_provider" in entry for entry in document.values())


def convert_providers(document: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the models by provider in the format of genai-prices, and how many were skipped, by reason.

    Amounts are checked later.
    """
    providers: dict[str, dict[str, dict[str, Any]]] = {}
    skipped: dict[str, int] = {}

    def skip(reason: str) -> None:
        skipped[reason] = skipped.get(reason, 0) + 1

    for name, entry in document.items():
        if name == _SAMPLE:
            continue
        if not isinstance(entry, dict) or not isinstance(entry.get("litellm_provider"), str):
            skip("without a provider")
        elif entry.get("mode") not in _MODES:
            skip("not billed by the token")
        elif entry.get("input_cost_per_token") is None:
            skip("without a price")
        else:
            provider = _convert_provider(entry["litellm_provider"])
            models, own_name = providers.setdefault(provider, {}), _strip_provider(name, provider)
            if own_name in models:
                skip("listed twice")
            else:
                models[own_name] = _convert_model(own_name, entry)
    return [{"id": provider, "models": [*models.values()]} for provider, models in providers.items()], skipped


def _convert_provider(litellm_provider: str) -> str:
    name = _SUFFIX.sub("", litellm_provider.lower())
    return _PROVIDERS.get(name) or normalize_provider(name)


def _strip_provider(name: str, provider: str) -> str:
    prefix, slash, rest = name.lower().partition("/")
    return rest if slash and _convert_provider(prefix) == provider else name.lower()


def _convert_model(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    prices: dict[str, dict[str, Any]] = {}
    for field, amount in entry.items():
        match = _FIELD_NAME.fullmatch(field)
        kind = _PRICE_FIELDS.get(match["kind"]) if match else None
        if match is None or kind is None or amount is None:
            continue
        of_tier = prices.setdefault(match["tier"] or "", {})
        price = of_tier.setdefault(kind, {"base": None, "tiers": []})
        if match["thousands"]:
            start = int(match["thousands"]) * 1_000
            price["tiers"].append({"start": start, "price": _per_million(amount)})
        else:
            price["base"] = _per_million(amount)
    standard = _flatten_prices(prices.pop("", {}))
    if entry.get("mode") == "embedding":
        standard.pop("output_mtok", None)
    elif not all(_is_charged(standard.get(kind)) for kind in ("input_mtok", "output_mtok")):
        standard = {}  # a price of 0 usually means unknown
    searches = entry.get(_SEARCH_FIELD)
    if standard and isinstance(searches, dict) and searches:
        standard["web_searches_kcount"] = max(
            (_multiply(amount, 1_000) for amount in searches.values()), key=_sort_key
        )
    variants = [
        {"when": _VARIANTS[tier], "prices": _complete_variant(_flatten_prices(match), standard)}
        for tier, match in prices.items()
    ]
    return {"id": name, "prices": standard, "price_variants": variants}


def _flatten_prices(prices: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Turn prices without tiers into one amount, and drop those without a base amount."""
    return {
        kind: {"base": price["base"], "tiers": sorted(price["tiers"], key=lambda tier: tier["start"])}
        if price["tiers"]
        else price["base"]
        for kind, price in prices.items()
        if price["base"] is not None
    }


def _is_charged(price: object) -> bool:
    amount = price["base"] if isinstance(price, dict) else price
    return amount is not None and amount != 0


def _complete_variant(prices: dict[str, Any], standard: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the prices of a service tier by the ratio of its input price to the standard one.

    A missing price for long inputs means that nobody entered it, not that they cost less.
    """
    times = _ratio(prices.get("input_mtok"), standard.get("input_mtok"))
    if times is None:
        return prices
    for kind, price in standard.items():
        if not kind.endswith("_mtok"):
            continue
        stated = prices.get(kind)
        if stated is None:
            prices[kind] = _scale_price(price, times)
        elif (
            isinstance(price, dict)
            and not isinstance(stated, dict)
            and (ratio := _ratio(stated, price)) is not None
        ):
            prices[kind] = _scale_price(price, ratio)
    return prices


def _ratio(price: object, standard: object) -> Decimal | None:
    """Return how many times the standard price a price is, if that is exact."""
    base, standard_base = (
        amount["base"] if isinstance(amount, dict) else amount for amount in (price, standard)
    )
    if (
        not isinstance(base, Decimal)
        or not isinstance(standard_base, Decimal)
        or not base.is_finite()
        or not standard_base > 0
    ):
        return None
    try:
        return EXACT.divide(base, standard_base)
    except Inexact:
        return None


def _scale_price(price: Any, times: Decimal) -> Any:
    if not isinstance(price, dict):
        return price * times if isinstance(price, Decimal) else price
    tiers = [{"start": tier["start"], "price": _scale_price(tier["price"], times)} for tier in price["tiers"]]
    return {"base": _scale_price(price["base"], times), "tiers": tiers}


def _per_million(amount: object) -> object:
    return _multiply(amount, _MILLION)


def _multiply(amount: object, number: int) -> object:
    """Multiply an amount. Other values are returned unchanged, and rejected when amounts are checked."""
    if isinstance(amount, bool) or not isinstance(amount, int | Decimal):
        return amount
    try:
        return Decimal(amount) * number
    except InvalidOperation:
        return amount


def _sort_key(amount: object) -> Decimal:
    return amount if isinstance(amount, Decimal) else Decimal(-1)
