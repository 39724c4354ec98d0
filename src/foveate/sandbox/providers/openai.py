"""Validation that OpenAI's two formats share: models, parameters, tools, cache breakpoints and size.

After https://platform.openai.com/docs/api-reference and recorded error responses of its API (read November
2026).
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from foveate.budget.model_limits import find_context_window
from foveate.formats.json_text.parse import as_dict, as_list, as_text, json_type_name
from foveate.formats.response.errors import ErrorResponse
from foveate.model import Format, Ttl
from foveate.prompt_cache.rules import CachingMode, rules_for
from foveate.sandbox.models import find_model
from foveate.sandbox.schema import SchemaError, SchemaPath, SchemaType, Violation, schemas_for

_TYPE_NAMES = {
    "string": "a string",
    "base64": "a string",
    "integer": "an integer",
    "number": "a decimal",
    "boolean": "a boolean",
    "list": "an array",
    "object": "an object",
}
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Schemas may nest ten levels of properties, each of which is two steps.
_MAX_SCHEMA_DEPTH = 20
_BAD_PARAMETERS = "invalid_function_parameters"


def to_error_response(schema_error: SchemaError) -> ErrorResponse:
    param = _format_path(schema_error.path)
    match schema_error.violation:
        case Violation.MISSING:
            return missing_parameter(param)
        case Violation.UNKNOWN:
            return unknown_parameter(param)
        case Violation.VALUE:
            return invalid_value(param, schema_error.found, schema_error.allowed)
        case Violation.TAG:
            return invalid_value(
                f"{param}.{schema_error.tag}" if param else schema_error.tag,
                schema_error.found,
                schema_error.allowed,
            )
        case Violation.LOW | Violation.HIGH:
            return _out_of_range(param, schema_error)
        case Violation.SHORT:
            return empty_array(param)
        case Violation.LONG:
            return ErrorResponse(
                message=f"Invalid '{param}': array too long. Expected an array with maximum length "
                f"{schema_error.expected_type.maximum}, but got an array with length "
                f"{len(schema_error.found)} instead.",
                param=param,
                code="array_above_max_length",
            )
        case Violation.TYPE | Violation.BASE64:
            return invalid_type(param, _join_types(schema_error.expected_types), schema_error.found)


def unknown_parameter(param: str) -> ErrorResponse:
    return ErrorResponse(message=f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")


def unsupported_parameter(param: str, advice: str = "") -> ErrorResponse:
    return ErrorResponse(
        message=f"Unsupported parameter: '{param}' is not supported with this model.{advice}",
        param=param,
        code="unsupported_parameter",
    )


def missing_parameter(param: str) -> ErrorResponse:
    return ErrorResponse(
        message=f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )


def invalid_type(param: str, expected: str, found: object) -> ErrorResponse:
    return ErrorResponse(
        message=f"Invalid type for '{param}': expected {expected}, but got {json_type_name(found)} instead.",
        param=param,
        code="invalid_type",
    )


def invalid_value(param: str, found: object, allowed: Collection[str]) -> ErrorResponse:
    *rest, last = (f"'{value}'" for value in allowed)
    values = f"{', '.join(rest)}, and {last}" if rest else last
    return ErrorResponse(
        message=f"Invalid value: '{found}'. Supported values are: {values}.", param=param, code="invalid_value"
    )


def empty_array(param: str) -> ErrorResponse:
    return ErrorResponse(
        message=f"Invalid '{param}': empty array. Expected an array with minimum length 1, but got an empty "
        "array instead.",
        param=param,
        code="empty_array",
    )


def _out_of_range(param: str, schema_error: SchemaError) -> ErrorResponse:
    name = "integer" if schema_error.expected_type.name == "integer" else "decimal"
    side, sign, bound = (
        ("below minimum", ">=", schema_error.expected_type.minimum)
        if schema_error.violation is Violation.LOW
        else ("above maximum", "<=", schema_error.expected_type.maximum)
    )
    return ErrorResponse(
        message=f"Invalid '{param}': {name} {side} value. Expected a value {sign} {bound}, but got "
        f"{schema_error.found} instead.",
        param=param,
        code=f"{name}_{'below_min' if schema_error.violation is Violation.LOW else 'above_max'}_value",
    )


def _join_types(types: tuple[SchemaType, ...]) -> str:
    names = [_type_name(value_type) for value_type in types]
    if len(names) == 1:
        return names[0]
    return "one of " + " or ".join([names[0], *(name.partition(" ")[2] for name in names[1:])])


def _type_name(value_type: SchemaType) -> str:
    if value_type.item is None:
        return _TYPE_NAMES[value_type.name]
    return f"an array of {_TYPE_NAMES[value_type.item.name].partition(' ')[2]}s"


def _format_path(path: SchemaPath) -> str:
    path_text = ""
    for step in path:
        if isinstance(step, int):
            path_text += f"[{step}]"
        elif isinstance(step, str):
            path_text += f".{step}" if path_text else step
    return path_text


def check_schema(api_format: Format, body: dict[str, Any]) -> Iterator[ErrorResponse]:
    for schema_error in schemas_for(api_format).find_errors("request", body):
        yield to_error_response(schema_error)


def check_model(body: dict[str, Any]) -> Iterator[ErrorResponse]:
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield missing_parameter("model")
    if find_model(Format.CHAT, body["model"]) is None:
        yield ErrorResponse(
            message=f"The model `{body['model']}` does not exist or you do not have access to it.",
            status=404,
            code="model_not_found",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableTool:
    path: str
    name: str
    schema: dict[str, Any] | None = None
    is_strict: bool = False


def check_tools(tools: list[CallableTool]) -> Iterator[ErrorResponse]:
    for tool in tools:
        if not _TOOL_NAME.fullmatch(tool.name):
            yield _invalid_name(f"{tool.path}.name")
        yield from _check_function_schema(tool)


def check_tool_choice(choice: object, names: list[str], *, has_tools: bool) -> Iterator[ErrorResponse]:
    if choice is None:
        return
    if not has_tools and choice not in ("none", "auto"):
        yield ErrorResponse(
            message="Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are "
            "specified.",
            param="tool_choice",
        )
    kind = as_dict(choice).get("type")
    if kind in ("function", "custom"):
        name = read_tool_name(as_dict(choice))
        if name not in names:
            yield ErrorResponse(
                message=f"Tool choice '{kind}' not found in 'tools' parameter: '{name}'.",
                param="tool_choice",
            )


def read_tool_name(tool: dict[str, Any]) -> str:
    """Return the name in a tool or tool choice: next to its type, or one level below."""
    inner = as_dict(tool.get(as_text(tool.get("type"))))
    return as_text(inner.get("name")) or as_text(tool.get("name"))


def check_json_schema(param: str, format_: dict[str, Any]) -> Iterator[ErrorResponse]:
    if not _TOOL_NAME.fullmatch(as_text(format_.get("name"))):
        yield _invalid_name(f"{param}.name")
    if format_.get("strict") is True:
        prefix = f"Invalid schema for response_format '{format_['name']}'"
        yield from _check_strict_schema(
            prefix, f"{param}.schema", as_dict(format_.get("schema")), "invalid_json_schema"
        )


def _check_function_schema(tool: CallableTool) -> Iterator[ErrorResponse]:
    if not tool.schema:
        return
    prefix, param = f"Invalid schema for function '{tool.name}'", f"{tool.path}.parameters"
    kind = tool.schema.get("type")
    if kind != "object":
        yield ErrorResponse(
            message=f"{prefix}: schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'.",
            param=param,
            code=_BAD_PARAMETERS,
        )
    if tool.is_strict:
        yield from _check_strict_schema(prefix, param, tool.schema, _BAD_PARAMETERS)


def _check_strict_schema(prefix: str, param: str, schema: dict[str, Any], code: str) -> Iterator[ErrorResponse]:
    """Check that objects in a strict schema allow no other properties and require all they have."""
    for place, inner in _find_objects(schema, ()):
        context = f"{prefix}: In context={place}"
        if inner.get("additionalProperties") is not False:
            yield ErrorResponse(
                message=f"{context}, 'additionalProperties' is required to be supplied and to be false.",
                param=param,
                code=code,
            )
        required = as_list(inner.get("required"))
        for name in as_dict(inner.get("properties")):
            if name not in required:
                yield ErrorResponse(
                    message=f"{context}, 'required' is required to be supplied and to be an array including "
                    f"every key in properties. Missing '{name}'.",
                    param=param,
                    code=code,
                )


def _find_objects(schema: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the objects in a schema with their paths. References are not followed."""
    if len(place) > _MAX_SCHEMA_DEPTH:
        return
    fields = as_dict(schema)
    if fields.get("type") == "object":
        yield place, fields
    for name, inner in as_dict(fields.get("properties")).items():
        yield from _find_objects(inner, (*place, "properties", name))
    if "items" in fields:
        yield from _find_objects(fields["items"], (*place, "items"))


