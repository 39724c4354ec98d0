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
    "tool enum", "tool constraint", "tool many", "tool reference", "schema ", "strict tool", "reasoning effort",
    "tool beyond ASCII",
)  # fmt: skip
_APART = ("schema beside tools", "schema after an answer")
# Features that Gemini is not shown: `toolConfig` only constrains the answer (ai.google.dev, November 2026), and
# neither it nor a title changed a count in 50 recordings.
_UNSEEN_BY_GEMINI = ("tool choice", "tool title", "schema title")
# Gemini is not shown a schema in this field, whatever it contains (22 recordings of two sources).
_UNSEEN_SCHEMA = "field generationConfig.responseJsonSchema"
_MEDIA = int(Feature.IMAGE | Feature.DOCUMENT)
_TOOLS = int(Feature.TOOL_CALL | Feature.TOOL_RESULT)
# Smallest bounds, as tokens and a share of the count: a source that nobody has seen may be farther off than all
# recordings of a group. For exact counts, for estimates of a group with several sources, and for the rest.
_MIN_EXACT = (1.0, 0.01, 0.0)
_MIN_ESTIMATE = (3.0, 0.04, 0.0)
_MIN_UNSETTLED = (16.0, 0.1, 0.0)
_KEEP_MARGIN = (0.0, 0.0, 1.0)
_SEVERAL_SOURCES, _MANY_SOURCES = 3, 4
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
    def family_key(self) -> str:
        """The family as the table spells it."""
        return f"{self.vendor} | {self.api} | model {self.family}"

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
    def kinds(self) -> tuple[str, ...]:
        """The kinds that the request passes through as its messages are added; the last one is its own."""
        found = [
            "tools" if "tools" in self.features else "structured" if "schema" in self.features else "plain"
        ]
        if self.message_features & _TOOLS and found != ["tools"]:
            found.append("tools")
        if self.message_features & _MEDIA:
            found.append("media")
        return tuple(found)

    @property
    def kind(self) -> str:
        """The kind of request."""
        return self.kinds[-1]


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
        return max(0.0, self.upper - self.tokens)


_Weights = tuple[float, float, float]
"""Tokens above a count: so many, and so many for each token of it and of the rules' margin."""


class Bound(msgspec.Struct, frozen=True):
    """How much usage can exceed a count: a multiple of the rules' margin, a share of the count, or tokens."""

    form: str
    factor: float
    sources: int

    @property
    def weights(self) -> _Weights:
        """The weights of the tokens above a count."""
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
    """What counts of requests with one profile are worth: the widest of `bounds`, and of `floors` if any tokens
    are counted.
    """

    exact: bool
    bounds: tuple[_Weights, ...]
    floors: tuple[_Weights, ...]

    def judge(self, tokens: float, upper: float) -> TokenCount:
        """A count with what it is worth."""
        whole = max(0, round(tokens))
        margin = max(0.0, upper - tokens)
        widest = 0.0
        for fixed, share, margin_share in (self.bounds + self.floors) if whole else self.bounds:
            widest = max(widest, fixed + share * whole + margin_share * margin)
        return TokenCount(whole, self.exact, whole + math.ceil(widest - _ROUNDING))


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
        """The verdict on requests with a profile.

        A growing request can turn from exact into an estimate, and from one kind into another. The bounds of
        its earlier kinds keep applying, so that one more message never lowers `upper`.
        """
        exact = self.confirms(profile)
        bounds: list[_Weights] = []
        floors: list[_Weights] = [_MIN_EXACT]
        if exact or profile.subject.family_key in self.confirmed:
            bounds += self._exact_bounds(profile)
        if not exact:
            for kind in profile.kinds:
                found = self._bound(profile, kind)
                sources = found.sources if found else 0
                bounds += [found.weights] if found else []
                # The margin of the rules is only taken back if many sources agree.
                bounds += [_KEEP_MARGIN] if sources < _MANY_SOURCES or kind == "media" else []
                floors.append(_MIN_UNSETTLED if sources < _SEVERAL_SOURCES else _MIN_ESTIMATE)
        return Verdict(exact=exact, bounds=tuple(bounds), floors=tuple(floors))

    def _exact_bounds(self, profile: Profile) -> list[_Weights]:
        found = self._bound(profile, "exact")
        if found is None:
            return [_KEEP_MARGIN]
        return [found.weights] if found.sources >= _MANY_SOURCES else [found.weights, _KEEP_MARGIN]

    def _bound(self, profile: Profile, kind: str) -> Bound | None:
        """The bound of the narrowest group that has one."""
        names = groups(profile.subject, kind)
        return next((self.bounds[name] for name in names if name in self.bounds), None)

    def judge(self, raw: RawCount) -> TokenCount:
        """A count with what it is worth."""
        return self.verdict(raw.profile).judge(raw.tokens, raw.upper)


def groups(subject: Subject, kind: str) -> Iterator[str]:
    """The groups that requests of one kind belong to, the narrowest first. `exact` is a kind of its own."""
    yield f"{subject.vendor} | {subject.api} | {subject.family} | {kind}"
    yield f"{subject.vendor} | {subject.api} | any | {kind}"
    yield f"{subject.vendor} | any | any | {kind}"


@lru_cache(_KEPT_VERDICTS)
def _keys(subject: Subject, features: frozenset[str], message_features: int) -> frozenset[str]:
    names = _relevant(subject.vendor, features) | feature_names(message_features)
    if "schema" in names and message_features & Feature.ASSISTANT:
        names |= {"schema after an answer"}
    found = {subject.family_key}
    for name in names:
        shared = name.startswith(_SHARED_PREFIXES) and name not in _APART
        found.add(f"{subject.vendor} | {'any' if shared else subject.api} | {name}")
    return frozenset(found)


def _relevant(vendor: str, features: frozenset[str]) -> frozenset[str]:
    """Without features that cannot change how this vendor's models are shown a request."""
    match vendor:
        case "openai":  # the effort is one word, whichever it is
            return frozenset("reasoning effort" if name.startswith("thinking ") else name for name in features)
        case "gemini":
            unseen = _UNSEEN_BY_GEMINI + (("schema ",) if _UNSEEN_SCHEMA in features else ())
            return frozenset(name for name in features if not name.startswith(unseen))
        case _:
            return features


@cache
def evidence() -> Evidence:
    """The table that ships with Foveate."""
    return msgspec.json.decode(_DATA.read_bytes(), type=Evidence)
