"""New blocks and messages as the JSON of a format."""

from collections.abc import Sequence

from foveate.errors import BadEdit, MalformedRequest
from foveate.values import Message, Opaque, Part, Text
from foveate.wire.body import parse_json, to_json
from foveate.wire.shapes import FormatLayout

BLANK_LINE = "\n\n"


def block_json(part: Part, role: str, layout: FormatLayout) -> bytes:
    """A part as a block.

    Raises:
        BadEdit: it is neither a text nor a block as it came.
    """
    match part:
        case Text():
            return layout.text_block_prefix(role) + to_json(part.text) + b"}"
        case Opaque():
            return _validated_json(part)
        case _:
            raise BadEdit(f"only texts and blocks as they came can be written, not a {type(part).__name__}")


def message_json(message: Message, layout: FormatLayout) -> bytes:
    """A message; where it is one text, in the short way if the format has one.

    Raises:
        BadEdit: a part of it cannot be written.
    """
    named = b',"name":' + to_json(message.name) if message.name else b""
    opening = b'{"role":' + to_json(message.role) + named + b"," + to_json(layout.content_field) + b":"
    if layout.text_kind and len(message.parts) == 1 and isinstance(message.parts[0], Text):
        return opening + to_json(message.parts[0].text) + b"}"
    inner = b",".join(block_json(part, message.role, layout) for part in message.parts)
    return opening + b"[" + inner + b"]}"


def join_texts(parts: Sequence[Part]) -> str:
    """Parts that go into a plain string, a blank line between them.

    Raises:
        BadEdit: one of them is no text.
    """
    texts = [part.text for part in parts if isinstance(part, Text)]
    if len(texts) < len(parts):
        raise BadEdit("only texts can be put into a plain string", path=("system",))
    return BLANK_LINE.join(filter(None, texts))


def _validated_json(part: Opaque) -> bytes:
    try:
        parse_json(part.raw)
    except MalformedRequest:
        raise BadEdit(f"the block of the kind `{part.kind}` is not JSON") from None
    return part.raw
