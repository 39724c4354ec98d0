"""JSON in and out of a request body, keeping the bytes of every part that is only passed on."""

import codecs
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from foveate.errors import MalformedRequest
from foveate.values import Opaque
from foveate.wire import large_json
from foveate.wire.surrogates import repaired

# A field is a piece of the body that it came in, or its bytes.
Fields = Mapping[str, msgspec.Raw | bytes]

Decoded = TypeVar("Decoded")

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

TOO_DEEP = "the request is nested too deeply"

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE = msgspec.json.Decoder()


class _Spoken(msgspec.Struct):
    """Of a message, who speaks."""

    role: Any = None


_SPOKEN = msgspec.json.Decoder(_Spoken)

_BLANKS = b" \t\r\n"
_HEAD_BYTES = 64

_KINDS: dict[type, str] = {
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
        return msgspec.json.encode(value, enc_hook=_plain, order=order)
    except UnicodeEncodeError:  # a lone surrogate: the escapes of the standard library can say it
        return json.dumps(value, default=_plain, sort_keys=order is not None).encode("ascii")


def _plain(value: object) -> object:
    """An SDK's own message objects as the JSON that they are sent as."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json", exclude_none=True)
    raise TypeError(f"{type(value).__name__} is not JSON")


def fields(data: bytes) -> dict[str, msgspec.Raw]:
    """The top-level fields of a request body, each with its own bytes.

    Raises:
        MalformedRequest: not a JSON object in UTF-8.
    """
    return _fields(data.removeprefix(codecs.BOM_UTF8))


def inner_fields(raw: msgspec.Raw | bytes | None) -> dict[str, msgspec.Raw]:
    """The fields of an object inside a body, each with its own bytes; none where it is something else."""
    return _fields(raw) if raw is not None and _begins(raw, b"{") else {}


def _fields(raw: msgspec.Raw | bytes) -> dict[str, msgspec.Raw]:
    is_large = len(raw) >= large_json.LARGE_BYTES
    return _in_pieces(large_json.fields, raw) if is_large else _decoded(_FIELDS, raw)


def items(raw: msgspec.Raw | bytes | None) -> tuple[bytes, ...]:
    """The bytes of each item of a JSON list; nothing where there is no list."""
    if raw is None:
        return ()
    if len(raw) >= large_json.LARGE_BYTES:
        return tuple(_in_pieces(large_json.items, raw)) if is_list(raw) else ()
    try:
        found = _ITEMS.decode(raw)
    except _UNREADABLE:
        if not is_list(raw):
            return ()
        found = _leniently(_ITEMS, raw)
    return tuple(map(bytes, found))


def entries(raw: msgspec.Raw | bytes | None, name: str) -> tuple[bytes, ...]:
    """The bytes of each message in the list that stands under `name`.

    Raises:
        MalformedRequest: it is no list, or holds something else than objects.
    """
    if raw is None:
        return ()
    found = items(raw)
    if not found and not is_list(raw):
        raise MalformedRequest(f"`{name}` is {kind_of(value(raw))}, where a list is expected")
    for position, entry in enumerate(found):
        if not entry.startswith(b"{"):
            kind = kind_of(value(entry))
            raise MalformedRequest(f"`{name}[{position}]` is {kind}, where an object is expected")
    return found


def message_record(raw: bytes) -> dict[str, Any]:
    """One message as a dict.

    Raises:
        MalformedRequest: it is no object.
    """
    found = value(raw)
    if not isinstance(found, dict):
        raise MalformedRequest(f"a message is {kind_of(found)}, where an object is expected")
    return found


def value(raw: msgspec.Raw | bytes | None) -> Any:
    """What a piece of JSON says, as plain Python; None where there is none."""
    if raw is None:
        return None
    is_large = len(raw) >= large_json.LARGE_BYTES
    return _in_pieces(large_json.value, raw) if is_large else _decoded(_VALUE, raw)


def role_of(message: bytes) -> str:
    """Who speaks; nobody where the message does not say.

    Raises:
        MalformedRequest: it cannot be read, or is no object.
    """
    if len(message) >= large_json.LARGE_BYTES:
        return as_text(value(fields(message).get("role")))
    return as_text(_decoded(_SPOKEN, message).role)


def is_said(raw: msgspec.Raw | bytes | None) -> bool:
    """Whether a field says anything. An empty object does: it asks for what it is named after."""
    return value(raw) not in (None, False, "", [])


def record(raw: msgspec.Raw | bytes | None) -> dict[str, Any]:
    """A JSON object as a dict; an empty one where it is something else."""
    return as_record(value(raw))


def as_record(found: object) -> dict[str, Any]:
    """`found` if it is a dict, otherwise an empty one."""
    return found if isinstance(found, dict) else {}


def as_list(found: object) -> list[Any]:
    """`found` if it is a list, otherwise an empty one."""
    return found if isinstance(found, list) else []


def as_text(found: object) -> str:
    """`found` if it is a string, otherwise an empty one."""
    return found if isinstance(found, str) else ""


def kind_of(found: object) -> str:
    """What JSON calls a value, with its article."""
    return next(name for kind, name in _KINDS.items() if isinstance(found, kind))


def opaque(block: object) -> Opaque:
    """A block that is not read, under the name it gives itself or, without one, what JSON calls it."""
    return Opaque(as_text(as_record(block).get("type")) or kind_of(block), compact(block))


def is_list(raw: msgspec.Raw | bytes) -> bool:
    """Whether a piece of JSON is a list."""
    return _begins(raw, b"[")


def _begins(raw: msgspec.Raw | bytes, sign: bytes) -> bool:
    """Whether a piece of JSON begins with `sign`; a copy is made of its head alone, for it can be long."""
    head = bytes(memoryview(raw)[:_HEAD_BYTES]).lstrip(_BLANKS)
    return (head or bytes(raw).lstrip(_BLANKS)).startswith(sign)


def compact(found: object, *, order: Literal["sorted"] | None = None) -> bytes:
    """`found` as JSON without spaces, with its keys in an `order` of their own or as they are."""
    return large_json.encode(found, order=order) if large_json.writes_in_pieces() else _encode(found, order)


def _decoded(decoder: "msgspec.json.Decoder[Decoded]", data: msgspec.Raw | bytes) -> Decoded:
    try:
        return decoder.decode(data)
    except _UNREADABLE:
        return _leniently(decoder, data)


def _leniently(decoder: "msgspec.json.Decoder[Decoded]", data: msgspec.Raw | bytes) -> Decoded:
    """The same of what cannot be read as it is: mended where half a character is all that is wrong with it."""
    try:
        return decoder.decode(repaired(bytes(data)))
    except _UNREADABLE as error:
        raise _malformed(error) from None


def _in_pieces(read: Callable[[bytes], Decoded], data: msgspec.Raw | bytes) -> Decoded:
    """The same of what is large."""
    try:
        return read(data if type(data) is bytes else large_json.copied(data))
    except _UNREADABLE as error:
        raise _malformed(error) from None


def _malformed(error: Exception) -> MalformedRequest:
    if isinstance(error, msgspec.ValidationError):
        is_number = "out of range" in str(error)
        reason = f"it cannot be read: {error}" if is_number else "not an object"
        return MalformedRequest(f"the request is JSON, but {reason}")
    if isinstance(error, UnicodeDecodeError):
        return MalformedRequest("the request is not UTF-8")
    if isinstance(error, RecursionError):
        return MalformedRequest(TOO_DEEP)
    return MalformedRequest(f"the request is not JSON: {error}")


def selected(body: bytes, names: frozenset[str], **added: object) -> bytes:
    """A body with only the top-level fields in `names`, each as it came, and with `added` in front."""
    kept = {name: raw for name, raw in fields(body).items() if name in names and name not in added}
    return _encode({**added, **kept})
