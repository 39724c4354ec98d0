"""Reads and writes JSON texts of many megabytes in pieces.

While msgspec reads or writes, no other thread runs. For up to 30 ms a megabyte the event loop would stand
still, even if a thread reads. Piece by piece it waits a few milliseconds only. The results are the same.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from foveate.errors import DuplicateKey
from foveate.wire.json_tokens import CLOSE, COMMA, OPEN, Tokens, tokens
from foveate.wire.surrogates import repaired

LARGE_BYTES = 1024 * 1024
"""Texts of at least this size are worth reading in pieces."""


class Sizes(NamedTuple):
    """How much is looked at in one go, and from where on a part is large: more than twice that."""

    slice_bytes: int = 256 * 1024
    large_bytes: int = LARGE_BYTES


SIZES = Sizes()

_BLANKS = b" \t\r\n"
_NOT_BLANK = re.compile(rb"[^ \t\r\n]")
_MAX_KEY_BYTES = 64 * 1024
_KEY = re.compile(rb'[ \t\r\n]*+("[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t\r\n]*+:[ \t\r\n]*+', re.DOTALL)
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
_ESCAPE_BYTES = len(rb"\ud83d")
_QUOTE = b'"'[0]

Read = TypeVar("Read")

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_LIST = msgspec.json.Decoder(list[Any])
_TEXT = msgspec.json.Decoder(str)
_VALUE = msgspec.json.Decoder()


def fields(data: bytes, sizes: Sizes = SIZES) -> dict[str, msgspec.Raw]:
    """The members of an object, each with its own bytes. A large one is not looked into.

    Raises:
        msgspec.DecodeError: it is not JSON.
        msgspec.ValidationError: it is not an object.
    """
    start, end = _around(data)
    if not data.startswith(b"{", start):
        return _FIELDS.decode(data)
    found: dict[str, msgspec.Raw] = {}
    for first, last in _groups(data, start, end, sizes):
        if last - first < sizes.large_bytes:
            members: dict[str, msgspec.Raw] = _read(_FIELDS, b"{%b}" % data[first:last])
            found.update(members)
        else:
            key = _key(data, first, last)
            if key is None:
                raise _broken(first)
            found[_read(_TEXT, key[1])] = msgspec.Raw(memoryview(data)[slice(*_around(data, key.end(), last))])
    return found


def items(data: bytes, sizes: Sizes = SIZES) -> list[bytes]:
    """The items of a list, each with its own bytes. A large one is not looked into.

    Raises:
        msgspec.DecodeError: it is not JSON.
        msgspec.ValidationError: it is not a list.
    """
    start, end = _around(data)
    if not data.startswith(b"[", start):
        return list(map(bytes, _RAWS.decode(data)))
    found: list[bytes] = []
    for first, last in _groups(data, start, end, sizes):
        if last - first < sizes.large_bytes:
            raws: list[msgspec.Raw] = _read(_RAWS, b"[%b]" % data[first:last])
            found += map(bytes, raws)
        else:
            first, last = _around(data, first, last)
            found.append(copied(memoryview(data)[first:last], sizes))
    return found


def copied(data: msgspec.Raw | bytes | memoryview, sizes: Sizes = SIZES) -> bytes:
    """The bytes of a part of a text. `bytes` would copy it in one go, at 2 GB a second."""
    view, whole = memoryview(data), BytesIO()
    for at in range(0, len(view), sizes.large_bytes):
        whole.write(view[at : at + sizes.large_bytes])
    return whole.getvalue()


def contains(data: bytes, word: bytes, sizes: Sizes = SIZES) -> bool:
    """Whether a word occurs in a text."""
    overlap = len(word) - 1
    return any(
        data.find(word, at, at + sizes.large_bytes + overlap) >= 0
        for at in range(0, len(data), sizes.large_bytes)
    )


def contains_match(data: bytes, pattern: re.Pattern[bytes], max_bytes: int, sizes: Sizes = SIZES) -> bool:
    """Tell whether a pattern whose matches have at most so many bytes occurs in a text."""
    return any(
        pattern.search(data, at, at + sizes.large_bytes + max_bytes - 1) is not None
        for at in range(0, len(data), sizes.large_bytes)
    )


def _groups(data: bytes, start: int, end: int, sizes: Sizes) -> Iterator[tuple[int, int]]:
    """The inside of a list or an object in pieces: each a few members, or one that is large."""
    at, depth, closed = start + 1, 0, -1
    for found in tokens(data, start, end, sizes.slice_bytes):
        commas = found.positions[(found.kinds == COMMA) & (found.depths == 1)]
        depth = int(found.depths[-1])
        if depth <= 0:
            closed = int(found.positions[found.depths <= 0][0])
        for cut in dict.fromkeys(map(int, commas[:: max(1, len(commas) - 1)])):
            if _first(data, at, cut) == cut:
                raise _broken(cut)
            yield at, cut
            at = cut + 1
        if closed >= 0:
            break
    if closed != end - 1:
        raise _broken(end if closed < 0 else closed)
    if _first(data, at, closed) < closed:
        yield at, closed
    elif at > start + 1:
        raise _broken(closed)


class Readers(NamedTuple):
    """How short pieces are read: some items of a list, and some members of an object."""

    items: Callable[[bytes], list[Any]]
    members: Callable[[bytes], dict[str, Any]]
    are_keys_unique: bool = False


def loads(text: str | bytes) -> Any:
    """What `json.loads` gives, in pieces if the text is large.

    Raises:
        ValueError: it is not JSON.
    """
    if len(text) < LARGE_BYTES:
        return json.loads(text)
    try:
        return value(text.encode() if isinstance(text, str) else text, SIZES, _STANDARD_READERS)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def value(data: bytes, sizes: Sizes = SIZES, readers: Readers | None = None) -> Any:
    """What a text says, as plain Python; `readers` read its pieces if not msgspec.

    Raises:
        msgspec.DecodeError: it is not JSON.
        DuplicateKey: an object has a key twice, and the readers do not allow it.
    """
    start, end = _around(data)
    if data[start : start + 1] not in (b"[", b"{"):
        is_long_string = end - start >= sizes.large_bytes and data.startswith(b'"', start)
        return _string(data, start, end, sizes) if is_long_string else _read(_VALUE, data[start:end])
    built = _Built(data, start, sizes, readers or _READERS)
    depth = 0
    for found in tokens(data, start + 1, end, sizes.slice_bytes):
        for position, edge in _edges(found, depth):
            built.reach(position, edge)
        depth = int(found.depths[-1])
    return built.whole(end)


# An edge behind a value that is complete, besides those that are tokens.
_ENDED = 4


def _edges(found: Tokens, depth_before: int) -> list[tuple[int, int]]:
    """The tokens of a slice between which there are only values that begin and end there.

    These are brackets whose other half is in another slice, and commas before them; and the first and the last
    token, since between two slices there may be a long string.
    """
    import numpy as np

    positions, kinds, depths = found
    lowest_before = np.minimum.accumulate(np.concatenate(([depth_before], depths)))[:-1]
    lowest_after = np.minimum.accumulate(np.concatenate((depths[1:], [depths[-1]]))[::-1])[::-1]
    closes = (kinds == CLOSE) & (depths < lowest_before)
    opens = (kinds == OPEN) & (lowest_after >= depths)
    is_edge = closes | opens
    is_edge[:-1] |= opens[1:] & (kinds[:-1] == COMMA)
    is_edge[0] |= kinds[0] == COMMA
    is_edge[-1] = True
    edges = kinds[is_edge]
    if kinds[-1] == CLOSE and not closes[-1]:
        edges[-1] = _ENDED
    return list(zip(positions[is_edge].tolist(), edges.tolist(), strict=True))


class _Built:
    """A value as it is put together, from one edge to the next."""

    def __init__(self, data: bytes, start: int, sizes: Sizes, readers: Readers) -> None:
        self._data = data
        self._sizes = sizes
        self._readers = readers
        self._at = start + 1
        self._open: list[list[Any] | dict[str, Any]] = [self._empty(start)]
        self._keys: list[str | None] = [None]  # under which each will stand in the one around it
        self._result: Any = None
        self._after = OPEN  # what stands before the next text: an opening, a comma, or the end of a value

    def reach(self, position: int, edge: int) -> None:
        """Add what stands before the next edge."""
        begin, self._at = self._at, position + 1
        if not self._open:
            raise _broken(position)
        if edge == OPEN:
            self._enter(begin, position)
        else:
            self._add(begin, position + 1 if edge == _ENDED else position, edge)
            if edge == CLOSE:
                self._leave(position)
        self._after = _ENDED if edge == CLOSE else edge

    def whole(self, end: int) -> Any:
        """The whole value."""
        if self._open or self._at != end:
            raise _broken(self._at)
        return self._result

    def _enter(self, begin: int, position: int) -> None:
        """Begin a list or an object; in an object its key stands before it."""
        key = None
        if isinstance(self._open[-1], dict):
            found = _key(self._data, begin, position)
            if found is None:
                raise _broken(begin)
            begin, key = found.end(), _read(_TEXT, found[1])
        if self._after == _ENDED or _first(self._data, begin, position) < position:
            raise _broken(position)
        self._keys.append(key)
        self._open.append(self._empty(position))

    def _empty(self, position: int) -> list[Any] | dict[str, Any]:
        return [] if self._data.startswith(b"[", position) else {}

    def _leave(self, position: int) -> None:
        """End the last one that began."""
        ended, key = self._open.pop(), self._keys.pop()
        if self._data[position] != (b"]" if isinstance(ended, list) else b"}")[0]:
            raise _broken(position)
        if not self._open:
            self._result = ended
        elif isinstance(around := self._open[-1], list):
            around.append(ended)
        else:
            self._put(around, {str(key): ended})

    def _add(self, begin: int, position: int, edge: int) -> None:
        """Add members that are complete."""
        begin, position = _around(self._data, begin, position)
        if self._after == _ENDED and begin < position:
            if not self._data.startswith(b",", begin):
                raise _broken(begin)
            begin, position = _around(self._data, begin + 1, position)
            if begin == position:
                raise _broken(begin)
        if begin == position:
            if self._after == COMMA or (self._after == OPEN and edge != CLOSE):
                raise _broken(position)
            return
        into = self._open[-1]
        if isinstance(into, list):
            if self._is_long_string(begin, position):
                into.append(_string(self._data, begin, position, self._sizes))
            else:
                with self._placed():
                    into += self._readers.items(b"[%b]" % self._data[begin:position])
            return
        key = _key(self._data, begin, position)
        start = _first(self._data, key.end(), position) if key is not None else begin
        if key is not None and self._is_long_string(start, position):
            self._put(into, {_read(_TEXT, key[1]): _string(self._data, start, position, self._sizes)})
        else:
            with self._placed():
                members = self._readers.members(b"{%b}" % self._data[begin:position])
            self._put(into, members)

    def _put(self, into: dict[str, Any], members: dict[str, Any]) -> None:
        if self._readers.are_keys_unique and not into.keys().isdisjoint(members):
            path = *self._path(), next(key for key in members if key in into)
            raise DuplicateKey(path)
        into.update(members)

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """Say where in the whole text a duplicate key is that was found in a piece."""
        try:
            yield
        except DuplicateKey as error:
            first, *rest = error.path
            if isinstance(first, int):
                first += len(self._open[-1])
            raise DuplicateKey((*self._path(), first, *rest)) from None

    def _path(self) -> tuple[str | int, ...]:
        """The keys and indexes that lead to the last list or object that began."""
        steps = zip(self._open, self._keys[1:], strict=False)
        return tuple([len(around) if isinstance(around, list) else str(key) for around, key in steps])

    def _is_long_string(self, begin: int, position: int) -> bool:
        """Whether a text is one string: between two slices that have no other tokens, nothing else is long."""
        return position - begin >= self._sizes.large_bytes and self._data.startswith(b'"', begin)


def _string(data: bytes, start: int, end: int, sizes: Sizes) -> str:
    """A string with its quotes."""
    if data[end - 1] != _QUOTE:
        raise _broken(end)
    pieces: list[str] = []
    at, inside_end = start + 1, end - 1
    while at < inside_end:
        stop = _piece_end(data, at, min(at + sizes.slice_bytes, inside_end), inside_end)
        piece: str = _read(_TEXT, b'"%b"' % data[at:stop])
        pieces.append(piece)
        at = stop
    return "".join(pieces)


def _piece_end(data: bytes, at: int, stop: int, end: int) -> int:
    """Where a piece of a string can end, at the latest at `stop`: not within a character or an escape."""
    if stop == end:
        return end
    backslash = data.rfind(b"\\", max(at, stop - _ESCAPE_BYTES + 1), stop)
    if backslash >= 0 and _begins_escape(data, backslash, at):
        size = _ESCAPE_BYTES if data.startswith(b"u", backslash + 1) else 2
        stop = backslash if backslash + size > stop else stop
    while stop > at and data[stop] & 0xC0 == 0x80:
        stop -= 1
    half = stop - _ESCAPE_BYTES
    if half > at and _HIGH_SURROGATE.match(data, half, stop) and _begins_escape(data, half, at):
        stop = half
    return stop if stop > at else end  # it is no text, and msgspec says why


def _begins_escape(data: bytes, backslash: int, floor: int) -> bool:
    """Whether a backslash is not itself escaped; nothing before `floor` matters."""
    before = data[floor:backslash]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 0


def _around(data: bytes, start: int = 0, end: int | None = None) -> tuple[int, int]:
    """Where a text begins and ends, without the blanks around it."""
    end = len(data) if end is None else end
    start = _first(data, start, end)
    while start < end and data[end - 1] in _BLANKS:
        piece = max(start, end - SIZES.slice_bytes)
        end = piece + len(data[piece:end].rstrip(_BLANKS))
    return start, end


def _first(data: bytes, start: int, end: int) -> int:
    """Where the first sign is that is no blank; `end` if there is none."""
    for at in range(start, end, SIZES.slice_bytes):
        found = _NOT_BLANK.search(data, at, min(at + SIZES.slice_bytes, end))
        if found is not None:
            return found.start()
    return end


def _key(data: bytes, start: int, end: int) -> re.Match[bytes] | None:
    """A key and its colon. No server reads a longer one than is looked for."""
    start = _first(data, start, end)
    return _KEY.match(data, start, min(start + _MAX_KEY_BYTES, end))


def _read(decoder: "msgspec.json.Decoder[Read]", data: bytes) -> "Read":
    """What a piece says; half a character in it is mended, as in texts that are not large."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return decoder.decode(repaired(data))


