"""Features of a request whose cost is not known: fields, tools and models that are on no list of known ones.

The lists name what is known. Whatever a provider adds later is unknown until it is added here, so that a cap
fails closed. The names of fields are in `cost_fields.toml`.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import msgspec

from foveate.cost.price_table import is_known_tier
from foveate.tokens.rules.claude_models import CLIENT_TOOL_TOKENS
from foveate.values import Format, Request
from foveate.wire.around import parameters_of
from foveate.wire.body import Fields, as_list, as_record, as_text, record, value
from foveate.wire.gemini import request_fields as gemini_fields
from foveate.wire.large_json import contains, contains_match


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of unknown cost: what it is (field, header, tool or model), and its name."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"the {self.kind} `{self.name[:MAX_NAME_CHARS]}`"


MAX_NAME_CHARS = 100
_Check = Callable[[object], bool]


def _is_list_of_text(said: object) -> bool:
    return isinstance(said, list) and all(isinstance(one, str) for one in said)


def _is_one_of(*allowed: object) -> _Check:
    return lambda said: said in allowed


def _is_anything(_: object) -> bool:
    return True


def _is_predicted_text(said: object) -> bool:
    content = as_record(said).get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    return all(isinstance(as_record(part).get("text"), str) for part in parts)


def _is_pro(said: object) -> bool:
    return as_record(said).get("mode") == "pro"


_PLAIN_CLIENT_TOOLS = frozenset(("function", "custom", "local_shell", "apply_patch", "namespace"))
_DATED_CLIENT_TOOLS = tuple(CLIENT_TOOL_TOKENS)  # their kinds end with a date


def is_client_tool(kind: str) -> bool:
    """Tell whether the client runs tools of this kind itself; all others run at the provider."""
    return kind in _PLAIN_CLIENT_TOOLS or kind.startswith(_DATED_CLIENT_TOOLS)


# Tools that run at the provider and cost no more than tokens, or a fee that the price list has (searches).
_BOUNDED_TOOLS: Mapping[Format, tuple[str, ...]] = {
    Format.ANTHROPIC: ("web_search", "web_fetch", "tool_search", "mcp"),
    Format.RESPONSES: ("web_search", "file_search", "tool_search", "mcp"),
    Format.GEMINI: ("googlesearch", "urlcontext", "codeexecution", "filesearch", "computeruse"),
}
_REFERENCE = "tool_reference"

_TABLE = Path(__file__).with_name("cost_fields.toml")
_GROUPS: Mapping[Format, tuple[str, ...]] = {
    Format.CHAT: ("shared", "openai", "hosts", "chat"),
    Format.RESPONSES: ("shared", "openai", "responses"),
    Format.ANTHROPIC: ("shared", "anthropic"),
    Format.GEMINI: ("gemini",),
    Format.BEDROCK: ("bedrock",),
}
_RESOLUTIONS = tuple(f"MEDIA_RESOLUTION_{size}" for size in ("UNSPECIFIED", "LOW", "MEDIUM"))
# OpenRouter's preferences that never lead to a dearer endpoint, by the values that do not.
_ROUTING: Mapping[str, _Check] = {
    "sort": _is_one_of("price", {"by": "price"}),
    "max_price": _is_anything,
    "allow_fallbacks": _is_anything,
    "require_parameters": _is_one_of(False),
    "data_collection": _is_one_of("allow"),
    "zdr": _is_one_of(False),
}
_MODALITIES = ("text", "audio", "image")
# Fields that are known with some values only.
_VALUES: Mapping[str, _Check] = {
    "models": _is_list_of_text,
    "route": _is_one_of("fallback"),
    "plugins": _is_one_of([]),
    "preset": _is_one_of(""),
    "search_parameters": _is_one_of({"mode": "off"}),
    "enable_search": _is_one_of(False),
    "service_tier": lambda said: isinstance(said, str) and is_known_tier(said),
    "speed": _is_one_of("standard", "fast"),
    "inference_geo": _is_one_of("us", "global"),
    "reasoning": lambda said: not _is_pro(said),
    "prediction": _is_predicted_text,
    "performanceConfig": _is_one_of({}, {"latency": "standard"}),
    "modalities": lambda said: _is_list_of_text(said) and set(as_list(said)) <= set(_MODALITIES),
    "thinking_budget": lambda said: type(said) is int,
    "best_of": lambda said: type(said) is int,
    "context_management": lambda said: all(
        as_text(as_record(edit).get("type")).startswith(("clear_", "compact"))
        for edit in (as_list(as_record(said).get("edits")) if isinstance(said, dict) else as_list(said))
    ),
}

# Variants of models at OpenRouter that choose endpoints by price alone, or are models of their own.
_VARIANTS = frozenset(("free", "floor", "thinking", "beta", "extended"))
_DEARER_VARIANTS = frozenset(("online", "nitro", "exacto"))
_OPENROUTER = "openrouter"
# They search the web with every request.
_DEEP_RESEARCH = "deep-research"
_SEARCHING_MODEL = re.compile(r"search-preview|search-api|(?:^|/)sonar|deep-research", re.IGNORECASE)
# Items of messages that bring tools along; the last is the result of a search among tools that the client runs.
_TOOL_ITEMS = ("additional_tools", "tool_addition", "tool_search_output")
_ADDED_TOOLS = tuple(name.encode() for name in _TOOL_ITEMS)
_NAMESPACE = "namespace"
_NULL_BYTES = 64  # with blanks around it
# Names can be spelled with escapes, which no encoder does to letters by itself.
_ESCAPED, _ESCAPED_LETTER, _ESCAPE_BYTES = b"\\u00", re.compile(rb"\\u00(?:5[fF]|[67])"), 6


@cache
def _table() -> Mapping[str, frozenset[str]]:
    return {group: frozenset(names) for group, names in tomllib.loads(_TABLE.read_text("utf-8")).items()}


@cache
def _known_fields(spoken: Format) -> frozenset[str]:
    return frozenset().union(*(_table()[group] for group in _GROUPS[spoken]))


# Headers that choose how a call is served, or add a service to it, with their values that add nothing to its
# cost (None: all of them). Sources, read November 2026: botocore's model of Bedrock's InvokeModel, and Google's
# pages on provisioned and priority throughput of Vertex AI.
_SERVING_HEADERS = ("x-amzn-bedrock-", "x-vertex-ai-llm-")
_PLAIN_SERVING: Mapping[str, tuple[str, ...] | None] = {
    "x-amzn-bedrock-accept": None,
    "x-amzn-bedrock-content-type": None,
    "x-amzn-bedrock-trace": None,
    "x-amzn-bedrock-performanceconfig-latency": ("standard",),
    "x-amzn-bedrock-service-tier": ("default", "flex"),
    "x-vertex-ai-llm-request-type": ("shared",),
    "x-vertex-ai-llm-shared-request-type": ("standard", "flex"),
}


def cost_headers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, ...]:
    """The names of headers, in small letters, that may add to the cost of a call."""
    return tuple(
        name
        for name, said in ((name.decode("latin-1"), said.decode("latin-1")) for name, said in headers)
        if name.startswith(_SERVING_HEADERS)
        and (plain := _PLAIN_SERVING.get(name, ())) is not None
        and said.strip().lower() not in plain
    )


def header_features(names: Iterable[str]) -> tuple[Feature, ...]:
    """The features of unknown cost that headers ask for."""
    return tuple(Feature("header", name) for name in names)


def features_around(
    spoken: Format, said: Fields | Mapping[str, bytes], tools: Sequence[bytes]
) -> tuple[Feature, ...]:
    """The features of unknown cost among the top-level fields and the tools of a request."""
    names = [Feature("field", name) for name in _fields(spoken, said)]
    return (*names, *(Feature("tool", kind) for kind in _tools(spoken, tools)))


def features_of(request: Request, models: Sequence[str], provider: str) -> tuple[Feature, ...]:
    """The features of unknown cost among the messages of a request, and the models that may answer it."""
    added = (
        kind for kind in _added_tools(request) if not is_client_tool(kind) and not kind.startswith(_REFERENCE)
    )
    # They search as often as they like, unless the request says how often.
    researches = _whole_number(parameters_of(request).get("max_tool_calls")) is None
    unknown = (
        model
        for model in (request.model, *models)
        if not is_known_variant(model, provider) or (researches and _DEEP_RESEARCH in model.lower())
    )
    return (*(Feature("tool", kind) for kind in added), *(Feature("model", model) for model in unknown))


def _whole_number(raw: msgspec.Raw | bytes | None) -> int | None:
    found = value(raw)
    return found if type(found) is int else None


def without_allowed(features: Iterable[Feature], allowed: Collection[str]) -> tuple[Feature, ...]:
    """The features that an operator has not allowed on purpose, by globs of their names."""
    return tuple(
        dict.fromkeys(one for one in features if not any(fnmatchcase(one.name, glob) for glob in allowed))
    )


def unknown_embedding_fields(said: Fields | Mapping[str, bytes]) -> tuple[Feature, ...]:
    """The fields of a request for embeddings whose cost is not known."""
    return tuple(
        Feature("field", name)
        for name, raw in said.items()
        if name not in _table()["embeddings"] and value(raw) is not None
    )


def _fields(spoken: Format, said: Fields | Mapping[str, bytes]) -> list[str]:
    if spoken is Format.GEMINI:
        return _gemini_fields(said)
    found = []
    for name, raw in said.items():
        if _is_null(raw):
            continue
        if name not in _known_fields(spoken) or (name in _VALUES and not _VALUES[name](value(raw))):
            found.append(name)
        elif name == "provider":
            found += [f"provider.{inner}" for inner in _preferences(value(raw))]
        elif name == "serviceTier" and not is_known_tier(as_text(as_record(value(raw)).get("type"))):
            found.append(name)
        elif name == "additionalModelRequestFields":
            found += [f"{name}.{inner}" for inner in _added_fields(as_record(value(raw)))]
    return found


def _is_null(raw: msgspec.Raw | bytes) -> bool:
    """Tell whether a field is null, without reading a long one."""
    return memoryview(raw).nbytes <= _NULL_BYTES and value(raw) is None


def _gemini_fields(said: Fields | Mapping[str, bytes]) -> list[str]:
    """Google reads names in two spellings."""
    found = []
    for name, raw in gemini_fields(said).items():
        plain = _plain(name)
        if value(raw) is None:
            continue
        is_strange_tier = plain == "servicetier" and not is_known_tier(as_text(value(raw)))
        if plain not in _known_fields(Format.GEMINI) or is_strange_tier:
            found.append(name)
        elif plain == "generationconfig":
            config = record(raw)
            found += [f"{name}.{key}" for key, known in config.items() if not _is_known_config(key, known)]
    return found


def _is_known_config(name: str, said: object) -> bool:
    plain = _plain(name)
    if said is None or plain != "mediaresolution":
        return said is None or plain in _table()["gemini_generation_config"]
    return as_text(said) in _RESOLUTIONS  # higher ones take more tokens than are counted


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _preferences(said: object) -> list[str]:
    """OpenRouter's preferences that may lead to an endpoint that is dearer than the listed price."""
    if not isinstance(said, dict):
        return ["*"]
    return [
        name
        for name, known in said.items()
        if known is not None and (name not in _ROUTING or not _ROUTING[name](known))
    ]


