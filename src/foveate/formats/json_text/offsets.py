"""Byte offsets of the parts of a JSON text, and patches that replace some of them.

msgspec quickly gives the bytes of each part, but not their position. Positions follow from walking over
whitespace, keys and parts of known length. If the bytes are not found at the expected position (a repeated key,
a lone surrogate that msgspec rejects), a plain scanner finds the end of the value.
"""

import codecs
import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import msgspec

from foveate.errors import BadEdit, MalformedRequest
from foveate.formats.json_text import large_json
from foveate.formats.json_text.parse import to_json
from foveate.formats.json_text.surrogates import repair_surrogates

_FIELDS_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS_DECODER = msgspec.json.Decoder(list[msgspec.Raw])

_WHITESPACE = re.compile(rb"[ \t\r\n]*")
_COMMA = re.compile(rb"[ \t\r\n]*+,[ \t\r\n]*+")
_SCALAR = re.compile(rb'[^ \t\r\n,:\[\]{}"]++')
_STRUCTURE = re.compile(rb'["\[\]{}]')
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_KEY = re.compile(rb"[ \t\r\n]*+(" + _STRING.pattern + rb")[ \t\r\n]*+:[ \t\r\n]*+", re.DOTALL)
_NEXT_KEY = re.compile(rb"[ \t\r\n]*+," + _KEY.pattern, re.DOTALL)
_OPENING = frozenset((b"{", b"["))
_BACKSLASH, _QUOTE = b'\\"'
# An expression holds the interpreter lock, so it searches long strings and whitespace in windows.
_STRING_PART = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_WINDOW_BYTES = 256 * 1024
_WHITESPACE_BYTES = frozenset(b" \t\r\n")
_NO_VALUES: Mapping[str, Any] = {}
_AFTER_VALUE = frozenset(b" \t\r\n,]}")


class ByteSpan(
    NamedTuple
):  # created for every message of an edited request, and faster to create than a dataclass
    """Range of bytes from `start` to `end`, exclusive."""

    start: int
    end: int

    def read(self, data: bytes) -> bytes:
        return data[self.start : self.end]

    def shift(self, offset: int) -> "ByteSpan":
        return ByteSpan(self.start + offset, self.end + offset)


class ObjectMembers(NamedTuple):
    """Span of an object, the spans of its values by name, and the end of its last member.

    For a repeated name, the last value counts.
    """

    span: ByteSpan
    values: Mapping[str, ByteSpan]
    last_end: int


def value_span(data: bytes) -> ByteSpan:
    """Return the span of the JSON value in `data`, without surrounding whitespace and byte order mark."""
    return ByteSpan(*large_json.trim(data, len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0))


def find_members(data: bytes, span: ByteSpan) -> ObjectMembers:
    """Return the members of the object at `span`.

    Raises:
        MalformedRequest: it is not a JSON object.
    """
    if span.end - span.start >= large_json.LARGE_BYTES and (members := _find_large_members(data, span)):
        return members
    raws: dict[str, Any] = _try_decode(_FIELDS_DECODER, span.read(data)) or {}
    return _walk_members(data, span, lambda name, at: _skip_known_value(data, at, raws.get(name)))


def find_members_and_lists(
    data: bytes, span: ByteSpan, lists: Mapping[str, Sequence[bytes]], values: Mapping[str, Any] = _NO_VALUES
) -> tuple[ObjectMembers, dict[ByteSpan, tuple[ByteSpan, ...]]]:
    """Return the members of the object at `span`, and the spans of the items of `lists`, whose bytes are known.

    The object is not decoded, which is faster if it consists mostly of these lists and of `values`, whose bytes
    are known as well.

    Raises:
        MalformedRequest: it is not a JSON object.
    """
    list_items: dict[ByteSpan, tuple[ByteSpan, ...]] = {}

    def end(name: str, at: int) -> int:
        known = lists.get(name)
        if known and data.startswith(b"[", at):
            spans = _walk_items(data, at, known)
            closing = skip_whitespace(data, spans[-1].end) if spans else at
            if data.startswith(b"]", closing):
                list_items[ByteSpan(at, closing + 1)] = tuple(spans)
                return closing + 1
        return _skip_known_value(data, at, values.get(name))

    return _walk_members(data, span, end), list_items


