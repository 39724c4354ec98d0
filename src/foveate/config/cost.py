"""Caps and prices of one's own out of the configuration: what stands in it under `cost`.

Money is read as it is written: 0.1 is a tenth of a dollar, and not the nearest number that a float can be.
"""

import re
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from foveate.budget.data import checked_mapping
from foveate.budget.sections import chosen
from foveate.config.documents import Document, document_from, read_document
from foveate.config.files import StrPath
from foveate.config.places import Place
from foveate.cost.caps import MIN_OUTPUT_TOKENS, WARN_AT, Cap, Scope, Unknown
from foveate.cost.own_prices import OwnPrice, OwnTier, PerMillion, check_own_prices
from foveate.errors import BadOption

COST = "cost"
COST_KEYS = ("caps", "min_output_tokens", "allow_fields", "prices")
CAP_KEYS = ("scope", "dollars", "agent", "warn_at", "unknown")
KINDS = {
    "input": "uncached",
    "cached_read": "read",
    "write_5m": "written_5m",
    "write_1h": "written_1h",
    "output": "output",
    "reasoning": "reasoning",
}
"""What a million tokens of each kind cost, by the key that says it."""
PRICE_KEYS = ("model", "provider", "since", *KINDS, "tiers", "discount")
TIER_KEYS = ("over_tokens", *KINDS)

_NEEDED = ("input", "output")
_KEY_OF = {kind: key for key, kind in KINDS.items()}
_Choice = TypeVar("_Choice", bound=StrEnum)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_WITH_EXPONENT = re.compile(r"[-+]?[0-9]{1,20}(\.[0-9]{1,20})?[eE][-+]?[0-9]{1,2}")
# What has more digits on either side of its point is no money, and sums of it would take for ever.
_MOST_DIGITS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions:
    """The caps, and the prices of one's own, that a configuration holds; `PriceBook` takes the latter.

    A request without an output limit gets one that the caps have room for, at least `min_output_tokens`.
    `allow_fields` are globs of request fields, tools and models of unknown cost that a cap lets through.
    """

    caps: tuple[Cap, ...] = ()
    min_output_tokens: int = MIN_OUTPUT_TOKENS
    allow_fields: tuple[str, ...] = ()
    prices: tuple[OwnPrice, ...] = ()


def load_cost(path: StrPath) -> CostOptions:
    """What the configuration in a file says of money; other keys than `cost` are not looked at.

    Raises:
        UnreadableInput: no such file, a folder, larger than 1 MB, not UTF-8, or empty.
        BadSetting: an unknown key, a wrong type, an impossible value, or no YAML; names file, line and key.
    """
    return _cost_in(read_document(Path(path), exact=True))


def cost_from(data: bytes, source: str) -> CostOptions:
    """What the configuration in `data` says of money; errors call it `source`.

    Raises:
        UnreadableInput: not UTF-8, or empty.
        BadSetting: an unknown key, a wrong type, an impossible value, or no YAML; names line and key.
    """
    return _cost_in(document_from(data, source, exact=True))


def _cost_in(document: Document) -> CostOptions:
    if not isinstance(document.data, dict):
        raise document.problem("the configuration is a mapping (key: value)")
    said = document.data.get(COST)
    if said is None:
        return CostOptions()
    try:
        given = checked_mapping(said, COST_KEYS, COST, (COST,))
        return CostOptions(
            caps=_caps(given.get("caps", [])),
            min_output_tokens=_tokens(given.get("min_output_tokens", MIN_OUTPUT_TOKENS), "min_output_tokens"),
            allow_fields=_names(given.get("allow_fields", []), "allow_fields"),
            prices=_prices(given.get("prices", [])),
        )
    except BadOption as error:
        raise document.problem(str(error), error.path) from None


def _caps(said: object) -> tuple[Cap, ...]:
    place: Place = (COST, "caps")
    seen: dict[tuple[Scope, str | None], int] = {}
    caps = []
    for index, entry in enumerate(_list(said, "caps", place)):
        cap = _cap(entry, (*place, index))
        # All that an agent spends is what that agent spends in total.
        scope = Scope.AGENT if cap.scope is Scope.TOTAL and cap.agent is not None else cap.scope
        first = seen.setdefault((scope, cap.agent), index)
        if first != index:
            reason = (
                f"{cap} is there twice, as cap {first + 1} and as cap {index + 1}: leave the higher one out"
            )
            raise BadOption(reason, path=(*place, index))
        caps.append(cap)
    return tuple(caps)


def _cap(said: object, place: Place) -> Cap:
    given = checked_mapping(said, CAP_KEYS, "a cap", place)
    for key in ("scope", "dollars"):
        if key not in given:
            raise BadOption(f"a cap needs {key}", path=place)
    try:
        return Cap(
            scope=_chosen(Scope, given["scope"], "scope"),
            dollars=_number(given["dollars"], "dollars"),
            agent=_text(given["agent"], "agent") if "agent" in given else None,
            warn_at=_number(given["warn_at"], "warn_at") if "warn_at" in given else WARN_AT,
            unknown=_chosen(Unknown, given["unknown"], "unknown") if "unknown" in given else Unknown.REFUSE,
        )
    except BadOption as error:
        raise BadOption(str(error), path=(*place, *error.path)) from None


