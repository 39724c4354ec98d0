"""Rates and prices: exact dollars for each kind of token and unit in a usage."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow
from enum import StrEnum
from functools import cached_property, reduce

from foveate.formats.response.usage import BillableUnit, UsagePart
from foveate.model import Ttl

# Independent of the thread's context; losing a digit is an error. It never happens: counts have 16 digits,
# a custom price and a discount at most 21 each, prices of tables fewer.
EXACT = Context(prec=120, traps=[Inexact, InvalidOperation, DivisionByZero, Overflow])
ZERO = Decimal(0)


class PriceSource(StrEnum):
    TABLE = "table"
    CUSTOM = "own"
    STATED = "said"


class TokenKind(StrEnum):
    """Kinds of tokens that can have their own price; `written_5m` has the provider's short TTL."""

    UNCACHED = "uncached"
    READ = "read"
    WRITTEN_5M = "written_5m"
    WRITTEN_1H = "written_1h"
    OUTPUT = "output"
    REASONING = "reasoning"


@dataclass(frozen=True, slots=True)
class RateTier:
    """Dollars per unit once the whole input exceeds `over_tokens`."""

    over_tokens: int
    dollars: Decimal


@dataclass(frozen=True, slots=True)
class Rate:
    """Dollars per unit; the highest of `tiers` that the input reaches applies to all of it."""

    dollars: Decimal
    tiers: tuple[RateTier, ...] = ()

    def at(self, input_tokens: int) -> Decimal:
        if self.tiers:
            for step in reversed(self.tiers):
                if input_tokens > step.over_tokens:
                    return step.dollars
        return self.dollars

    def max_at(self, input_tokens: int) -> Decimal:
        """Return the maximum dollars per unit in a call with at most this many input tokens."""
        if not self.tiers:
            return self.dollars if self.dollars > ZERO else ZERO
        reached = (step.dollars for step in self.tiers if input_tokens > step.over_tokens)
        return max(self.dollars, ZERO, *reached)

    def scale(self, multiple: Decimal) -> "Rate":
        steps = (RateTier(step.over_tokens, EXACT.multiply(step.dollars, multiple)) for step in self.tiers)
        return Rate(EXACT.multiply(self.dollars, multiple), tuple(steps))


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates of a model; kinds and units that are not in `by_kind` have no known price.

    `origin` describes the `source`. `assumed`: they may not be exactly those of this model. `inherited_from` is
    the family whose most expensive member has these rates, for a model without its own; otherwise empty.
    """

    by_kind: Mapping[TokenKind | BillableUnit, Rate]
    source: PriceSource
    origin: str
    assumed: bool = False
    inherited_from: str = ""

    def scale(self, multiple: Decimal) -> "Rates":
        """Multiply all token rates; units charged per piece stay the same."""
        scaled = {
            kind: rate if kind in _PER_PIECE_UNITS else rate.scale(multiple)
            for kind, rate in self.by_kind.items()
        }
        return replace(self, by_kind=scaled)

    @cached_property
    def upper_bound(self) -> "_UpperBound":
        """Maximum rates if nothing is cached with the long TTL."""
        return _compute_upper_bound(self.by_kind, is_long=False)

    @cached_property
    def upper_bound_long_ttl(self) -> "_UpperBound":
        """Maximum rates if something may be cached with the long TTL."""
        return _compute_upper_bound(self.by_kind, is_long=True)


_PER_PIECE_UNITS = frozenset(
    (BillableUnit.WEB_SEARCHES, BillableUnit.FILE_SEARCHES, BillableUnit.RERANKS, BillableUnit.REQUESTS)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Cost of a call in dollars, by kind of token and by unit.

    Reasoning without its own rate is in `output`. `unsplit` is only known as a whole: the price that a provider
    states. A price that is not `sure` is likely: a kind of token had the rate of another, or the model that of
    another provider. `inherited_from` is as in `Rates`.
    """

    uncached: Decimal = ZERO
    read: Decimal = ZERO
    written_5m: Decimal = ZERO
    written_1h: Decimal = ZERO
    output: Decimal = ZERO
    reasoning: Decimal = ZERO
    units: tuple[tuple[BillableUnit, Decimal], ...] = ()
    unsplit: Decimal = ZERO
    source: PriceSource
    origin: str
    sure: bool = True
    inherited_from: str = ""

    @property
    def dollars(self) -> Decimal:
        return _sum((self.input_dollars, self.output_dollars, self.other_dollars))

    @property
    def input_dollars(self) -> Decimal:
        """Cost of all input, cached or not, in any medium."""
        kinds = (self.uncached, self.read, self.written_5m, self.written_1h)
        return _sum((*kinds, *(dollars for unit, dollars in self.units if unit in _INPUT_UNITS)))

    @property
    def output_dollars(self) -> Decimal:
        media = (dollars for unit, dollars in self.units if unit in _OUTPUT_UNITS)
        return _sum((self.output, self.reasoning, *media))

    @property
    def other_dollars(self) -> Decimal:
        """Cost of units charged per piece, and of what is only known as a whole."""
        pieces = (
            dollars for unit, dollars in self.units if unit not in _INPUT_UNITS and unit not in _OUTPUT_UNITS
        )
        return _sum((self.unsplit, *pieces))

    def add(self, other: "Price") -> "Price":
        """The sum is sure only if both prices are."""
        units = dict(self.units)
        for unit, dollars in other.units:
            units[unit] = EXACT.add(units.get(unit, ZERO), dollars)
        return Price(
            uncached=EXACT.add(self.uncached, other.uncached),
            read=EXACT.add(self.read, other.read),
            written_5m=EXACT.add(self.written_5m, other.written_5m),
            written_1h=EXACT.add(self.written_1h, other.written_1h),
            output=EXACT.add(self.output, other.output),
            reasoning=EXACT.add(self.reasoning, other.reasoning),
            units=tuple((unit, units[unit]) for unit in BillableUnit if unit in units),
            unsplit=EXACT.add(self.unsplit, other.unsplit),
            source=self.source,
            origin=self.origin,
            sure=self.sure and other.sure,
            inherited_from=self.inherited_from or other.inherited_from,
        )


