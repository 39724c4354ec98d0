"""Prices of one's own, over those of the tables: for what one serves oneself, and for discounts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from fnmatch import fnmatchcase

from foveate.cost.price_names import provider_id
from foveate.cost.prices import EXACT, Kind, PriceSource, Rate, Rates, Step
from foveate.errors import BadOption
from foveate.wire.bills import Unit

_MILLIONTH = Decimal("1e-6")
_MOST_DOLLARS = Decimal(1_000_000_000)
_MOST_DECIMALS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class PerMillion:
    """Dollars for a million tokens of each kind; a kind that is not given costs as its like does."""

    uncached: Decimal | None = None
    read: Decimal | None = None
    written_5m: Decimal | None = None
    written_1h: Decimal | None = None
    output: Decimal | None = None
    reasoning: Decimal | None = None

    def __post_init__(self) -> None:
        """Refuses what cannot be a price."""
        for kind in Kind:
            _check(getattr(self, kind), kind)

    def given(self) -> dict[Kind, Decimal]:
        """The kinds that are given."""
        said = {kind: getattr(self, kind) for kind in Kind}
        return {kind: dollars for kind, dollars in said.items() if dollars is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTier:
    """What a million tokens cost once the whole input has more than `over_tokens`; the rest stays as it was."""

    over_tokens: int
    dollars_per_million: PerMillion

    def __post_init__(self) -> None:
        """Refuses what cannot be a tier."""
        if type(self.over_tokens) is not int or self.over_tokens < 0:
            raise BadOption(
                f"over_tokens must be a whole number, not below zero: {self.over_tokens}", path=("over_tokens",)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPrice:
    """What some models cost: dollars for a million tokens of each kind, or a share off the table's price.

    `model` is a glob (`claude-*`), matched with the name as it was sent and with the last part of its path, in
    whatever case. With a `provider` it is the price there alone. It holds from the day `since` on, of UTC. A
    `discount` of 0.1 leaves nine tenths of what the table says for every token.
    """

    model: str
    provider: str | None = None
    since: date | None = None
    dollars_per_million: PerMillion | None = None
    tiers: tuple[OwnTier, ...] = ()
    discount: Decimal | None = None

    def __post_init__(self) -> None:
        """Refuses what cannot be a price."""
        if not self.model.strip():
            raise BadOption("a price needs the name of a model, or a pattern for some", path=("model",))
        if isinstance(self.since, datetime):
            raise BadOption("since must be a day, without a time", path=("since",))
        if (self.dollars_per_million is None) == (self.discount is None):
            raise BadOption(f"the price of {self.model} must be either dollars_per_million or a discount")
        if self.discount is not None:
            _check(self.discount, "discount")
            if self.discount > 1:
                raise BadOption(
                    f"a discount is a share, at most 1: {self.discount} (for 15 percent say 0.15)",
                    path=("discount",),
                )
            if self.tiers:
                raise BadOption("a discount has no tiers: it is on those of the table", path=("tiers",))
        elif self.dollars_per_million is not None:
            missing = [kind for kind in _NEEDED if kind not in self.dollars_per_million.given()]
            if missing:
                raise BadOption(f"the price of {self.model} lacks {' and '.join(missing)}", path=(missing[0],))
        sizes = [tier.over_tokens for tier in self.tiers]
        if len(set(sizes)) < len(sizes):
            raise BadOption("two tiers begin at the same number of tokens", path=("tiers",))

    @property
    def about(self) -> tuple[str, str | None]:
        """Which models it is the price of, in one spelling: the pattern, and the provider if there is one."""
        return self.model.strip().lower(), None if self.provider is None else provider_id(self.provider)

    def fits(self, model: str, provider: str) -> bool:
        """Whether it is about a model at a provider."""
        glob, only_at = self.about
        if only_at is not None and only_at != provider_id(provider):
            return False
        name = model.strip().lower()
        return fnmatchcase(name, glob) or fnmatchcase(name.rpartition("/")[2], glob)

    def rates(self, table: Rates | None) -> Rates | None:
        """What it makes of the table's rates; None for a discount on nothing."""
        origin = f"own price of {self.model}" + (f", since {self.since}" if self.since else "")
        if self.dollars_per_million is not None:
            return Rates(by_kind=self._by_kind(), source=PriceSource.OWN, origin=origin)
        if self.discount is None or table is None:
            return None
        left = table.times(EXACT.subtract(Decimal(1), self.discount))
        return replace(left, source=PriceSource.OWN, origin=origin)

    def _by_kind(self) -> dict[Kind | Unit, Rate]:
        assert self.dollars_per_million is not None
        given = self.dollars_per_million.given()
        tiers = sorted(self.tiers, key=lambda tier: tier.over_tokens)
        found: dict[Kind | Unit, Rate] = {}
        for kind in Kind:
            if kind is Kind.REASONING and not any(kind in said for said in (given, *_given(tiers))):
                continue
            dollars = given.get(kind, given[_LIKES[kind]])
            rate, steps = EXACT.multiply(dollars, _MILLIONTH), []
            for tier, said in zip(tiers, _given(tiers), strict=True):
                if kind in said:
                    dollars = said[kind]
                elif kind not in given and _LIKES[kind] in said:
                    dollars = said[_LIKES[kind]]
                steps.append(Step(tier.over_tokens, EXACT.multiply(dollars, _MILLIONTH)))
            found[kind] = Rate(rate, tuple(steps))
        return found


