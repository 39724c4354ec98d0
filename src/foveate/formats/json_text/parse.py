"""JSON in and out of a request body, keeping the bytes of every part that is only passed on."""

import codecs
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from foveate.errors import MalformedRequest
from foveate.formats.json_text import large_json
from foveate.formats.json_text.surrogates import repair_surrogates
from foveate.model import Opaque

# A field is a piece of the body that it came in, or its bytes.
Fields = Mapping[str, msgspec.Raw | bytes]

Decoded = TypeVar("Decoded")

_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

TOO_DEEP_MESSAGE = "the request is nested too deeply"

_FIELDS_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS_DECODER = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE_DECODER = msgspec.json.Decoder()


class _RoleOnly(msgspec.Struct):
    """Of a message, who speaks."""

    role: Any = None


_ROLE_DECODER = msgspec.json.Decoder(_RoleOnly)

_WHITESPACE = b" \t\r\n"
_HEAD_BYTES = 64

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
    """The JSON of `body`, whatever it was handed in as; a byte order mark before it stays.

    Raises:
        MalformedRequest: `body` holds something that JSON cannot say.
    """
    if isinstance(body, (bytes, bytearray)):
        return bytes(body)
    try:
        return body.encode() if isinstance(body, str) else _encode(body)
    except UnicodeEncodeError:  # a string with a lone surrogate, which no bytes can carry
        return str(body).encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedRequest(f"the request cannot be written as JSON: {error}") from None


def _encode(value: object, order: Literal["sorted"] | None = None) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=_dump_sdk_object, order=order)
    except UnicodeEncodeError:  # a lone surrogate: the escapes of the standard library can say it
        return json.dumps(value, default=_dump_sdk_object, sort_keys=order is not None).encode("ascii")


