"""What is known of prices beside the tables of genai-prices: a small dated table (`cost/prices.toml`)."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path

from foveate.cost.prices import Kind

_FACTS = Path(__file__).with_name("prices.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that holds for the models of a provider whose whole name is `names`; who says so, and when."""

    provider: str
    names: str
    source: str
    as_of: str

    def holds(self, provider: str, model: str) -> bool:
        """Whether it says something of this model."""
        return provider == self.provider and re.fullmatch(self.names, model, re.DOTALL) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Like(Fact):
    """A model that costs what another does."""

    like: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CostsAs(Fact):
    """A kind of token that costs what another does."""

    kind: Kind
    other: Kind


# "not_available" is Anthropic's word in usage for models that are not bound to a region.
_UNKNOWN_OR_GLOBAL = frozenset(("", "global", "not_available"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Free(Fact):
    """A model that costs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiple(Fact):
    """How many times as dear every token is: at a tier, or in a region.

    The region `regional` is any but the whole world.
    """

    multiple: Decimal
    tier: str = ""
    region: str = ""

    def is_of(self, region: str) -> bool:
        """Return whether it is paid in this region."""
        if self.region == "regional":
            return region not in _UNKNOWN_OR_GLOBAL
        return bool(self.region) and self.region == region


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known beside the tables.

    `says` are the providers that say what they bill; `providers` has the id of each by all of its names.
    """

    likes: tuple[Like, ...]
    costs_as: tuple[CostsAs, ...]
    free: tuple[Free, ...]
    multiples: tuple[Multiple, ...]
    says: frozenset[str]
    providers: Mapping[str, str]


@cache
def facts() -> Facts:
    """What `prices.toml` says."""
    table = tomllib.loads(_FACTS.read_text(encoding="utf-8"))
    return Facts(
        likes=tuple(Like(**entry) for entry in table["like"]),
        costs_as=tuple(
            CostsAs(**entry | {"kind": Kind(entry["kind"]), "other": Kind(entry.pop("as"))})
            for entry in table["as"]
        ),
        free=tuple(Free(**entry) for entry in table["free"]),
        multiples=tuple(
            Multiple(**entry | {"multiple": Decimal(entry["multiple"])}) for entry in table["multiple"]
        ),
        says=frozenset(entry["provider"] for entry in table["says"]),
        providers={name: entry["id"] for entry in table["provider"] for name in (entry["id"], *entry["also"])},
    )