_INPUT_UNITS = frozenset(unit for unit in BillableUnit if unit.startswith(("input_", "read_")))
_OUTPUT_UNITS = frozenset(
    (*(unit for unit in BillableUnit if unit.startswith("output_")), BillableUnit.CITATIONS)
)


def _sum(dollars: Iterable[Decimal]) -> Decimal:
    return reduce(EXACT.add, dollars, ZERO)


def price_call(rates: Rates, call: UsagePart) -> Price | None:
    """Return the price of a call at these rates; None if something in it has no known rate.

    Cache reads without their own rate cost as much as uncached input: many hosts give no discount, and they
    cannot cost more. Cache writes do not, because they usually cost more.
    """
    parts = _price_parts(rates, call)
    if parts is None:
        return None
    kinds, units, is_sure = parts
    return Price(
        **kinds,
        units=tuple(units.items()),
        source=rates.source,
        origin=rates.origin,
        sure=is_sure,
        inherited_from=rates.inherited_from,
    )


def compute_dollars(rates: Rates, call: UsagePart) -> Decimal | None:
    parts = _price_parts(rates, call)
    return None if parts is None else _sum((*parts[0].values(), *parts[1].values()))


def _price_parts(
    rates: Rates, call: UsagePart
) -> tuple[dict[str, Decimal], dict[BillableUnit, Decimal], bool] | None:
    by_kind, usage, cache = rates.by_kind, call.usage, call.usage.cache
    is_sure, size = not rates.assumed, cache.input_tokens
    reasoning = min(usage.reasoning_tokens, usage.output_tokens) if TokenKind.REASONING in by_kind else 0
    tokens = (cache.uncached, cache.read, cache.written_5m, cache.written_1h)
    counts = [*tokens, usage.output_tokens - reasoning, reasoning]
    units: dict[BillableUnit, Decimal] = {}
    for unit, count in (
        (*call.units, (BillableUnit.REQUESTS, 1)) if BillableUnit.REQUESTS in by_kind else call.units
    ):
        rate = _find_unit_rate(rates, unit)
        kind_index = _KIND_INDEX_BY_UNIT.get(unit)
        if rate is None:
            if unit in _ALWAYS_CHARGED:
                return None
            is_sure = is_sure and unit not in _DEARER_UNITS
        elif kind_index is None:
            units[unit] = EXACT.multiply(rate.at(size), count)
        else:
            part_count = min(count, counts[kind_index])
            counts[kind_index] -= part_count
            units[unit] = EXACT.multiply(rate.at(size), part_count)
    kinds: dict[str, Decimal] = {}
    for kind, count in zip(_KINDS, counts, strict=True):
        if not count:
            continue
        rate = by_kind.get(kind)
        if rate is None and kind is TokenKind.READ:
            rate, is_sure = by_kind.get(TokenKind.UNCACHED), False
        if rate is None:
            return None
        kinds[kind] = EXACT.multiply(rate.at(size), count)
    return kinds, units, is_sure


