"""Caps and custom prices: the `cost` section of the configuration.

Money is read exactly as written: 0.1 is a tenth of a dollar, not the nearest float.
"""

import re
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from foveate.budget.budget import check_mapping
from foveate.budget.sections import parse_choice
from foveate.config.document import ConfigDocument, parse_document, read_document
from foveate.config.files import StrPath
from foveate.config.key_path import KeyPath
from foveate.cost.caps import DEFAULT_MIN_OUTPUT_TOKENS, DEFAULT_WARN_AT, Cap, CapScope, UnknownPricePolicy
from foveate.cost.pricing.custom_prices import (
    CustomPrice,
    CustomPriceTier,
    DollarsPerMillion,
    check_custom_prices,
)
from foveate.errors import BadOption

COST_KEY = "cost"
COST_KEYS = ("caps", "min_output_tokens", "allow_fields", "prices")
CAP_KEYS = ("scope", "dollars", "agent", "warn_at", "unknown")
TOKEN_KIND_BY_KEY = {
    "input": "uncached",
    "cached_read": "read",
    "write_5m": "written_5m",
    "write_1h": "written_1h",
    "output": "output",
    "reasoning": "reasoning",
}
"""Token kinds by the key of their price (dollars per million tokens)."""
PRICE_KEYS = ("model", "provider", "since", *TOKEN_KIND_BY_KEY, "tiers", "discount")
TIER_KEYS = ("over_tokens", *TOKEN_KIND_BY_KEY)

_REQUIRED_KEYS = ("input", "output")
_KEY_BY_TOKEN_KIND = {kind: key for key, kind in TOKEN_KIND_BY_KEY.items()}
_Choice = TypeVar("_Choice", bound=StrEnum)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_WITH_EXPONENT = re.compile(r"[-+]?[0-9]{1,20}(\.[0-9]{1,20})?[eE][-+]?[0-9]{1,2}")
# No amount of money has more digits, and summing such numbers would take forever.
_MAX_DIGITS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions:
    """The caps and custom prices of a configuration.

    A request without an output limit gets one that fits the caps, at least `min_output_tokens`. `allow_fields`
    are globs of request fields, tools and models of unknown cost that caps let through.
    """

    caps: tuple[Cap, ...] = ()
    min_output_tokens: int = DEFAULT_MIN_OUTPUT_TOKENS
    allow_fields: tuple[str, ...] = ()
    prices: tuple[CustomPrice, ...] = ()


def load_cost(path: StrPath) -> CostOptions:
    """Load the `cost` section of a configuration file; other sections are not validated.

    Raises:
        UnreadableInput: the file does not exist, is a folder, exceeds 1 MB, is not UTF-8, or is empty.
        BadSetting: an unknown key, a wrong type, an invalid value, or not YAML; names file, line and key.
    """
    return _parse_cost_document(read_document(Path(path), exact=True))


def parse_cost(data: bytes, source: str) -> CostOptions:
    """Parse the `cost` section of the configuration in `data`; errors call it `source`.

    Raises:
        UnreadableInput: not UTF-8, or empty.
        BadSetting: an unknown key, a wrong type, an invalid value, or not YAML; names line and key.
    """
    return _parse_cost_document(parse_document(data, source, exact=True))


def _parse_cost_document(document: ConfigDocument) -> CostOptions:
    if not isinstance(document.data, dict):
        raise document.error("the configuration must be a mapping (key: value)")
    value = document.data.get(COST_KEY)
    if value is None:
        return CostOptions()
    try:
        fields = check_mapping(value, COST_KEYS, COST_KEY, (COST_KEY,))
        return CostOptions(
            caps=_parse_caps(fields.get("caps", [])),
            min_output_tokens=_parse_tokens(
                fields.get("min_output_tokens", DEFAULT_MIN_OUTPUT_TOKENS), "min_output_tokens"
            ),
            allow_fields=_parse_names(fields.get("allow_fields", []), "allow_fields"),
            prices=_parse_prices(fields.get("prices", [])),
        )
    except BadOption as error:
        raise document.error(str(error), error.path) from None


