"""Parse and write large JSON texts in pieces, so that other threads can run.

msgspec holds the interpreter lock for up to 30 ms per megabyte, which would stop the event loop. In pieces it
holds the lock for a few milliseconds. Brackets and commas are located with numpy, which releases the lock.
Results are the same as those of msgspec.
"""

import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import msgspec

from foveate.errors import DuplicateKey
from foveate.formats.json_text.surrogates import repair_surrogates

if TYPE_CHECKING:
    from numpy import int64, uint8
    from numpy.typing import NDArray

OPEN, CLOSE, COMMA = 1, 2, 3

MAX_DEPTH = 1000
"""Maximum nesting that msgspec supports."""

_QUOTE_BYTE, _BACKSLASH = b'"'[0], b"\\"[0]
_TOKEN_KINDS = bytes(
    {b"["[0]: OPEN, b"{"[0]: OPEN, b"]"[0]: CLOSE, b"}"[0]: CLOSE, b","[0]: COMMA}.get(sign, 0)
    for sign in range(256)
)


class TokenSlice(NamedTuple):
    """Brackets and commas of one slice, outside strings: positions, kinds, and the depth after each."""

    positions: "NDArray[int64]"
    kinds: "NDArray[uint8]"
    depths: "NDArray[int64]"


def scan_tokens(data: bytes, start: int, end: int, slice_bytes: int) -> Iterator[TokenSlice]:
    """Yield the tokens of a JSON text slice by slice. Slices without tokens are skipped.

    Raises:
        RecursionError: the text is nested too deeply.
    """
    import numpy as np  # importing it takes a quarter of a second

    depth_changes = np.array([0, 1, -1, 0], np.int64)
    depth, in_string, is_escaped, at = 0, False, False, start
    while at < end:
        stop = min(at + slice_bytes, end)
        if in_string and not is_escaped:
            quote = data.find(_QUOTE_BYTE, at, stop)
            backslash = data.find(_BACKSLASH, at, stop if quote < 0 else quote)
            if backslash < 0:  # most long strings: skipped at the speed of memory
                in_string, at = quote < 0, stop if quote < 0 else quote + 1
                continue
        piece = np.frombuffer(data, np.uint8, stop - at, at)
        is_quote = piece == _QUOTE_BYTE
        escaped = _find_escaped(piece, is_escaped=is_escaped)
        is_escaped = len(escaped) > 0 and int(escaped[-1]) == len(piece)
        is_quote[escaped[:-1] if is_escaped else escaped] = False
        quotes = np.flatnonzero(is_quote)
        kinds = np.frombuffer(data[at:stop].translate(_TOKEN_KINDS), np.uint8)
        positions = np.flatnonzero(kinds != 0)
        positions = positions[(np.searchsorted(quotes, positions) + in_string) % 2 == 0]
        in_string = bool((len(quotes) + in_string) % 2)
        if len(positions):
            kinds = kinds[positions]
            depths = np.cumsum(depth_changes[kinds]) + depth
            depth = int(depths[-1])
            if depths.max() > MAX_DEPTH:
                raise RecursionError
            yield TokenSlice(positions + at, kinds, depths)
        at = stop


def _find_escaped(piece: "NDArray[uint8]", *, is_escaped: bool) -> "NDArray[int64]":
    """Return the positions after an odd number of backslashes; the last one may be past the end."""
    import numpy as np

    backslashes = np.flatnonzero(piece == _BACKSLASH)
    if is_escaped and len(backslashes) and backslashes[0] == 0:
        backslashes = backslashes[1:]  # it is itself escaped
        is_escaped = False
    if len(backslashes):
        firsts = np.flatnonzero(np.diff(backslashes, prepend=-2) != 1)
        sizes = np.diff(firsts, append=len(backslashes))
        escaped = (backslashes[firsts] + sizes)[sizes % 2 == 1]
    else:
        escaped = backslashes
    return np.concatenate(([0], escaped)) if is_escaped else escaped


# Without numpy, which an installation for the command line need not have, no text counts as large.
LARGE_BYTES = 1024 * 1024 if find_spec("numpy") else sys.maxsize
"""Texts of at least this size are parsed in pieces."""


class SliceSizes(NamedTuple):
    """Bytes processed at once, and the size from which a part is large (more than twice that)."""

    slice_bytes: int = 256 * 1024
    large_bytes: int = LARGE_BYTES


DEFAULT_SIZES = SliceSizes()