_KINDS = tuple(TokenKind)
# Index of the kind that includes the tokens of a medium.
_KIND_INDEX_BY_UNIT = {
    **{unit: _KINDS.index(TokenKind.UNCACHED) for unit in BillableUnit if unit.startswith("input_")},
    **{unit: _KINDS.index(TokenKind.READ) for unit in BillableUnit if unit.startswith("read_")},
    **{unit: _KINDS.index(TokenKind.OUTPUT) for unit in BillableUnit if unit.startswith("output_")},
}
_ALWAYS_CHARGED = frozenset((BillableUnit.WEB_SEARCHES, BillableUnit.RERANKS))
# Audio costs more than text wherever it has a price, and searches of files have a fee at some hosts; images and
# video usually cost the same.
_DEARER_UNITS = frozenset(
    (
        BillableUnit.INPUT_AUDIO,
        BillableUnit.READ_AUDIO,
        BillableUnit.OUTPUT_AUDIO,
        BillableUnit.FILE_SEARCHES,
    )
)


def _find_unit_rate(rates: Rates, unit: BillableUnit) -> Rate | None:
    rate = rates.by_kind.get(unit)
    if rate is None and unit is BillableUnit.SEARCH_QUERIES:
        return rates.by_kind.get(BillableUnit.WEB_SEARCHES)
    if rate is None and unit.startswith("read_") and TokenKind.READ not in rates.by_kind:
        return rates.by_kind.get(BillableUnit(unit.replace("read_", "input_")))
    return rate


_LONG_TTLS = (Ttl.ONE_HOUR, Ttl.TWELVE_HOURS)