def find_members_after(
    data: bytes, before: Mapping[str, ByteSpan], name: str, end: int, values: Mapping[str, Any] = _NO_VALUES
) -> ObjectMembers:
    """Return the members of a body, given those `before` and the end of the last item of list `name`.

    Values after it are found faster if their bytes are in `values`.

    Raises:
        MalformedRequest: what follows is not the rest of an object.
    """
    closed = _expect(data, skip_whitespace(data, end), b"]")
    spans = {**before, name: ByteSpan(before[name].start, closed)}
    return _walk_more_members(
        data, value_span(data), spans, closed, lambda name, at: _skip_known_value(data, at, values.get(name))
    )


def _walk_members(data: bytes, span: ByteSpan, find_end: Callable[[str, int], int]) -> ObjectMembers:
    return _walk_more_members(data, span, {}, _expect(data, span.start, b"{"), find_end)


def _walk_more_members(
    data: bytes, span: ByteSpan, values: dict[str, ByteSpan], last_end: int, find_end: Callable[[str, int], int]
) -> ObjectMembers:
    while (key := _match_next_key(data, last_end, is_first=not values)) is not None:
        at = skip_whitespace(data, key.end())
        name = _decode_key(key[1], at)
        last_end = find_end(name, at)
        values[name] = ByteSpan(at, last_end)
    _expect(data, skip_whitespace(data, last_end), b"}")
    return ObjectMembers(span=span, values=values, last_end=last_end)


def _match_next_key(data: bytes, at: int, *, is_first: bool) -> re.Match[bytes] | None:
    key = (_KEY if is_first else _NEXT_KEY).match(data, at, at + _WINDOW_BYTES)
    if key is not None:
        return key
    # There may be much whitespace before it.
    at = skip_whitespace(data, at)
    if not is_first:
        at = skip_whitespace(data, at + 1) if data.startswith(b",", at) else len(data)
    return _KEY.match(data, at, at + _WINDOW_BYTES) or _KEY.match(data, at)


def find_items(data: bytes, span: ByteSpan, known: Sequence[bytes] = ()) -> tuple[ByteSpan, ...]:
    """Return the items of the list at `span`; `known` are their bytes, if they are known already.

    Raises:
        MalformedRequest: it is not a JSON list.
    """
    if (
        not known
        and span.end - span.start >= large_json.LARGE_BYTES
        and (items := _find_large_items(data, span))
    ):
        return items
    raws: Sequence[Any] = known or _try_decode(_ITEMS_DECODER, span.read(data)) or ()
    at = skip_whitespace(data, _expect(data, span.start, b"["))
    if data.startswith(b"]", at):
        return ()
    spans = _walk_items(data, span.start, raws)
    while True:
        if spans:
            at = skip_whitespace(data, spans[-1].end)
            if data.startswith(b"]", at):
                return tuple(spans)
            at = skip_whitespace(data, _expect(data, at, b","))
        spans.append(ByteSpan(at, find_value_end(data, at)))


def _find_large_members(data: bytes, span: ByteSpan) -> ObjectMembers | None:
    values: dict[str, ByteSpan] = {}
    last_end = span.start + 1
    try:
        for first, last in large_json.split_members(data, span.start, span.end):
            if last - first < large_json.LARGE_BYTES:
                piece = b"{%b}" % data[first:last]
                members = find_members(piece, ByteSpan(0, len(piece)))
                values |= {name: inner.shift(first - 1) for name, inner in members.values.items()}
                last_end = members.last_end + first - 1
            else:
                name, start, last_end = large_json.find_large_member(data, first, last)
                values[name] = ByteSpan(start, last_end)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return ObjectMembers(span=span, values=values, last_end=last_end)


