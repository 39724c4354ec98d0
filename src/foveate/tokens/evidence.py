"""Evidence from recorded usage: which counts may be called exact, and how far above a count usage can be.

`data/evidence.json` is written by `tools/count_evidence.py` from recordings of several independent sources. A
count is exact only if recordings of at least two sources confirm every feature of the request. `upper` is
calibrated so that it holds for sources that the table was not made from.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Protocol

import msgspec

from foveate.tokens.features import Feature, feature_names
from foveate.values import TokenCount

_DATA = Path(__file__).parent / "data" / "evidence.json"
_KEPT_VERDICTS = 1024
# How a definition or a schema is written does not depend on the API that carries it.
_SHARED_PREFIXES = (
    "tool keyword", "tool title", "tool description", "tool nested", "tool default", "tool several", "tool odd",
    "tool enum", "tool constraint", "tool many", "tool reference", "schema ", "strict tool",
)  # fmt: skip
_APART = ("schema beside tools", "schema after an answer")
_MEDIA = int(Feature.IMAGE | Feature.DOCUMENT)
_TOOLS = int(Feature.TOOL_CALL | Feature.TOOL_RESULT)
# No bound is closer than this, however well the recordings of a group were met: a source that nobody has seen
# may be farther off. For exact counts and for estimates.
_MIN_EXACT = (0.01, 1)
_MIN_ESTIMATE = (0.04, 3)
_MANY_SOURCES = 4
_SHARE_BASE_TOKENS = 16
_TOKENS_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose request it is: the vendor's rules, the API, the family of models and the generation in it."""

    vendor: str
    api: str
    family: str
    generation: str

    @property
    def generation_key(self) -> str:
        """The generation as the table spells it."""
        return f"{self.vendor} | {self.api} | generation {self.generation}"


class RawCount(msgspec.Struct, frozen=True, kw_only=True):
    """A counted request before evidence is applied. `certain`: the rules know of nothing that they guess."""

    tokens: float
    upper: float
    certain: bool
    subject: Subject
    features: frozenset[str]
    message_features: int
    unexplained: tuple[str, ...] = ()

    @property
    def whole(self) -> int:
        """The tokens as a whole number."""
        return max(0, round(self.tokens))

    @property
    def margin(self) -> float:
        """What the rules themselves add for what they do not know."""
        return max(0.0, self.upper - self.whole)

    @property
    def keys(self) -> frozenset[str]:
        """The features as the table spells them."""
        return _keys(self.subject, self.features, self.message_features)


class Bound(msgspec.Struct, frozen=True):
    """How much usage can exceed a count: a multiple of the rules' margin, a share of the count, or tokens."""

    form: str
    factor: float
    sources: int

    def above(self, raw: RawCount) -> float:
        """The tokens above a count."""
        match self.form:
            case "margin":
                return self.factor * (raw.margin + 1)
            case "share":
                return self.factor * (raw.whole + _SHARE_BASE_TOKENS)
            case _:
                return self.factor + _TOKENS_SHARE * raw.whole

    @staticmethod
    def factor_for(form: str, raw: RawCount, used_tokens: int) -> float:
        """The factor with which a bound of that form just holds."""
        above = used_tokens - raw.whole
        match form:
            case "margin":
                return above / (raw.margin + 1)
            case "share":
                return above / (raw.whole + _SHARE_BASE_TOKENS)
            case _:
                return above - _TOKENS_SHARE * raw.whole


FORMS = ("margin", "share", "tokens")


class Judge(Protocol):
    """Says what a count is worth."""

    def judge(self, raw: RawCount) -> TokenCount:
        """The count with what it is worth."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The table. `confirmed` are features, `bounds` are by group of requests.

    `refuted` are generations whose requests were counted wrong too often, though their family was not.
    """

    as_of: str
    sources: tuple[str, ...]
    confirmed: frozenset[str]
    refuted: frozenset[str]
    bounds: dict[str, Bound]

    def confirms(self, raw: RawCount) -> bool:
        """Whether the count may be called exact."""
        if not raw.certain or raw.subject.generation_key in self.refuted:
            return False
        return raw.keys <= self.confirmed

    def judge(self, raw: RawCount) -> TokenCount:
        """The count with what it is worth."""
        exact = self.confirms(raw)
        tokens = raw.whole
        return TokenCount(tokens, exact, tokens + math.ceil(self._above(raw, exact=exact) - 1e-9))

    def _above(self, raw: RawCount, *, exact: bool) -> float:
        share, tokens = _MIN_EXACT if exact else _MIN_ESTIMATE
        least = share * raw.whole + tokens if raw.whole else 0.0
        found = next((self.bounds[name] for name in groups(raw, exact=exact) if name in self.bounds), None)
        if found is None:  # nothing like it was recorded
            return max(raw.margin, least)
        above = max(found.above(raw), least)
        # What the rules themselves allow for is only taken back if many sources agree.
        keeps_margin = found.sources < _MANY_SOURCES or raw.message_features & _MEDIA
        return max(above, raw.margin) if keeps_margin else above


def groups(raw: RawCount, *, exact: bool) -> Iterator[str]:
    """The groups of requests that a request belongs to, the narrowest first."""
    subject, kind = raw.subject, "exact" if exact else _kind(raw)
    yield f"{subject.vendor} | {subject.api} | {subject.family} | {kind}"
    yield f"{subject.vendor} | {subject.api} | any | {kind}"
    yield f"{subject.vendor} | any | any | {kind}"


def _kind(raw: RawCount) -> str:
    if raw.message_features & _MEDIA:
        return "media"
    if "tools" in raw.features or raw.message_features & _TOOLS:
        return "tools"
    return "structured" if "schema" in raw.features else "plain"


@lru_cache(_KEPT_VERDICTS)
def _keys(subject: Subject, features: frozenset[str], message_features: int) -> frozenset[str]:
    names = features | feature_names(message_features)
    if "schema" in names and message_features & Feature.ASSISTANT:
        names |= {"schema after an answer"}
    found = {f"{subject.vendor} | {subject.api} | model {subject.family}"}
    for name in names:
        shared = name.startswith(_SHARED_PREFIXES) and name not in _APART
        found.add(f"{subject.vendor} | {'any' if shared else subject.api} | {name}")
    return frozenset(found)


@cache
def evidence() -> Evidence:
    """The table that ships with Foveate."""
    return msgspec.json.decode(_DATA.read_bytes(), type=Evidence)
