"""What a provider's cache looks at beside a request's blocks: its parameters, by their names in `Rules.breaks`.

A name is a path in the body (`speed`, `output_config.effort`), or one of the words below, for what each format
says in another place, or does not say in one place at all (whether there are images in the request).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foveate.cache.prompts import digest
from foveate.cache.rules import Rules
from foveate.values import Area, Block, Format, Request, Ttl
from foveate.wire.body import Fields, as_list, as_record, as_text, fields, inner_fields, value

MODEL = "model"
IMAGES = "images"
CITATIONS = "citations"
WEB_SEARCH = "web_search"

_CONFIGS = ("generationConfig", "generation_config")
_PATHS: Mapping[str, tuple[str, ...]] = {
    "tool_choice": (
        "tool_choice",
        "function_call",
        "toolConfig.toolChoice",
        "toolConfig.functionCallingConfig",
        "tool_config.function_calling_config",
    ),
    "parallel_tool_use": ("tool_choice.disable_parallel_tool_use", "parallel_tool_calls"),
    "thinking": (
        "thinking",
        "additionalModelRequestFields.thinking",
        "additionalModelRequestFields.reasoning_config",
        *(f"{config}.{name}" for config in _CONFIGS for name in ("thinkingConfig", "thinking_config")),
    ),
    "effort": ("output_config.effort", "reasoning_effort", "reasoning.effort"),
    "schema": (
        "output_config.format",
        "output_format",
        "response_format",
        "text.format",
        "outputConfig",
        *(f"{config}.responseSchema" for config in _CONFIGS),
        *(f"{config}.response_schema" for config in _CONFIGS),
        *(f"{config}.responseJsonSchema" for config in _CONFIGS),
        *(f"{config}.response_json_schema" for config in _CONFIGS),
    ),
}
# A part of `tool_choice` that breaks under a name of its own.
_PARALLEL = "disable_parallel_tool_use"
_PICTURES = frozenset(("image", "image_url", "input_image"))
_PICTURE_KEYS = ("inlineData", "inline_data", "fileData", "file_data")
# Where a block holds others. A tool's arguments and schema are not looked into: an `image` there is a word.
_INNER = ("content", "source", "output", "parts", "toolResult", "functionResponse", "function_response")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A parameter that breaks the prefix from `area` on; `said` is its JSON, empty where there is none."""

    name: str
    area: Area
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """What a request asks of its provider's cache as a whole (OpenAI): how, for how long, under which key."""

    only_marked: bool
    ttl: Ttl | None
    key: str


def cache_options(request: Request, key_parameter: str = "prompt_cache_key") -> CacheOptions:
    """How `request` asks to be kept."""
    found = _body(request)
    options = as_record(value(found.get("prompt_cache_options")))
    said = options.get("ttl")
    return CacheOptions(
        only_marked=options.get("mode") == "explicit",
        ttl=Ttl(said) if said in tuple(Ttl) else None,
        key=as_text(value(found.get(key_parameter))),
    )


def settings(request: Request, blocks: Sequence[Block], rules: Rules) -> tuple[Setting, ...]:
    """The parameters that break the prefix, as `request` has them; those of the start first."""
    found = _body(request)
    order = list(Area)
    named = sorted(rules.breaks.items(), key=lambda item: (order.index(item[1]), item[0]))
    return tuple(
        Setting(name=name, area=area, said=_said(name, found, blocks))
        for name, area in named
        if name not in (MODEL, "tools")  # the one has its own place in a prompt, the others are pieces of it
    )


def digests(found: Sequence[Setting]) -> dict[Area, bytes]:
    """What `CachedPrompt.settings` holds: one digest an area, of all parameters that break from there on."""
    named: dict[Area, list[str]] = {}
    for setting in found:
        if setting.said:  # a parameter that a newer table knows changes nothing for who does not use it
            named.setdefault(setting.area, []).append(f"{setting.name}={setting.said}")
    return {area: digest("\n".join(lines).encode()) for area, lines in named.items()}


def pictures(said: Any) -> int:
    """How many images a block holds, by its JSON as plain Python."""
    if isinstance(said, list):
        return sum(map(pictures, said))
    if not isinstance(said, dict):
        return 0
    return 1 if is_picture(said) else sum(pictures(said[name]) for name in _INNER if name in said)


def is_picture(said: dict[str, Any]) -> bool:
    """Whether a block is an image, in any of the formats."""
    if as_text(said.get("type")) in _PICTURES or "source" in as_record(said.get("image")):
        return True
    held = (as_record(said.get(key)) for key in _PICTURE_KEYS)
    return any(as_text(data.get("mimeType") or data.get("mime_type")).startswith("image/") for data in held)


def _body(request: Request) -> Fields:
    found = fields(request.body)
    if request.format is Format.GEMINI and "generateContentRequest" in found:
        return inner_fields(found["generateContentRequest"])
    return found


def _said(name: str, found: Fields, blocks: Sequence[Block]) -> str:
    """The JSON of a parameter, in one spelling; nothing where the request does not have it."""
    seen = _SEEN.get(name)
    if seen is not None:
        return "true" if seen(found, blocks) else ""
    for path in _PATHS.get(name, (name,)):
        given = _at(found, path.split("."))
        if name == "tool_choice" and isinstance(given, dict):
            given = {key: inner for key, inner in given.items() if key != _PARALLEL}
        if given not in (None, {}):
            return json.dumps(given, sort_keys=True, separators=(",", ":"))
    return ""


def _at(found: Fields, path: Sequence[str]) -> Any:
    given = value(found.get(path[0]))
    for name in path[1:]:
        given = as_record(given).get(name)
    return given


def _has_images(_: Fields, blocks: Sequence[Block]) -> bool:
    return any(pictures(value(block.said)) for block in blocks if b"image" in block.said)


def _has_citations(_: Fields, blocks: Sequence[Block]) -> bool:
    return any(_cites(value(block.said)) for block in blocks if b'"citations"' in block.said)


def _cites(said: Any) -> bool:
    if isinstance(said, list):
        return any(map(_cites, said))
    if not isinstance(said, dict):
        return False
    # On an answer's text, `citations` is the list of what was cited; on a document it is the switch.
    if as_record(said.get("citations")).get("enabled") is True:
        return True
    return any(_cites(said[name]) for name in _INNER if name in said)


def _has_web_search(found: Fields, blocks: Sequence[Block]) -> bool:
    if value(found.get("web_search_options")):
        return True
    plugins = as_list(value(found.get("plugins")))  # OpenRouter's way to ask for it
    if any(as_record(plugin).get("id") == "web" for plugin in plugins):
        return True
    tools = (block.said for block in blocks if block.place.area is Area.TOOLS and b"search" in block.said)
    return any(_searches(as_record(value(said))) for said in tools)


def _searches(tool: dict[str, Any]) -> bool:
    kind = as_text(tool.get("type")) or next(iter(tool), "")
    return kind.startswith(("web_search", "googleSearch", "google_search"))


_SEEN: Mapping[str, Callable[[Fields, Sequence[Block]], bool]] = {
    IMAGES: _has_images,
    CITATIONS: _has_citations,
    WEB_SEARCH: _has_web_search,
}
