"""What a price file changes: the models that it gives a price, and those whose price is another then."""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from foveate.cost.price_book import PriceBook
from foveate.cost.price_update import ImportedPrices
from foveate.cost.prices import Rates, TokenKind

_MILLION = 1_000_000


class PriceChange(StrEnum):
    """What becomes of a model's price."""

    NEW = "new"
    CHANGED = "changed"
    SAME = "same"
    KEPT = "kept"  # newer tables have another price, which holds


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceDifference:
    """A model of a price file, with what holds for it before and after."""

    provider: str
    model: str
    change: PriceChange
    before: Rates | None
    after: Rates | None


def find_differences(before: PriceBook, imported: ImportedPrices, *, at: float) -> list[PriceDifference]:
    """All models of a price file, by provider, and what it changes for each of them."""
    after = PriceBook(load_imported=lambda: imported)
    differences = []
    for provider, model in sorted(imported.models()):
        old = before.rates(model, provider=provider, at=at)
        new = after.rates(model, provider=provider, at=at)
        differences.append(
            PriceDifference(
                provider=provider,
                model=model,
                change=_classify_change(old, new, imported),
                before=old,
                after=new,
            )
        )
    return differences


def _classify_change(old: Rates | None, new: Rates | None, imported: ImportedPrices) -> PriceChange:
    if new is None or new.origin != imported.origin:
        return PriceChange.KEPT
    if old is None or old.inherited_from:
        return PriceChange.NEW
    is_same = all(old.by_kind.get(kind) == new.by_kind.get(kind) for kind in TokenKind)
    return PriceChange.SAME if is_same else PriceChange.CHANGED


def dollars_per_million(rates: Rates | None, input_tokens: int = 0) -> dict[TokenKind, Decimal]:
    """Dollars per million tokens of each kind, in a request of so many input tokens."""
    if rates is None:
        return {}
    by_kind = {
        kind: rates.by_kind[kind].at(input_tokens) * _MILLION for kind in TokenKind if kind in rates.by_kind
    }
    return {kind: dollars.normalize() + 0 for kind, dollars in by_kind.items()}
