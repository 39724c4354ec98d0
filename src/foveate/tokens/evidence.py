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
_ROUNDING = 1e-9


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


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What decides how far the count of a request can be trusted.

    `certain`: the rules guess nothing of it. `features` are those around the messages.
    """

    subject: Subject
    certain: bool
    features: frozenset[str]
    message_features: int

    @property
    def keys(self) -> frozenset[str]:
        """The features as the table spells them."""
        return _keys(self.subject, self.features, self.message_features)

    @property
    def kind(self) -> str:
        """The kind of request."""
        if self.message_features & _MEDIA:
            return "media"
        if "tools" in self.features or self.message_features & _TOOLS:
            return "tools"
        return "structured" if "schema" in self.features else "plain"


class RawCount(msgspec.Struct, frozen=True, kw_only=True):
    """A counted request before evidence is applied: `upper` is what the rules allow for."""

    tokens: float
    upper: float
    profile: Profile
    unexplained: tuple[str, ...] = ()

    @property
    def whole(self) -> int:
        """The tokens as a whole number."""
        return max(0, round(self.tokens))

    @property
    def margin(self) -> float:
        """What the rules themselves add for what they do not know."""
        return max(0.0, self.upper - self.whole)


class Bound(msgspec.Struct, frozen=True):
    """How much usage can exceed a count: a multiple of the rules' margin, a share of the count, or tokens."""

    form: str
    factor: float
    sources: int

    @property
    def weights(self) -> tuple[float, float, float]:
        """The tokens above a count: so many, and so many for each token of it and of the rules' margin."""
        match self.form:
            case "margin":
                return self.factor, 0.0, self.factor
            case "share":
                return self.factor * _SHARE_BASE_TOKENS, self.factor, 0.0
            case _:
                return self.factor, _TOKENS_SHARE, 0.0

    def above(self, raw: RawCount) -> float:
        """The tokens above a count."""
        tokens, share, margin_share = self.weights
        return tokens + share * raw.whole + margin_share * raw.margin

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


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What counts of requests with one profile are worth."""

    exact: bool
    tokens: float
    share: float
    margin_share: float
    keeps_margin: bool

    def judge(self, tokens: float, upper: float) -> TokenCount:
        """A count with what it is worth."""
        whole = max(0, round(tokens))
        margin = max(0.0, upper - whole)
        above = self.tokens + self.share * whole + self.margin_share * margin
        if self.keeps_margin and margin > above:
            above = margin
        min_share, min_tokens = _MIN_EXACT if self.exact else _MIN_ESTIMATE
        if whole:
            above = max(above, min_share * whole + min_tokens)
        return TokenCount(whole, self.exact, whole + math.ceil(above - _ROUNDING))


class Judge(Protocol):
    """Says what counts are worth."""

    def verdict(self, profile: Profile) -> Verdict:
        """The verdict on requests with a profile."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The table. `confirmed` are features, `bounds` are by group of requests.

    `refuted` are generations whose requests were counted wrong too often, though their family was not.
    """

    as_of: str
    sources: tuple[str, ...]
    confirmed: frozenset[str]
    refuted: frozenset[str]
    bounds: dict[str, Bound]

    def confirms(self, profile: Profile) -> bool:
        """Whether a count may be called exact."""
        if not profile.certain or profile.subject.generation_key in self.refuted:
            return False
        return profile.keys <= self.confirmed

    def verdict(self, profile: Profile) -> Verdict:
        """The verdict on requests with a profile."""
        exact = self.confirms(profile)
        names = groups(profile, exact=exact)
        found = next((self.bounds[name] for name in names if name in self.bounds), None)
        # If nothing like it was recorded, there is only the margin of the rules.
        tokens, share, margin_share = found.weights if found else (0.0, 0.0, 1.0)
        # That margin is only taken back if many sources agree.
        is_settled = found is not None and found.sources >= _MANY_SOURCES and profile.kind != "media"
        return Verdict(
            exact=exact, tokens=tokens, share=share, margin_share=margin_share, keeps_margin=not is_settled
        )

    def judge(self, raw: RawCount) -> TokenCount:
        """A count with what it is worth."""
        return self.verdict(raw.profile).judge(raw.tokens, raw.upper)


def groups(profile: Profile, *, exact: bool) -> Iterator[str]:
    """The groups of requests that those with a profile belong to, the narrowest first."""
    subject, kind = profile.subject, "exact" if exact else profile.kind
    yield f"{subject.vendor} | {subject.api} | {subject.family} | {kind}"
    yield f"{subject.vendor} | {subject.api} | any | {kind}"
    yield f"{subject.vendor} | any | any | {kind}"


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
