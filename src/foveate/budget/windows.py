"""The context windows of models, found by name in a dated table (`budget/windows.toml`)."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from foveate.tokens.names import plain_name, stretches_of

_TABLE = Path(__file__).with_name("windows.toml")
# Models that come and go in a long-lived process are forgotten again.
_KEPT_WINDOWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How many tokens prompt and answer may have together; the prompt alone, where its provider bounds that.

    `source` says who says so and `as_of` when. `inherited`: nothing is known of this very model, and the number
    is that of its kin.
    """

    tokens: int
    source: str
    as_of: str
    inherited: bool


@lru_cache(_KEPT_WINDOWS)
def window_of(model: str) -> Window | None:
    """The context window of a model, or None where neither it nor its family is known."""
    name = plain_name(model)
    table = _table()
    if not table.other_kinds.isdisjoint(name.split("-")):
        return None
    family = next((family for family in table.families if re.search(family.match, name)), None)
    return None if family is None else _window(family, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Some maker's models: patterns of names and their windows, and what a model that fits none has."""

    match: str
    as_of: str
    source: str
    windows: Mapping[str, int]
    newer_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class _Table:
    other_kinds: frozenset[str]
    families: tuple[_Family, ...]


@cache
def _table() -> _Table:
    table = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    return _Table(frozenset(table["other_kinds"]), tuple(_Family(**family) for family in table["family"]))


def _window(family: _Family, name: str) -> Window | None:
    known, kin = stretches_of(name)
    tokens = _tokens(family, known)
    inherited = tokens is None
    if tokens is None:
        tokens = _tokens(family, kin) or family.newer_tokens
    if tokens is None:
        return None
    return Window(tokens=tokens, source=family.source, as_of=family.as_of, inherited=inherited)


def _tokens(family: _Family, stretches: list[str]) -> int | None:
    """The window of the first row that is one of `stretches`."""
    # `re` compiles a pattern when it is first used and keeps it; most families never are.
    for pattern, tokens in family.windows.items():
        if any(re.fullmatch(pattern, stretch) for stretch in stretches):
            return tokens
    return None
