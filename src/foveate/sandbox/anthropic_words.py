"""What Anthropic says of a value that has not the shape it should have."""

from foveate.sandbox.shapes import Fault, Place, Tag, Wrong
from foveate.wire.refusals import Refusal

_KINDS = {
    "string": "string",
    "base64": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "list": "list",
    "object": "dictionary",
}


def refusal(fault: Fault) -> Refusal:
    """A fault as a refusal."""
    return Refusal(message=f"{_written(fault.path)}: {_words(fault)}")


def listed(words: tuple[str, ...]) -> str:
    """Words that something may be, as in `'a', 'b' or 'c'`."""
    *others, last = (f"'{word}'" for word in words)
    return f"{', '.join(others)} or {last}" if others else last


def _words(fault: Fault) -> str:
    match fault.wrong:
        case Wrong.MISSING:
            return "Field required"
        case Wrong.UNKNOWN:
            return "Extra inputs are not permitted"
        case Wrong.TYPE:
            return f"Input should be a valid {_KINDS[fault.kind.name]}"
        case Wrong.VALUE:
            return f"Input should be {listed(fault.words)}"
        case Wrong.TAG:
            tags = ", ".join(f"'{word}'" for word in fault.words)
            return (
                f"Input tag '{fault.found}' found using '{fault.tag}' does not match any of the expected tags: "
                f"{tags}"
            )
        case Wrong.LOW | Wrong.HIGH if fault.kind.name == "number":
            return f"range: {fault.kind.least}..{fault.kind.most}"
        case Wrong.LOW:
            return f"Input should be greater than or equal to {fault.kind.least}"
        case Wrong.HIGH:
            return f"Input should be less than or equal to {fault.kind.most}"
        case Wrong.SHORT:
            return f"List should have at least {fault.kind.least} item after validation"
        case Wrong.LONG:
            return f"List should have at most {fault.kind.most} items after validation"
        case Wrong.BASE64:
            return "invalid base64 data"


def _written(path: Place) -> str:
    return ".".join(step.name if isinstance(step, Tag) else str(step) for step in path)
