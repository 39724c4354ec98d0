"""How long a model's answer can be, found by its name in a dated table (`budget/answers.toml`)."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from foveate.tokens.names import plain_name, stretches_of

_TABLE = Path(__file__).with_name("answers.toml")
# Models that come and go in a long-lived process are forgotten again.
_KEPT_ANSWERS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestAnswer:
    """How many tokens an answer can have, thoughts included. `source` says who says so and `as_of` when."""

    tokens: int
    source: str
    as_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Some maker's models: patterns of names, and their longest answers."""

    match: str
    as_of: str
    source: str
    answers: Mapping[str, int]


@lru_cache(_KEPT_ANSWERS)
def longest_answer_of(model: str) -> LongestAnswer | None:
    """The longest answer of a model; None where this very model is not known."""
    name = plain_name(model)
    family = next((family for family in _families() if re.search(family.match, name)), None)
    if family is None:
        return None
    known, _kin = stretches_of(name)
    for pattern, tokens in family.answers.items():
        if any(re.fullmatch(pattern, stretch) for stretch in known):
            return LongestAnswer(tokens=tokens, source=family.source, as_of=family.as_of)
    return None


@cache
def _families() -> tuple[_Family, ...]:
    table = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    return tuple(_Family(**family) for family in table["family"])