_WHITESPACE = b" \t\r\n"
_NOT_WHITESPACE = re.compile(rb"[^ \t\r\n]")
_MAX_KEY_BYTES = 64 * 1024
_KEY = re.compile(rb'[ \t\r\n]*+("[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t\r\n]*+:[ \t\r\n]*+', re.DOTALL)
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")
_ESCAPE_BYTES = len(rb"\ud83d")
_QUOTE = b'"'[0]

Decoded = TypeVar("Decoded")

_FIELDS_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAW_ITEMS_DECODER = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT_DECODER = msgspec.json.Decoder(dict[str, Any])
_LIST_DECODER = msgspec.json.Decoder(list[Any])
_STRING_DECODER = msgspec.json.Decoder(str)
_VALUE_DECODER = msgspec.json.Decoder()


def parse_fields(data: bytes, sizes: SliceSizes = DEFAULT_SIZES) -> dict[str, msgspec.Raw]:
    """Return the members of an object as bytes. Large ones are not checked.

    Raises:
        msgspec.DecodeError: not JSON.
        msgspec.ValidationError: not an object.
    """
    start, end = trim(data)
    if not data.startswith(b"{", start):
        return _FIELDS_DECODER.decode(data)
    fields: dict[str, msgspec.Raw] = {}
    for first, last in split_members(data, start, end, sizes):
        if last - first < sizes.large_bytes:
            members: dict[str, msgspec.Raw] = _decode_piece(_FIELDS_DECODER, b"{%b}" % data[first:last])
            fields.update(members)
        else:
            name, start, end = find_large_member(data, first, last)
            fields[name] = msgspec.Raw(memoryview(data)[start:end])
    return fields


def find_large_member(data: bytes, first: int, last: int) -> tuple[str, int, int]:
    """Return the name of a member, and where its value starts and ends.

    Raises:
        msgspec.DecodeError: it has no name.
    """
    key = _match_key(data, first, last)
    if key is None:
        raise _malformed_at(first)
    return _decode_piece(_STRING_DECODER, key[1]), *trim(data, key.end(), last)


def parse_items(data: bytes, sizes: SliceSizes = DEFAULT_SIZES) -> list[bytes]:
    """Return the items of a list as bytes. Large ones are not checked.

    Raises:
        msgspec.DecodeError: not JSON.
        msgspec.ValidationError: not a list.
    """
    start, end = trim(data)
    if not data.startswith(b"[", start):
        return list(map(bytes, _RAW_ITEMS_DECODER.decode(data)))
    items: list[bytes] = []
    for first, last in split_members(data, start, end, sizes):
        if last - first < sizes.large_bytes:
            raws: list[msgspec.Raw] = _decode_piece(_RAW_ITEMS_DECODER, b"[%b]" % data[first:last])
            items += map(bytes, raws)
        else:
            first, last = trim(data, first, last)
            items.append(copy_bytes(memoryview(data)[first:last], sizes))
    return items


def copy_bytes(data: msgspec.Raw | bytes | memoryview, sizes: SliceSizes = DEFAULT_SIZES) -> bytes:
    """Copy a part of a text. `bytes` would copy it at once, at 2 GB a second."""
    return b"".join(cut_large(memoryview(data), sizes))


def cut_large(data: memoryview, sizes: SliceSizes = DEFAULT_SIZES) -> list[bytes] | list[memoryview]:
    """Return the bytes of a large part in pieces, which `join` copies without the lock; others as they are."""
    if len(data) <= sizes.large_bytes:
        return [data]
    return [bytes(data[at : at + sizes.large_bytes]) for at in range(0, len(data), sizes.large_bytes)]


def contains(data: bytes, word: bytes, sizes: SliceSizes = DEFAULT_SIZES) -> bool:
    if len(data) <= sizes.large_bytes:
        return word in data
    overlap = len(word) - 1
    return any(
        data.find(word, at, at + sizes.large_bytes + overlap) >= 0
        for at in range(0, len(data), sizes.large_bytes)
    )


def contains_match(
    data: bytes, pattern: re.Pattern[bytes], max_bytes: int, sizes: SliceSizes = DEFAULT_SIZES
) -> bool:
    """Search for a pattern whose matches have at most `max_bytes`."""
    return any(
        pattern.search(data, at, at + sizes.large_bytes + max_bytes - 1) is not None
        for at in range(0, len(data), sizes.large_bytes)
    )


