"""What OpenAI says of a value that is not what it should be."""

from collections.abc import Collection

from foveate.sandbox.shapes import SchemaError, SchemaPath, ValueType, Violation
from foveate.wire.body import json_type_name
from foveate.wire.refusals import ErrorResponse

_TYPE_NAMES = {
    "string": "a string",
    "base64": "a string",
    "integer": "an integer",
    "number": "a decimal",
    "boolean": "a boolean",
    "list": "an array",
    "object": "an object",
}


def to_error_response(schema_error: SchemaError) -> ErrorResponse:
    """A fault as a refusal."""
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
                f"{schema_error.expected_type.maximum}, but got an array with length {len(schema_error.found)} instead.",
                param=param,
                code="array_above_max_length",
            )
        case Violation.TYPE | Violation.BASE64:
            return invalid_type(param, _join_types(schema_error.expected_types), schema_error.found)


def unknown_parameter(param: str) -> ErrorResponse:
    """A parameter that there is not."""
    return ErrorResponse(message=f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")


def unsupported_parameter(param: str, advice: str = "") -> ErrorResponse:
    """A parameter that there is, but not with this model."""
    return ErrorResponse(
        message=f"Unsupported parameter: '{param}' is not supported with this model.{advice}",
        param=param,
        code="unsupported_parameter",
    )


def missing_parameter(param: str) -> ErrorResponse:
    """A parameter that has to be there."""
    return ErrorResponse(
        message=f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )


def invalid_type(param: str, expected: str, found: object) -> ErrorResponse:
    """A parameter that is something else than it has to be."""
    return ErrorResponse(
        message=f"Invalid type for '{param}': expected {expected}, but got {json_type_name(found)} instead.",
        param=param,
        code="invalid_type",
    )


def invalid_value(param: str, found: object, known: Collection[str]) -> ErrorResponse:
    """A parameter with another value than it can have."""
    *others, last = (f"'{value}'" for value in known)
    values = f"{', '.join(others)}, and {last}" if others else last
    return ErrorResponse(
        message=f"Invalid value: '{found}'. Supported values are: {values}.", param=param, code="invalid_value"
    )


def empty_array(param: str) -> ErrorResponse:
    """A list with nothing in it."""
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


def _join_types(types: tuple[ValueType, ...]) -> str:
    names = [_type_name(value_type) for value_type in types]
    if len(names) == 1:
        return names[0]
    return "one of " + " or ".join([names[0], *(name.partition(" ")[2] for name in names[1:])])


def _type_name(value_type: ValueType) -> str:
    if value_type.item is None:
        return _TYPE_NAMES[value_type.name]
    return f"an array of {_TYPE_NAMES[value_type.item.name].partition(' ')[2]}s"


def _format_path(path: SchemaPath) -> str:
    written = ""
    for step in path:
        if isinstance(step, int):
            written += f"[{step}]"
        elif isinstance(step, str):
            written += f".{step}" if written else step
    return written