def compute_ceiling(
    rates: Rates,
    *,
    input_tokens: int,
    output_tokens: int,
    ttl: Ttl | None = None,
    searches: int = 0,
    units: Collection[BillableUnit] = (),
) -> Decimal | None:
    """Return the most that a call with at most these tokens can cost; None if it is unknown.

    Input and output are taken at the highest rate that may apply: written with the long TTL if `ttl` is long,
    with the short one if writing has a rate, or as audio or images. Web searches are added: they have their own
    rate, or are part of a fee per request. `units` may be charged besides text. Other units (citations) are not
    known in advance.
    """
    has_search_fee = BillableUnit.WEB_SEARCHES in rates.by_kind or BillableUnit.REQUESTS in rates.by_kind
    if (searches and not has_search_fee) or not rates.by_kind.keys() >= set(units):
        return None
    bound = rates.upper_bound_long_ttl if ttl in _LONG_TTLS else rates.upper_bound
    if bound.is_unknown or (input_tokens and not bound.has_input) or (output_tokens and not bound.has_output):
        return None
    ceiling = EXACT.add(
        EXACT.multiply(bound.input.at(input_tokens), input_tokens),
        EXACT.multiply(bound.output.at(input_tokens), output_tokens),
    )
    if searches and (search_rate := rates.by_kind.get(BillableUnit.WEB_SEARCHES)) is not None:
        ceiling = EXACT.add(ceiling, EXACT.multiply(search_rate.max_at(input_tokens), searches))
    return ceiling if bound.request is None else EXACT.add(ceiling, bound.request.max_at(input_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class _UpperBound:
    """Maximum rates of input and output tokens over all that may apply.

    Both never decrease for a larger input.
    """

    input: Rate
    output: Rate
    request: Rate | None
    has_input: bool
    has_output: bool
    is_unknown: bool


def _compute_upper_bound(by_kind: Mapping[TokenKind | BillableUnit, Rate], *, is_long: bool) -> _UpperBound:
    long = (TokenKind.WRITTEN_1H,) if is_long else ()
    kinds: tuple[TokenKind | BillableUnit, ...] = (
        TokenKind.UNCACHED,
        TokenKind.READ,
        TokenKind.WRITTEN_5M,
        *long,
        *_INPUT_UNITS,
    )
    output_kinds: tuple[TokenKind | BillableUnit, ...] = (
        TokenKind.OUTPUT,
        TokenKind.REASONING,
        *(_OUTPUT_UNITS - {BillableUnit.CITATIONS}),
    )
    return _UpperBound(
        input=_upper_bound_rate([by_kind[kind] for kind in kinds if kind in by_kind]),
        output=_upper_bound_rate([by_kind[kind] for kind in output_kinds if kind in by_kind]),
        request=by_kind.get(BillableUnit.REQUESTS),
        has_input=TokenKind.UNCACHED in by_kind,
        has_output=any(kind in by_kind for kind in output_kinds),
        is_unknown=is_long and TokenKind.WRITTEN_5M in by_kind and TokenKind.WRITTEN_1H not in by_kind,
    )


def _upper_bound_rate(rates: Sequence[Rate]) -> Rate:
    """Return a rate that is the maximum of these at any input size; zero if there are none."""

    def max_at(input_tokens: int) -> Decimal:
        return max((rate.max_at(input_tokens) for rate in rates), default=ZERO)

    sizes = sorted({step.over_tokens for rate in rates for step in rate.tiers})
    return Rate(max_at(0), tuple(RateTier(size, max_at(size + 1)) for size in sizes))


_PART_OF: Mapping[TokenKind | BillableUnit, TokenKind] = {
    TokenKind.READ: TokenKind.UNCACHED,
    TokenKind.WRITTEN_5M: TokenKind.UNCACHED,
    TokenKind.WRITTEN_1H: TokenKind.UNCACHED,
    TokenKind.REASONING: TokenKind.OUTPUT,
}


def upper_bound_by_kind(members: Sequence[Rates]) -> dict[TokenKind | BillableUnit, Rate]:
    """Return the rate of the most expensive member for each kind, at any input size.

    A kind without its own rate costs as much as the kind it is part of: reads and writes as uncached input,
    reasoning as output.
    """
    kinds = {kind for rates in members for kind in rates.by_kind}
    bounds = {}
    for kind in kinds:
        other = _PART_OF.get(kind, kind)
        candidates = [rates.by_kind.get(kind, rates.by_kind.get(other)) for rates in members]
        bounds[kind] = _upper_bound_rate([rate for rate in candidates if rate is not None])
    return bounds


def make_stated_price(dollars: Decimal, provider: str) -> Price:
    return Price(unsplit=dollars, source=PriceSource.STATED, origin=provider)
