"""New blocks and messages as the JSON of a format."""

from collections.abc import Sequence

from foveate.errors import BadEdit, MalformedRequest
from foveate.values import Message, Opaque, Part, Text
from foveate.wire.body import compact, value
from foveate.wire.shapes import Shape

BLANK_LINE = "\n\n"


def block(part: Part, role: str, shape: Shape) -> bytes:
    """A part as a block.

    Raises:
        BadEdit: it is neither a text nor a block as it came.
    """
    match part:
        case Text():
            return shape.text_opening(role) + compact(part.text) + b"}"
        case Opaque():
            return _checked(part)
        case _:
            raise BadEdit(f"only texts and blocks as they came can be written, not a {type(part).__name__}")


def message(given: Message, shape: Shape) -> bytes:
    """A message; where it is one text, in the short way if the format has one.

    Raises:
        BadEdit: a part of it cannot be written.
    """
    named = b',"name":' + compact(given.name) if given.name else b""
    opening = b'{"role":' + compact(given.role) + named + b"," + compact(shape.content) + b":"
    if shape.text_kind and len(given.parts) == 1 and isinstance(given.parts[0], Text):
        return opening + compact(given.parts[0].text) + b"}"
    inner = b",".join(block(part, given.role, shape) for part in given.parts)
    return opening + b"[" + inner + b"]}"


def joined(parts: Sequence[Part]) -> str:
    """Parts that go into a plain string, a blank line between them.

    Raises:
        BadEdit: one of them is no text.
    """
    texts = [part.text for part in parts if isinstance(part, Text)]
    if len(texts) < len(parts):
        raise BadEdit("only texts can be put into a plain string", path=("system",))
    return BLANK_LINE.join(filter(None, texts))


def _checked(part: Opaque) -> bytes:
    try:
        value(part.raw)
    except MalformedRequest:
        raise BadEdit(f"the block of the kind `{part.kind}` is not JSON") from None
    return part.raw
