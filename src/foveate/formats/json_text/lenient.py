"""JSON out of a provider's reply, more forgiving than out of a request: the bill in it must not be lost.

Some hosts write what is no JSON (`NaN`, `-Infinity` as a log probability) or no number that fits (`1e999`).
Such a reply is scanned for its parts, and only what is looked at is read, as Python's own reader does.
"""

import codecs
import json
from typing import Any

import msgspec

from foveate.errors import MalformedRequest
from foveate.formats.json_text import offsets, parse
from foveate.formats.json_text.parse import Fields, as_dict, is_list

_Raw = msgspec.Raw | bytes


def parse_fields_leniently(data: bytes) -> Fields:
    """The top-level fields of a reply, each with its own bytes.

    Raises:
        MalformedRequest: no object can be found in it.
    """
    try:
        return parse.parse_fields(data)
    except MalformedRequest:
        spans_by_name = offsets.find_members(data, offsets.value_span(data)).values
        return {name: msgspec.Raw(span.read(data)) for name, span in spans_by_name.items()}


def parse_inner_fields_leniently(raw: _Raw | None) -> Fields:
    """The fields of an object inside a reply; none where it is something else."""
    data = b"" if raw is None else bytes(raw)
    return parse_fields_leniently(data) if data.startswith(b"{") else {}


def parse_items_leniently(raw: _Raw | None) -> tuple[bytes, ...]:
    """The bytes of each item of a list in a reply; nothing where there is no list."""
    try:
        return parse.parse_items(raw)
    except MalformedRequest:
        data = b"" if raw is None else bytes(raw)
        return tuple(span.read(data) for span in offsets.find_items(data, offsets.value_span(data)))


def parse_json_leniently(raw: _Raw | None) -> Any:
    """What a piece of a reply says; a number that is none comes as Python's infinity or nan.

    Raises:
        MalformedRequest: it cannot be read at all.
    """
    try:
        return parse.parse_json(raw)
    except MalformedRequest as error:
        try:
            return json.loads(bytes(raw or b""), strict=False)
        except (ValueError, RecursionError):
            raise error from None


def parse_object_leniently(raw: _Raw | None) -> dict[str, Any]:
    """An object in a reply as a dict; an empty one where it is something else."""
    return as_dict(parse_json_leniently(raw))


def parse_objects_leniently(data: bytes) -> list[Fields]:
    """The fields of a reply, or of each object in one that is a list."""
    text = data.removeprefix(codecs.BOM_UTF8)
    if text.startswith(b"{") or not is_list(text):
        return [parse_fields_leniently(text)]
    return [parse_inner_fields_leniently(item) for item in parse_items_leniently(text)]
