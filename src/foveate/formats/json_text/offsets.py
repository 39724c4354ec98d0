"""Where the parts of a JSON text lie in its bytes: the members of an object, the items of a list.

msgspec says quickly how long each part is, but not where. The places follow by walking: over blanks, a key, a
part of known length. Where what was said does not stand there (a repeated key, a lone surrogate that msgspec
does not read), a plain scanner finds the end.

Bytes put in the place of others, everything else staying as it is.
"""

import codecs
import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import msgspec

from foveate.errors import BadEdit, MalformedRequest
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
_BACKSLASH = ord("\\")
_WHITESPACE_BYTES = frozenset(b" \t\r\n")
_AFTER_VALUE = frozenset(b" \t\r\n,]}")


class ByteSpan(
    NamedTuple
):  # made for every message of every request that is edited, and made quicker than a dataclass
    """A stretch of bytes, from `start` up to, not with, `end`."""

    start: int
    end: int

    def read(self, data: bytes) -> bytes:
        """The bytes themselves."""
        return data[self.start : self.end]


class ObjectMembers(NamedTuple):
    """An object: where it lies, where the value under each name lies, and where its last member ends.

    Of a repeated name it is the last one, which is the one that counts.
    """

    span: ByteSpan
    values: Mapping[str, ByteSpan]
    last_end: int


def value_span(data: bytes) -> ByteSpan:
    """Where the one value of a JSON text lies in it, without the blanks and the byte order mark around."""
    start = _skip_whitespace(data, len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0)
    return ByteSpan(start, len(data.rstrip(b" \t\r\n")))


def find_members(data: bytes, span: ByteSpan) -> ObjectMembers:
    """The members of the object at `span`.

    Raises:
        MalformedRequest: what lies there is no JSON object.
    """
    raws: dict[str, Any] = _try_decode(_FIELDS_DECODER, span.read(data)) or {}
    return _walk_members(data, span, lambda name, at: _skip_known_value(data, at, raws.get(name)))


def find_members_and_lists(
    data: bytes, span: ByteSpan, lists: Mapping[str, Sequence[bytes]]
) -> tuple[ObjectMembers, dict[ByteSpan, tuple[ByteSpan, ...]]]:
    """The same without decoding it, for an object that is mostly `lists` of known items; and where these lie.

    Raises:
        MalformedRequest: what lies there is no JSON object.
    """
    list_items: dict[ByteSpan, tuple[ByteSpan, ...]] = {}

    def end(name: str, at: int) -> int:
        known = lists.get(name)
        if known and data.startswith(b"[", at):
            spans = _walk_items(data, at, known)
            closing = _skip_whitespace(data, spans[-1].end) if spans else at
            if data.startswith(b"]", closing):
                list_items[ByteSpan(at, closing + 1)] = tuple(spans)
                return closing + 1
        return find_value_end(data, at)

    return _walk_members(data, span, end), list_items


def find_members_after(data: bytes, before: Mapping[str, ByteSpan], name: str, end: int) -> ObjectMembers:
    """The members of a whole body that begins with those `before`; the last item of the list `name` ends there.

    Raises:
        MalformedRequest: what stands behind it is not the rest of an object.
    """
    closed = _expect(data, _skip_whitespace(data, end), b"]")
    values = {**before, name: ByteSpan(before[name].start, closed)}
    return _walk_more_members(data, value_span(data), values, closed, lambda _, at: find_value_end(data, at))


def _walk_members(data: bytes, span: ByteSpan, find_end: Callable[[str, int], int]) -> ObjectMembers:
    return _walk_more_members(data, span, {}, _expect(data, span.start, b"{"), find_end)


def _walk_more_members(
    data: bytes, span: ByteSpan, values: dict[str, ByteSpan], last_end: int, find_end: Callable[[str, int], int]
) -> ObjectMembers:
    """An object whose first members are `values`, of which the last ends there."""
    key = (_NEXT_KEY if values else _KEY).match(data, last_end)
    while key is not None:
        at = key.end()
        name = _decode_key(key[1], at)
        last_end = find_end(name, at)
        values[name] = ByteSpan(at, last_end)
        key = _NEXT_KEY.match(data, last_end)
    _expect(data, _skip_whitespace(data, last_end), b"}")
    return ObjectMembers(span=span, values=values, last_end=last_end)


def find_items(data: bytes, span: ByteSpan, known: Sequence[bytes] = ()) -> tuple[ByteSpan, ...]:
    """The items of the list at `span`; `known` are their bytes, where somebody has them already.

    Raises:
        MalformedRequest: what lies there is no JSON list.
    """
    raws: Sequence[Any] = known or _try_decode(_ITEMS_DECODER, span.read(data)) or ()
    at = _skip_whitespace(data, _expect(data, span.start, b"["))
    if data.startswith(b"]", at):
        return ()
    spans = _walk_items(data, span.start, raws)
    while True:
        if spans:
            at = _skip_whitespace(data, spans[-1].end)
            if data.startswith(b"]", at):
                return tuple(spans)
            at = _skip_whitespace(data, _expect(data, at, b","))
        spans.append(ByteSpan(at, find_value_end(data, at)))


