"""What a provider's cache looks at beside a request's blocks: its parameters, by their names in `Rules.breaks`.

A name is a path in the body (`speed`, `output_config.effort`), or one of the words below, for what each format
says in another place, or does not say in one place at all (whether there are images in the request).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foveate.cache.block_facts import BlockFacts, facts_of
from foveate.cache.prompts import digest
from foveate.cache.rules import Rules
from foveate.values import Area, Block, Format, Request, Ttl
from foveate.wire.around import parameters_of
from foveate.wire.body import Fields, as_list, as_record, as_text, inner_fields, value

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
    return cache_options_in(body_of(request), key_parameter)


def cache_options_in(found: Fields, key_parameter: str = "prompt_cache_key") -> CacheOptions:
    """How a request with these fields asks to be kept."""
    options = as_record(value(found.get("prompt_cache_options")))
    said = options.get("ttl")
    return CacheOptions(
        only_marked=options.get("mode") == "explicit",
        ttl=Ttl(said) if said in tuple(Ttl) else None,
        key=as_text(value(found.get(key_parameter))),
    )


def settings(request: Request, blocks: Sequence[Block], rules: Rules) -> tuple[Setting, ...]:
    """The parameters that break the prefix, as `request` has them; those of the start first."""
    return settings_in(body_of(request), facts_of(blocks), rules)


def settings_in(
    found: Fields,
    blocks: Sequence[BlockFacts],
    rules: Rules,
    *,
    has_images: bool = False,
    has_citations: bool = False,
) -> tuple[Setting, ...]:
    """The same of a request with these fields and blocks, and with images or citations in others."""
    elsewhere = {IMAGES: has_images, CITATIONS: has_citations}
    order = list(Area)
    named = sorted(rules.breaks.items(), key=lambda item: (order.index(item[1]), item[0]))
    return tuple(
        Setting(name=name, area=area, said="true" if elsewhere.get(name) else _said(name, found, blocks))
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


def body_of(request: Request) -> Fields:
    """The fields of a request in which its parameters stand."""
    found = parameters_of(request)
    if request.format is Format.GEMINI and "generateContentRequest" in found:
        return inner_fields(found["generateContentRequest"])
    return found


def _said(name: str, found: Fields, blocks: Sequence[BlockFacts]) -> str:
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


def _has_images(_: Fields, blocks: Sequence[BlockFacts]) -> bool:
    return any(facts.images for facts in blocks)


def _has_citations(_: Fields, blocks: Sequence[BlockFacts]) -> bool:
    return any(facts.cites for facts in blocks)


def _has_web_search(found: Fields, blocks: Sequence[BlockFacts]) -> bool:
    if value(found.get("web_search_options")):
        return True
    plugins = as_list(value(found.get("plugins")))  # OpenRouter's way to ask for it
    if any(as_record(plugin).get("id") == "web" for plugin in plugins):
        return True
    return any(facts.searches for facts in blocks)


_SEEN: Mapping[str, Callable[[Fields, Sequence[BlockFacts]], bool]] = {
    IMAGES: _has_images,
    CITATIONS: _has_citations,
    WEB_SEARCH: _has_web_search,
}