_READERS = Readers(items=lambda piece: _read(_LIST, piece), members=lambda piece: _read(_OBJECT, piece))
_STANDARD_READERS = Readers(items=json.loads, members=json.loads)


def _broken(at: int) -> msgspec.DecodeError:
    return msgspec.DecodeError(f"JSON is malformed: invalid character (byte {at})")


_WRITES_IN_PIECES = ContextVar("writes_in_pieces", default=False)


@contextmanager
def writing_in_pieces() -> Iterator[None]:
    """Have what is written within the block written in pieces if it is large."""
    before = _WRITES_IN_PIECES.set(True)
    try:
        yield
    finally:
        _WRITES_IN_PIECES.reset(before)


def writes_in_pieces() -> bool:
    """Whether a value that is to be written may be large."""
    return _WRITES_IN_PIECES.get()


def encode(found: object, *, order: Literal["sorted"] | None = None, sizes: Sizes = SIZES) -> bytes:
    """A value as JSON without spaces."""
    written = BytesIO()
    for piece in _encoded(found, order, sizes.slice_bytes):
        written.write(piece)
    return written.getvalue()


def _encoded(found: object, order: Literal["sorted"] | None, most: int) -> Iterator[bytes]:
    if isinstance(found, str) and len(found) > most:
        yield b'"'
        for at in range(0, len(found), most):
            yield msgspec.json.encode(found[at : at + most])[1:-1]
        yield b'"'
    elif isinstance(found, list) and _size(found, most) > most:
        yield b"["
        yield from _separated(
            _encoded(batch[0], order, most) if is_large else (msgspec.json.encode(batch, order=order)[1:-1],)
            for batch, is_large in _batches(found, most)
        )
        yield b"]"
    elif isinstance(found, dict) and _size(found, most) > most:
        yield b"{"
        yield from _separated(
            itertools.chain((msgspec.json.encode(name), b":"), _encoded(found[name], order, most))
            for name in (sorted(found) if order else found)
        )
        yield b"}"
    else:
        yield msgspec.json.encode(found, order=order)


def _batches(found: list[Any], most: int) -> Iterator[tuple[list[Any], bool]]:
    """The items of a list, several small ones together, and each large one alone."""
    batch: list[Any] = []
    size = 0
    for one in found:
        own = _size(one, most)
        if batch and size + own > most:
            yield batch, size > most
            batch, size = [], 0
        batch.append(one)
        size += own
    yield batch, size > most


def _separated(members: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    for number, member in enumerate(members):
        if number:
            yield b","
        yield from member


def _size(found: object, most: int) -> int:
    """About how many characters a value has, counted no further than a little over `most`."""
    if isinstance(found, str):
        return len(found)
    size = 1
    if isinstance(found, (list, dict)):
        for one in found:
            size += (
                _size(one, most - size)
                if isinstance(found, list)
                else len(one) + _size(found[one], most - size)
            )
            if size > most:
                break
    return size
