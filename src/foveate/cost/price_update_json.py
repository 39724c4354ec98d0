"""Price files in the one form in which they are kept, which `kept_update` reads."""

import json
from decimal import Decimal
from typing import TYPE_CHECKING

from foveate.cost.price_update import STORED_VERSION, ImportedPrices

if TYPE_CHECKING:
    from genai_prices.types import (
        MatchLogic,
        ModelInfo,
        ModelPrice,
        Provider,
        StartDateConstraint,
        TimeOfDateConstraint,
    )


def price_file_json(imported: ImportedPrices) -> bytes:
    """The update in one form, whichever its file had."""
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
    if isinstance(alternatives := getattr(model.match, "or_", None), list):  # its id, and what the file says
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
