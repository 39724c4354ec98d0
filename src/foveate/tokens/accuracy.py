"""Accuracy of counts, from recorded usage: which counts are exact, and how far usage can exceed a count.

A feature is anything that could change how a provider renders a request: a role, a kind of block, a schema
keyword, a field. Features of messages are bits, since a session combines those of thousands of messages.

`tools/count_evidence.py` derives `data/evidence.json` from recordings of several independent sources. A count
is exact only if recordings of at least two sources confirm every feature of the request. `upper` is
calibrated so that it also holds for sources that are not among the recordings.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntFlag, auto
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Protocol

import msgspec

from foveate.errors import MalformedRequest
from foveate.formats.incremental.envelope import get_envelope
from foveate.formats.json_text.parse import as_dict, as_list, parse_fields, parse_json, parse_object, to_json
from foveate.model import (
    Document,
    Image,
    Message,
    Opaque,
    Part,
    Request,
    ResponseSchema,
    Text,
    Thinking,
    TokenCount,
    Tool,
    ToolCall,
    ToolResult,
)

# Fields that other features cover, and fields that only concern the response, its delivery or the account
# (documentation of the providers, November 2026).
_KNOWN_FIELDS = frozenset(
    (
        "model", "messages", "input", "contents", "system", "instructions", "systemInstruction",
        "system_instruction", "tools", "functions", "tool_choice", "function_call", "toolConfig", "tool_config",
        "response_format", "text", "output_config", "thinking", "reasoning", "reasoning_effort",
        "generationConfig", "generation_config", "generateContentRequest", "inferenceConfig",
        "stream", "stream_options", "temperature", "top_p", "top_k", "n", "stop", "stop_sequences", "seed",
        "max_tokens", "max_completion_tokens", "max_output_tokens", "presence_penalty", "frequency_penalty",
        "logit_bias", "logprobs", "top_logprobs", "user", "metadata", "store", "include", "service_tier",
        "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "safetySettings", "labels",
        "cache_control", "anthropic_version", "background", "truncation", "requestMetadata",
        "additionalModelResponseFieldPaths", "moderation", "parallel_tool_calls", "prompt_cache_options",
        "usage", "reasoning_format",
    )
)  # fmt: skip
_SAMPLING_FIELDS = frozenset(
    (
        "temperature", "topP", "top_p", "topK", "top_k", "maxOutputTokens", "max_output_tokens",
        "stopSequences", "stop_sequences", "candidateCount", "candidate_count", "seed", "presencePenalty",
        "frequencyPenalty", "responseLogprobs", "logprobs",
    )
)  # fmt: skip
_NESTED_FIELDS = ("generationConfig", "generation_config", "text", "output_config")
_DEFINITION_KEYS = ("$defs", "definitions")
_MAX_FEW_REFERENCES = 8
_CONTAINER_KEYS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
# Constraints on values: recordings show that they are not rendered.
_CONSTRAINT_KEYS = frozenset(("additionalProperties", "required", "minimum", "maximum", "maxItems"))
_PLAIN_CHOICES = ("auto", "none", "required", "tool", "validated")
# The default is `auto` (documented by all providers); names for the same choice differ.
_CHOICE_NAMES = {"": "auto", "any": "required"}
_SYSTEM_FIELDS = ("instructions", "system", "systemInstruction", "system_instruction")
_EMPTY_VALUES = (b"null", b"[]", b"{}", b'""')


class MessageFeature(IntFlag):
    USER = auto()
    ASSISTANT = auto()
    SYSTEM = auto()
    TOOL = auto()
    OTHER_ROLE = auto()
    NAME = auto()
    SEVERAL_TEXTS = auto()
    TOOL_CALL = auto()
    PARALLEL_TOOL_CALLS = auto()
    TEXT_BESIDE_TOOL_CALL = auto()
    STORED_TOOL_CALL = auto()
    TOOL_RESULT = auto()
    SEVERAL_TOOL_RESULTS = auto()
    TOOL_RESULT_IN_BLOCKS = auto()
    TOOL_ERROR = auto()
    THINKING = auto()
    SEALED_THINKING = auto()
    IMAGE = auto()
    DOCUMENT = auto()
    OTHER_BLOCK = auto()
    TOOL_CALL_BEYOND_ASCII = auto()


_ROLE_FEATURES = {
    "user": MessageFeature.USER,
    "assistant": MessageFeature.ASSISTANT,
    "model": MessageFeature.ASSISTANT,
    "system": MessageFeature.SYSTEM,
    "developer": MessageFeature.SYSTEM,
    "tool": MessageFeature.TOOL,
    "function": MessageFeature.TOOL,
}
_ROLE_BITS = {role: int(feature) for role, feature in _ROLE_FEATURES.items()}
_OTHER_ROLE_BIT = int(MessageFeature.OTHER_ROLE)
_FEATURE_BITS = [
    (int(feature), feature.name.lower().replace("_", " ")) for feature in MessageFeature if feature.name
]


def message_features(message: Message) -> int:
    """Return the features of one message as bits."""
    bits = _ROLE_BITS.get(message.role, _OTHER_ROLE_BIT)
    parts = message.parts
    if len(parts) == 1 and type(parts[0]) is Text and not message.name:  # most messages
        return bits
    if message.name:
        bits |= MessageFeature.NAME
    bits |= _part_features(parts)
    calls = [part for part in parts if type(part) is ToolCall]
    if calls:
        bits |= MessageFeature.TOOL_CALL
        if len(calls) > 1:
            bits |= MessageFeature.PARALLEL_TOOL_CALLS
        if any(type(part) is Text and part.text for part in parts):
            bits |= MessageFeature.TEXT_BESIDE_TOOL_CALL
        if any(call.item_id for call in calls):
            bits |= MessageFeature.STORED_TOOL_CALL
        if not all(call.arguments.isascii() and "\\u" not in call.arguments for call in calls):
            bits |= MessageFeature.TOOL_CALL_BEYOND_ASCII
    results = [part for part in parts if type(part) is ToolResult]
    if results:
        bits |= MessageFeature.TOOL_RESULT
        if len(results) > 1:
            bits |= MessageFeature.SEVERAL_TOOL_RESULTS
        for result in results:
            if result.is_error:
                bits |= MessageFeature.TOOL_ERROR
            if len(result.parts) != 1 or type(result.parts[0]) is not Text:
                bits |= MessageFeature.TOOL_RESULT_IN_BLOCKS | _part_features(result.parts)
    return int(bits)


def _part_features(parts: Iterable[Part]) -> int:
    bits = texts = 0
    for part in parts:
        match part:
            case Text():
                texts += 1
            case Thinking(encrypted_chars=sealed):
                bits |= MessageFeature.SEALED_THINKING if sealed else MessageFeature.THINKING
            case Image():
                bits |= MessageFeature.IMAGE
            case Document():
                bits |= MessageFeature.DOCUMENT
            case Opaque():
                bits |= MessageFeature.OTHER_BLOCK
    return bits | (MessageFeature.SEVERAL_TEXTS if texts > 1 else 0)


def feature_names(bits: int) -> frozenset[str]:
    return frozenset(name for bit, name in _FEATURE_BITS if bits & bit)


def tool_features(tool: Tool) -> frozenset[str]:
    features = {f"tool kind {tool.kind}"}
    if "\n" in tool.description.strip():
        features.add("tool description of several lines")
    if not tool.raw.isascii() or b"\\u" in tool.raw:
        features.add("tool beyond ASCII")
    if tool.kind == "function":
        features |= {f"tool {name}" for name in schema_features(tool.parameters)}
    if b'"strict"' in tool.raw and _is_strict(tool.raw):
        features.add("strict tool")
    return frozenset(features)


def _is_strict(raw: bytes) -> bool:
    tool = parse_object(raw)
    return as_dict(tool.get("function", tool)).get("strict") is True


def accuracy_features(request: Request) -> frozenset[str]:
    """Return the features of a request other than those of its messages and tools."""
    features = set(_field_features(request))
    if request.system:
        features.add("system")
        if len(request.system) > 1:
            features.add("several system blocks")
        if any(type(part) is not Text for part in request.system):
            features.add("system of other blocks")
    if request.tools:
        choice = _CHOICE_NAMES.get(request.tool_choice, request.tool_choice)
        features |= {"tools", f"tool choice {choice if choice in _PLAIN_CHOICES else 'of one function'}"}
    if request.thinking:
        features.add(f"thinking {request.thinking}")
    if request.schema is not None:
        features |= {"schema", *_response_schema_features(request.schema)}
        if request.tools:
            features.add("schema beside tools")
    return frozenset(features)


def _response_schema_features(schema: ResponseSchema) -> Iterator[str]:
    for name in schema_features(schema.schema):
        is_hidden = name.startswith(("default", "keyword default"))  # not rendered (recordings)
        yield "schema constraint" if is_hidden else f"schema {name}"
    if schema.description:
        yield "schema described apart"
    if not (schema.schema.isascii() and schema.name.isascii()):
        yield "schema beyond ASCII"


def _field_features(request: Request) -> Iterator[str]:
    envelope = get_envelope(request)
    body_fields: Mapping[str, Any] = envelope.fields if envelope is not None else parse_fields(request.body)
    for name, raw in body_fields.items():
        if name in _NESTED_FIELDS:
            inner = parse_json(raw)
            keys = as_dict(inner).keys() - _SAMPLING_FIELDS
            yield from (f"field {name}.{key}" for key in keys if key not in ("format", "responseModalities"))
        elif name not in _KNOWN_FIELDS:
            if bytes(raw) not in _EMPTY_VALUES:
                yield f"field {name}"
        elif name in _SYSTEM_FIELDS and bytes(raw) == b'""':
            yield "empty system"


def schema_features(schema: bytes) -> set[str]:
    """Return the keywords of a JSON schema, and whatever else decides how it is rendered."""
    try:
        root = parse_json(schema)
    except MalformedRequest:
        return {"not JSON"}
    features: set[str] = set()
    if references := schema.count(b'"$ref"'):
        if references > _MAX_FEW_REFERENCES:
            features.add("many references")
        if any(b'"$ref"' in to_json(as_dict(root).get(name)) for name in _DEFINITION_KEYS):
            features.add("reference in a definition")
    pending: list[tuple[Any, bool]] = [(root, True)]
    while pending:
        node, is_root = pending.pop()
        if isinstance(node, list):
            pending += [(inner, False) for inner in node]
        if not isinstance(node, dict):
            continue
        for name, inner in node.items():
            if name in _CONSTRAINT_KEYS and not isinstance(inner, dict):
                features.add("constraint")
            elif name in _CONTAINER_KEYS and isinstance(inner, dict):
                pending += [(item, False) for item in inner.values()]
                if name == "properties":
                    if not is_root:
                        features.add("nested object")
                    if not all(str.isidentifier(key) for key in inner):
                        features.add("odd name")
            elif name == "type":
                if isinstance(inner, list):
                    features.add("several types")
            elif name in ("title", "description"):
                if isinstance(inner, str) and "\n" in inner.strip():
                    features.add(f"{name} of several lines")
            elif name in ("enum", "const", "default", "examples"):
                features.add(f"keyword {name}")
                if name == "enum" and not all(isinstance(item, str) for item in as_list(inner)):
                    features.add("enum of other values")
                if name == "default" and not isinstance(inner, str | bool | int | float):
                    features.add("default null" if inner is None else "default of several values")
            else:
                features.add(f"keyword {name}")
                pending.append((inner, False))
                if name == "$ref" and not str(inner).startswith(("#/$defs/", "#/definitions/")):
                    features.add("reference elsewhere")
        if isinstance(node.get("title"), str):
            features.add("title and description" if isinstance(node.get("description"), str) else "title")
    return features


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
        """Margin of the rendering rules for what they do not know."""
        return max(0.0, self.upper - self.tokens)


_BoundWeights = tuple[float, float, float]
"""Tokens that usage can exceed a count by: fixed, per counted token, and per token of the rules' margin."""


class UsageBound(msgspec.Struct, frozen=True):
    """Bound of how far usage can exceed a count: a multiple of the rules' margin, a share of the count, or
    tokens.
    """

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
        tokens, share, margin_share = self.weights
        return tokens + share * raw.rounded_tokens + margin_share * raw.margin

    @staticmethod
    def factor_for(form: str, raw: RawCount, used_tokens: int) -> float:
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
        """Return whether a count is exact."""
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
    return msgspec.json.decode(_EVIDENCE_FILE.read_bytes(), type=AccuracyEvidence)