def _added_fields(said: Mapping[str, object]) -> list[str]:
    """Fields that Converse passes on to the model; tools among them have to be the client's own."""
    tools = [as_text(as_record(one).get("type")) or "function" for one in as_list(said.get("tools"))]
    is_known = {
        "tools": all(map(is_client_tool, tools)),
        # Amazon's models read a limit of the answer here, which would stand beside the one that counts.
        "inferenceConfig": set(as_record(said.get("inferenceConfig"))) <= {"topK"},
    }
    known = _table()["bedrock_additional"]
    return [name for name in said if name not in known or not is_known.get(name, True)]


def tool_kind(spoken: Format, raw: bytes) -> str:
    """The kind of a tool: `function` for one that has no kind of its own."""
    found = record(raw)
    if spoken is Format.GEMINI:
        return "function" if "name" in found else next(iter(found), "tool")
    if spoken is Format.BEDROCK:
        return "function" if "toolSpec" in found else next(iter(found), "tool")
    return as_text(found.get("type")) or "function"


def _tools(spoken: Format, tools: Sequence[bytes]) -> list[str]:
    bounded = _BOUNDED_TOOLS.get(spoken, ())
    kinds = [tool_kind(spoken, raw) for raw in tools]
    named = [_plain(kind) if spoken is Format.GEMINI else kind for kind in kinds]
    unknown = [
        kind
        for kind, name in zip(kinds, named, strict=True)
        if not is_client_tool(name) and not name.startswith(bounded)
    ]
    if _NAMESPACE in kinds:
        inner = (kind for raw in tools for kind in _kinds(record(raw))[1:])
        unknown += [kind for kind in inner if not is_client_tool(kind)]
    return unknown


