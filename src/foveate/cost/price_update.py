"""Price files that users bring: genai-prices' data and LiteLLM's list, checked and in one form.

A file is not trusted: it may be damaged, or somebody else's. Whatever is read from it is checked for its type
and for being a possible price, patterns that could take long to match are left out, and sizes are bounded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from genai_prices.types import Provider


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceUpdate:
    """The prices of a file. `format` says whose file it was, and `day` how old its prices are."""

    format: str
    day: date
    providers: "Mapping[str, Provider]"

    @property
    def origin(self) -> str:
        """Who says these prices, and when."""
        return f"{self.format}, {self.day}"
