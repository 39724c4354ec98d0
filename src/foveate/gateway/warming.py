"""What the first request would have to wait for, loaded before it comes."""

from foveate import count
from foveate.cost.price_book import PriceBook

# One of each family that has a vocabulary of its own to load.
_MODELS = ("claude-opus-4-5", "gpt-4.1")


def warm_up(prices: PriceBook) -> None:
    """Have price tables and vocabularies in memory; that takes most of a second."""
    prices.warm()
    for model in _MODELS:
        count("Hello", model=model)
