"""Accuracy of counts, from recorded usage: which counts are exact, and how far usage can exceed a count.

`tools/count_evidence.py` derives `data/evidence.json` from recordings of several independent sources. A count
is exact only if recordings of at least two sources confirm every feature of the request. `upper` is calibrated
so that it also holds for sources that are not among the recordings.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Protocol

import msgspec

from foveate.model import TokenCount
from foveate.tokens.request_features import MessageFeature, feature_names

_EVIDENCE_FILE = Path(__file__).parent / "data" / "evidence.json"
_MAX_CACHED_KEYS = 1024
# How tools and schemas are rendered does not depend on the API.
_SHARED_PREFIXES = (
    "tool keyword", "tool title", "tool description", "tool nested", "tool default", "tool several", "tool odd",
    "tool enum", "tool constraint", "tool many", "tool reference", "schema ", "strict tool", "reasoning effort",
    "tool beyond ASCII",
)  # fmt: skip
_API_SPECIFIC_FEATURES = ("schema beside tools", "schema after an answer")
# Not part of Gemini's prompt: `toolConfig` only constrains the response (ai.google.dev, November 2026), and
# neither it nor a title changed a count in 50 recordings.
_HIDDEN_FROM_GEMINI = ("tool choice", "tool title", "schema title")
# A schema in this field is not part of Gemini's prompt, whatever it contains (22 recordings of two sources).
_HIDDEN_SCHEMA_FIELD = "field generationConfig.responseJsonSchema"
_MEDIA_FEATURES = int(MessageFeature.IMAGE | MessageFeature.DOCUMENT)
_TOOL_FEATURES = int(MessageFeature.TOOL_CALL | MessageFeature.TOOL_RESULT)
# Minimum bounds, since a new source may be farther off than all recordings of a group: for exact counts, for
# estimates of groups with several sources, and for the rest.
_MIN_EXACT_BOUND = (1.0, 0.01, 0.0)
_MIN_ESTIMATE_BOUND = (3.0, 0.04, 0.0)
_MIN_UNCONFIRMED_BOUND = (16.0, 0.1, 0.0)
_FULL_MARGIN_BOUND = (0.0, 0.0, 1.0)
_SEVERAL_SOURCES, _MANY_SOURCES = 3, 4
_SHARE_BASE_TOKENS = 16
_TOKENS_SHARE = 0.02
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """The vendor, the API, the family of models and the generation of a request."""

    vendor: str
    api: str
    family: str
    generation: str

    @property
    def family_key(self) -> str:
        return f"{self.vendor} | {self.api} | model {self.family}"

    @property
    def generation_key(self) -> str:
        return f"{self.vendor} | {self.api} | generation {self.generation}"


class AccuracyProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that decide how accurate the count of a request is.

    `certain`: all rendering rules that apply are known. `features` are those of the envelope.
    """

    origin: RequestOrigin
    certain: bool
    features: frozenset[str]
    message_features: int

    @property
    def keys(self) -> frozenset[str]:
        """Features in the spelling of the evidence table."""
        return _feature_keys(self.origin, self.features, self.message_features)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of request that this was while its messages were added. The last one is its
        present kind.
        """
        kinds = [
            "tools" if "tools" in self.features else "structured" if "schema" in self.features else "plain"
        ]
        if self.message_features & _TOOL_FEATURES and kinds != ["tools"]:
            kinds.append("tools")
        if self.message_features & _MEDIA_FEATURES:
            kinds.append("media")
        return tuple(kinds)

    @property
    def kind(self) -> str:
        return self.kinds[-1]


class RawCount(msgspec.Struct, frozen=True, kw_only=True):
    """Count of a request before the evidence is applied. `upper` is the bound of the rendering rules."""

    tokens: float
    upper: float
    profile: AccuracyProfile
    unexplained: tuple[str, ...] = ()

    @property
    def rounded_tokens(self) -> int:
        return max(0, round(self.tokens))

    @property
    def margin(self) -> float:
        """What the rendering rules allow for what they do not know."""
        return max(0.0, self.upper - self.tokens)


_BoundWeights = tuple[float, float, float]
"""Tokens that usage can exceed a count by: fixed, per counted token, and per token of the rules' margin."""


class UsageBound(msgspec.Struct, frozen=True):
    """How far usage can exceed a count: a multiple of the rules' margin, a share of the count, or tokens."""

    form: str
    factor: float
    sources: int

    @property
    def weights(self) -> _BoundWeights:
        match self.form:
            case "margin":
                return self.factor, 0.0, self.factor
            case "share":
                return self.factor * _SHARE_BASE_TOKENS, self.factor, 0.0
            case _:
                return self.factor, _TOKENS_SHARE, 0.0

    def tokens_above(self, raw: RawCount) -> float:
        """Tokens that usage can exceed this count by."""
        tokens, share, margin_share = self.weights
        return tokens + share * raw.rounded_tokens + margin_share * raw.margin

    @staticmethod
    def factor_for(form: str, raw: RawCount, used_tokens: int) -> float:
        """Return the smallest factor with which a bound of this form holds."""
        above = used_tokens - raw.rounded_tokens
        match form:
            case "margin":
                return above / (raw.margin + 1)
            case "share":
                return above / (raw.rounded_tokens + _SHARE_BASE_TOKENS)
            case _:
                return above - _TOKENS_SHARE * raw.rounded_tokens