def split_members(
    data: bytes, start: int, end: int, sizes: SliceSizes = DEFAULT_SIZES
) -> Iterator[tuple[int, int]]:
    """Split the inside of a list or an object: several small members together, each large one alone.

    Raises:
        msgspec.DecodeError: not a list or an object.
        RecursionError: it is nested too deeply.
    """
    at, depth, closed = start + 1, 0, -1
    for token_slice in scan_tokens(data, start, end, sizes.slice_bytes):
        commas = token_slice.positions[(token_slice.kinds == COMMA) & (token_slice.depths == 1)]
        depth = int(token_slice.depths[-1])
        if depth <= 0:
            closed = int(token_slice.positions[token_slice.depths <= 0][0])
        for comma in dict.fromkeys(map(int, commas[:: max(1, len(commas) - 1)])):
            if _skip_whitespace(data, at, comma) == comma:
                raise _malformed_at(comma)
            yield at, comma
            at = comma + 1
        if closed >= 0:
            break
    if closed != end - 1:
        raise _malformed_at(end if closed < 0 else closed)
    if _skip_whitespace(data, at, closed) < closed:
        yield at, closed
    elif at > start + 1:
        raise _malformed_at(closed)


class PieceReaders(NamedTuple):
    """Parsers of pieces. Strings longer than a piece are replaced by empty ones unless `keeps_long_strings`."""

    items: Callable[[bytes], list[Any]]
    members: Callable[[bytes], dict[str, Any]]
    are_keys_unique: bool = False
    keeps_long_strings: bool = True


def loads(text: str | bytes) -> Any:
    """Parse like `json.loads`, in pieces if the text is large.

    Raises:
        ValueError: not JSON.
    """
    if len(text) < LARGE_BYTES:
        return json.loads(text)
    try:
        return parse_json(text.encode() if isinstance(text, str) else text, DEFAULT_SIZES, _STANDARD_READERS)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def parse_json(data: bytes, sizes: SliceSizes = DEFAULT_SIZES, readers: PieceReaders | None = None) -> Any:
    """Parse a text into Python values. `readers` parse its pieces; msgspec by default.

    Raises:
        msgspec.DecodeError: not JSON.
        DuplicateKey: an object has a key twice, and `readers` do not allow it.
    """
    start, end = trim(data)
    if data[start : start + 1] not in (b"[", b"{"):
        is_long_string = end - start >= sizes.large_bytes and data.startswith(b'"', start)
        return (
            _parse_long_string(data, start, end, sizes)
            if is_long_string
            else _decode_piece(_VALUE_DECODER, data[start:end])
        )
    builder = _ValueBuilder(data, start, sizes, readers or MSGSPEC_READERS)
    depth = 0
    for token_slice in scan_tokens(data, start + 1, end, sizes.slice_bytes):
        for position, edge in _find_edges(token_slice, depth):
            builder.add_until(position, edge)
        depth = int(token_slice.depths[-1])
    return builder.finish(end)


# An edge after a complete value, besides the kinds of tokens.
_VALUE_END = 4


def _find_edges(token_slice: TokenSlice, depth_before: int) -> list[tuple[int, int]]:
    """Return those tokens of a slice between which all values are complete.

    These are brackets whose counterpart is in another slice, commas before them, and the first and last token,
    because a long string may lie between two slices.
    """
    import numpy as np

    positions, kinds, depths = token_slice
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
        edges[-1] = _VALUE_END
    return list(zip(positions[is_edge].tolist(), edges.tolist(), strict=True))


