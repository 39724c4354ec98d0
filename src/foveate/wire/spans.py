"""Where the parts of a JSON text lie in its bytes: the members of an object, the items of a list.

msgspec says quickly how long each part is, but not where. The places follow by walking: over blanks, a key, a
part of known length. Where what was said does not stand there (a repeated key, a lone surrogate that msgspec
does not read), a plain scanner finds the end.
"""

import codecs
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from foveate.errors import MalformedRequest
from foveate.wire.surrogates import repaired

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])

_BLANKS = re.compile(rb"[ \t\r\n]*")
_COMMA = re.compile(rb"[ \t\r\n]*+,[ \t\r\n]*+")
_SCALAR = re.compile(rb'[^ \t\r\n,:\[\]{}"]++')
_SIGN = re.compile(rb'["\[\]{}]')
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_KEY = re.compile(rb"[ \t\r\n]*+(" + _STRING.pattern + rb")[ \t\r\n]*+:[ \t\r\n]*+", re.DOTALL)
_NEXT_KEY = re.compile(rb"[ \t\r\n]*+," + _KEY.pattern, re.DOTALL)
_OPENING = frozenset((b"{", b"["))
_BACKSLASH = ord("\\")
_BLANK = frozenset(b" \t\r\n")
_AFTER_VALUE = frozenset(b" \t\r\n,]}")


class Span(
    NamedTuple
):  # made for every message of every request that is edited, and made quicker than a dataclass
    """A stretch of bytes, from `start` up to, not with, `end`."""

    start: int
    end: int

    def of(self, data: bytes) -> bytes:
        """The bytes themselves."""
        return data[self.start : self.end]


class Members(NamedTuple):
    """An object: where it lies, where the value under each name lies, and where its last member ends.

    Of a repeated name it is the last one, which is the one that counts.
    """

    span: Span
    values: Mapping[str, Span]
    last_end: int


def whole(data: bytes) -> Span:
    """Where the one value of a JSON text lies in it, without the blanks and the byte order mark around."""
    start = _skip(data, len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0)
    return Span(start, len(data.rstrip(b" \t\r\n")))


def members(data: bytes, span: Span) -> Members:
    """The members of the object at `span`.

    Raises:
        MalformedRequest: what lies there is no JSON object.
    """
    raws: dict[str, Any] = _decoded(_FIELDS, span.of(data)) or {}
    return _members(data, span, lambda name, at: _leap(data, at, raws.get(name)))


def members_around(
    data: bytes, span: Span, lists: Mapping[str, Sequence[bytes]]
) -> tuple[Members, dict[Span, tuple[Span, ...]]]:
    """The same without decoding it, for an object that is mostly `lists` of known items; and where these lie.

    Raises:
        MalformedRequest: what lies there is no JSON object.
    """
    found: dict[Span, tuple[Span, ...]] = {}

    def end(name: str, at: int) -> int:
        known = lists.get(name)
        if known and data.startswith(b"[", at):
            walked = _walked(data, at, known)
            closing = _skip(data, walked[-1].end) if walked else at
            if data.startswith(b"]", closing):
                found[Span(at, closing + 1)] = tuple(walked)
                return closing + 1
        return value_end(data, at)

    return _members(data, span, end), found


def members_behind(data: bytes, before: Mapping[str, Span], name: str, end: int) -> Members:
    """The members of a whole body that begins with those `before`; the last item of the list `name` ends there.

    Raises:
        MalformedRequest: what stands behind it is not the rest of an object.
    """
    closed = _past(data, _skip(data, end), b"]")
    values = {**before, name: Span(before[name].start, closed)}
    return _more_members(data, whole(data), values, closed, lambda _, at: value_end(data, at))


def _members(data: bytes, span: Span, end_of: Callable[[str, int], int]) -> Members:
    return _more_members(data, span, {}, _past(data, span.start, b"{"), end_of)


def _more_members(
    data: bytes, span: Span, values: dict[str, Span], last_end: int, end_of: Callable[[str, int], int]
) -> Members:
    """An object whose first members are `values`, of which the last ends there."""
    key = (_NEXT_KEY if values else _KEY).match(data, last_end)
    while key is not None:
        at = key.end()
        name = _name(key[1], at)
        last_end = end_of(name, at)
        values[name] = Span(at, last_end)
        key = _NEXT_KEY.match(data, last_end)
    _past(data, _skip(data, last_end), b"}")
    return Members(span=span, values=values, last_end=last_end)


