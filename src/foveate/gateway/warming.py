"""What the first request would have to wait for, loaded before it comes."""

import gc

from foveate import count
from foveate.cost.price_book import PriceBook

# One of each family that has a vocabulary of its own to load.
_WARM_UP_MODELS = ("claude-opus-4-5", "gpt-4.1")
# A request makes thousands of objects, of which next to none is garbage that has to be looked for.
_GC_THRESHOLDS = (20_000, 20, 50)


def warm_up(prices: PriceBook) -> None:
    """Have price tables and vocabularies in memory; that takes most of a second."""
    import numpy as np  # noqa: F401  # reads large bodies; commands that serve nobody need not load it

    prices.preload()
    for model in _WARM_UP_MODELS:
        count("Hello", model=model)


def freeze_garbage_collector() -> None:
    """Have the search for garbage leave out all that there is by now.

    Code, tables and vocabularies stay to the end. To look through them took about 90 ms, in which nobody was
    served, each time that a few thousand new conversations had come (Python 3.11, November 2026).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
