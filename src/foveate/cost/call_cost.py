"""The cost of one call from its response, for users of the library."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any

from foveate.cost.money import format_dollars
from foveate.cost.pricing.rates import EXACT, Price
from foveate.errors import BadOption
from foveate.formats.response.usage import parse_usage, read_response_usage
from foveate.model import Format, Usage

_CURRENCY = "USD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of one call in dollars. The parts add up to `dollars`.

    Attributes:
        dollars: the total.
        input: uncached input, in any medium.
        cached_read: input read from the provider's prompt cache.
        cache_write: input written to the provider's prompt cache.
        output: output with thinking, in any medium.
        other: charges per piece (web searches, requests), or the whole price if the provider states only that.
        currency: always `USD`.
        source: `table` for the installed price tables, `said` for a price that the provider states.
        origin: the table with its version, or the provider.
        exact: False if a rate is assumed, or inherited from the model's family.
        inherited_from: the family whose most expensive model sets the price, because this model has none. The
            cost is an upper bound then. Otherwise empty.
    """

    dollars: Decimal
    input: Decimal
    cached_read: Decimal
    cache_write: Decimal
    output: Decimal
    other: Decimal
    currency: str = _CURRENCY
    source: str
    origin: str
    exact: bool
    inherited_from: str = ""

    def __str__(self) -> str:
        """The total in dollars, with `~` if it is not exact."""
        return f"{'' if self.exact else '~'}{format_dollars(self.dollars)}"

    def __repr__(self) -> str:
        parts = {
            "input": self.input,
            "cached read": self.cached_read,
            "cache write": self.cache_write,
            "output": self.output,
            "other": self.other,
        }
        listed = ", ".join(f"{name} {format_dollars(dollars)}" for name, dollars in parts.items() if dollars)
        return f"<Cost {self}{f': {listed}' if listed else ''} ({self.origin})>"


def cost_from_price(price: Price) -> Cost:
    cached_read = price.read
    for unit, dollars in price.units:
        if unit.startswith("read_"):
            cached_read = EXACT.add(cached_read, dollars)
    cache_write = EXACT.add(price.written_5m, price.written_1h)
    return Cost(
        dollars=price.dollars,
        input=EXACT.subtract(EXACT.subtract(price.input_dollars, cached_read), cache_write),
        cached_read=cached_read,
        cache_write=cache_write,
        output=price.output_dollars,
        other=price.other_dollars,
        source=price.source.value,
        origin=price.origin,
        exact=price.sure and not price.inherited_from,
        inherited_from=price.inherited_from,
    )


def read_usage(usage_or_response: object) -> Usage | None:
    """Find the usage in an SDK's response, in the JSON of a response, or in a usage block.

    None if there is no usage, if it is empty, or if a number in it is impossible.

    Raises:
        TypeError: neither a mapping nor an object of an SDK.
    """
    data = _dump(usage_or_response)
    api_format = _detect_response_format(data)
    try:
        body = json.dumps(_replace_non_finite(data), default=_dump_inner_or_text).encode("ascii")
    except (ValueError, RecursionError):  # it contains itself, or is nested too deeply
        return None
    usage = read_response_usage(api_format, body) or parse_usage(api_format, body)
    return None if usage is None or usage.is_unreadable or usage.is_empty else usage


def _dump(usage_or_response: object) -> Mapping[str, Any]:
    if isinstance(usage_or_response, Mapping):
        return {name: _dump_inner(value) for name, value in usage_or_response.items()}
    dumped = _dump_inner(usage_or_response)
    if not isinstance(dumped, Mapping):
        raise TypeError(
            "cost takes a response of an SDK, or a response or its usage as a dict, "
            f"not {type(usage_or_response).__name__}"
        )
    return dumped


def _dump_inner(value: object) -> Any:
    """Dump an object of an SDK with the names that the API uses."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", by_alias=True, exclude_none=True) if callable(dump) else value


def _dump_inner_or_text(value: object) -> Any:
    """Dump an object inside a response. One that is not JSON becomes a text, never a number."""
    return _replace_non_finite(_dump_inner(value)) if hasattr(value, "model_dump") else repr(value)


def _replace_non_finite(value: Any) -> Any:
    """Replace infinite numbers and NaN, which JSON does not have, by texts."""
    match value:
        case float():
            return value if isfinite(value) else repr(value)
        case Mapping():
            return {str(name): _replace_non_finite(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_replace_non_finite(inner) for inner in value]
        case _:
            return value


def _detect_response_format(data: Mapping[str, Any]) -> Format:
    """Detect the Responses API, whose `input_tokens` include cached tokens. Other names are unambiguous."""
    is_responses = data.get("object") == "response" or "response" in data
    return Format.RESPONSES if is_responses else Format.ANTHROPIC


def to_seconds(at: date | datetime | None, now: float) -> float:
    """Seconds since 1970 of a day or a time, in UTC unless it has a time zone.

    Raises:
        BadOption: anything else.
    """
    match at:
        case None:
            return now
        case datetime():
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        case date():
            return datetime(at.year, at.month, at.day, tzinfo=UTC).timestamp()
        case _:
            raise BadOption(f"at is a date or a datetime, not {type(at).__name__}", path=("at",))
