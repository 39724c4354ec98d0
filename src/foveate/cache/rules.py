"""What each provider's cache does for each model, found by name in a dated table (`cache/rules.toml`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from foveate.values import Area, Ttl


class Caching(StrEnum):
    """How a provider decides what to keep."""

    MARKS = "marks"  # only up to a mark (Anthropic)
    AUTOMATIC = "automatic"  # every prefix, in steps (OpenAI before GPT-5.6, DeepSeek, Mistral, xAI, Gemini)
    BOTH = "both"  # automatic, with marks on top (OpenAI from GPT-5.6)
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """One model's cache. Prices are multiples of that of an uncached input token.

    `source` and `as_of` say where the rules come from; `inherited` that nothing is known of this very model, so
    that the rules are those of its kin, `family`.
    """

    provider: str
    family: str
    source: str
    as_of: str
    inherited: bool
    caching: Caching
    most_marks: int
    lookback_positions: int
    runs_are_one_position: bool
    minimum_tokens: int
    step_tokens: int
    ttls: tuple[Ttl, ...]
    read_price: float
    write_prices: Mapping[Ttl, float]
    markable: frozenset[str]
    breaks: Mapping[str, Area]
    binds_thinking: bool
    key_parameter: str
    key_header: str
    takes_blocks: bool
