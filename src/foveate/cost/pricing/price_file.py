"""Price files of users: data of genai-prices or LiteLLM's list, validated and stored in one format.

A file is not trusted. All values are checked for type and range, slow patterns are skipped, and sizes are
limited. LiteLLM's list (`model_prices_and_context_window.json`) is converted to the format of genai-prices.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from foveate.cost.pricing.price_facts import normalize_provider
from foveate.cost.pricing.rates import EXACT
from foveate.errors import UnreadableInput

if TYPE_CHECKING:
    from genai_prices.types import (
        ConditionalPrice,
        MatchLogic,
        ModelInfo,
        ModelPrice,
        PriceVariant,
        Provider,
        StartDateConstraint,
        TieredPrices,
        TimeOfDateConstraint,
    )

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


def _is_litellm_list(document: object) -> TypeGuard[Mapping[str, Any]]:
    """LiteLLM's list is an object of models that name their provider."""
    if not isinstance(document, dict) or not document:
        return False
    return any(isinstance(entry, dict) and "litellm_provider" in entry for entry in document.values())


def _convert_providers(document: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, int]]:
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
    """Values that are not amounts are returned unchanged, and rejected when amounts are checked."""
    if isinstance(amount, bool) or not isinstance(amount, int | Decimal):
        return amount
    try:
        return Decimal(amount) * number
    except InvalidOperation:
        return amount


def _sort_key(amount: object) -> Decimal:
    return amount if isinstance(amount, Decimal) else Decimal(-1)


MAX_FILE_BYTES = 32_000_000
GENAI_PRICES, LITELLM = "genai-prices", "litellm"

STORED_VERSION = 1
_MAX_PROVIDERS = 1_000
_MAX_MODELS = 50_000
_MAX_PRICES = 50
_MAX_TIERS = 20
_MAX_NAME_CHARS = 300
_MAX_CLAUSES = 200
_MAX_DEPTH = 4
_MAX_REGEX_CHARS = 200
# Dollars per million tokens or per thousand other units. The most expensive model cost 600.
_MAX_DOLLARS = Decimal(100_000)
_MAX_DIGITS, _MIN_EXPONENT = 25, -25
_MAX_TIER_TOKENS = 1_000_000_000
_PRICE_NAME = re.compile(r"[a-z0-9_]{1,40}_(mtok|kcount)")
# Fast patterns: at most one unbounded repetition, none of a group, and few optional parts.
_REPEAT = re.compile(r"\*|\+|(?<!\()\?|\{[^}]*\}?")
_FIXED_REPEAT = re.compile(r"(?<![)?*+])\{\d{1,2}\}")
_MAX_OPTIONAL = 4
_TEXT_CLAUSES = ("equals", "starts_with", "ends_with", "contains")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedPrices:
    """Prices of a file. `format` is its origin, and `day` the age of its prices.

    `skipped` counts unused entries by reason.
    """

    format: str
    day: date
    providers: "Mapping[str, Provider]"
    skipped: Mapping[str, int]

    @property
    def origin(self) -> str:
        return f"{self.format} file, {self.day}"

    def models(self) -> Iterator[tuple[str, str]]:
        for provider in self.providers.values():
            for model in provider.models:
                yield provider.id, model.id


def read_price_file(data: bytes, *, day: date, source: str) -> ImportedPrices:
    """Read a price file of genai-prices or LiteLLM; errors name it `source`.

    Raises:
        UnreadableInput: it is neither, or contains an impossible price.
    """
    document = _parse_json(data, source)
    if _is_litellm_list(document):
        providers, skipped = _convert_providers(document)
        return _PriceFileReader(source).read_providers(providers, LITELLM, day, skipped)
    if isinstance(document, list):
        return _PriceFileReader(source).read_providers(document, GENAI_PRICES, day, {})
    raise UnreadableInput(
        source, "is neither a genai-prices file (a list) nor a LiteLLM file (an object of models)"
    )