def _invalid_name(param: str) -> ErrorResponse:
    return ErrorResponse(
        message=f"Invalid '{param}': string does not match pattern. Expected a string that matches the "
        "pattern '^[a-zA-Z0-9_-]+$'.",
        param=param,
        code="invalid_value",
    )


def check_sampling(api_format: Format, body: dict[str, Any]) -> Iterator[ErrorResponse]:
    """Check that a model with fixed sampling gets no other temperature or top_p."""
    model = find_model(api_format, body["model"])
    if model is None or model.samples:
        return
    for param in ("temperature", "top_p"):
        if body.get(param) not in (None, 1):
            yield unsupported_parameter(param)


def check_breakpoints(
    body: dict[str, Any], parts: list[tuple[str, bool, dict[str, Any]]], ttls: tuple[Ttl, ...]
) -> Iterator[ErrorResponse]:
    """Check cache breakpoints and options.

    `parts` are the content parts with their paths and whether they come from the model. More than four
    breakpoints are rejected, although by OpenAI's documentation only the first ones are written: a fifth is
    never worth it.
    """
    rules = rules_for(body["model"], "openai")
    takes_breakpoints = rules.caching is CachingMode.BOTH
    with_breakpoint = [
        (path, is_from_model, part)
        for path, is_from_model, part in parts
        if part.get("prompt_cache_breakpoint") is not None
    ]
    for path, is_from_model, part in with_breakpoint:
        param = f"{path}.prompt_cache_breakpoint"
        cache_breakpoint = as_dict(part["prompt_cache_breakpoint"])
        if not takes_breakpoints or is_from_model or as_text(part.get("type")) not in rules.breakpoint_kinds:
            yield unknown_parameter(param)
        if cache_breakpoint.get("mode") != "explicit":
            yield invalid_value(f"{param}.mode", cache_breakpoint.get("mode"), ("explicit",))
        if cache_breakpoint.get("ttl") is not None and cache_breakpoint["ttl"] not in ttls:
            yield invalid_value(f"{param}.ttl", cache_breakpoint["ttl"], ttls)
    if takes_breakpoints and len(with_breakpoint) > rules.max_breakpoints:
        yield ErrorResponse(
            message=f"A maximum of {rules.max_breakpoints} prompt cache breakpoints may be provided. Found "
            f"{len(with_breakpoint)}.",
            param="prompt_cache_options",
        )
    yield from _check_cache_options(body, takes_breakpoints, ttls)


