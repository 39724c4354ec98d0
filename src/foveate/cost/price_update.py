"""Price files that users bring: genai-prices' data and LiteLLM's list, checked and in one form.

A file is not trusted: it may be damaged, or somebody else's. Whatever is read from it is checked for its type
and for being a possible price, patterns that could take long to match are left out, and sizes are bounded.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, NoReturn

from foveate.cost.litellm_prices import is_litellm, providers_in
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

MAX_FILE_BYTES = 32_000_000
GENAI_PRICES, LITELLM = "genai-prices", "litellm"

VERSION = 1
_MAX_PROVIDERS = 1_000
_MAX_MODELS = 50_000
_MAX_PRICES = 50
_MAX_TIERS = 20
_MAX_NAME_CHARS = 300
_MAX_CLAUSES = 200
_MAX_DEPTH = 4
_MAX_REGEX_CHARS = 200
# Dollars for a million tokens or a thousand of something else. The most expensive model has cost 600.
_MAX_DOLLARS = Decimal(100_000)
_MAX_DIGITS, _MIN_EXPONENT = 25, -25
_MAX_TIER_TOKENS = 1_000_000_000
_PRICE_NAME = re.compile(r"[a-z0-9_]{1,40}_(mtok|kcount)")
# At most one repetition without a bound, none of a group, and few optional parts: each match is then quick.
_REPEATS = re.compile(r"\*|\+|(?<!\()\?|\{[^}]*\}?")
_FIXED = re.compile(r"(?<![)?*+])\{\d{1,2}\}")
_MAX_OPTIONAL = 4
_TEXT_CLAUSES = ("equals", "starts_with", "ends_with", "contains")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceUpdate:
    """The prices of a file. `format` says whose file it was, and `day` how old its prices are.

    `skipped` counts the entries that are not used, by the reason.
    """

    format: str
    day: date
    providers: "Mapping[str, Provider]"
    skipped: Mapping[str, int]

    @property
    def origin(self) -> str:
        """Who says these prices, and when."""
        return f"{self.format} file, {self.day}"

    def models(self) -> Iterator[tuple[str, str]]:
        """Each provider and model that it has a price for."""
        for provider in self.providers.values():
            for model in provider.models:
                yield provider.id, model.id


def read_price_file(data: bytes, *, day: date, source: str) -> PriceUpdate:
    """Read a price file of genai-prices or LiteLLM; errors call it `source`.

    Raises:
        UnreadableInput: it is neither, or has a price that cannot be.
    """
    found = _parsed(data, source)
    if is_litellm(found):
        providers, skipped = providers_in(found)
        return _Reader(source).update(providers, LITELLM, day, skipped)
    if isinstance(found, list):
        return _Reader(source).update(found, GENAI_PRICES, day, {})
    raise UnreadableInput(
        source, "is not a price file of genai-prices (a list) or LiteLLM (an object of models)"
    )


def kept_update(data: bytes, *, source: str) -> PriceUpdate:
    """Read what `price_update_json.to_json` has written.

    Raises:
        UnreadableInput: it has not.
    """
    found = _parsed(data, source)
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise UnreadableInput(source, "is not a price file that `foveate prices update` has written")
    reader = _Reader(source)
    format_ = found.get("format")
    if format_ not in (GENAI_PRICES, LITELLM):
        raise reader.problem("format", "is not known")
    return reader.update(found.get("providers"), format_, reader.day(found.get("as_of"), "as_of"), {})


def _parsed(data: bytes, source: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a number")

    try:
        return json.loads(data, parse_float=Decimal, parse_constant=refuse)
    except (ValueError, InvalidOperation, RecursionError) as error:
        raise UnreadableInput(source, f"is not JSON: {str(error)[:200] or 'nested too deeply'}") from None


class _Reader:
    """Checks what a file says, and makes the types of genai-prices of it."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._skipped: dict[str, int] = {}

    def problem(self, where: str, what: str) -> UnreadableInput:
        return UnreadableInput(self._source, f"{where[:_MAX_NAME_CHARS]}: {what}")

    def update(self, said: object, format_: str, day: date, skipped: Mapping[str, int]) -> PriceUpdate:
        from genai_prices.types import Provider

        self._skipped = dict(skipped)
        providers: dict[str, Provider] = {}
        count = 0
        for entry in self._list(said, "providers", _MAX_PROVIDERS):
            provider = self._object(entry, "a provider")
            id_ = self._name(provider.get("id"), "the id of a provider")
            fallbacks = [
                self._name(other, f"{id_}: fallback_model_providers")
                for other in self._list(provider.get("fallback_model_providers") or [], id_, _MAX_PROVIDERS)
            ]
            models = []
            for model in self._list(provider.get("models"), f"models of {id_}", _MAX_MODELS):
                found = self._model(self._object(model, f"a model of {id_}"), id_)
                if found is not None:
                    models.append(found)
            count += len(models)
            if count > _MAX_MODELS:
                raise self.problem("models", f"are more than {_MAX_MODELS:,}")
            if models:
                providers[id_] = Provider(
                    id=id_, name=id_, api_pattern="", models=models, fallback_model_providers=fallbacks
                )
        if not count:
            raise self.problem("models", "none has a price")
        return PriceUpdate(format=format_, day=day, providers=providers, skipped=self._skipped)

    def day(self, said: object, where: str) -> date:
        try:
            return date.fromisoformat(said if isinstance(said, str) else "")
        except ValueError:
            raise self.problem(where, "is not a day (2026-11-01)") from None

    def _skip(self, reason: str) -> None:
        self._skipped[reason] = self._skipped.get(reason, 0) + 1

    def _model(self, said: Mapping[str, Any], provider: str) -> "ModelInfo | None":
        from genai_prices.types import ClauseEquals, ClauseOr, ModelInfo

        id_ = self._name(said.get("id"), f"the id of a model of {provider}")
        where = f"{provider} {id_}"
        prices = self._prices(said.get("prices"), where)
        if not _has_price(prices):
            self._skip("without a price")
            return None
        match: MatchLogic = ClauseEquals(equals=id_)
        clause = self._clause(said["match"], where) if "match" in said else None
        if clause is not None:
            match = ClauseOr(or_=[match, clause])
        return ModelInfo(id=id_, match=match, prices=prices, price_variants=self._variants(said, where) or None)

    def _prices(self, said: object, where: str) -> "ModelPrice | list[ConditionalPrice]":
        from genai_prices.types import ConditionalPrice

        if not isinstance(said, list):
            return self._price(said, where)
        found = []
        for entry in self._list(said, where, _MAX_PRICES):
            price = self._object(entry, where)
            constraint = self._constraint(price.get("constraint"), where)
            found.append(ConditionalPrice(constraint, prices=self._price(price.get("prices"), where)))
        return found

    def _variants(self, said: Mapping[str, Any], where: str) -> "list[PriceVariant]":
        from genai_prices.types import PriceVariant

        found = []
        for entry in self._list(said.get("price_variants") or [], where, _MAX_PRICES):
            variant = self._object(entry, where)
            when = self._object(variant.get("when"), where)
            names = {self._name(key, where): self._name(value, where) for key, value in when.items()}
            if not names:
                raise self.problem(where, "a price variant does not say when")
            constraint = self._constraint(variant.get("constraint"), where)
            prices = self._price(variant.get("prices"), where)
            found.append(PriceVariant(when=names, prices=prices, constraint=constraint))
        return found

    def _price(self, said: object, where: str) -> "ModelPrice":
        from genai_prices.types import ModelPrice

        found = {}
        for name, price in self._object(said, where).items():
            if price is not None and _PRICE_NAME.fullmatch(name):
                found[name] = self._amount(price, f"{where} {name}")
        return ModelPrice(**found)

    def _amount(self, said: object, where: str) -> "Decimal | TieredPrices":
        from genai_prices.types import Tier, TieredPrices

        if not isinstance(said, dict):
            return self._dollars(said, where)
        tiers = []
        for entry in self._list(said.get("tiers"), where, _MAX_TIERS):
            tier = self._object(entry, where)
            start = tier.get("start")
            if type(start) is not int or not 0 < start <= _MAX_TIER_TOKENS:
                raise self.problem(where, f"a tier cannot begin at {str(start)[:40]}")
            tiers.append(Tier(start=start, price=self._dollars(tier.get("price"), where)))
        if [tier.start for tier in tiers] != sorted({tier.start for tier in tiers}):
            raise self.problem(where, "its tiers are not in order")
        return TieredPrices(base=self._dollars(said.get("base"), where), tiers=tiers)

    def _dollars(self, said: object, where: str) -> Decimal:
        try:
            if isinstance(said, bool) or not isinstance(said, int | Decimal | str):
                raise InvalidOperation
            if isinstance(said, str) and len(said) > _MAX_DIGITS * 2:
                raise InvalidOperation
            found = Decimal(said)
        except (InvalidOperation, ValueError):
            raise self.problem(where, f"{str(said)[:40]!r} is not a number") from None
        if not found.is_finite() or found < 0 or found > _MAX_DOLLARS:
            raise self.problem(where, f"{found:.4g} dollars cannot be a price")
        exponent = found.as_tuple().exponent
        if (
            len(found.as_tuple().digits) > _MAX_DIGITS
            or not isinstance(exponent, int)
            or exponent < _MIN_EXPONENT
        ):
            raise self.problem(where, "a price has more digits than money has")
        return found

    def _constraint(self, said: object, where: str) -> "StartDateConstraint | TimeOfDateConstraint | None":
        from genai_prices.types import StartDateConstraint, TimeOfDateConstraint

        if said is None:
            return None
        found = self._object(said, where)
        if "start_date" in found:
            return StartDateConstraint(start_date=self.day(found["start_date"], where))
        try:
            start, end = (time.fromisoformat(found[name]) for name in ("start_time", "end_time"))
        except (KeyError, TypeError, ValueError):
            raise self.problem(where, "a price is for a time that cannot be read") from None
        return TimeOfDateConstraint(start_time=start, end_time=end)

    def _clause(self, said: object, where: str, depth: int = 0) -> "MatchLogic | None":
        """What names mean a model; None where nothing is left of it that is quick to match."""
        from genai_prices import types

        clause = self._object(said, where)
        if len(clause) != 1 or depth > _MAX_DEPTH:
            raise self.problem(where, "its names cannot be matched")
        kind, value = next(iter(clause.items()))
        if kind in ("or", "and"):
            parts = [self._clause(part, where, depth + 1) for part in self._list(value, where, _MAX_CLAUSES)]
            kept = [part for part in parts if part is not None]
            if not kept or (kind == "and" and len(kept) < len(parts)):
                return None
            return types.ClauseOr(or_=kept) if kind == "or" else types.ClauseAnd(and_=kept)
        text = self._name(value, where)
        if kind == "regex":
            if not _is_quick(text):
                self._skip("a pattern that could take long to match")
                return None
            return types.ClauseRegex(regex=text)
        if kind not in _TEXT_CLAUSES:
            raise self.problem(where, "its names cannot be matched")
        made: dict[str, type[Any]] = {
            "equals": types.ClauseEquals,
            "starts_with": types.ClauseStartsWith,
            "ends_with": types.ClauseEndsWith,
            "contains": types.ClauseContains,
        }
        found: MatchLogic = made[kind](**{kind: text})
        return found

    def _name(self, said: object, where: str) -> str:
        if not isinstance(said, str) or not 0 < len(said) <= _MAX_NAME_CHARS or not said.isprintable():
            raise self.problem(where, "is not a name")
        return said

    def _object(self, said: object, where: str) -> Mapping[str, Any]:
        if not isinstance(said, dict):
            raise self.problem(where, "is not an object")
        return said

    def _list(self, said: object, where: str, most: int) -> Sequence[object]:
        if not isinstance(said, list):
            raise self.problem(where, "is not a list")
        if len(said) > most:
            raise self.problem(where, f"has more than {most:,} entries")
        return said


def _has_price(prices: "ModelPrice | list[ConditionalPrice]") -> bool:
    """Whether anything costs something: a list of prices that says 0 of a model mostly knows nothing of it."""
    each = [entry.prices for entry in prices] if isinstance(prices, list) else [prices]
    amounts = [amount for one in each for amount in vars(one).values()]
    return any(amount if isinstance(amount, Decimal) else amount.base for amount in amounts)


def _is_quick(regex: str) -> bool:
    if len(regex) > _MAX_REGEX_CHARS:
        return False
    try:
        re.compile(regex)
    except (re.error, RecursionError, OverflowError):
        return False
    bare = re.sub(r"\\.", "x", _FIXED.sub("", regex))
    repeats = _REPEATS.findall(bare)
    unbounded = sum(repeat in ("*", "+") for repeat in repeats)
    braces = any(repeat.startswith("{") for repeat in repeats)
    return (
        unbounded <= 1
        and not braces
        and repeats.count("?") <= _MAX_OPTIONAL
        and ")*" not in bare
        and ")+" not in bare
    )
