"""How long a model's answer can be, found by its name in a dated table (`budget/answers.toml`)."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from foveate.tokens.names import candidate_names, normalize_model_name

_OUTPUT_TABLE = Path(__file__).with_name("answers.toml")
# Models that come and go in a long-lived process are forgotten again.
_MAX_CACHED_OUTPUT_LIMITS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLimit:
    """How many tokens an answer can have, thoughts included. `source` says who says so and `as_of` when."""

    tokens: int
    source: str
    as_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _OutputLimitFamily:
    """Some maker's models: patterns of names, and their longest answers."""

    match: str
    as_of: str
    source: str
    answers: Mapping[str, int]


@lru_cache(_MAX_CACHED_OUTPUT_LIMITS)
def find_output_limit(model: str) -> OutputLimit | None:
    """The longest answer of a model; None where this very model is not known."""
    name = normalize_model_name(model)
    family = next((family for family in _load_output_limits() if re.search(family.match, name)), None)
    if family is None:
        return None
    exact_names, _related_names = candidate_names(name)
    for pattern, tokens in family.answers.items():
        if any(re.fullmatch(pattern, candidate) for candidate in exact_names):
            return OutputLimit(tokens=tokens, source=family.source, as_of=family.as_of)
    return None


@cache
def _load_output_limits() -> tuple[_OutputLimitFamily, ...]:
    table = tomllib.loads(_OUTPUT_TABLE.read_text(encoding="utf-8"))
    return tuple(_OutputLimitFamily(**family) for family in table["family"])