def _added_tools(request: Request) -> list[str]:
    """The kinds of tools that messages add to those of the request."""
    if request.format not in (Format.ANTHROPIC, Format.RESPONSES):
        return []
    body = request.body
    is_escaped = contains(body, _ESCAPED) and contains_match(body, _ESCAPED_LETTER, _ESCAPE_BYTES)
    if not is_escaped and not any(contains(body, name) for name in _ADDED_TOOLS):
        return []
    messages = [raw for raw in request.messages if is_escaped or any(name in raw for name in _ADDED_TOOLS)]
    return [kind for raw in messages for tool in _tools_in(value(raw)) for kind in _kinds(tool)]


def _kinds(tool: object) -> list[str]:
    """The kind of a tool, and for a namespace those of the tools in it."""
    said = as_record(tool)
    kind = as_text(said.get("type")) or "function"
    inner = as_list(said.get("tools")) if kind == _NAMESPACE else []
    return [kind, *(found for one in inner for found in _kinds(one))]


def _tools_in(said: object) -> list[object]:
    """The definitions in items that add tools, at any depth."""
    found: list[object] = []
    waiting = [said]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            if one.get("type") in _TOOL_ITEMS:
                found += [*as_list(one.get("tools")), *([one["tool"]] if "tool" in one else [])]
            else:
                waiting += one.values()
    return found