def _check_cache_options(
    body: dict[str, Any], takes_breakpoints: bool, ttls: tuple[Ttl, ...]
) -> Iterator[ErrorResponse]:
    options = body.get("prompt_cache_options")
    if options is None:
        return
    if not takes_breakpoints:
        yield unsupported_parameter("prompt_cache_options")
    if options.get("mode", "implicit") not in ("implicit", "explicit"):
        yield invalid_value("prompt_cache_options.mode", options["mode"], ("implicit", "explicit"))
    if options.get("ttl") is not None and options["ttl"] not in ttls:
        yield invalid_value("prompt_cache_options.ttl", options["ttl"], ttls)
    if options.get("ttl") is not None and body.get("prompt_cache_retention") is not None:
        yield ErrorResponse(
            message="'prompt_cache_retention' cannot be used together with 'prompt_cache_options.ttl'.",
            param="prompt_cache_retention",
            code="invalid_parameter_combination",
        )


def check_output_limit(body: dict[str, Any], param: str, *, minimum: int) -> Iterator[ErrorResponse]:
    limit = body.get(param)
    model = find_model(Format.CHAT, body["model"])
    if limit is None or model is None:
        return
    if limit < minimum:
        yield ErrorResponse(
            message=f"Invalid '{param}': integer below minimum value. Expected a value >= {minimum}, but got "
            f"{limit} instead.",
            param=param,
            code="integer_below_min_value",
        )
    elif limit > model.max_output_tokens:
        yield ErrorResponse(
            message=f"{param} is too large: {limit}. This model supports at most {model.max_output_tokens} "
            f"completion tokens, whereas you provided {limit}.",
            param=param,
            code="invalid_value",
        )


def window_error(name: str, prompt_tokens: int, output_tokens: int, param: str) -> ErrorResponse | None:
    model, window = find_model(Format.CHAT, name), find_context_window(name)
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
    return ErrorResponse(
        message=f"This model's maximum context length is {window.tokens} tokens. However, {reason}",
        param=param,
        code="context_length_exceeded",
    )


def list_content_parts(
    path: str, content: object, *, is_from_model: bool
) -> list[tuple[str, bool, dict[str, Any]]]:
    return [(f"{path}[{j}]", is_from_model, as_dict(part)) for j, part in enumerate(as_list(content))]
