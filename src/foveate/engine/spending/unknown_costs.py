"""Features of a request whose cost is unknown: fields, tools and models that are not listed as known.

The lists name what is known. Whatever a provider adds later is unknown until it is added here, so that caps
fail closed. The names of fields are in `cost_fields.toml`.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import msgspec

from foveate.cost.pricing.price_table import is_known_tier
from foveate.formats.gemini import unwrap_fields
from foveate.formats.incremental.envelope import get_parameters
from foveate.formats.json_text.large_json import contains, contains_match
from foveate.formats.json_text.parse import Fields, as_dict, as_list, as_text, parse_json, parse_object
from foveate.model import Format, Request
from foveate.tokens.rendering.claude import CLIENT_TOOL_TOKENS

MAX_NAME_CHARS = 100


@dataclass(frozen=True, slots=True)
class CostFeature:
    """A feature of unknown cost: its kind (field, header, tool or model) and its name."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"the {self.kind} `{self.name[:MAX_NAME_CHARS]}`"


_ValueCheck = Callable[[object], bool]


def _is_list_of_text(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_one_of(*allowed: object) -> _ValueCheck:
    return lambda value: value in allowed


def _is_anything(_: object) -> bool:
    return True


def _is_predicted_text(value: object) -> bool:
    content = as_dict(value).get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    return all(isinstance(as_dict(part).get("text"), str) for part in parts)


def _is_pro_mode(value: object) -> bool:
    return as_dict(value).get("mode") == "pro"


_PLAIN_CLIENT_TOOLS = frozenset(("function", "custom", "local_shell", "apply_patch", "namespace"))
_DATED_CLIENT_TOOLS = tuple(CLIENT_TOOL_TOKENS)  # their kinds end with a date


def is_client_tool(kind: str) -> bool:
    """Tools of all other kinds run at the provider."""
    return kind in _PLAIN_CLIENT_TOOLS or kind.startswith(_DATED_CLIENT_TOOLS)


# Tools that run at the provider and cost only tokens, or a fee in the price list (searches).
_BOUNDED_TOOLS: Mapping[Format, tuple[str, ...]] = {
    Format.ANTHROPIC: ("web_search", "web_fetch", "tool_search", "mcp"),
    Format.RESPONSES: ("web_search", "file_search", "tool_search", "mcp"),
    Format.GEMINI: ("googlesearch", "urlcontext", "codeexecution", "filesearch", "computeruse"),
}
_TOOL_REFERENCE = "tool_reference"

_FIELDS_FILE = Path(__file__).with_name("cost_fields.toml")
_FIELD_GROUPS: Mapping[Format, tuple[str, ...]] = {
    Format.CHAT: ("shared", "openai", "hosts", "chat"),
    Format.RESPONSES: ("shared", "openai", "responses"),
    Format.ANTHROPIC: ("shared", "anthropic"),
    Format.GEMINI: ("gemini",),
    Format.BEDROCK: ("bedrock",),
}
_RESOLUTIONS = tuple(f"MEDIA_RESOLUTION_{size}" for size in ("UNSPECIFIED", "LOW", "MEDIUM"))
# OpenRouter preferences and their values that never lead to a more expensive endpoint.
_ROUTING_CHECKS: Mapping[str, _ValueCheck] = {
    "sort": _is_one_of("price", {"by": "price"}),
    "max_price": _is_anything,
    "allow_fallbacks": _is_anything,
    "require_parameters": _is_one_of(False),
    "data_collection": _is_one_of("allow"),
    "zdr": _is_one_of(False),
}
_MODALITIES = ("text", "audio", "image")
# Fields that are known with some values only.
_VALUE_CHECKS: Mapping[str, _ValueCheck] = {
    "models": _is_list_of_text,
    "route": _is_one_of("fallback"),
    "plugins": _is_one_of([]),
    "preset": _is_one_of(""),
    "search_parameters": _is_one_of({"mode": "off"}),
    "enable_search": _is_one_of(False),
    "service_tier": lambda value: isinstance(value, str) and is_known_tier(value),
    "speed": _is_one_of("standard", "fast"),
    "inference_geo": _is_one_of("us", "global"),
    "reasoning": lambda value: not _is_pro_mode(value),
    "prediction": _is_predicted_text,
    "performanceConfig": _is_one_of({}, {"latency": "standard"}),
    "modalities": lambda value: _is_list_of_text(value) and set(as_list(value)) <= set(_MODALITIES),
    "thinking_budget": lambda value: type(value) is int,
    "best_of": lambda value: type(value) is int,
    "context_management": lambda value: all(
        as_text(as_dict(edit).get("type")).startswith(("clear_", "compact"))
        for edit in (as_list(as_dict(value).get("edits")) if isinstance(value, dict) else as_list(value))
    ),
}

# OpenRouter variants that choose endpoints by price alone, or are models of their own.
_KNOWN_VARIANTS = frozenset(("free", "floor", "thinking", "beta", "extended"))
_EXPENSIVE_VARIANTS = frozenset(("online", "nitro", "exacto"))
_OPENROUTER = "openrouter"
# Models that search the web with every request.
_DEEP_RESEARCH = "deep-research"
_SEARCHING_MODEL = re.compile(r"search-preview|search-api|(?:^|/)sonar|deep-research", re.IGNORECASE)
# Items of messages that add tools; the last is the result of a tool search that the client runs.
_TOOL_ITEMS = ("additional_tools", "tool_addition", "tool_search_output")
_ADDED_TOOLS = tuple(name.encode() for name in _TOOL_ITEMS)
_NAMESPACE = "namespace"
_MAX_NULL_BYTES = 64  # with whitespace around it
# Names may contain escapes, although no encoder escapes letters.
_ESCAPED, _ESCAPED_LETTER, _ESCAPE_BYTES = b"\\u00", re.compile(rb"\\u00(?:5[fF]|[67])"), 6


@cache
def _load_field_groups() -> Mapping[str, frozenset[str]]:
    return {group: frozenset(names) for group, names in tomllib.loads(_FIELDS_FILE.read_text("utf-8")).items()}


@cache
def _known_fields(api_format: Format) -> frozenset[str]:
    return frozenset().union(*(_load_field_groups()[group] for group in _FIELD_GROUPS[api_format]))


# Headers that choose how a call is served, or add a service, with values that add nothing to the cost (None:
# all). Sources, read November 2026: botocore's model of Bedrock's InvokeModel, and Google's pages on
# provisioned and priority throughput of Vertex AI.
_SERVING_HEADER_PREFIXES = ("x-amzn-bedrock-", "x-vertex-ai-llm-")
_KNOWN_SERVING_HEADERS: Mapping[str, tuple[str, ...] | None] = {
    "x-amzn-bedrock-accept": None,
    "x-amzn-bedrock-content-type": None,
    "x-amzn-bedrock-trace": None,
    "x-amzn-bedrock-performanceconfig-latency": ("standard",),
    "x-amzn-bedrock-service-tier": ("default", "flex"),
    "x-vertex-ai-llm-request-type": ("shared",),
    "x-vertex-ai-llm-shared-request-type": ("standard", "flex"),
}


def cost_headers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, ...]:
    """Lower-case names of headers that may add to the cost of a call."""
    return tuple(
        name
        for name, value in ((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
        if name.startswith(_SERVING_HEADER_PREFIXES)
        and (known_values := _KNOWN_SERVING_HEADERS.get(name, ())) is not None
        and value.strip().lower() not in known_values
    )


def header_features(names: Iterable[str]) -> tuple[CostFeature, ...]:
    return tuple(CostFeature("header", name) for name in names)


def envelope_features(
    api_format: Format, body_fields: Fields | Mapping[str, bytes], tools: Sequence[bytes]
) -> tuple[CostFeature, ...]:
    names = [CostFeature("field", name) for name in _unknown_fields(api_format, body_fields)]
    return (*names, *(CostFeature("tool", kind) for kind in _unknown_tools(api_format, tools)))


def find_cost_features(request: Request, models: Sequence[str], provider: str) -> tuple[CostFeature, ...]:
    """Features of unknown cost in messages, and in the names of models that may respond."""
    added = (
        kind
        for kind in _unknown_added_tools(request)
        if not is_client_tool(kind) and not kind.startswith(_TOOL_REFERENCE)
    )
    # Unlimited searches, unless the request limits them.
    is_unlimited = _parse_int(get_parameters(request).get("max_tool_calls")) is None
    unknown = (
        model
        for model in (request.model, *models)
        if not is_known_variant(model, provider) or (is_unlimited and _DEEP_RESEARCH in model.lower())
    )
    return (*(CostFeature("tool", kind) for kind in added), *(CostFeature("model", model) for model in unknown))


def _parse_int(raw: msgspec.Raw | bytes | None) -> int | None:
    number = parse_json(raw)
    return number if type(number) is int else None


def without_allowed(features: Iterable[CostFeature], allowed: Collection[str]) -> tuple[CostFeature, ...]:
    return tuple(
        dict.fromkeys(
            feature for feature in features if not any(fnmatchcase(feature.name, glob) for glob in allowed)
        )
    )


def unknown_embedding_fields(body_fields: Fields | Mapping[str, bytes]) -> tuple[CostFeature, ...]:
    return tuple(
        CostFeature("field", name)
        for name, raw in body_fields.items()
        if name not in _load_field_groups()["embeddings"] and parse_json(raw) is not None
    )


def _unknown_fields(api_format: Format, body_fields: Fields | Mapping[str, bytes]) -> list[str]:
    if api_format is Format.GEMINI:
        return _unknown_gemini_fields(body_fields)
    unknown = []
    for name, raw in body_fields.items():
        if _is_null(raw):
            continue
        if name not in _known_fields(api_format) or (
            name in _VALUE_CHECKS and not _VALUE_CHECKS[name](parse_json(raw))
        ):
            unknown.append(name)
        elif name == "provider":
            unknown += [f"provider.{inner}" for inner in _unknown_routing_fields(parse_json(raw))]
        elif name == "serviceTier" and not is_known_tier(as_text(as_dict(parse_json(raw)).get("type"))):
            unknown.append(name)
        elif name == "additionalModelRequestFields":
            unknown += [f"{name}.{inner}" for inner in _unknown_item_fields(as_dict(parse_json(raw)))]
    return unknown


def _is_null(raw: msgspec.Raw | bytes) -> bool:
    """A long field is not parsed."""
    return memoryview(raw).nbytes <= _MAX_NULL_BYTES and parse_json(raw) is None


def _unknown_gemini_fields(body_fields: Fields | Mapping[str, bytes]) -> list[str]:
    """Gemini accepts names in two spellings."""
    unknown = []
    for name, raw in unwrap_fields(body_fields).items():
        plain_name = _normalize_name(name)
        if _is_null(raw):
            continue
        is_unknown_tier = plain_name == "servicetier" and not is_known_tier(as_text(parse_json(raw)))
        if plain_name not in _known_fields(Format.GEMINI) or is_unknown_tier:
            unknown.append(name)
        elif plain_name == "generationconfig":
            config = parse_object(raw)
            unknown += [f"{name}.{key}" for key, known in config.items() if not _is_known_config(key, known)]
    return unknown


def _is_known_config(name: str, value: object) -> bool:
    plain_name = _normalize_name(name)
    if value is None or plain_name != "mediaresolution":
        return value is None or plain_name in _load_field_groups()["gemini_generation_config"]
    return as_text(value) in _RESOLUTIONS  # higher ones take more tokens than are counted


def _normalize_name(name: str) -> str:
    return name.replace("_", "").lower()


def _unknown_routing_fields(preferences: object) -> list[str]:
    """OpenRouter preferences that may lead to an endpoint above the listed price."""
    if not isinstance(preferences, dict):
        return ["*"]
    return [
        name
        for name, known in preferences.items()
        if known is not None and (name not in _ROUTING_CHECKS or not _ROUTING_CHECKS[name](known))
    ]


def _unknown_item_fields(item: Mapping[str, object]) -> list[str]:
    """Fields that Converse passes on to the model; tools among them must be the client's own."""
    tools = [as_text(as_dict(entry).get("type")) or "function" for entry in as_list(item.get("tools"))]
    is_known = {
        "tools": all(map(is_client_tool, tools)),
        # Amazon's models read an output limit here, besides the one that counts.
        "inferenceConfig": set(as_dict(item.get("inferenceConfig"))) <= {"topK"},
    }
    known = _load_field_groups()["bedrock_additional"]
    return [name for name in item if name not in known or not is_known.get(name, True)]


def tool_kind(api_format: Format, raw: bytes) -> str:
    """The kind of a tool, `function` by default."""
    tool_fields = parse_object(raw)
    if api_format is Format.GEMINI:
        return "function" if "name" in tool_fields else next(iter(tool_fields), "tool")
    if api_format is Format.BEDROCK:
        return "function" if "toolSpec" in tool_fields else next(iter(tool_fields), "tool")
    return as_text(tool_fields.get("type")) or "function"


def _unknown_tools(api_format: Format, tools: Sequence[bytes]) -> list[str]:
    bounded = _BOUNDED_TOOLS.get(api_format, ())
    kinds = [tool_kind(api_format, raw) for raw in tools]
    names = [_normalize_name(kind) if api_format is Format.GEMINI else kind for kind in kinds]
    unknown = [
        kind
        for kind, name in zip(kinds, names, strict=True)
        if not is_client_tool(name) and not name.startswith(bounded)
    ]
    if _NAMESPACE in kinds:
        inner = (kind for raw in tools for kind in _tool_kinds(parse_object(raw))[1:])
        unknown += [kind for kind in inner if not is_client_tool(kind)]
    return unknown


def _unknown_added_tools(request: Request) -> list[str]:
    """Kinds of tools that messages add to those of the request."""
    if request.format not in (Format.ANTHROPIC, Format.RESPONSES):
        return []
    body = request.body
    is_escaped = contains(body, _ESCAPED) and contains_match(body, _ESCAPED_LETTER, _ESCAPE_BYTES)
    if not is_escaped and not any(contains(body, name) for name in _ADDED_TOOLS):
        return []
    messages = [raw for raw in request.messages if is_escaped or any(name in raw for name in _ADDED_TOOLS)]
    return [kind for raw in messages for tool in _nested_tools(parse_json(raw)) for kind in _tool_kinds(tool)]


def _tool_kinds(tool: object) -> list[str]:
    tool_record = as_dict(tool)
    kind = as_text(tool_record.get("type")) or "function"
    inner = as_list(tool_record.get("tools")) if kind == _NAMESPACE else []
    return [kind, *(kinds for nested in inner for kinds in _tool_kinds(nested))]


def _nested_tools(value: object) -> list[object]:
    tools: list[object] = []
    remaining = [value]
    while remaining:
        current = remaining.pop()
        if isinstance(current, list):
            remaining += current
        elif isinstance(current, dict):
            if current.get("type") in _TOOL_ITEMS:
                tools += [*as_list(current.get("tools")), *([current["tool"]] if "tool" in current else [])]
            else:
                remaining += current.values()
    return tools


def fallback_models(api_format: Format, body_fields: Fields | Mapping[str, bytes]) -> Sequence[str]:
    """Models that may respond instead of the requested one (OpenRouter)."""
    if api_format not in (Format.CHAT, Format.RESPONSES, Format.ANTHROPIC) or "models" not in body_fields:
        return ()
    return [model for model in as_list(parse_json(body_fields["models"])) if isinstance(model, str)]


def modalities(api_format: Format, body_fields: Fields | Mapping[str, bytes]) -> frozenset[str]:
    if api_format is Format.GEMINI:
        inner = unwrap_fields(body_fields)
        configs = [parse_object(inner.get(name)) for name in ("generationConfig", "generation_config")]
        requested = [
            as_text(modality).lower()
            for config in configs
            for name in ("responseModalities", "response_modalities")
            for modality in as_list(config.get(name))
        ]
    else:
        requested = [as_text(modality) for modality in as_list(parse_json(body_fields.get("modalities")))]
    return frozenset(requested) - {"text"}


def is_known_variant(model: str, provider: str) -> bool:
    """False for a suffix that adds a search or may choose a more expensive endpoint."""
    _, colon, variant = model.lower().rpartition(":")
    if not colon:
        return True
    return variant not in _EXPENSIVE_VARIANTS and (provider != _OPENROUTER or variant in _KNOWN_VARIANTS)


def searches_by_itself(model: str) -> bool:
    """A model that searches the web with every request charges a fee for it."""
    return _SEARCHING_MODEL.search(model) is not None
