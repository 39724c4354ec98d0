"""Parse and write the JSON of a request body, keeping the bytes of every part that is only forwarded."""

import codecs
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from foveate.errors import MalformedRequest
from foveate.formats.json_text import large_json
from foveate.formats.json_text.surrogates import repair_surrogates
from foveate.model import Opaque

# A field refers to the body, or has its own bytes.
Fields = Mapping[str, msgspec.Raw | bytes]

Decoded = TypeVar("Decoded")

_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

TOO_DEEP_MESSAGE = "the request is nested too deeply"

_FIELDS_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS_DECODER = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE_DECODER = msgspec.json.Decoder()


class _RoleOnly(msgspec.Struct):
    role: Any = None


_ROLE_DECODER = msgspec.json.Decoder(_RoleOnly)

_STRUCTURE_READERS = large_json.MSGSPEC_READERS._replace(keeps_long_strings=False)

_WHITESPACE = b" \t\r\n"
_HEAD_BYTES = 64
# A member with a role at the start or the end of a message. Parsing a shorter message is as quick.
_MIN_SEARCHED_BYTES = 256
_FIRST_ROLE = re.compile(rb'\{[ \t\r\n]{0,16}"role"[ \t\r\n]{0,4}:[ \t\r\n]{0,4}"([a-z_]{1,32})"')
_LAST_ROLE = re.compile(
    rb',[ \t\r\n]{0,16}"role"[ \t\r\n]{0,4}:[ \t\r\n]{0,4}"([a-z_]{1,32})"[ \t\r\n]{0,16}\}\Z'
)

_JSON_TYPE_NAMES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def to_bytes(body: Mapping[str, Any] | str | bytes | bytearray) -> bytes:
    """Return the JSON of `body`, whatever its type. A byte order mark is kept.

    Raises:
        MalformedRequest: `body` contains a value that JSON cannot represent.
    """
    if isinstance(body, (bytes, bytearray)):
        return bytes(body)
    try:
        return body.encode() if isinstance(body, str) else _encode(body)
    except UnicodeEncodeError:  # a lone surrogate cannot be encoded
        return str(body).encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedRequest(f"the request cannot be written as JSON: {error}") from None


def _encode(value: object, order: Literal["sorted"] | None = None) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=_dump_sdk_object, order=order)
    except UnicodeEncodeError:  # a lone surrogate, which the standard library escapes
        return json.dumps(value, default=_dump_sdk_object, sort_keys=order is not None).encode("ascii")


