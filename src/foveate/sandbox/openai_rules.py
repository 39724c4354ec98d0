"""What OpenAI takes in both of its formats: models, parameters, tools, cache marks, and the size of it all.

After https://platform.openai.com/docs/api-reference and what its API answered to others (read November 2026).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from foveate.budget.windows import window_of
from foveate.cache.rules import Caching, rules_for
from foveate.sandbox.models import model_of
from foveate.sandbox.openai_words import missing, refusal, unknown, unsupported, wrong_value
from foveate.sandbox.shapes import shapes_of
from foveate.values import Format, Ttl
from foveate.wire.body import as_list, as_record, as_text
from foveate.wire.refusals import Refusal

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Schemas may be nested in ten levels of properties, each of which is two steps.
_DEEPEST_PLACE = 20
_BAD_PARAMETERS = "invalid_function_parameters"


def shape_problems(spoken: Format, asked: dict[str, Any]) -> Iterator[Refusal]:
    """Fields that are missing, unknown, or not what they should be."""
    for fault in shapes_of(spoken).faults("request", asked):
        yield refusal(fault)


def model_problems(asked: dict[str, Any]) -> Iterator[Refusal]:
    """A model that is not named, or that there is not."""
    if not isinstance(asked.get("model"), str) or not asked["model"]:
        yield missing("model")
    if model_of(Format.CHAT, asked["model"]) is None:
        yield Refusal(
            message=f"The model `{asked['model']}` does not exist or you do not have access to it.",
            status=404,
            code="model_not_found",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that a model can call: where it stands in the request, and its schema where it has one."""

    path: str
    name: str
    schema: dict[str, Any] | None = None
    is_strict: bool = False


def tool_problems(tools: list[Tool]) -> Iterator[Refusal]:
    """Tools that cannot be called so."""
    for tool in tools:
        if not _NAME.fullmatch(tool.name):
            yield _bad_name(f"{tool.path}.name")
        yield from _function_schema(tool)


def choice_problems(choice: object, names: list[str], *, has_tools: bool) -> Iterator[Refusal]:
    """A choice of tools without any, or of one that there is not."""
    if choice is None:
        return
    if not has_tools and choice not in ("none", "auto"):
        yield Refusal(
            message="Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are "
            "specified.",
            param="tool_choice",
        )
    kind = as_record(choice).get("type")
    if kind in ("function", "custom"):
        wanted = named(as_record(choice))
        if wanted not in names:
            yield Refusal(
                message=f"Tool choice '{kind}' not found in 'tools' parameter: '{wanted}'.",
                param="tool_choice",
            )


def named(tool: dict[str, Any]) -> str:
    """The name in a tool or a choice of one: beside its type, or one level below."""
    inner = as_record(tool.get(as_text(tool.get("type"))))
    return as_text(inner.get("name")) or as_text(tool.get("name"))


def format_problems(param: str, format_: dict[str, Any]) -> Iterator[Refusal]:
    """A JSON schema for the answer that cannot be used as one."""
    if not _NAME.fullmatch(as_text(format_.get("name"))):
        yield _bad_name(f"{param}.name")
    if format_.get("strict") is True:
        said = f"Invalid schema for response_format '{format_['name']}'"
        yield from _strict(said, f"{param}.schema", as_record(format_.get("schema")), "invalid_json_schema")


def _function_schema(tool: Tool) -> Iterator[Refusal]:
    if not tool.schema:
        return
    said, param = f"Invalid schema for function '{tool.name}'", f"{tool.path}.parameters"
    kind = tool.schema.get("type")
    if kind != "object":
        yield Refusal(
            message=f"{said}: schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'.",
            param=param,
            code=_BAD_PARAMETERS,
        )
    if tool.is_strict:
        yield from _strict(said, param, tool.schema, _BAD_PARAMETERS)


def _strict(said: str, param: str, schema: dict[str, Any], code: str) -> Iterator[Refusal]:
    """Under a strict schema, objects have no other properties, and all that they have are required."""
    for place, inner in _objects(schema, ()):
        where = f"{said}: In context={place}"
        if inner.get("additionalProperties") is not False:
            yield Refusal(
                message=f"{where}, 'additionalProperties' is required to be supplied and to be false.",
                param=param,
                code=code,
            )
        required = as_list(inner.get("required"))
        for name in as_record(inner.get("properties")):
            if name not in required:
                yield Refusal(
                    message=f"{where}, 'required' is required to be supplied and to be an array including "
                    f"every key in properties. Missing '{name}'.",
                    param=param,
                    code=code,
                )