def _dump_sdk_object(value: object) -> object:
    """An SDK's own message objects as the JSON that they are sent as."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json", exclude_none=True)
    raise TypeError(f"{type(value).__name__} is not JSON")


def parse_fields(data: bytes) -> dict[str, msgspec.Raw]:
    """The top-level fields of a request body, each with its own bytes.

    Raises:
        MalformedRequest: not a JSON object in UTF-8.
    """
    return _parse_fields(data.removeprefix(codecs.BOM_UTF8))


def parse_inner_fields(raw: msgspec.Raw | bytes | None) -> dict[str, msgspec.Raw]:
    """The fields of an object inside a body, each with its own bytes; none where it is something else."""
    return _parse_fields(raw) if raw is not None and _starts_with(raw, b"{") else {}


def _parse_fields(raw: msgspec.Raw | bytes) -> dict[str, msgspec.Raw]:
    is_large = len(raw) >= large_json.LARGE_BYTES
    return _parse_large(large_json.parse_fields, raw) if is_large else _decode(_FIELDS_DECODER, raw)


def parse_items(raw: msgspec.Raw | bytes | None) -> tuple[bytes, ...]:
    """The bytes of each item of a JSON list; nothing where there is no list."""
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
    """The bytes of each message in the list that stands under `name`.

    Raises:
        MalformedRequest: it is no list, or holds something else than objects.
    """
    if raw is None:
        return ()
    found = parse_items(raw)
    if not found and not is_list(raw):
        raise MalformedRequest(f"`{name}` is {json_type_name(parse_json(raw))}, where a list is expected")
    for position, entry in enumerate(found):
        if not entry.startswith(b"{"):
            kind = json_type_name(parse_json(entry))
            raise MalformedRequest(f"`{name}[{position}]` is {kind}, where an object is expected")
    return found


def parse_message_object(raw: bytes) -> dict[str, Any]:
    """One message as a dict.

    Raises:
        MalformedRequest: it is no object.
    """
    message = parse_json(raw)
    if not isinstance(message, dict):
        raise MalformedRequest(f"a message is {json_type_name(message)}, where an object is expected")
    return message


def parse_json(raw: msgspec.Raw | bytes | None) -> Any:
    """What a piece of JSON says, as plain Python; None where there is none."""
    if raw is None:
        return None
    is_large = len(raw) >= large_json.LARGE_BYTES
    return _parse_large(large_json.parse_json, raw) if is_large else _decode(_VALUE_DECODER, raw)


def read_role(message: bytes) -> str:
    """Who speaks; nobody where the message does not say.

    Raises:
        MalformedRequest: it cannot be read, or is no object.
    """
    if len(message) >= large_json.LARGE_BYTES:
        return as_text(parse_json(parse_fields(message).get("role")))
    return as_text(_decode(_ROLE_DECODER, message).role)


def is_set(raw: msgspec.Raw | bytes | None) -> bool:
    """Whether a field says anything. An empty object does: it asks for what it is named after."""
    return parse_json(raw) not in (None, False, "", [])


def parse_object(raw: msgspec.Raw | bytes | None) -> dict[str, Any]:
    """A JSON object as a dict; an empty one where it is something else."""
    return as_dict(parse_json(raw))


def as_dict(value: object) -> dict[str, Any]:
    """`found` if it is a dict, otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """`found` if it is a list, otherwise an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """`found` if it is a string, otherwise an empty one."""
    return value if isinstance(value, str) else ""


def json_type_name(value: object) -> str:
    """What JSON calls a value, with its article."""
    return next(name for kind, name in _JSON_TYPE_NAMES.items() if isinstance(value, kind))


def make_opaque(block: object) -> Opaque:
    """A block that is not read, under the name it gives itself or, without one, what JSON calls it."""
    return Opaque(as_text(as_dict(block).get("type")) or json_type_name(block), to_json(block))


def is_list(raw: msgspec.Raw | bytes) -> bool:
    """Whether a piece of JSON is a list."""
    return _starts_with(raw, b"[")


def _starts_with(raw: msgspec.Raw | bytes, prefix: bytes) -> bool:
    """Whether a piece of JSON begins with `sign`; a copy is made of its head alone, for it can be long."""
    head = bytes(memoryview(raw)[:_HEAD_BYTES]).lstrip(_WHITESPACE)
    return (head or bytes(raw).lstrip(_WHITESPACE)).startswith(prefix)


def to_json(value: object, *, order: Literal["sorted"] | None = None) -> bytes:
    """`found` as JSON without spaces, with its keys in an `order` of their own or as they are."""
    return (
        large_json.to_json(value, order=order) if large_json.is_writing_in_pieces() else _encode(value, order)
    )


def _decode(decoder: "msgspec.json.Decoder[Decoded]", data: msgspec.Raw | bytes) -> Decoded:
    try:
        return decoder.decode(data)
    except _DECODE_ERRORS:
        return _decode_repaired(decoder, data)


def _decode_repaired(decoder: "msgspec.json.Decoder[Decoded]", data: msgspec.Raw | bytes) -> Decoded:
    """The same of what cannot be read as it is: mended where half a character is all that is wrong with it."""
    try:
        return decoder.decode(repair_surrogates(bytes(data)))
    except _DECODE_ERRORS as error:
        raise _malformed(error) from None


def _parse_large(parse: Callable[[bytes], Decoded], data: msgspec.Raw | bytes) -> Decoded:
    """The same of what is large."""
    try:
        return parse(data if type(data) is bytes else large_json.copy_bytes(data))
    except _DECODE_ERRORS as error:
        raise _malformed(error) from None


def _malformed(error: Exception) -> MalformedRequest:
    if isinstance(error, msgspec.ValidationError):
        is_number = "out of range" in str(error)
        reason = f"it cannot be read: {error}" if is_number else "not an object"
        return MalformedRequest(f"the request is JSON, but {reason}")
    if isinstance(error, UnicodeDecodeError):
        return MalformedRequest("the request is not UTF-8")
    if isinstance(error, RecursionError):
        return MalformedRequest(TOO_DEEP_MESSAGE)
    return MalformedRequest(f"the request is not JSON: {error}")


def select_fields(body: bytes, names: frozenset[str], **added: object) -> bytes:
    """A body with only the top-level fields in `names`, each as it came, and with `added` in front."""
    selected = {name: raw for name, raw in parse_fields(body).items() if name in names and name not in added}
    return _encode({**added, **selected})