def _find_large_items(data: bytes, span: ByteSpan) -> tuple[ByteSpan, ...]:
    """Find the items of a large list in pieces; return nothing if it cannot be split."""
    items: list[ByteSpan] = []
    try:
        for first, last in large_json.split_members(data, span.start, span.end):
            if last - first < large_json.LARGE_BYTES:
                piece = b"[%b]" % data[first:last]
                items += [item.shift(first - 1) for item in find_items(piece, ByteSpan(0, len(piece)))]
            else:
                items.append(ByteSpan(*large_json.trim(data, first, last)))
    except (msgspec.DecodeError, RecursionError):
        return ()
    return tuple(items)


def _walk_items(data: bytes, start: int, raws: Sequence[Any]) -> list[ByteSpan]:
    """Return the spans of items as long as they match `raws`, in which lone surrogates may be repaired."""
    at = skip_whitespace(data, start + 1)
    if len(raws) > 1 and (evenly_spaced := _match_evenly_spaced(data, at, raws)):
        return evenly_spaced
    spans: list[ByteSpan] = []
    for raw in raws:
        end = at + len(raw)
        if not data.startswith(memoryview(raw), at) and repair_surrogates(data[at:end]) != bytes(raw):
            break
        comma = _COMMA.match(data, end, end + _WINDOW_BYTES)
        if comma is None:
            if data.startswith(b"]", skip_whitespace(data, end)):
                spans.append(ByteSpan(at, end))
            break
        spans.append(ByteSpan(at, end))
        at = comma.end()
    return spans


def _match_evenly_spaced(data: bytes, at: int, raws: Sequence[Any]) -> list[ByteSpan]:
    """Return the spans if all separators are the same, as most clients write them; otherwise an empty list."""
    end = at + len(raws[0])
    comma = _COMMA.match(data, end, end + _WINDOW_BYTES)
    separator = comma[0] if comma is not None else b""
    # Repeating one very long separator could exhaust the memory.
    if not separator or len(separator) * (len(raws) - 1) > len(data):
        return []
    if not data.startswith(separator.join(raws), at):
        return []
    spans: list[ByteSpan] = []
    for raw in raws:
        end = at + len(raw)
        spans.append(ByteSpan(at, end))
        at = end + len(separator)
    return spans if data.startswith(b"]", skip_whitespace(data, spans[-1].end)) else []


def find_value_end(data: bytes, at: int) -> int:
    """Return the end of the value that starts at `at`, by scanning.

    Raises:
        MalformedRequest: no value starts there, or it does not end.
    """
    first = data[at : at + 1]
    if first == b'"':
        return _find_string_end(data, at)
    if first not in _OPENING:
        scalar = _SCALAR.match(data, at)
        if scalar is None:
            raise _malformed_at(at)
        return scalar.end()
    depth, end = 0, at
    while True:
        sign = _STRUCTURE.search(data, end, end + _WINDOW_BYTES)
        if sign is None:
            end += _WINDOW_BYTES
            if end >= len(data):
                raise _malformed_at(at)
            continue
        end = sign.end()
        if sign[0] == b'"':
            end = _find_string_end(data, end - 1)
        elif sign[0] in _OPENING:
            depth += 1
        else:
            depth -= 1
            if not depth:
                return end


def _find_string_end(data: bytes, at: int) -> int:
    if not data.startswith(b'"', at):
        raise _malformed_at(at)
    end = data.find(b'"', at + 1)
    if data[end - 1] != _BACKSLASH and end > 0:
        return end + 1
    end = at + 1
    while end < len(data) and data[end] != _QUOTE:
        part = _STRING_PART.match(data, end, end + _WINDOW_BYTES)
        if part is None or part.end() == end:
            raise _malformed_at(at)
        end = part.end()
    if end >= len(data):
        raise _malformed_at(at)
    return end + 1