def _parse_caps(value: object) -> tuple[Cap, ...]:
    key_path: KeyPath = (COST_KEY, "caps")
    seen: dict[tuple[CapScope, str | None], int] = {}
    caps = []
    for index, entry in enumerate(_require_list(value, "caps", key_path)):
        cap = _parse_cap(entry, (*key_path, index))
        # A total cap for an agent is the same as a cap of scope `agent`.
        scope = CapScope.AGENT if cap.scope is CapScope.TOTAL and cap.agent is not None else cap.scope
        first = seen.setdefault((scope, cap.agent), index)
        if first != index:
            reason = f"{cap} is defined twice, as cap {first + 1} and cap {index + 1}: remove the higher one"
            raise BadOption(reason, path=(*key_path, index))
        caps.append(cap)
    return tuple(caps)


def _parse_cap(value: object, key_path: KeyPath) -> Cap:
    fields = check_mapping(value, CAP_KEYS, "a cap", key_path)
    for key in ("scope", "dollars"):
        if key not in fields:
            raise BadOption(f"a cap needs {key}", path=key_path)
    try:
        return Cap(
            scope=_parse_choice(CapScope, fields["scope"], "scope"),
            dollars=_parse_number(fields["dollars"], "dollars"),
            agent=_parse_text(fields["agent"], "agent") if "agent" in fields else None,
            warn_at=_parse_number(fields["warn_at"], "warn_at") if "warn_at" in fields else DEFAULT_WARN_AT,
            unknown=_parse_choice(UnknownPricePolicy, fields["unknown"], "unknown")
            if "unknown" in fields
            else UnknownPricePolicy.REJECT,
        )
    except BadOption as error:
        raise BadOption(str(error), path=(*key_path, *error.path)) from None


def _parse_prices(value: object) -> tuple[CustomPrice, ...]:
    key_path: KeyPath = (COST_KEY, "prices")
    prices = [
        _parse_price(entry, (*key_path, index))
        for index, entry in enumerate(_require_list(value, "prices", key_path))
    ]
    try:
        check_custom_prices(prices)
    except BadOption as error:
        raise BadOption(str(error), path=(*key_path, *error.path)) from None
    return tuple(prices)


def _parse_price(value: object, key_path: KeyPath) -> CustomPrice:
    fields = check_mapping(value, PRICE_KEYS, "a price", key_path)
    if "model" not in fields:
        raise BadOption("a price needs the name or glob of a model, e.g. model: claude-*", path=key_path)
    try:
        return CustomPrice(
            model=_parse_text(fields["model"], "model"),
            provider=_parse_text(fields["provider"], "provider") if "provider" in fields else None,
            since=_parse_date(fields["since"]) if "since" in fields else None,
            dollars_per_million=_parse_full_price(fields),
            tiers=_parse_tiers(fields["tiers"]) if "tiers" in fields else (),
            discount=_parse_number(fields["discount"], "discount") if "discount" in fields else None,
        )
    except BadOption as error:
        raise BadOption(str(error), path=(*key_path, *error.path)) from None


def _parse_full_price(fields: Any) -> DollarsPerMillion | None:
    dollars = [key for key in TOKEN_KIND_BY_KEY if key in fields]
    if "discount" in fields:
        if dollars:
            raise BadOption(
                f"a price is either a discount or dollars ({', '.join(dollars)}), not both",
                path=("discount",),
            )
        return None
    missing = [key for key in _REQUIRED_KEYS if key not in fields]
    if missing:
        raise BadOption(
            f"the price of {fields['model']} needs {' and '.join(missing)} (dollars per million tokens) or "
            "a discount"
        )
    return _parse_per_million(fields)


