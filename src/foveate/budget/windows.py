"""The context windows of models, found by name in a dated table (`budget/windows.toml`)."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from foveate.tokens.names import candidate_names, normalize_model_name

_WINDOW_TABLE = Path(__file__).with_name("windows.toml")
# Models that come and go in a long-lived process are forgotten again.
_MAX_CACHED_WINDOWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextWindow:
    """How many tokens prompt and answer may have together; the prompt alone, where its provider bounds that.

    `source` says who says so and `as_of` when. `inherited`: nothing is known of this very model, and the number
    is that of its kin.
    """

    tokens: int
    source: str
    as_of: str
    inherited: bool


@lru_cache(_MAX_CACHED_WINDOWS)
def find_context_window(model: str) -> ContextWindow | None:
    """The context window of a model, or None where neither it nor its family is known."""
    name = normalize_model_name(model)
    table = _load_windows()
    if not table.other_kinds.isdisjoint(name.split("-")):
        return None
    family = next((family for family in table.families if re.search(family.match, name)), None)
    return None if family is None else _window_in_family(family, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WindowFamily:
    """Some maker's models: patterns of names and their windows, and what a model that fits none has."""

    match: str
    as_of: str
    source: str
    windows: Mapping[str, int]
    newer_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class _WindowTable:
    other_kinds: frozenset[str]
    families: tuple[_WindowFamily, ...]


@cache
def _load_windows() -> _WindowTable:
    table = tomllib.loads(_WINDOW_TABLE.read_text(encoding="utf-8"))
    return _WindowTable(
        frozenset(table["other_kinds"]), tuple(_WindowFamily(**family) for family in table["family"])
    )


def _window_in_family(family: _WindowFamily, name: str) -> ContextWindow | None:
    exact_names, related_names = candidate_names(name)
    tokens = _matching_tokens(family, exact_names)
    inherited = tokens is None
    if tokens is None:
        tokens = _matching_tokens(family, related_names) or family.newer_tokens
    if tokens is None:
        return None
    return ContextWindow(tokens=tokens, source=family.source, as_of=family.as_of, inherited=inherited)


def _matching_tokens(family: _WindowFamily, candidates: list[str]) -> int | None:
    """The window of the first row that is one of `stretches`."""
    # `re` compiles a pattern when it is first used and keeps it; most families never are.
    for pattern, tokens in family.windows.items():
        if any(re.fullmatch(pattern, candidate) for candidate in candidates):
            return tokens
    return None
