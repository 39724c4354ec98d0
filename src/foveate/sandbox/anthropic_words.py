"""What Anthropic says of a value that has not the shape it should have."""

from foveate.sandbox.shapes import SchemaError, SchemaPath, TypeTag, Violation
from foveate.wire.refusals import ErrorResponse

_TYPE_NAMES = {
    "string": "string",
    "base64": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "list": "list",
    "object": "dictionary",
}


def to_error_response(schema_error: SchemaError) -> ErrorResponse:
    """A fault as a refusal."""
    return ErrorResponse(message=f"{_format_path(schema_error.path)}: {_describe_error(schema_error)}")


def join_choices(words: tuple[str, ...]) -> str:
    """Words that something may be, as in `'a', 'b' or 'c'`."""
    *others, last = (f"'{word}'" for word in words)
    return f"{', '.join(others)} or {last}" if others else last


def _describe_error(schema_error: SchemaError) -> str:
    match schema_error.violation:
        case Violation.MISSING:
            return "Field required"
        case Violation.UNKNOWN:
            return "Extra inputs are not permitted"
        case Violation.TYPE:
            return f"Input should be a valid {_TYPE_NAMES[schema_error.expected_type.name]}"
        case Violation.VALUE:
            return f"Input should be {join_choices(schema_error.allowed)}"
        case Violation.TAG:
            tags = ", ".join(f"'{word}'" for word in schema_error.allowed)
            return (
                f"Input tag '{schema_error.found}' found using '{schema_error.tag}' does not match any of the expected tags: "
                f"{tags}"
            )
        case Violation.LOW | Violation.HIGH if schema_error.expected_type.name == "number":
            return f"range: {schema_error.expected_type.minimum}..{schema_error.expected_type.maximum}"
        case Violation.LOW:
            return f"Input should be greater than or equal to {schema_error.expected_type.minimum}"
        case Violation.HIGH:
            return f"Input should be less than or equal to {schema_error.expected_type.maximum}"
        case Violation.SHORT:
            return f"List should have at least {schema_error.expected_type.minimum} item after validation"
        case Violation.LONG:
            return f"List should have at most {schema_error.expected_type.maximum} items after validation"
        case Violation.BASE64:
            return "invalid base64 data"


def _format_path(path: SchemaPath) -> str:
    return ".".join(step.name if isinstance(step, TypeTag) else str(step) for step in path)
