"""What a price file changes: the models that it gives a price, and those whose price is another then."""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from foveate.cost.price_book import PriceBook
from foveate.cost.price_update import PriceUpdate
from foveate.cost.prices import Kind, Rates

_MILLION = 1_000_000


class Change(StrEnum):
    """What becomes of a model's price."""

    NEW = "new"
    CHANGED = "changed"
    SAME = "same"
    KEPT = "kept"  # newer tables have another price, which holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A model of a price file, with what holds for it before and after."""

    provider: str
    model: str
    change: Change
    before: Rates | None
    after: Rates | None


def differences(before: PriceBook, update: PriceUpdate, *, at: float) -> list[Difference]:
    """All models of a price file, by provider, and what it changes for each of them."""
    after = PriceBook(updates=lambda: update)
    found = []
    for provider, model in sorted(update.models()):
        old = before.rates(model, provider=provider, at=at)
        new = after.rates(model, provider=provider, at=at)
        found.append(
            Difference(
                provider=provider,
                model=model,
                change=_change(old, new, update),
                before=old,
                after=new,
            )
        )
    return found


def _change(old: Rates | None, new: Rates | None, update: PriceUpdate) -> Change:
    if new is None or new.origin != update.origin:
        return Change.KEPT
    if old is None or old.inherited_from:
        return Change.NEW
    is_same = all(old.by_kind.get(kind) == new.by_kind.get(kind) for kind in Kind)
    return Change.SAME if is_same else Change.CHANGED


def per_million(rates: Rates | None, input_tokens: int = 0) -> dict[Kind, Decimal]:
    """Dollars per million tokens of each kind, in a request of so many input tokens."""
    if rates is None:
        return {}
    found = {kind: rates.by_kind[kind].at(input_tokens) * _MILLION for kind in Kind if kind in rates.by_kind}
    return {kind: dollars.normalize() + 0 for kind, dollars in found.items()}