class _ValueBuilder:
    def __init__(self, data: bytes, start: int, sizes: SliceSizes, readers: PieceReaders) -> None:
        self._data = data
        self._sizes = sizes
        self._readers = readers
        self._position = start + 1
        self._open: list[list[Any] | dict[str, Any]] = [self._new_container(start)]
        self._keys: list[str | None] = [None]  # of each open container in its parent
        self._result: Any = None
        self._previous_edge = OPEN  # OPEN, COMMA or _VALUE_END

    def add_until(self, position: int, edge: int) -> None:
        begin, self._position = self._position, position + 1
        if not self._open:
            raise _malformed_at(position)
        if edge == OPEN:
            self._open_container(begin, position)
        else:
            self._add_complete_members(begin, position + 1 if edge == _VALUE_END else position, edge)
            if edge == CLOSE:
                self._close_container(position)
        self._previous_edge = _VALUE_END if edge == CLOSE else edge

    def finish(self, end: int) -> Any:
        if self._open or self._position != end:
            raise _malformed_at(self._position)
        return self._result

    def _open_container(self, begin: int, position: int) -> None:
        key = None
        if isinstance(self._open[-1], dict):
            match = _match_key(self._data, begin, position)
            if match is None:
                raise _malformed_at(begin)
            begin, key = match.end(), _decode_piece(_STRING_DECODER, match[1])
        if self._previous_edge == _VALUE_END or _skip_whitespace(self._data, begin, position) < position:
            raise _malformed_at(position)
        self._keys.append(key)
        self._open.append(self._new_container(position))

    def _new_container(self, position: int) -> list[Any] | dict[str, Any]:
        return [] if self._data.startswith(b"[", position) else {}

    def _close_container(self, position: int) -> None:
        ended, key = self._open.pop(), self._keys.pop()
        if self._data[position] != (b"]" if isinstance(ended, list) else b"}")[0]:
            raise _malformed_at(position)
        if not self._open:
            self._result = ended
        elif isinstance(container := self._open[-1], list):
            container.append(ended)
        else:
            self._add_members(container, {str(key): ended})

    def _add_complete_members(self, begin: int, position: int, edge: int) -> None:
        begin, position = trim(self._data, begin, position)
        if self._previous_edge == _VALUE_END and begin < position:
            if not self._data.startswith(b",", begin):
                raise _malformed_at(begin)
            begin, position = trim(self._data, begin + 1, position)
            if begin == position:
                raise _malformed_at(begin)
        if begin == position:
            if self._previous_edge == COMMA or (self._previous_edge == OPEN and edge != CLOSE):
                raise _malformed_at(position)
            return
        into = self._open[-1]
        if isinstance(into, list):
            if self._is_long_string(begin, position):
                into.append(self._parse_long_string(begin, position))
            else:
                with self._with_whole_path():
                    into += self._readers.items(b"[%b]" % self._data[begin:position])
            return
        key = _match_key(self._data, begin, position)
        start = _skip_whitespace(self._data, key.end(), position) if key is not None else begin
        if key is not None and self._is_long_string(start, position):
            name = _decode_piece(_STRING_DECODER, key[1])
            self._add_members(into, {name: self._parse_long_string(start, position)})
        else:
            with self._with_whole_path():
                members = self._readers.members(b"{%b}" % self._data[begin:position])
            self._add_members(into, members)

    def _add_members(self, into: dict[str, Any], members: dict[str, Any]) -> None:
        if self._readers.are_keys_unique and not into.keys().isdisjoint(members):
            path = *self._path(), next(key for key in members if key in into)
            raise DuplicateKey(path)
        into.update(members)

    @contextmanager
    def _with_whole_path(self) -> Iterator[None]:
        """Complete the path of a duplicate key that was found within a piece."""
        try:
            yield
        except DuplicateKey as error:
            first, *rest = error.path
            if isinstance(first, int):
                first += len(self._open[-1])
            raise DuplicateKey((*self._path(), first, *rest)) from None

    def _path(self) -> tuple[str | int, ...]:
        steps = zip(self._open, self._keys[1:], strict=False)
        return tuple([len(container) if isinstance(container, list) else str(key) for container, key in steps])

    def _parse_long_string(self, begin: int, position: int) -> str:
        if self._readers.keeps_long_strings:
            return _parse_long_string(self._data, begin, position, self._sizes)
        for _ in _decode_long_string(self._data, begin, position, self._sizes):
            pass
        return ""

    def _is_long_string(self, begin: int, position: int) -> bool:
        """Return whether a piece is one string. Only a string can be long without containing tokens."""
        return position - begin >= self._sizes.large_bytes and self._data.startswith(b'"', begin)


def _parse_long_string(data: bytes, start: int, end: int, sizes: SliceSizes) -> str:
    return "".join(_decode_long_string(data, start, end, sizes))


def _decode_long_string(data: bytes, start: int, end: int, sizes: SliceSizes) -> Iterator[str]:
    if data[end - 1] != _QUOTE:
        raise _malformed_at(end)
    at, inside_end = start + 1, end - 1
    while at < inside_end:
        stop = _find_piece_end(data, at, min(at + sizes.slice_bytes, inside_end), inside_end)
        yield _decode_piece(_STRING_DECODER, b'"%b"' % data[at:stop])
        at = stop


def _find_piece_end(data: bytes, at: int, stop: int, end: int) -> int:
    """Return where a piece of a string can end, at most at `stop`: not within a character or an escape."""
    if stop == end:
        return end
    backslash = data.rfind(b"\\", max(at, stop - _ESCAPE_BYTES + 1), stop)
    if backslash >= 0 and _starts_escape(data, backslash, at):
        size = _ESCAPE_BYTES if data.startswith(b"u", backslash + 1) else 2
        stop = backslash if backslash + size > stop else stop
    while stop > at and data[stop] & 0xC0 == 0x80:
        stop -= 1
    half = stop - _ESCAPE_BYTES
    if half > at and _HIGH_SURROGATE.match(data, half, stop) and _starts_escape(data, half, at):
        stop = half
    return stop if stop > at else end  # it is not valid, and msgspec reports why