def _skip_known_value(data: bytes, at: int, raw: Any) -> int:
    """Return the end of the value at `at`, which is `raw` if its bytes are found there."""
    if raw is not None:
        end = at + len(raw)
        if data.startswith(memoryview(raw), at) and end < len(data) and data[end] in _AFTER_VALUE:
            return end
    return find_value_end(data, at)


def skip_whitespace(data: bytes, at: int) -> int:
    while at < len(data) and data[at] in _WHITESPACE_BYTES:
        match = _WHITESPACE.match(data, at, at + _WINDOW_BYTES)
        at = match.end() if match else at
    return at


def _expect(data: bytes, at: int, token: bytes) -> int:
    if not data.startswith(token, at):
        raise _malformed_at(at)
    return at + 1


def _decode_key(literal: bytes, at: int) -> str:
    if b"\\" not in literal:
        return literal[1:-1].decode("utf-8", "replace")
    try:
        return str(json.loads(literal.decode("utf-8", "replace"), strict=False))
    except ValueError:  # an invalid escape
        raise _malformed_at(at) from None


def _try_decode(decoder: "msgspec.json.Decoder[Any]", data: bytes) -> Any:
    """Decode with msgspec; return None if it is stricter than providers are."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _malformed_at(at: int) -> MalformedRequest:
    return MalformedRequest(f"the request is not valid JSON at byte {at}")


class Splice(NamedTuple):
    start: int
    end: int
    new: bytes


class Patch:
    """Replacements to apply to a text. Those at the same position are written in the order of addition."""

    def __init__(self) -> None:
        self._splices: list[Splice] = []
        self._added_members: dict[int, tuple[ObjectMembers, list[bytes]]] = {}

    def replace(self, start: int, end: int, new: bytes) -> None:
        self._splices.append(Splice(start, end, new))

    def set_member(self, owner: ObjectMembers, name: str, new: bytes) -> None:
        present = owner.values.get(name)
        if present is not None:
            self.replace(present.start, present.end, new)
        else:
            self._added_members.setdefault(owner.span.start, (owner, []))[1].append(to_json(name) + b":" + new)

    def set_items(
        self,
        span: ByteSpan,
        items: Sequence[ByteSpan],
        *,
        dropped: Set[int],
        added: Mapping[int, Sequence[bytes]],
    ) -> None:
        remaining_positions = [position for position in range(len(items)) if position not in dropped]
        for before, after in zip([-1, *remaining_positions], [*remaining_positions, len(items)], strict=True):
            removed = items[before + 1 : after]
            new = b",".join(item for place in range(before + 1, after + 1) for item in added.get(place, ()))
            if removed and new:
                self.replace(removed[0].start, removed[-1].end, new)
            elif removed and after < len(items):
                self.replace(removed[0].start, items[after].start, b"")
            elif removed:
                self.replace(items[before].end if before >= 0 else removed[0].start, removed[-1].end, b"")
            elif new and after < len(items):
                self.replace(items[after].start, items[after].start, new + b",")
            elif new and items:
                self.replace(items[-1].end, items[-1].end, b"," + new)
            elif new:
                self.replace(span.start + 1, span.start + 1, new)

    def include(self, other: "Patch") -> None:
        self._splices.extend(other._all_splices())

    def apply(self, data: bytes, span: ByteSpan | None = None) -> bytes:
        """Return `data`, or its part at `span`, with all replacements.

        Raises:
            BadEdit: two of them overlap.
        """
        at, end = (span.start, span.end) if span else (0, len(data))
        pieces: list[bytes | memoryview] = []
        view = memoryview(data)
        for splice in sorted(self._all_splices(), key=lambda item: (item.start, item.end)):
            if splice.start < at:
                raise BadEdit("two edits change the same place")
            pieces += (*large_json.cut_large(view[at : splice.start]), splice.new)
            at = splice.end
        return b"".join((*pieces, *large_json.cut_large(view[at:end])))

    def _all_splices(self) -> list[Splice]:
        added = [
            Splice(owner.last_end, owner.last_end, (b"," if owner.values else b"") + b",".join(new))
            for owner, new in self._added_members.values()
        ]
        return self._splices + added
