"""Request parameters that affect a provider's cache, by their names in `CacheRules.invalidating_parameters`.

A name is a path in the body (`speed`, `output_config.effort`), or one of the names below for what each format
spells differently, or does not spell in one place (whether the request contains images).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foveate.formats.incremental.envelope import get_parameters
from foveate.formats.json_text.parse import Fields, as_dict, as_list, as_text, parse_inner_fields, parse_json
from foveate.model import Area, Block, Format, Request, Ttl
from foveate.prompt_cache.prompt.blocks import BlockFacts, look_up_facts
from foveate.prompt_cache.prompt.cached_prompt import compute_digest
from foveate.prompt_cache.rules import CacheRules

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
# A member of `tool_choice` that is listed as a parameter of its own.
_PARALLEL_KEY = "disable_parallel_tool_use"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheParameter:
    """A parameter whose change invalidates the prefix from `area` on. `json_text` is empty if it is not set."""

    name: str
    area: Area
    json_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """Cache options of a whole request (OpenAI): explicit mode, TTL and cache key."""

    explicit_only: bool
    ttl: Ttl | None
    key: str


def read_cache_options(request: Request, key_parameter: str = "prompt_cache_key") -> CacheOptions:
    return parse_cache_options(parameter_fields(request), key_parameter)


def parse_cache_options(fields: Fields, key_parameter: str = "prompt_cache_key") -> CacheOptions:
    options = as_dict(parse_json(fields.get("prompt_cache_options")))
    ttl = options.get("ttl")
    return CacheOptions(
        explicit_only=options.get("mode") == "explicit",
        ttl=Ttl(ttl) if ttl in tuple(Ttl) else None,
        key=as_text(parse_json(fields.get(key_parameter))),
    )


def read_cache_parameters(
    request: Request, blocks: Sequence[Block], rules: CacheRules
) -> tuple[CacheParameter, ...]:
    """The parameters of `request` that invalidate the prefix, in the order of the areas."""
    return parse_cache_parameters(parameter_fields(request), look_up_facts(blocks), rules)


def parse_cache_parameters(
    fields: Fields,
    blocks: Sequence[BlockFacts],
    rules: CacheRules,
    *,
    has_images: bool = False,
    has_citations: bool = False,
) -> tuple[CacheParameter, ...]:
    """The same for these fields and blocks. `has_images` and `has_citations` tell what other blocks contain."""
    known = {IMAGES: has_images, CITATIONS: has_citations}
    order = list(Area)
    ordered_parameters = sorted(
        rules.invalidating_parameters.items(), key=lambda item: (order.index(item[1]), item[0])
    )
    return tuple(
        CacheParameter(
            name=name, area=area, json_text="true" if known.get(name) else _parameter_json(name, fields, blocks)
        )
        for name, area in ordered_parameters
        if name not in (MODEL, "tools")  # the model is a field of the prompt, tools are pieces of it
    )


def digest_by_area(parameters: Sequence[CacheParameter]) -> dict[Area, bytes]:
    """One digest per area, of all parameters that invalidate the prefix from there on
    (`CachedPrompt.settings`).
    """
    lines_by_area: dict[Area, list[str]] = {}
    for parameter in parameters:
        if (
            parameter.json_text
        ):  # so that parameters added to the table do not change digests of requests that do not use them
            lines_by_area.setdefault(parameter.area, []).append(f"{parameter.name}={parameter.json_text}")
    return {area: compute_digest("\n".join(lines).encode()) for area, lines in lines_by_area.items()}


def parameter_fields(request: Request) -> Fields:
    fields = get_parameters(request)
    if request.format is Format.GEMINI and "generateContentRequest" in fields:
        return parse_inner_fields(fields["generateContentRequest"])
    return fields


def _parameter_json(name: str, fields: Fields, blocks: Sequence[BlockFacts]) -> str:
    """The JSON of a parameter in canonical form; empty if the request does not set it."""
    is_present = _PRESENCE_CHECKS.get(name)
    if is_present is not None:
        return "true" if is_present(fields, blocks) else ""
    for path in _PATHS.get(name, (name,)):
        value = _value_at(fields, path.split("."))
        if name == "tool_choice" and isinstance(value, dict):
            value = {key: inner for key, inner in value.items() if key != _PARALLEL_KEY}
        if value not in (None, {}):
            return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return ""


def _value_at(fields: Fields, path: Sequence[str]) -> Any:
    value = parse_json(fields.get(path[0]))
    for name in path[1:]:
        value = as_dict(value).get(name)
    return value


def _has_images(_: Fields, blocks: Sequence[BlockFacts]) -> bool:
    return any(facts.image_count for facts in blocks)


def _has_citations(_: Fields, blocks: Sequence[BlockFacts]) -> bool:
    return any(facts.enables_citations for facts in blocks)


def _has_web_search(fields: Fields, blocks: Sequence[BlockFacts]) -> bool:
    if parse_json(fields.get("web_search_options")):
        return True
    plugins = as_list(parse_json(fields.get("plugins")))  # OpenRouter
    if any(as_dict(plugin).get("id") == "web" for plugin in plugins):
        return True
    return any(facts.is_web_search for facts in blocks)


_PRESENCE_CHECKS: Mapping[str, Callable[[Fields, Sequence[BlockFacts]], bool]] = {
    IMAGES: _has_images,
    CITATIONS: _has_citations,
    WEB_SEARCH: _has_web_search,
}