def _starts_escape(data: bytes, backslash: int, floor: int) -> bool:
    """Return whether a backslash is not itself escaped. Bytes before `floor` do not matter."""
    before = data[floor:backslash]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 0


def trim(data: bytes, start: int = 0, end: int | None = None) -> tuple[int, int]:
    end = len(data) if end is None else end
    start = _skip_whitespace(data, start, end)
    while start < end and data[end - 1] in _WHITESPACE:
        piece = max(start, end - DEFAULT_SIZES.slice_bytes)
        end = piece + len(data[piece:end].rstrip(_WHITESPACE))
    return start, end


def _skip_whitespace(data: bytes, start: int, end: int) -> int:
    for at in range(start, end, DEFAULT_SIZES.slice_bytes):
        match = _NOT_WHITESPACE.search(data, at, min(at + DEFAULT_SIZES.slice_bytes, end))
        if match is not None:
            return match.start()
    return end


def _match_key(data: bytes, start: int, end: int) -> re.Match[bytes] | None:
    """Longer keys than the limit are not read by any server."""
    start = _skip_whitespace(data, start, end)
    return _KEY.match(data, start, min(start + _MAX_KEY_BYTES, end))


def _decode_piece(decoder: "msgspec.json.Decoder[Decoded]", data: bytes) -> "Decoded":
    """Lone surrogates are repaired, as in small texts."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return decoder.decode(repair_surrogates(data))


MSGSPEC_READERS = PieceReaders(
    items=lambda piece: _decode_piece(_LIST_DECODER, piece),
    members=lambda piece: _decode_piece(_OBJECT_DECODER, piece),
)
_STANDARD_READERS = PieceReaders(items=json.loads, members=json.loads)


def _malformed_at(at: int) -> msgspec.DecodeError:
    return msgspec.DecodeError(f"JSON is malformed: invalid character (byte {at})")


_WRITES_IN_PIECES = ContextVar("writes_in_pieces", default=False)


@contextmanager
def writing_in_pieces() -> Iterator[None]:
    """Within this block, `parse.to_json` writes large values in pieces."""
    before = _WRITES_IN_PIECES.set(True)
    try:
        yield
    finally:
        _WRITES_IN_PIECES.reset(before)


def is_writing_in_pieces() -> bool:
    return _WRITES_IN_PIECES.get()


def to_json(
    value: object, *, order: Literal["sorted"] | None = None, sizes: SliceSizes = DEFAULT_SIZES
) -> bytes:
    return b"".join(list(_encode_pieces(value, order, sizes.slice_bytes)))


def _encode_pieces(value: object, order: Literal["sorted"] | None, max_chars: int) -> Iterator[bytes]:
    if isinstance(value, str) and len(value) > max_chars:
        yield b'"'
        for at in range(0, len(value), max_chars):
            yield msgspec.json.encode(value[at : at + max_chars])[1:-1]
        yield b'"'
    elif isinstance(value, list) and _estimate_size(value, max_chars) > max_chars:
        yield b"["
        yield from _join_with_commas(
            _encode_pieces(batch[0], order, max_chars)
            if is_large
            else (msgspec.json.encode(batch, order=order)[1:-1],)
            for batch, is_large in _batches(value, max_chars)
        )
        yield b"]"
    elif isinstance(value, dict) and _estimate_size(value, max_chars) > max_chars:
        yield b"{"
        yield from _join_with_commas(
            itertools.chain((msgspec.json.encode(name), b":"), _encode_pieces(value[name], order, max_chars))
            for name in (sorted(value) if order else value)
        )
        yield b"}"
    else:
        yield msgspec.json.encode(value, order=order)


def _batches(items: list[Any], max_chars: int) -> Iterator[tuple[list[Any], bool]]:
    batch: list[Any] = []
    size = 0
    for item in items:
        item_size = _estimate_size(item, max_chars)
        if batch and size + item_size > max_chars:
            yield batch, size > max_chars
            batch, size = [], 0
        batch.append(item)
        size += item_size
    yield batch, size > max_chars


def _join_with_commas(members: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    for number, member in enumerate(members):
        if number:
            yield b","
        yield from member


def _estimate_size(value: object, max_chars: int) -> int:
    """Estimate the characters of a value, stopping soon after `max_chars`."""
    if isinstance(value, str):
        return len(value)
    size = 1
    if isinstance(value, (list, dict)):
        for member in value:
            size += (
                _estimate_size(member, max_chars - size)
                if isinstance(value, list)
                else len(member) + _estimate_size(value[member], max_chars - size)
            )
            if size > max_chars:
                break
    return size