def _walk_items(data: bytes, start: int, raws: Sequence[Any]) -> list[ByteSpan]:
    """The items of the list at `start`, as far as they are `raws`; a lone surrogate is mended in these."""
    at = _skip_whitespace(data, start + 1)
    if len(raws) > 1 and (evenly_spaced := _match_evenly_spaced(data, at, raws)):
        return evenly_spaced
    spans: list[ByteSpan] = []
    for raw in raws:
        expected = bytes(raw)
        end = at + len(expected)
        if not data.startswith(expected, at) and repair_surrogates(data[at:end]) != expected:
            break
        comma = _COMMA.match(data, end)
        if comma is None:
            if data.startswith(b"]", _skip_whitespace(data, end)):
                spans.append(ByteSpan(at, end))
            break
        spans.append(ByteSpan(at, end))
        at = comma.end()
    return spans


def _match_evenly_spaced(data: bytes, at: int, raws: Sequence[Any]) -> list[ByteSpan]:
    """The same where all of them stand there in the same distance, as most clients write them; else none."""
    comma = _COMMA.match(data, at + len(raws[0]))
    separator = comma[0] if comma is not None else b""
    # One long gap, written between all of them, could take more memory than there is.
    if not separator or len(separator) * (len(raws) - 1) > len(data):
        return []
    if not data.startswith(separator.join(raws), at):
        return []
    spans: list[ByteSpan] = []
    for raw in raws:
        end = at + len(raw)
        spans.append(ByteSpan(at, end))
        at = end + len(separator)
    return spans if data.startswith(b"]", _skip_whitespace(data, spans[-1].end)) else []


def find_value_end(data: bytes, at: int) -> int:
    """Where the value that begins at `at` ends, found without knowing anything of it.

    Raises:
        MalformedRequest: no value begins there, or it does not end.
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
        sign = _STRUCTURE.search(data, end)
        if sign is None:
            raise _malformed_at(at)
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
    """Where the string that begins at `at` ends: mostly at the next quote, otherwise escapes are skipped."""
    if not data.startswith(b'"', at):
        raise _malformed_at(at)
    end = data.find(b'"', at + 1)
    if data[end - 1] != _BACKSLASH and end > 0:
        return end + 1
    string = _STRING.match(data, at)
    if string is None:
        raise _malformed_at(at)
    return string.end()


def _skip_known_value(data: bytes, at: int, raw: Any) -> int:
    """The end of the value at `at`, which is `raw` if it stands there whole."""
    if raw is not None:
        expected = bytes(raw)
        end = at + len(expected)
        if data.startswith(expected, at) and end < len(data) and data[end] in _AFTER_VALUE:
            return end
    return find_value_end(data, at)


def _skip_whitespace(data: bytes, at: int) -> int:
    """The next byte that is not blank."""
    if at < len(data) and data[at] not in _WHITESPACE_BYTES:
        return at
    match = _WHITESPACE.match(data, at)
    return match.end() if match else at


def _expect(data: bytes, at: int, token: bytes) -> int:
    if not data.startswith(token, at):
        raise _malformed_at(at)
    return at + 1


def _decode_key(literal: bytes, at: int) -> str:
    if b"\\" not in literal:
        return literal[1:-1].decode("utf-8", "replace")
    try:
        return str(json.loads(literal.decode("utf-8", "replace"), strict=False))
    except ValueError:  # an escape that is none
        raise _malformed_at(at) from None


def _try_decode(decoder: "msgspec.json.Decoder[Any]", data: bytes) -> Any:
    """What msgspec makes of it; nothing where it is stricter than a provider, and the scanner has to do."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _malformed_at(at: int) -> MalformedRequest:
    return MalformedRequest(f"the request is not JSON at byte {at}")


class Splice(NamedTuple):
    """`put` in the place of what lies from `start` up to `end`."""

    start: int
    end: int
    new: bytes


class Patch:
    """Splices that are being gathered; those for the same place are written in the order they came in."""

    def __init__(self) -> None:
        self._splices: list[Splice] = []
        self._added_members: dict[int, tuple[ObjectMembers, list[bytes]]] = {}

    def replace(self, start: int, end: int, new: bytes) -> None:
        """`new` in the place of what lies from `start` up to `end`."""
        self._splices.append(Splice(start, end, new))

    def set_member(self, owner: ObjectMembers, name: str, new: bytes) -> None:
        """`new` as the value under `name`, in the place of the present one or behind the last member."""
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
        """A list at `span` without the items in `dropped`, and with `added` before those it names."""
        kept = [position for position in range(len(items)) if position not in dropped]
        for before, after in zip([-1, *kept], [*kept, len(items)], strict=True):
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
        """The splices of `other` too."""
        self._splices.extend(other._all_splices())

    def apply(self, data: bytes, span: ByteSpan | None = None) -> bytes:
        """`data`, or what lies at `span` of it, with all splices.

        Raises:
            BadEdit: two of them are for the same bytes.
        """
        at, end = (span.start, span.end) if span else (0, len(data))
        pieces: list[bytes | memoryview] = []
        view = memoryview(data)
        for splice in sorted(self._all_splices(), key=lambda item: (item.start, item.end)):
            if splice.start < at:
                raise BadEdit("two edits are for the same place")
            pieces += (view[at : splice.start], splice.new)
            at = splice.end
        return b"".join((*pieces, view[at:end]))

    def _all_splices(self) -> list[Splice]:
        added = [
            Splice(owner.last_end, owner.last_end, (b"," if owner.values else b"") + b",".join(new))
            for owner, new in self._added_members.values()
        ]
        return self._splices + added
