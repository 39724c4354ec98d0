"""The models of the sandbox, from a dated table (`models.toml`)."""

import re
import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from foveate.model import Format

_TABLE_PATH = Path(__file__).with_name("models.toml")
_MODEL_CACHE_SIZE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxModel:
    """Limits and features of a model.

    `adds_output`: prompt and output limit must fit in the window together. `reasons`: it thinks by default.
    `samples`: its temperature can be set. `takes_system`: system messages may stand among the others.
    """

    name: str
    max_output_tokens: int
    takes_prefill: bool
    adds_output: bool
    reasons: bool = False
    samples: bool = True
    takes_system: bool = True


@lru_cache(_MODEL_CACHE_SIZE)
def find_model(api_format: Format, name: str) -> SandboxModel | None:
    """Return a model of the provider of a format; None if it has none of that name.

    An unknown newer version of a known family counts as known.
    """
    provider = _provider_table(api_format)
    if not any(re.fullmatch(family, name) for family in provider["families"]):
        return None
    row = next(row for row in provider["model"] if re.match(row["match"], name))
    return SandboxModel(name=name, **{column: value for column, value in row.items() if column != "match"})


def list_model_names(api_format: Format) -> tuple[str, ...]:
    return tuple(_provider_table(api_format)["listed"])


def _provider_table(api_format: Format) -> dict[str, Any]:
    names = {Format.ANTHROPIC: "anthropic", Format.GEMINI: "google"}
    return _load_table()[names.get(api_format, "openai")]


@cache
def _load_table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(_TABLE_PATH.read_text(encoding="utf-8"))