def items(data: bytes, span: Span, known: Sequence[bytes] = ()) -> tuple[Span, ...]:
    """The items of the list at `span`; `known` are their bytes, where somebody has them already.

    Raises:
        MalformedRequest: what lies there is no JSON list.
    """
    raws: Sequence[Any] = known or _decoded(_ITEMS, span.of(data)) or ()
    at = _skip(data, _past(data, span.start, b"["))
    if data.startswith(b"]", at):
        return ()
    found = _walked(data, span.start, raws)
    while True:
        if found:
            at = _skip(data, found[-1].end)
            if data.startswith(b"]", at):
                return tuple(found)
            at = _skip(data, _past(data, at, b","))
        found.append(Span(at, value_end(data, at)))


def _walked(data: bytes, start: int, raws: Sequence[Any]) -> list[Span]:
    """The items of the list at `start`, as far as they are `raws`; a lone surrogate is mended in these."""
    at = _skip(data, start + 1)
    if len(raws) > 1 and (spread := _spread(data, at, raws)):
        return spread
    found: list[Span] = []
    for raw in raws:
        said = bytes(raw)
        end = at + len(said)
        if not data.startswith(said, at) and repaired(data[at:end]) != said:
            break
        comma = _COMMA.match(data, end)
        if comma is None:
            if data.startswith(b"]", _skip(data, end)):
                found.append(Span(at, end))
            break
        found.append(Span(at, end))
        at = comma.end()
    return found


def _spread(data: bytes, at: int, raws: Sequence[Any]) -> list[Span]:
    """The same where all of them stand there in the same distance, as most clients write them; else none."""
    comma = _COMMA.match(data, at + len(raws[0]))
    between = comma[0] if comma is not None else b""
    # One long gap, written between all of them, could take more memory than there is.
    if not between or len(between) * (len(raws) - 1) > len(data):
        return []
    if not data.startswith(between.join(raws), at):
        return []
    found: list[Span] = []
    for raw in raws:
        end = at + len(raw)
        found.append(Span(at, end))
        at = end + len(between)
    return found if data.startswith(b"]", _skip(data, found[-1].end)) else []


def value_end(data: bytes, at: int) -> int:
    """Where the value that begins at `at` ends, found without knowing anything of it.

    Raises:
        MalformedRequest: no value begins there, or it does not end.
    """
    first = data[at : at + 1]
    if first == b'"':
        return _string_end(data, at)
    if first not in _OPENING:
        scalar = _SCALAR.match(data, at)
        if scalar is None:
            raise _broken(at)
        return scalar.end()
    depth, end = 0, at
    while True:
        sign = _SIGN.search(data, end)
        if sign is None:
            raise _broken(at)
        end = sign.end()
        if sign[0] == b'"':
            end = _string_end(data, end - 1)
        elif sign[0] in _OPENING:
            depth += 1
        else:
            depth -= 1
            if not depth:
                return end


def _string_end(data: bytes, at: int) -> int:
    """Where the string that begins at `at` ends: mostly at the next quote, otherwise escapes are skipped."""
    if not data.startswith(b'"', at):
        raise _broken(at)
    end = data.find(b'"', at + 1)
    if data[end - 1] != _BACKSLASH and end > 0:
        return end + 1
    string = _STRING.match(data, at)
    if string is None:
        raise _broken(at)
    return string.end()


def _leap(data: bytes, at: int, raw: Any) -> int:
    """The end of the value at `at`, which is `raw` if it stands there whole."""
    if raw is not None:
        said = bytes(raw)
        end = at + len(said)
        if data.startswith(said, at) and end < len(data) and data[end] in _AFTER_VALUE:
            return end
    return value_end(data, at)


def _skip(data: bytes, at: int) -> int:
    """The next byte that is not blank."""
    if at < len(data) and data[at] not in _BLANK:
        return at
    blanks = _BLANKS.match(data, at)
    return blanks.end() if blanks else at


def _past(data: bytes, at: int, sign: bytes) -> int:
    if not data.startswith(sign, at):
        raise _broken(at)
    return at + 1


def _name(literal: bytes, at: int) -> str:
    if b"\\" not in literal:
        return literal[1:-1].decode("utf-8", "replace")
    try:
        return str(json.loads(literal.decode("utf-8", "replace"), strict=False))
    except ValueError:  # an escape that is none
        raise _broken(at) from None


def _decoded(decoder: "msgspec.json.Decoder[Any]", data: bytes) -> Any:
    """What msgspec makes of it; nothing where it is stricter than a provider, and the scanner has to do."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _broken(at: int) -> MalformedRequest:
    return MalformedRequest(f"the request is not JSON at byte {at}")