_NEEDED = (Kind.UNCACHED, Kind.OUTPUT)
# What a kind costs that is not given.
_LIKES = {
    **dict.fromkeys((Kind.UNCACHED, Kind.READ, Kind.WRITTEN_5M, Kind.WRITTEN_1H), Kind.UNCACHED),
    **dict.fromkeys((Kind.OUTPUT, Kind.REASONING), Kind.OUTPUT),
}


def _given(tiers: Sequence[OwnTier]) -> list[dict[Kind, Decimal]]:
    return [tier.dollars_per_million.given() for tier in tiers]


def check_own_prices(own: Sequence[OwnPrice]) -> None:
    """Refuses two prices for the same models from the same day on.

    Raises:
        BadOption: there are two; its path leads to the second.
    """
    seen = set()
    for index, price in enumerate(own):
        key = (price.about, price.since)
        if key in seen:
            since = f"since {price.since}" if price.since else "without a day since when"
            raise BadOption(f"there are two prices of {price.model} {since}", path=(index,))
        seen.add(key)


def price_in_force(fitting: Sequence[OwnPrice], at: float) -> OwnPrice | None:
    """Which of the prices that fit a model holds at a time: of the first pattern that has one, the newest."""
    today = datetime.fromtimestamp(at, UTC).date()
    begun = [price for price in fitting if price.since is None or price.since <= today]
    if not begun:
        return None
    same = [price for price in begun if price.about == begun[0].about]
    return max(same, key=lambda price: price.since or date.min)


def _check(dollars: Decimal | None, name: str) -> None:
    """Refuses what cannot be an amount.

    Raises:
        BadOption: it is no decimal number, below zero, or has more digits than money has.
    """
    if dollars is None:
        return
    if not isinstance(dollars, Decimal):
        raise BadOption(f"{name} must be a decimal number, which money is, not {dollars!r}", path=(name,))
    if not dollars.is_finite() or dollars < 0:
        raise BadOption(f"{name} must be a number, not below zero: {dollars}", path=(name,))
    exponent = dollars.as_tuple().exponent
    if dollars > _MOST_DOLLARS or (isinstance(exponent, int) and exponent < -_MOST_DECIMALS):
        raise BadOption(
            f"{name} can be {_MOST_DOLLARS:,} at most, with {_MOST_DECIMALS} decimals: {dollars}",
            path=(name,),
        )