def _parse_tiers(value: object) -> tuple[CustomPriceTier, ...]:
    tiers = []
    for index, entry in enumerate(_require_list(value, "tiers", ("tiers",))):
        key_path: KeyPath = ("tiers", index)
        fields = check_mapping(entry, TIER_KEYS, "a tier", key_path)
        if "over_tokens" not in fields:
            raise BadOption("a tier needs over_tokens: it applies to larger inputs", path=key_path)
        if not any(key in fields for key in TOKEN_KIND_BY_KEY):
            raise BadOption(f"a tier needs a price: one of {', '.join(TOKEN_KIND_BY_KEY)}", path=key_path)
        try:
            tiers.append(
                CustomPriceTier(
                    over_tokens=fields["over_tokens"], dollars_per_million=_parse_per_million(fields)
                )
            )
        except BadOption as error:
            raise BadOption(str(error), path=(*key_path, *error.path)) from None
    return tuple(tiers)


def _parse_per_million(fields: Any) -> DollarsPerMillion:
    numbers = {
        kind: _parse_number(fields[key], key) for key, kind in TOKEN_KIND_BY_KEY.items() if key in fields
    }
    try:
        return DollarsPerMillion(**numbers)
    except BadOption as error:
        # The error names the token kind; replace it by the key in the file.
        kind = str(error.path[0])
        key = _KEY_BY_TOKEN_KIND[kind]
        raise BadOption(f"{key}{str(error).removeprefix(kind)}", path=(key,)) from None


def _parse_names(value: object, key: str) -> tuple[str, ...]:
    key_path: KeyPath = (COST_KEY, key)
    names = _require_list(value, key, key_path)
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name.strip():
            raise BadOption(
                f"{key} must contain names such as `provider.order`, not {name!r:.80}", path=(*key_path, index)
            )
    return tuple(names)


def _parse_tokens(value: object, key: str) -> int:
    if type(value) is not int or value < 1:
        reason = f"{key} must be a whole number of tokens, at least 1, not {value!r:.80}"
        raise BadOption(reason, path=(COST_KEY, key))
    return value


def _parse_number(value: object, key: str) -> Decimal:
    match value:
        case bool():
            pass
        case int():
            value = Decimal(value)
        case str() if _is_number(value):
            raise BadOption(f"{key} must be a number: write {value[:_MAX_DIGITS]} without quotes", path=(key,))
        case str() if _WITH_EXPONENT.fullmatch(value):  # a string in YAML
            raise BadOption(f"{key} must be a number: write {value} as {Decimal(value):f}", path=(key,))
    if not isinstance(value, Decimal) or not value.is_finite():
        raise BadOption(f"{key} must be a number, not {value!r:.80}", path=(key,))
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or max(len(digits), abs(exponent), abs(value.adjusted())) > _MAX_DIGITS:
        raise BadOption(f"{key} has too many digits: {value!s:.60}", path=(key,))
    return value


def _is_number(value: str) -> bool:
    return re.fullmatch(r"[-+]?(?:[0-9]*\.)?[0-9]+", value.strip()) is not None


def _parse_text(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise BadOption(f"{key} must be a string, not {value!r:.80}: put it in quotes", path=(key,))
    if not value.strip():
        raise BadOption(f"{key} is empty: give a name, or remove the key", path=(key,))
    return value


def _parse_date(value: object) -> date:
    try:
        if isinstance(value, str) and _DATE.fullmatch(value):
            return date.fromisoformat(value)
    except ValueError:  # a date that does not exist
        pass
    raise BadOption(f"since must be a date such as 2026-01-31, not {value!r:.80}", path=("since",))


def _parse_choice(choices: type[_Choice], value: object, key: str) -> _Choice:
    if not isinstance(value, str):
        raise BadOption(f"{key} must be one of {', '.join(choices)}, not {value!r:.80}", path=(key,))
    return parse_choice(choices, value, (key,))


def _require_list(value: object, label: str, key_path: KeyPath) -> list[Any]:
    if not isinstance(value, list):
        raise BadOption(f"{label} must be a list (- key: value), not {value!r:.80}", path=key_path)
    return value
