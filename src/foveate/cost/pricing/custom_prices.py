"""Custom prices, which override the tables: for self-hosted models and for discounts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from fnmatch import fnmatchcase

from foveate.cost.pricing.price_facts import normalize_provider
from foveate.cost.pricing.rates import EXACT, PriceSource, Rate, Rates, RateTier, TokenKind
from foveate.errors import BadOption
from foveate.formats.response.usage import BillableUnit

_MILLIONTH = Decimal("1e-6")
_MAX_DOLLARS = Decimal(1_000_000_000)
_MAX_DECIMALS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class DollarsPerMillion:
    """Dollars per million tokens of each kind; kinds that are not given cost as much as a similar one."""

    uncached: Decimal | None = None
    read: Decimal | None = None
    written_5m: Decimal | None = None
    written_1h: Decimal | None = None
    output: Decimal | None = None
    reasoning: Decimal | None = None

    def __post_init__(self) -> None:
        for kind in TokenKind:
            _check_amount(getattr(self, kind), kind)

    def given_kinds(self) -> dict[TokenKind, Decimal]:
        by_kind = {kind: getattr(self, kind) for kind in TokenKind}
        return {kind: dollars for kind, dollars in by_kind.items() if dollars is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomPriceTier:
    """Prices once the whole input exceeds `over_tokens`; kinds that are not given stay the same."""

    over_tokens: int
    dollars_per_million: DollarsPerMillion

    def __post_init__(self) -> None:
        if type(self.over_tokens) is not int or self.over_tokens < 0:
            raise BadOption(
                f"over_tokens must be a whole number, 0 or more, not {self.over_tokens}", path=("over_tokens",)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomPrice:
    """Price of some models: dollars per million tokens of each kind, or a discount on the table's price.

    `model` is a glob (`claude-*`) for the name as sent or the last part of its path, ignoring case. With a
    `provider`, the price applies there only. It applies from the UTC day `since` on. A `discount` of 0.1 takes
    a tenth off every token price.
    """

    model: str
    provider: str | None = None
    since: date | None = None
    dollars_per_million: DollarsPerMillion | None = None
    tiers: tuple[CustomPriceTier, ...] = ()
    discount: Decimal | None = None

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise BadOption("a price needs the name or glob of a model", path=("model",))
        if isinstance(self.since, datetime):
            raise BadOption("since must be a date without a time", path=("since",))
        if (self.dollars_per_million is None) == (self.discount is None):
            raise BadOption(f"the price of {self.model} needs either dollars_per_million or a discount")
        if self.discount is not None:
            _check_amount(self.discount, "discount")
            if self.discount > 1:
                raise BadOption(
                    f"a discount must be at most 1, not {self.discount}: write 0.15 for 15%",
                    path=("discount",),
                )
            if self.tiers:
                raise BadOption(
                    "a discount cannot have tiers: it applies to those of the price table", path=("tiers",)
                )
        elif self.dollars_per_million is not None:
            missing = [kind for kind in _REQUIRED_KINDS if kind not in self.dollars_per_million.given_kinds()]
            if missing:
                raise BadOption(f"the price of {self.model} needs {' and '.join(missing)}", path=(missing[0],))
        sizes = [tier.over_tokens for tier in self.tiers]
        if len(set(sizes)) < len(sizes):
            raise BadOption("two tiers have the same over_tokens", path=("tiers",))

    @property
    def match_key(self) -> tuple[str, str | None]:
        return self.model.strip().lower(), None if self.provider is None else normalize_provider(self.provider)

    def matches(self, model: str, provider: str) -> bool:
        glob, only_at = self.match_key
        if only_at is not None and only_at != normalize_provider(provider):
            return False
        name = model.strip().lower()
        return fnmatchcase(name, glob) or fnmatchcase(name.rpartition("/")[2], glob)

    def rates(self, table: Rates | None) -> Rates | None:
        """Apply the price to the table's rates; None for a discount without a table price."""
        origin = f"custom price of {self.model}" + (f", since {self.since}" if self.since else "")
        if self.dollars_per_million is not None:
            return Rates(by_kind=self._rates_by_kind(), source=PriceSource.CUSTOM, origin=origin)
        if self.discount is None or table is None:
            return None
        discounted = table.scale(EXACT.subtract(Decimal(1), self.discount))
        return replace(discounted, source=PriceSource.CUSTOM, origin=origin)

    def _rates_by_kind(self) -> dict[TokenKind | BillableUnit, Rate]:
        assert self.dollars_per_million is not None
        given = self.dollars_per_million.given_kinds()
        tiers = sorted(self.tiers, key=lambda tier: tier.over_tokens)
        rates: dict[TokenKind | BillableUnit, Rate] = {}
        for kind in TokenKind:
            if kind is TokenKind.REASONING and not any(
                kind in tier_prices for tier_prices in (given, *_given_kinds_by_tier(tiers))
            ):
                continue
            dollars = given.get(kind, given[_FALLBACK_KINDS[kind]])
            rate, steps = EXACT.multiply(dollars, _MILLIONTH), []
            for tier, tier_prices in zip(tiers, _given_kinds_by_tier(tiers), strict=True):
                if kind in tier_prices:
                    dollars = tier_prices[kind]
                elif kind not in given and _FALLBACK_KINDS[kind] in tier_prices:
                    dollars = tier_prices[_FALLBACK_KINDS[kind]]
                steps.append(RateTier(tier.over_tokens, EXACT.multiply(dollars, _MILLIONTH)))
            rates[kind] = Rate(rate, tuple(steps))
        return rates


