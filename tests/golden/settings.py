"""Every key of configuration files, budgets, section files and sandbox scripts."""

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from foveate.budget.budget import _BUDGET_KEYS, _RULE_KEYS, Budget, SectionRule
from foveate.budget.ladder import BUILT_IN_LADDERS, rung_as_data
from foveate.budget.sections import Item, Section
from foveate.config.cost_settings import (
    CAP_KEYS,
    COST_KEYS,
    PRICE_KEYS,
    TIER_KEYS,
    TOKEN_KIND_BY_KEY,
    CostOptions,
)
from foveate.config.section_files import _ITEM_KEYS, _SECTION_KEYS
from foveate.config.settings import Settings
from foveate.cost.caps import Cap
from foveate.cost.pricing.custom_prices import CustomPrice, CustomPriceTier, DollarsPerMillion
from foveate.sandbox.script import Script
from tests.golden.signatures import parameter_text

Descriptions = Iterator[tuple[str, str]]

_REQUIRED = object()
_NOT_CONTRACT = ("title", "description", "default")


def settings() -> Descriptions:
    """List each key by its path, with its type, limits and default; `[]` is a list, `*` any name."""
    schema = Settings.model_json_schema()
    yield from _keys("", schema, schema["$defs"], Settings().model_dump(mode="json"))
    yield from _cost_keys()
    yield from _budget_keys()
    script = msgspec.json.schema(Script)
    for path, description in _keys("", {"$ref": script["$ref"]}, script["$defs"], {}):
        yield f"sandbox script: {path}", description


def _keys(path: str, schema: Mapping[str, Any], models: Mapping[str, Any], default: object) -> Descriptions:
    """List the keys below a place of a JSON schema; `default` applies if a file sets nothing."""
    options = [_resolve_reference(option, models) for option in schema.get("anyOf", [schema])]
    model = next((option for option in options if "properties" in option), None)
    if model is None:
        yield path, _describe_value(schema, default)
    elif len(options) > 1:
        yield path, f"mapping or null, default {json.dumps(default)}"
    defaults = default if isinstance(default, dict) else {}
    for key, inner in (model or {}).get("properties", {}).items():
        own_default = inner.get("default", _REQUIRED)
        yield from _keys(f"{path}.{key}" if path else key, inner, models, defaults.get(key, own_default))
    for option in options:
        value_schemas = (option.get("additionalProperties"), *option.get("patternProperties", {}).values())
        for suffix, inner in (("[]", option.get("items")), *((".*", inner) for inner in value_schemas)):
            if isinstance(inner, dict) and "properties" in _resolve_reference(inner, models):
                yield from _keys(f"{path}{suffix}", inner, models, None)


def _resolve_reference(schema: Mapping[str, Any], models: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    resolved: Mapping[str, Any] = models[reference.rpartition("/")[2]] if reference else schema
    return resolved


def _describe_value(schema: Mapping[str, Any], default: object) -> str:
    """Describe the type and limits of a value by its JSON schema, without class names."""
    schema_json = json.dumps(_without_names(schema), sort_keys=True, ensure_ascii=False)
    ends = "required" if default is _REQUIRED else f"default {json.dumps(default)}"
    return f"{schema_json}, {ends}"


def _without_names(schema: Any) -> Any:
    if isinstance(schema, dict):
        contract_keys = {
            key: _without_names(inner) for key, inner in schema.items() if key not in _NOT_CONTRACT
        }
        return {"type": "object"} if "$ref" in contract_keys else contract_keys
    return [_without_names(inner) for inner in schema] if isinstance(schema, list) else schema


def _cost_keys() -> Descriptions:
    """List the keys below `cost`, which has a parser of its own."""
    yield "cost", f"mapping of {', '.join(COST_KEYS)}"
    yield "cost.min_output_tokens", f"int, default {CostOptions().min_output_tokens}"
    yield "cost.allow_fields", f"list of str, default {list(CostOptions().allow_fields)}"
    yield from _fields("cost.caps[]", CAP_KEYS, Cap)
    yield from _fields("cost.prices[]", PRICE_KEYS, CustomPrice, DollarsPerMillion)
    yield from _fields("cost.prices[].tiers[]", TIER_KEYS, CustomPriceTier, DollarsPerMillion)


def _budget_keys() -> Descriptions:
    """List the keys of budgets, also below `agents[].sections.limits`, and of section files."""
    yield from _fields("budget: ", _BUDGET_KEYS, Budget)
    yield from _fields("budget: sections.*", _RULE_KEYS, SectionRule)
    yield from _fields("sections: []", _SECTION_KEYS, Section)
    yield from _fields("sections: [].items[]", _ITEM_KEYS, Item)
    for name, ladder in BUILT_IN_LADDERS.items():
        yield f"budget: ladder {name}", json.dumps([rung_as_data(rung) for rung in ladder.rungs])


def _fields(path: str, keys: Iterable[str], *kinds: type) -> Descriptions:
    """List the keys of a mapping that becomes an object of one of `kinds`."""
    parameters = {
        name: parameter
        for kind in reversed(kinds)
        for name, parameter in inspect.signature(kind).parameters.items()
    }
    for key in keys:
        dot = "" if path.endswith(" ") else "."
        yield f"{path}{dot}{key}", parameter_text(parameters[TOKEN_KIND_BY_KEY.get(key, key)])