def fallback_models(spoken: Format, said: Fields | Mapping[str, bytes]) -> Sequence[str]:
    """The models that may answer in the place of the one that is asked (OpenRouter)."""
    if spoken not in (Format.CHAT, Format.RESPONSES, Format.ANTHROPIC) or "models" not in said:
        return ()
    return [one for one in as_list(value(said["models"])) if isinstance(one, str)]


def modalities(spoken: Format, said: Fields | Mapping[str, bytes]) -> frozenset[str]:
    """The kinds of output beside text that a request asks for."""
    if spoken is Format.GEMINI:
        inner = gemini_fields(said)
        configs = [record(inner.get(name)) for name in ("generationConfig", "generation_config")]
        given = [
            as_text(one).lower()
            for config in configs
            for name in ("responseModalities", "response_modalities")
            for one in as_list(config.get(name))
        ]
    else:
        given = [as_text(one) for one in as_list(value(said.get("modalities")))]
    return frozenset(given) - {"text"}


def is_known_variant(model: str, provider: str) -> bool:
    """Whether a model's name has no suffix that adds a search, or may choose a dearer endpoint."""
    _, colon, variant = model.lower().rpartition(":")
    if not colon:
        return True
    return variant not in _DEARER_VARIANTS and (provider != _OPENROUTER or variant in _VARIANTS)


def searches_itself(model: str) -> bool:
    """Whether a model searches the web with every request, which has a fee."""
    return _SEARCHING_MODEL.search(model) is not None