def _objects(schema: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """The objects that a schema describes, each with its place; what it refers to is left to the provider."""
    if len(place) > _DEEPEST_PLACE:
        return
    found = as_record(schema)
    if found.get("type") == "object":
        yield place, found
    for name, inner in as_record(found.get("properties")).items():
        yield from _objects(inner, (*place, "properties", name))
    if "items" in found:
        yield from _objects(found["items"], (*place, "items"))


def _bad_name(param: str) -> Refusal:
    return Refusal(
        message=f"Invalid '{param}': string does not match pattern. Expected a string that matches the "
        "pattern '^[a-zA-Z0-9_-]+$'.",
        param=param,
        code="invalid_value",
    )


def sampling_problems(spoken: Format, asked: dict[str, Any]) -> Iterator[Refusal]:
    """Temperature and the like for a model that takes only the usual ones."""
    model = model_of(spoken, asked["model"])
    if model is None or model.samples:
        return
    for param in ("temperature", "top_p"):
        if asked.get(param) not in (None, 1):
            yield unsupported(param)


def mark_problems(
    asked: dict[str, Any], parts: list[tuple[str, bool, dict[str, Any]]], ttls: tuple[Ttl, ...]
) -> Iterator[Refusal]:
    """Cache marks, and options of the cache, that the model does not take.

    `parts` are the content parts with their paths and whether the model itself said them. More than four marks
    are refused, though by OpenAI's text the first of them are only not written: it is never worth a fifth.
    """
    rules = rules_for(asked["model"], "openai")
    takes_marks = rules.caching is Caching.BOTH
    marked = [(path, own, part) for path, own, part in parts if part.get("prompt_cache_breakpoint") is not None]
    for path, own, part in marked:
        param = f"{path}.prompt_cache_breakpoint"
        mark = as_record(part["prompt_cache_breakpoint"])
        if not takes_marks or own or as_text(part.get("type")) not in rules.markable:
            yield unknown(param)
        if mark.get("mode") != "explicit":
            yield wrong_value(f"{param}.mode", mark.get("mode"), ("explicit",))
        if mark.get("ttl") is not None and mark["ttl"] not in ttls:
            yield wrong_value(f"{param}.ttl", mark["ttl"], ttls)
    if takes_marks and len(marked) > rules.most_marks:
        yield Refusal(
            message=f"A maximum of {rules.most_marks} prompt cache breakpoints may be provided. Found "
            f"{len(marked)}.",
            param="prompt_cache_options",
        )
    yield from _options(asked, takes_marks, ttls)


def _options(asked: dict[str, Any], takes_marks: bool, ttls: tuple[Ttl, ...]) -> Iterator[Refusal]:
    options = asked.get("prompt_cache_options")
    if options is None:
        return
    if not takes_marks:
        yield unsupported("prompt_cache_options")
    if options.get("mode", "implicit") not in ("implicit", "explicit"):
        yield wrong_value("prompt_cache_options.mode", options["mode"], ("implicit", "explicit"))
    if options.get("ttl") is not None and options["ttl"] not in ttls:
        yield wrong_value("prompt_cache_options.ttl", options["ttl"], ttls)
    if options.get("ttl") is not None and asked.get("prompt_cache_retention") is not None:
        yield Refusal(
            message="'prompt_cache_retention' cannot be used together with 'prompt_cache_options.ttl'.",
            param="prompt_cache_retention",
            code="invalid_parameter_combination",
        )


def output_problems(asked: dict[str, Any], param: str, *, least: int) -> Iterator[Refusal]:
    """A limit of the answer that is none, or more than the model can say."""
    wanted = asked.get(param)
    model = model_of(Format.CHAT, asked["model"])
    if wanted is None or model is None:
        return
    if wanted < least:
        yield Refusal(
            message=f"Invalid '{param}': integer below minimum value. Expected a value >= {least}, but got "
            f"{wanted} instead.",
            param=param,
            code="integer_below_min_value",
        )
    elif wanted > model.most_output_tokens:
        yield Refusal(
            message=f"{param} is too large: {wanted}. This model supports at most {model.most_output_tokens} "
            f"completion tokens, whereas you provided {wanted}.",
            param=param,
            code="invalid_value",
        )


def too_long(name: str, prompt_tokens: int, output_tokens: int, param: str) -> Refusal | None:
    """A prompt that does not fit, or not together with the answer that is asked for."""
    model, window = model_of(Format.CHAT, name), window_of(name)
    if model is None or window is None:
        return None
    if prompt_tokens > window.tokens:
        reason = f"your {param} resulted in {prompt_tokens} tokens. Please reduce the length of the {param}."
    elif model.adds_output and prompt_tokens + output_tokens > window.tokens:
        reason = (
            f"you requested {prompt_tokens + output_tokens} tokens ({prompt_tokens} in the {param}, "
            f"{output_tokens} in the completion). Please reduce the length of the {param} or completion."
        )
    else:
        return None
    return Refusal(
        message=f"This model's maximum context length is {window.tokens} tokens. However, {reason}",
        param=param,
        code="context_length_exceeded",
    )


def parts_of(path: str, content: object, *, own: bool) -> list[tuple[str, bool, dict[str, Any]]]:
    """The parts of a content that is a list, each with its path."""
    return [(f"{path}[{j}]", own, as_record(part)) for j, part in enumerate(as_list(content))]
