"""What OpenAI says of a value that is not what it should be."""

from collections.abc import Collection

from foveate.sandbox.shapes import Fault, Kind, Place, Wrong
from foveate.wire.body import kind_of
from foveate.wire.refusals import Refusal

_KINDS = {
    "string": "a string",
    "base64": "a string",
    "integer": "an integer",
    "number": "a decimal",
    "boolean": "a boolean",
    "list": "an array",
    "object": "an object",
}


def refusal(fault: Fault) -> Refusal:
    """A fault as a refusal."""
    param = _written(fault.path)
    match fault.wrong:
        case Wrong.MISSING:
            return missing(param)
        case Wrong.UNKNOWN:
            return unknown(param)
        case Wrong.VALUE:
            return wrong_value(param, fault.found, fault.words)
        case Wrong.TAG:
            return wrong_value(f"{param}.{fault.tag}" if param else fault.tag, fault.found, fault.words)
        case Wrong.LOW | Wrong.HIGH:
            return _out_of_range(param, fault)
        case Wrong.SHORT:
            return empty_list(param)
        case Wrong.LONG:
            return Refusal(
                message=f"Invalid '{param}': array too long. Expected an array with maximum length "
                f"{fault.kind.most}, but got an array with length {len(fault.found)} instead.",
                param=param,
                code="array_above_max_length",
            )
        case Wrong.TYPE | Wrong.BASE64:
            return wrong_type(param, _expected(fault.kinds), fault.found)


def unknown(param: str) -> Refusal:
    """A parameter that there is not."""
    return Refusal(message=f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")


def unsupported(param: str, advice: str = "") -> Refusal:
    """A parameter that there is, but not with this model."""
    return Refusal(
        message=f"Unsupported parameter: '{param}' is not supported with this model.{advice}",
        param=param,
        code="unsupported_parameter",
    )


def missing(param: str) -> Refusal:
    """A parameter that has to be there."""
    return Refusal(
        message=f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )


def wrong_type(param: str, expected: str, found: object) -> Refusal:
    """A parameter that is something else than it has to be."""
    return Refusal(
        message=f"Invalid type for '{param}': expected {expected}, but got {kind_of(found)} instead.",
        param=param,
        code="invalid_type",
    )


def wrong_value(param: str, found: object, known: Collection[str]) -> Refusal:
    """A parameter with another value than it can have."""
    *others, last = (f"'{value}'" for value in known)
    values = f"{', '.join(others)}, and {last}" if others else last
    return Refusal(
        message=f"Invalid value: '{found}'. Supported values are: {values}.", param=param, code="invalid_value"
    )


def empty_list(param: str) -> Refusal:
    """A list with nothing in it."""
    return Refusal(
        message=f"Invalid '{param}': empty array. Expected an array with minimum length 1, but got an empty "
        "array instead.",
        param=param,
        code="empty_array",
    )


def _out_of_range(param: str, fault: Fault) -> Refusal:
    name = "integer" if fault.kind.name == "integer" else "decimal"
    side, sign, bound = (
        ("below minimum", ">=", fault.kind.least)
        if fault.wrong is Wrong.LOW
        else ("above maximum", "<=", fault.kind.most)
    )
    return Refusal(
        message=f"Invalid '{param}': {name} {side} value. Expected a value {sign} {bound}, but got "
        f"{fault.found} instead.",
        param=param,
        code=f"{name}_{'below_min' if fault.wrong is Wrong.LOW else 'above_max'}_value",
    )


def _expected(kinds: tuple[Kind, ...]) -> str:
    said = [_said(kind) for kind in kinds]
    if len(said) == 1:
        return said[0]
    return "one of " + " or ".join([said[0], *(words.partition(" ")[2] for words in said[1:])])


def _said(kind: Kind) -> str:
    if kind.item is None:
        return _KINDS[kind.name]
    return f"an array of {_KINDS[kind.item.name].partition(' ')[2]}s"


def _written(path: Place) -> str:
    written = ""
    for step in path:
        if isinstance(step, int):
            written += f"[{step}]"
        elif isinstance(step, str):
            written += f".{step}" if written else step
    return written