def _prices(said: object) -> tuple[OwnPrice, ...]:
    place: Place = (COST, "prices")
    prices = [_price(entry, (*place, index)) for index, entry in enumerate(_list(said, "prices", place))]
    try:
        check_own_prices(prices)
    except BadOption as error:
        raise BadOption(str(error), path=(*place, *error.path)) from None
    return tuple(prices)


def _price(said: object, place: Place) -> OwnPrice:
    given = checked_mapping(said, PRICE_KEYS, "a price", place)
    if "model" not in given:
        raise BadOption(
            "a price needs the name of a model, or a pattern for some (model: claude-*)", path=place
        )
    try:
        return OwnPrice(
            model=_text(given["model"], "model"),
            provider=_text(given["provider"], "provider") if "provider" in given else None,
            since=_day(given["since"]) if "since" in given else None,
            dollars_per_million=_whole(given),
            tiers=_tiers(given["tiers"]) if "tiers" in given else (),
            discount=_number(given["discount"], "discount") if "discount" in given else None,
        )
    except BadOption as error:
        raise BadOption(str(error), path=(*place, *error.path)) from None


def _whole(given: Any) -> PerMillion | None:
    """The dollars of each kind, with those that are needed; None where there is a discount instead."""
    dollars = [key for key in KINDS if key in given]
    if "discount" in given:
        if dollars:
            raise BadOption(
                f"a price is either a discount or dollars ({', '.join(dollars)}), and not both",
                path=("discount",),
            )
        return None
    missing = [key for key in _NEEDED if key not in given]
    if missing:
        raise BadOption(
            f"the price of {given['model']} lacks {' and '.join(missing)} (dollars for a million tokens), or a "
            "discount"
        )
    return _per_million(given)


def _tiers(said: object) -> tuple[OwnTier, ...]:
    tiers = []
    for index, entry in enumerate(_list(said, "tiers", ("tiers",))):
        place: Place = ("tiers", index)
        given = checked_mapping(entry, TIER_KEYS, "a tier", place)
        if "over_tokens" not in given:
            raise BadOption("a tier needs over_tokens: it holds for inputs that are larger", path=place)
        if not any(key in given for key in KINDS):
            raise BadOption(f"a tier needs a price: one of {', '.join(KINDS)}", path=place)
        try:
            tiers.append(OwnTier(over_tokens=given["over_tokens"], dollars_per_million=_per_million(given)))
        except BadOption as error:
            raise BadOption(str(error), path=(*place, *error.path)) from None
    return tuple(tiers)


def _per_million(given: Any) -> PerMillion:
    numbers = {kind: _number(given[key], key) for key, kind in KINDS.items() if key in given}
    try:
        return PerMillion(**numbers)
    except BadOption as error:
        # It calls each kind by its own name, which is not the key that somebody wrote.
        kind = str(error.path[0])
        key = _KEY_OF[kind]
        raise BadOption(f"{key}{str(error).removeprefix(kind)}", path=(key,)) from None


def _names(said: object, key: str) -> tuple[str, ...]:
    place: Place = (COST, key)
    names = _list(said, key, place)
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name.strip():
            raise BadOption(f"{key} has names such as `provider.order`, not {name!r:.80}", path=(*place, index))
    return tuple(names)


def _tokens(said: object, key: str) -> int:
    if type(said) is not int or said < 1:
        reason = f"{key} is a whole number of tokens, 1 or more, not {said!r:.80}"
        raise BadOption(reason, path=(COST, key))
    return said


def _number(said: object, key: str) -> Decimal:
    """A number as it is written."""
    match said:
        case bool():
            pass
        case int():
            said = Decimal(said)
        case str() if _is_number(said):
            raise BadOption(f"{key} is a number: write {said[:_MOST_DIGITS]} without quotes", path=(key,))
        case str() if _WITH_EXPONENT.fullmatch(said):  # which YAML takes for a text
            raise BadOption(f"{key} is a number: write {said} as {Decimal(said):f}", path=(key,))
    if not isinstance(said, Decimal) or not said.is_finite():
        raise BadOption(f"{key} is a number, not {said!r:.80}", path=(key,))
    _, digits, exponent = said.as_tuple()
    if not isinstance(exponent, int) or max(len(digits), abs(exponent), abs(said.adjusted())) > _MOST_DIGITS:
        raise BadOption(f"{key} has more digits than money has: {said!s:.60}", path=(key,))
    return said


def _is_number(said: str) -> bool:
    return re.fullmatch(r"[-+]?(?:[0-9]*\.)?[0-9]+", said.strip()) is not None


def _text(said: object, key: str) -> str:
    if not isinstance(said, str):
        raise BadOption(f"{key} is a text, not {said!r:.80}: put it in quotes", path=(key,))
    if not said.strip():
        raise BadOption(f"{key} is empty: say a name, or leave it out", path=(key,))
    return said


def _day(said: object) -> date:
    try:
        if isinstance(said, str) and _DAY.fullmatch(said):
            return date.fromisoformat(said)
    except ValueError:  # a day that no month has
        pass
    raise BadOption(f"since is a day such as 2026-01-31, not {said!r:.80}", path=("since",))


def _chosen(choices: type[_Choice], said: object, key: str) -> _Choice:
    if not isinstance(said, str):
        raise BadOption(f"{key} is one of {', '.join(choices)}, not {said!r:.80}", path=(key,))
    return chosen(choices, said, (key,))


def _list(said: object, what: str, place: Place) -> list[Any]:
    if not isinstance(said, list):
        raise BadOption(f"{what} is a list (- key: value), not {said!r:.80}", path=place)
    return said