BOUND_FORMS = ("margin", "share", "tokens")


class AccuracyAssessment(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracy of counts with one profile: the widest of `bounds` applies, and of `floors` if any tokens are
    counted.
    """

    exact: bool
    bounds: tuple[_BoundWeights, ...]
    floors: tuple[_BoundWeights, ...]

    def apply(self, tokens: float, upper: float) -> TokenCount:
        rounded = max(0, round(tokens))
        margin = max(0.0, upper - tokens)
        widest = 0.0
        for fixed, share, margin_share in (self.bounds + self.floors) if rounded else self.bounds:
            widest = max(widest, fixed + share * rounded + margin_share * margin)
        return TokenCount(rounded, self.exact, rounded + math.ceil(widest - _ROUNDING))


class AccuracyAssessor(Protocol):
    """Decides how accurate the count of a request is."""

    def assess(self, profile: AccuracyProfile) -> AccuracyAssessment: ...


class AccuracyEvidence(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The evidence table. `confirmed` lists features, `bounds` are by group of requests.

    `refuted` lists generations whose requests were counted wrong too often, although their family was not.
    """

    as_of: str
    sources: tuple[str, ...]
    confirmed: frozenset[str]
    refuted: frozenset[str]
    bounds: dict[str, UsageBound]

    def is_confirmed(self, profile: AccuracyProfile) -> bool:
        """Whether a count is exact."""
        if not profile.certain or profile.origin.generation_key in self.refuted:
            return False
        return profile.keys <= self.confirmed

    def assess(self, profile: AccuracyProfile) -> AccuracyAssessment:
        """Assess requests with a profile.

        A growing request can change from exact to estimated, and from one kind to another. The bounds of its
        earlier kinds keep applying, so that another message never lowers `upper`.
        """
        exact = self.is_confirmed(profile)
        bounds: list[_BoundWeights] = []
        floors: list[_BoundWeights] = [_MIN_EXACT_BOUND]
        if exact or profile.origin.family_key in self.confirmed:
            bounds += self._exact_bounds(profile)
        if not exact:
            for kind in profile.kinds:
                bound = self._find_bound(profile, kind)
                sources = bound.sources if bound else 0
                bounds += [bound.weights] if bound else []
                # The margin of the rules is dropped only if many sources agree.
                bounds += [_FULL_MARGIN_BOUND] if sources < _MANY_SOURCES or kind == "media" else []
                floors.append(_MIN_UNCONFIRMED_BOUND if sources < _SEVERAL_SOURCES else _MIN_ESTIMATE_BOUND)
        return AccuracyAssessment(exact=exact, bounds=tuple(bounds), floors=tuple(floors))

    def _exact_bounds(self, profile: AccuracyProfile) -> list[_BoundWeights]:
        bound = self._find_bound(profile, "exact")
        if bound is None:
            return [_FULL_MARGIN_BOUND]
        return [bound.weights] if bound.sources >= _MANY_SOURCES else [bound.weights, _FULL_MARGIN_BOUND]

    def _find_bound(self, profile: AccuracyProfile, kind: str) -> UsageBound | None:
        """Return the bound of the narrowest group that has one."""
        names = group_names(profile.origin, kind)
        return next((self.bounds[name] for name in names if name in self.bounds), None)

    def apply(self, raw: RawCount) -> TokenCount:
        return self.assess(raw.profile).apply(raw.tokens, raw.upper)


def group_names(origin: RequestOrigin, kind: str) -> Iterator[str]:
    """Names of the groups that requests of a kind belong to, the narrowest first. `exact` counts as a kind."""
    yield f"{origin.vendor} | {origin.api} | {origin.family} | {kind}"
    yield f"{origin.vendor} | {origin.api} | any | {kind}"
    yield f"{origin.vendor} | any | any | {kind}"


@lru_cache(_MAX_CACHED_KEYS)
def _feature_keys(origin: RequestOrigin, features: frozenset[str], message_features: int) -> frozenset[str]:
    names = _relevant_features(origin.vendor, features) | feature_names(message_features)
    if "schema" in names and message_features & MessageFeature.ASSISTANT:
        names |= {"schema after an answer"}
    keys = {origin.family_key}
    for name in names:
        is_shared = name.startswith(_SHARED_PREFIXES) and name not in _API_SPECIFIC_FEATURES
        keys.add(f"{origin.vendor} | {'any' if is_shared else origin.api} | {name}")
    return frozenset(keys)


def _relevant_features(vendor: str, features: frozenset[str]) -> frozenset[str]:
    """Drop features that cannot change how this vendor's models see a request."""
    match vendor:
        case "openai":  # every effort is one word
            return frozenset("reasoning effort" if name.startswith("thinking ") else name for name in features)
        case "gemini":
            hidden = _HIDDEN_FROM_GEMINI + (("schema ",) if _HIDDEN_SCHEMA_FIELD in features else ())
            return frozenset(name for name in features if not name.startswith(hidden))
        case _:
            return features


@cache
def load_evidence() -> AccuracyEvidence:
    """Load the table that ships with Foveate."""
    return msgspec.json.decode(_EVIDENCE_FILE.read_bytes(), type=AccuracyEvidence)