_REQUIRED_KINDS = (TokenKind.UNCACHED, TokenKind.OUTPUT)
# The kind whose price applies if a kind is not given.
_FALLBACK_KINDS = {
    **dict.fromkeys(
        (TokenKind.UNCACHED, TokenKind.READ, TokenKind.WRITTEN_5M, TokenKind.WRITTEN_1H), TokenKind.UNCACHED
    ),
    **dict.fromkeys((TokenKind.OUTPUT, TokenKind.REASONING), TokenKind.OUTPUT),
}


def _given_kinds_by_tier(tiers: Sequence[CustomPriceTier]) -> list[dict[TokenKind, Decimal]]:
    return [tier.dollars_per_million.given_kinds() for tier in tiers]


def check_custom_prices(prices: Sequence[CustomPrice]) -> None:
    """Reject two prices for the same models from the same day on.

    Raises:
        BadOption: there are two; its path leads to the second.
    """
    seen = set()
    for index, price in enumerate(prices):
        key = (price.match_key, price.since)
        if key in seen:
            since = f"since {price.since}" if price.since else "without a start date"
            raise BadOption(f"there are two prices of {price.model} {since}", path=(index,))
        seen.add(key)


def find_current_price(matching: Sequence[CustomPrice], at: float) -> CustomPrice | None:
    """Return the price that applies at a time: the newest one of the first pattern that has one."""
    today = datetime.fromtimestamp(at, UTC).date()
    started = [price for price in matching if price.since is None or price.since <= today]
    if not started:
        return None
    same_pattern = [price for price in started if price.match_key == started[0].match_key]
    return max(same_pattern, key=lambda price: price.since or date.min)


def _check_amount(dollars: Decimal | None, name: str) -> None:
    """Raise BadOption unless this is a decimal number, not negative, with few enough digits."""
    if dollars is None:
        return
    if not isinstance(dollars, Decimal):
        raise BadOption(f"{name} must be a Decimal, not {dollars!r}", path=(name,))
    if not dollars.is_finite() or dollars < 0:
        raise BadOption(f"{name} must be a number, 0 or more, not {dollars}", path=(name,))
    exponent = dollars.as_tuple().exponent
    if dollars > _MAX_DOLLARS or (isinstance(exponent, int) and exponent < -_MAX_DECIMALS):
        raise BadOption(
            f"{name} must be at most {_MAX_DOLLARS:,} with at most {_MAX_DECIMALS} decimals, not {dollars}",
            path=(name,),
        )