def _dump_sdk_object(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json", exclude_none=True)
    raise TypeError(f"{type(value).__name__} is not JSON")


def parse_fields(data: bytes) -> dict[str, msgspec.Raw]:
    """Return the top-level fields of a request body as bytes.

    Raises:
        MalformedRequest: not a JSON object in UTF-8.
    """
    return _parse_fields(data.removeprefix(codecs.BOM_UTF8))


def parse_inner_fields(raw: msgspec.Raw | bytes | None) -> dict[str, msgspec.Raw]:
    """Return the fields of a nested object as bytes; empty for any other value."""
    return _parse_fields(raw) if raw is not None and is_object(raw) else {}


def _parse_fields(raw: msgspec.Raw | bytes) -> dict[str, msgspec.Raw]:
    is_large = len(raw) >= large_json.LARGE_BYTES
    return _parse_large(large_json.parse_fields, raw) if is_large else _decode(_FIELDS_DECODER, raw)


def parse_items(raw: msgspec.Raw | bytes | None) -> tuple[bytes, ...]:
    """Return the items of a JSON list as bytes; empty for any other value."""
    if raw is None:
        return ()
    if len(raw) >= large_json.LARGE_BYTES:
        return tuple(_parse_large(large_json.parse_items, raw)) if is_list(raw) else ()
    try:
        decoded = _ITEMS_DECODER.decode(raw)
    except _DECODE_ERRORS:
        if not is_list(raw):
            return ()
        decoded = _decode_repaired(_ITEMS_DECODER, raw)
    return tuple(map(bytes, decoded))


def parse_entries(raw: msgspec.Raw | bytes | None, name: str) -> tuple[bytes, ...]:
    """Return the objects in the list of field `name` as bytes.

    Raises:
        MalformedRequest: not a list, or an item is not an object.
    """
    if raw is None:
        return ()
    entries = parse_items(raw)
    if not entries and not is_list(raw):
        raise MalformedRequest(f"`{name}` must be a list, not {json_type_name(parse_json(raw))}")
    for position, entry in enumerate(entries):
        if not entry.startswith(b"{"):
            kind = json_type_name(parse_json(entry))
            raise MalformedRequest(f"`{name}[{position}]` must be an object, not {kind}")
    return entries


def parse_message_object(raw: bytes) -> dict[str, Any]:
    """Parse a message.

    Raises:
        MalformedRequest: it is not an object.
    """
    message = parse_json(raw)
    if not isinstance(message, dict):
        raise MalformedRequest(f"a message must be an object, not {json_type_name(message)}")
    return message


def parse_json(raw: msgspec.Raw | bytes | None) -> Any:
    if raw is None:
        return None
    is_large = len(raw) >= large_json.LARGE_BYTES
    return _parse_large(large_json.parse_json, raw) if is_large else _decode(_VALUE_DECODER, raw)


def parse_structure(raw: bytes) -> Any:
    """Parse a JSON value of which only the structure matters: strings of a megabyte or more are empty."""
    if len(raw) < large_json.LARGE_BYTES:
        return parse_json(raw)
    return _parse_large(partial(large_json.parse_json, readers=_STRUCTURE_READERS), raw)


def read_role(message: bytes) -> str:
    """Return the role of a message; empty if it has none.

    Raises:
        MalformedRequest: it cannot be parsed, or is not an object.
    """
    # Nearly all clients write it first, and some last. Requests with duplicate keys were rejected before.
    if len(message) >= _MIN_SEARCHED_BYTES:
        role = _FIRST_ROLE.match(message) or _LAST_ROLE.search(message, len(message) - _HEAD_BYTES)
        if role is not None:
            return role[1].decode()
    if len(message) >= large_json.LARGE_BYTES:
        return as_text(parse_json(parse_fields(message).get("role")))
    return as_text(_decode(_ROLE_DECODER, message).role)


def is_set(raw: msgspec.Raw | bytes | None) -> bool:
    """Return whether a field has a value. An empty object counts: it enables the feature of that name."""
    return parse_json(raw) not in (None, False, "", [])


def parse_object(raw: msgspec.Raw | bytes | None) -> dict[str, Any]:
    """Parse a JSON object; empty for any other value."""
    return as_dict(parse_json(raw))


def as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def json_type_name(value: object) -> str:
    return next(name for kind, name in _JSON_TYPE_NAMES.items() if isinstance(value, kind))


def make_opaque(block: object) -> Opaque:
    """Wrap a block that is not parsed, named by its type or its JSON type."""
    return Opaque(as_text(as_dict(block).get("type")) or json_type_name(block), to_json(block))


def is_list(raw: msgspec.Raw | bytes) -> bool:
    return _starts_with(raw, b"[")


def is_object(raw: msgspec.Raw | bytes) -> bool:
    return _starts_with(raw, b"{")


def _starts_with(raw: msgspec.Raw | bytes, prefix: bytes) -> bool:
    """Return whether a JSON value starts with `prefix`. Only its first bytes are copied, as it can be long."""
    head = bytes(memoryview(raw)[:_HEAD_BYTES]).lstrip(_WHITESPACE)
    return (head or bytes(raw).lstrip(_WHITESPACE)).startswith(prefix)


def to_json(value: object, *, order: Literal["sorted"] | None = None) -> bytes:
    return (
        large_json.to_json(value, order=order) if large_json.is_writing_in_pieces() else _encode(value, order)
    )


def _decode(decoder: "msgspec.json.Decoder[Decoded]", data: msgspec.Raw | bytes) -> Decoded:
    try:
        return decoder.decode(data)
    except _DECODE_ERRORS:
        return _decode_repaired(decoder, data)


def _decode_repaired(decoder: "msgspec.json.Decoder[Decoded]", data: msgspec.Raw | bytes) -> Decoded:
    try:
        return decoder.decode(repair_surrogates(bytes(data)))
    except _DECODE_ERRORS as error:
        raise _malformed(error) from None


def _parse_large(parse: Callable[[bytes], Decoded], data: msgspec.Raw | bytes) -> Decoded:
    try:
        return parse(data if type(data) is bytes else large_json.copy_bytes(data))
    except _DECODE_ERRORS as error:
        raise _malformed(error) from None


def _malformed(error: Exception) -> MalformedRequest:
    if isinstance(error, msgspec.ValidationError):
        is_number = "out of range" in str(error)
        reason = f"cannot be parsed: {error}" if is_number else "not an object"
        return MalformedRequest(f"the request is JSON, but {reason}")
    if isinstance(error, UnicodeDecodeError):
        return MalformedRequest("the request is not UTF-8")
    if isinstance(error, RecursionError):
        return MalformedRequest(TOO_DEEP_MESSAGE)
    return MalformedRequest(f"the request is not JSON: {error}")


def select_fields(body: bytes, names: frozenset[str], **added: object) -> bytes:
    """Return a body with only the top-level fields in `names`, unchanged, after the fields in `added`."""
    selected = {name: raw for name, raw in parse_fields(body).items() if name in names and name not in added}
    return _encode({**added, **selected})
