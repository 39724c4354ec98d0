"""JSON out of a provider's reply, more forgiving than out of a request: the bill in it must not be lost.

Some hosts write what is no JSON (`NaN`, `-Infinity` as a log probability) or no number that fits (`1e999`).
Such a reply is scanned for its parts, and only what is looked at is read, as Python's own reader does.
"""

import codecs
import json
from typing import Any

import msgspec

from foveate.errors import MalformedRequest
from foveate.wire import body, spans
from foveate.wire.body import Fields, as_record, is_list

_Raw = msgspec.Raw | bytes


def fields(data: bytes) -> Fields:
    """The top-level fields of a reply, each with its own bytes.

    Raises:
        MalformedRequest: no object can be found in it.
    """
    try:
        return body.fields(data)
    except MalformedRequest:
        found = spans.members(data, spans.whole(data)).values
        return {name: msgspec.Raw(span.of(data)) for name, span in found.items()}


def inner_fields(raw: _Raw | None) -> Fields:
    """The fields of an object inside a reply; none where it is something else."""
    data = b"" if raw is None else bytes(raw)
    return fields(data) if data.startswith(b"{") else {}


def items(raw: _Raw | None) -> tuple[bytes, ...]:
    """The bytes of each item of a list in a reply; nothing where there is no list."""
    try:
        return body.items(raw)
    except MalformedRequest:
        data = b"" if raw is None else bytes(raw)
        return tuple(span.of(data) for span in spans.items(data, spans.whole(data)))


def value(raw: _Raw | None) -> Any:
    """What a piece of a reply says; a number that is none comes as Python's infinity or nan.

    Raises:
        MalformedRequest: it cannot be read at all.
    """
    try:
        return body.value(raw)
    except MalformedRequest as error:
        try:
            return json.loads(bytes(raw or b""), strict=False)
        except (ValueError, RecursionError):
            raise error from None


def record(raw: _Raw | None) -> dict[str, Any]:
    """An object in a reply as a dict; an empty one where it is something else."""
    return as_record(value(raw))


def objects(data: bytes) -> list[Fields]:
    """The fields of a reply, or of each object in one that is a list."""
    text = data.removeprefix(codecs.BOM_UTF8)
    if text.startswith(b"{") or not is_list(text):
        return [fields(text)]
    return [inner_fields(item) for item in items(text)]
