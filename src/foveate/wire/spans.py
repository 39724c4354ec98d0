"""Where the parts of a JSON text lie in its bytes: the members of an object, the items of a list.

msgspec says quickly how long each part is, but not where. The places follow by walking: over blanks, a key, a
part of known length. Where what was said does not stand there (a repeated key, a lone surrogate that msgspec
does not read), a plain scanner finds the end.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from foveate.errors import MalformedRequest

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])

_BLANKS = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SCALAR = re.compile(rb'[^ \t\r\n,:\[\]{}"]++')
_BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)
_OPENING, _CLOSING = frozenset((b"{", b"[")), frozenset((b"}", b"]"))
_BLANK = frozenset(b" \t\r\n")
_AFTER_VALUE = frozenset(b" \t\r\n,]}")


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of bytes, from `start` up to, not with, `end`."""

    start: int
    end: int

    def of(self, data: bytes) -> bytes:
        """The bytes themselves."""
        return data[self.start : self.end]


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """An object: where it lies, where the value under each name lies, and where its last member ends.

    Of a repeated name it is the last one, which is the one that counts.
    """

    span: Span
    values: Mapping[str, Span]
    last_end: int


def whole(data: bytes) -> Span:
    """Where the one value of a JSON text lies in it, without the blanks around."""
    start = _skip(data, 0)
    return Span(start, len(data.rstrip(b" \t\r\n")))


def members(data: bytes, span: Span) -> Members:
    """The members of the object at `span`.

    Raises:
        MalformedRequest: what lies there is no JSON object.
    """
    raws: dict[str, Any] = _decoded(_FIELDS, span.of(data)) or {}
    values: dict[str, Span] = {}
    at = _skip(data, _past(data, span.start, b"{"))
    last_end = span.start + 1
    while data[at : at + 1] != b"}":
        if values:
            at = _skip(data, _past(data, at, b","))
        key = _STRING.match(data, at)
        if key is None:
            raise _broken(at)
        at = _skip(data, _past(data, _skip(data, key.end()), b":"))
        name = _name(key[0])
        last_end = _leap(data, at, raws.get(name))
        values[name] = Span(at, last_end)
        at = _skip(data, last_end)
    return Members(span=span, values=values, last_end=last_end)


def items(data: bytes, span: Span, known: Sequence[bytes] = ()) -> tuple[Span, ...]:
    """The items of the list at `span`; `known` are their bytes, where somebody has them already.

    Raises:
        MalformedRequest: what lies there is no JSON list.
    """
    raws: Sequence[Any] = known or _decoded(_ITEMS, span.of(data)) or ()
    found: list[Span] = []
    at = _skip(data, _past(data, span.start, b"["))
    while data[at : at + 1] != b"]":
        if found:
            at = _skip(data, _past(data, at, b","))
        end = _leap(data, at, raws[len(found)] if len(found) < len(raws) else None)
        found.append(Span(at, end))
        at = _skip(data, end)
    return tuple(found)


def value_end(data: bytes, at: int) -> int:
    """Where the value that begins at `at` ends, found byte by byte.

    Raises:
        MalformedRequest: no value begins there, or it does not end.
    """
    first = data[at : at + 1]
    if first not in _OPENING:
        scalar = (_STRING if first == b'"' else _SCALAR).match(data, at)
        if scalar is None:
            raise _broken(at)
        return scalar.end()
    depth = 0
    for token in _BRACKET.finditer(data, at):
        if token[0] in _OPENING:
            depth += 1
        elif token[0] in _CLOSING:
            depth -= 1
            if not depth:
                return token.end()
    raise _broken(at)


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


def _name(literal: bytes) -> str:
    if b"\\" not in literal:
        return literal[1:-1].decode("utf-8", "replace")
    return str(json.loads(literal.decode("utf-8", "replace"), strict=False))


def _decoded(decoder: "msgspec.json.Decoder[Any]", data: bytes) -> Any:
    """What msgspec makes of it; nothing where it is stricter than a provider, and the scanner has to do."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _broken(at: int) -> MalformedRequest:
    return MalformedRequest(f"the request is not JSON at byte {at}")
