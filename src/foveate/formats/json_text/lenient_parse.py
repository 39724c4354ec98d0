"""Lenient JSON parsing for responses of providers, so that usage is never lost.

Some hosts send values that are not JSON (`NaN`, `-Infinity` as a log probability) or numbers out of range
(`1e999`). Such a response is scanned for its parts, and only the parts that are needed are parsed, with
Python's own parser.
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
    """Return the top-level fields of a response as bytes.

    Raises:
        MalformedRequest: it contains no object.
    """
    try:
        return parse.parse_fields(data)
    except MalformedRequest:
        spans_by_name = offsets.find_members(data, offsets.value_span(data)).values
        return {name: msgspec.Raw(span.read(data)) for name, span in spans_by_name.items()}


def parse_inner_fields_leniently(raw: _Raw | None) -> Fields:
    data = b"" if raw is None else bytes(raw)
    return parse_fields_leniently(data) if data.startswith(b"{") else {}


def parse_items_leniently(raw: _Raw | None) -> tuple[bytes, ...]:
    try:
        return parse.parse_items(raw)
    except MalformedRequest:
        data = b"" if raw is None else bytes(raw)
        return tuple(span.read(data) for span in offsets.find_items(data, offsets.value_span(data)))


def parse_json_leniently(raw: _Raw | None) -> Any:
    """Parse a value. Invalid numbers become Python's infinity or NaN.

    Raises:
        MalformedRequest: it cannot be parsed at all.
    """
    try:
        return parse.parse_json(raw)
    except MalformedRequest as error:
        try:
            return json.loads(bytes(raw or b""), strict=False)
        except (ValueError, RecursionError):
            raise error from None


def parse_object_leniently(raw: _Raw | None) -> dict[str, Any]:
    return as_dict(parse_json_leniently(raw))


def parse_objects_leniently(data: bytes) -> list[Fields]:
    """Return the fields of a response, or of each object in a response that is a list."""
    text = data.removeprefix(codecs.BOM_UTF8)
    if text.startswith(b"{") or not is_list(text):
        return [parse_fields_leniently(text)]
    return [parse_inner_fields_leniently(item) for item in parse_items_leniently(text)]