def read_stored_price_file(data: bytes, *, source: str) -> ImportedPrices:
    """Read a file written by `price_file_json`.

    Raises:
        UnreadableInput: it is not such a file.
    """
    document = _parse_json(data, source)
    if not isinstance(document, dict) or document.get("version") != STORED_VERSION:
        raise UnreadableInput(source, "was not written by `foveate prices update`")
    reader = _PriceFileReader(source)
    format_ = document.get("format")
    if format_ not in (GENAI_PRICES, LITELLM):
        raise reader.make_error("format", "is unknown")
    return reader.read_providers(
        document.get("providers"), format_, reader.read_day(document.get("as_of"), "as_of"), {}
    )


def _parse_json(data: bytes, source: str) -> Any:
    def reject_constant(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a number")

    try:
        return json.loads(data, parse_float=Decimal, parse_constant=reject_constant)
    except (ValueError, InvalidOperation, RecursionError) as error:
        raise UnreadableInput(source, f"is not JSON: {str(error)[:200] or 'nested too deeply'}") from None


class _PriceFileReader:
    def __init__(self, source: str) -> None:
        self._source = source
        self._skipped: dict[str, int] = {}

    def make_error(self, location: str, problem: str) -> UnreadableInput:
        return UnreadableInput(self._source, f"{location[:_MAX_NAME_CHARS]}: {problem}")

    def read_providers(
        self, value: object, format_: str, day: date, skipped: Mapping[str, int]
    ) -> ImportedPrices:
        from genai_prices.types import Provider

        self._skipped = dict(skipped)
        providers: dict[str, Provider] = {}
        count = 0
        for entry in self._check_list(value, "providers", _MAX_PROVIDERS):
            provider = self._check_object(entry, "a provider")
            id_ = self._check_name(provider.get("id"), "the id of a provider")
            fallbacks = [
                self._check_name(other, f"{id_}: fallback_model_providers")
                for other in self._check_list(
                    provider.get("fallback_model_providers") or [], id_, _MAX_PROVIDERS
                )
            ]
            models = []
            for model in self._check_list(provider.get("models"), f"models of {id_}", _MAX_MODELS):
                parsed = self._read_model(self._check_object(model, f"a model of {id_}"), id_)
                if parsed is not None:
                    models.append(parsed)
            count += len(models)
            if count > _MAX_MODELS:
                raise self.make_error("models", f"the file has more than {_MAX_MODELS:,}")
            if models:
                providers[id_] = Provider(
                    id=id_, name=id_, api_pattern="", models=models, fallback_model_providers=fallbacks
                )
        if not count:
            raise self.make_error("models", "none has a price")
        return ImportedPrices(format=format_, day=day, providers=providers, skipped=self._skipped)

    def read_day(self, value: object, location: str) -> date:
        try:
            return date.fromisoformat(value if isinstance(value, str) else "")
        except ValueError:
            raise self.make_error(location, "is not a date such as 2026-11-01") from None

    def _skip(self, reason: str) -> None:
        self._skipped[reason] = self._skipped.get(reason, 0) + 1

    def _read_model(self, value: Mapping[str, Any], provider: str) -> "ModelInfo | None":
        from genai_prices.types import ClauseEquals, ClauseOr, ModelInfo

        id_ = self._check_name(value.get("id"), f"the id of a model of {provider}")
        location = f"{provider} {id_}"
        prices = self._read_prices(value.get("prices"), location)
        if not _has_price(prices):
            self._skip("without a price")
            return None
        match: MatchLogic = ClauseEquals(equals=id_)
        clause = self._read_clause(value["match"], location) if "match" in value else None
        if clause is not None:
            match = ClauseOr(or_=[match, clause])
        return ModelInfo(
            id=id_, match=match, prices=prices, price_variants=self._read_variants(value, location) or None
        )

    def _read_prices(self, value: object, location: str) -> "ModelPrice | list[ConditionalPrice]":
        from genai_prices.types import ConditionalPrice

        if not isinstance(value, list):
            return self._read_price(value, location)
        prices = []
        for entry in self._check_list(value, location, _MAX_PRICES):
            price = self._check_object(entry, location)
            constraint = self._read_constraint(price.get("constraint"), location)
            prices.append(ConditionalPrice(constraint, prices=self._read_price(price.get("prices"), location)))
        return prices

    def _read_variants(self, model: Mapping[str, Any], location: str) -> "list[PriceVariant]":
        from genai_prices.types import PriceVariant

        variants = []
        for entry in self._check_list(model.get("price_variants") or [], location, _MAX_PRICES):
            variant = self._check_object(entry, location)
            when = self._check_object(variant.get("when"), location)
            names = {
                self._check_name(key, location): self._check_name(value, location)
                for key, value in when.items()
            }
            if not names:
                raise self.make_error(location, "a price variant has no condition (`when`)")
            constraint = self._read_constraint(variant.get("constraint"), location)
            prices = self._read_price(variant.get("prices"), location)
            variants.append(PriceVariant(when=names, prices=prices, constraint=constraint))
        return variants

    def _read_price(self, value: object, location: str) -> "ModelPrice":
        from genai_prices.types import ModelPrice

        amounts = {}
        for name, price in self._check_object(value, location).items():
            if price is not None and _PRICE_NAME.fullmatch(name):
                amounts[name] = self._read_amount(price, f"{location} {name}")
        return ModelPrice(**amounts)

    def _read_amount(self, value: object, location: str) -> "Decimal | TieredPrices":
        from genai_prices.types import Tier, TieredPrices

        if not isinstance(value, dict):
            return self._read_dollars(value, location)
        tiers = []
        for entry in self._check_list(value.get("tiers"), location, _MAX_TIERS):
            tier = self._check_object(entry, location)
            start = tier.get("start")
            if type(start) is not int or not 0 < start <= _MAX_TIER_TOKENS:
                raise self.make_error(location, f"a tier cannot start at {str(start)[:40]}")
            tiers.append(Tier(start=start, price=self._read_dollars(tier.get("price"), location)))
        if [tier.start for tier in tiers] != sorted({tier.start for tier in tiers}):
            raise self.make_error(location, "the tiers are not in ascending order")
        return TieredPrices(base=self._read_dollars(value.get("base"), location), tiers=tiers)

    def _read_dollars(self, value: object, location: str) -> Decimal:
        try:
            if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
                raise InvalidOperation
            if isinstance(value, str) and len(value) > _MAX_DIGITS * 2:
                raise InvalidOperation
            dollars = Decimal(value)
        except (InvalidOperation, ValueError):
            raise self.make_error(location, f"{str(value)[:40]!r} is not a number") from None
        if not dollars.is_finite() or dollars < 0 or dollars > _MAX_DOLLARS:
            raise self.make_error(location, f"{dollars:.4g} dollars is not a valid price")
        exponent = dollars.as_tuple().exponent
        if (
            len(dollars.as_tuple().digits) > _MAX_DIGITS
            or not isinstance(exponent, int)
            or exponent < _MIN_EXPONENT
        ):
            raise self.make_error(location, "a price has too many digits")
        return dollars

    def _read_constraint(
        self, value: object, location: str
    ) -> "StartDateConstraint | TimeOfDateConstraint | None":
        from genai_prices.types import StartDateConstraint, TimeOfDateConstraint

        if value is None:
            return None
        constraint = self._check_object(value, location)
        if "start_date" in constraint:
            return StartDateConstraint(start_date=self.read_day(constraint["start_date"], location))
        try:
            start, end = (time.fromisoformat(constraint[name]) for name in ("start_time", "end_time"))
        except (KeyError, TypeError, ValueError):
            raise self.make_error(location, "a price has an invalid time range") from None
        return TimeOfDateConstraint(start_time=start, end_time=end)

    def _read_clause(self, entry: object, location: str, depth: int = 0) -> "MatchLogic | None":
        """Read a matcher for names; None if no fast part of it is left."""
        from genai_prices import types

        clause = self._check_object(entry, location)
        if len(clause) != 1 or depth > _MAX_DEPTH:
            raise self.make_error(location, "the pattern for model names is not supported")
        kind, value = next(iter(clause.items()))
        if kind in ("or", "and"):
            parts = [
                self._read_clause(part, location, depth + 1)
                for part in self._check_list(value, location, _MAX_CLAUSES)
            ]
            fast = [part for part in parts if part is not None]
            if not fast or (kind == "and" and len(fast) < len(parts)):
                return None
            return types.ClauseOr(or_=fast) if kind == "or" else types.ClauseAnd(and_=fast)
        text = self._check_name(value, location)
        if kind == "regex":
            if not _is_fast_regex(text):
                self._skip("a pattern that could take long to match")
                return None
            return types.ClauseRegex(regex=text)
        if kind not in _TEXT_CLAUSES:
            raise self.make_error(location, "the pattern for model names is not supported")
        clause_types: dict[str, type[Any]] = {
            "equals": types.ClauseEquals,
            "starts_with": types.ClauseStartsWith,
            "ends_with": types.ClauseEndsWith,
            "contains": types.ClauseContains,
        }
        matcher: MatchLogic = clause_types[kind](**{kind: text})
        return matcher

    def _check_name(self, value: object, location: str) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= _MAX_NAME_CHARS or not value.isprintable():
            raise self.make_error(location, "is not a name")
        return value

    def _check_object(self, value: object, location: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self.make_error(location, "is not an object")
        return value

    def _check_list(self, value: object, location: str, max_items: int) -> Sequence[object]:
        if not isinstance(value, list):
            raise self.make_error(location, "is not a list")
        if len(value) > max_items:
            raise self.make_error(location, f"has more than {max_items:,} entries")
        return value


def _has_price(prices: "ModelPrice | list[ConditionalPrice]") -> bool:
    """Lists often say 0 for models that they know nothing about."""
    model_prices = [entry.prices for entry in prices] if isinstance(prices, list) else [prices]
    amounts = [amount for price in model_prices for amount in vars(price).values()]
    return any(amount if isinstance(amount, Decimal) else amount.base for amount in amounts)


def _is_fast_regex(regex: str) -> bool:
    if len(regex) > _MAX_REGEX_CHARS:
        return False
    try:
        re.compile(regex)
    except (re.error, RecursionError, OverflowError):
        return False
    bare = re.sub(r"\\.", "x", _FIXED_REPEAT.sub("", regex))
    repeats = _REPEAT.findall(bare)
    unbounded = sum(repeat in ("*", "+") for repeat in repeats)
    braces = any(repeat.startswith("{") for repeat in repeats)
    return (
        unbounded <= 1
        and not braces
        and repeats.count("?") <= _MAX_OPTIONAL
        and ")*" not in bare
        and ")+" not in bare
    )


def price_file_json(imported: ImportedPrices) -> bytes:
    providers = [_provider_json(provider) for provider in imported.providers.values()]
    document = {
        "version": STORED_VERSION,
        "format": imported.format,
        "as_of": imported.day.isoformat(),
        "providers": providers,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _provider_json(provider: "Provider") -> dict[str, object]:
    return {
        "id": provider.id,
        "fallback_model_providers": provider.fallback_model_providers or [],
        "models": [_model_json(model) for model in provider.models],
    }


def _model_json(model: "ModelInfo") -> dict[str, object]:
    document: dict[str, object] = {"id": model.id}
    if isinstance(alternatives := getattr(model.match, "or_", None), list):  # its id, and the file's clause
        document["match"] = _clause_json(alternatives[-1])
    if isinstance(model.prices, list):
        document["prices"] = [
            {"constraint": _constraint_json(price.constraint), "prices": _price_json(price.prices)}
            for price in model.prices
        ]
    else:
        document["prices"] = _price_json(model.prices)
    if model.price_variants:
        document["price_variants"] = [
            {
                "when": variant.when,
                "constraint": _constraint_json(variant.constraint),
                "prices": _price_json(variant.prices),
            }
            for variant in model.price_variants
        ]
    return document


def _price_json(price: "ModelPrice") -> dict[str, object]:
    document: dict[str, object] = {}
    for name, amount in vars(price).items():
        if isinstance(amount, Decimal):
            document[name] = str(amount)
        else:
            tiers = [{"start": tier.start, "price": str(tier.price)} for tier in amount.tiers]
            document[name] = {"base": str(amount.base), "tiers": tiers}
    return document


def _constraint_json(constraint: "StartDateConstraint | TimeOfDateConstraint | None") -> object:
    return None if constraint is None else {name: value.isoformat() for name, value in vars(constraint).items()}


def _clause_json(clause: "MatchLogic") -> dict[str, object]:
    name, value = next(iter(vars(clause).items()))
    if isinstance(value, list):
        return {name.rstrip("_"): [_clause_json(part) for part in value]}
    return {name: value}
