"""Where the brackets and commas of a large JSON text are, found slice by slice.

numpy does the work, and lets other threads run meanwhile.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from numpy import int64, uint8
    from numpy.typing import NDArray

OPEN, CLOSE, COMMA = 1, 2, 3

MAX_DEPTH = 1000
"""As many levels as msgspec follows."""

_QUOTE_BYTE, _BACKSLASH = b'"'[0], b"\\"[0]
_TOKEN_KINDS = bytes(
    {b"["[0]: OPEN, b"{"[0]: OPEN, b"]"[0]: CLOSE, b"}"[0]: CLOSE, b","[0]: COMMA}.get(sign, 0)
    for sign in range(256)
)


class TokenSlice(NamedTuple):
    """The brackets and commas of one slice, outside strings: positions, kinds, and the depth after each."""

    positions: "NDArray[int64]"
    kinds: "NDArray[uint8]"
    depths: "NDArray[int64]"


def scan_tokens(data: bytes, start: int, end: int, slice_bytes: int) -> Iterator[TokenSlice]:
    """The tokens of a JSON text in `data`; slices without any are left out.

    Raises:
        RecursionError: it is nested so deeply that nobody could follow.
    """
    import numpy as np  # a quarter of a second where nothing else needs it

    depth_changes = np.array([0, 1, -1, 0], np.int64)
    depth, in_string, is_escaped, at = 0, False, False, start
    while at < end:
        stop = min(at + slice_bytes, end)
        if in_string and not is_escaped:
            quote = data.find(_QUOTE_BYTE, at, stop)
            backslash = data.find(_BACKSLASH, at, stop if quote < 0 else quote)
            if backslash < 0:  # long strings are mostly of this kind, and skipped at the speed of memory
                in_string, at = quote < 0, stop if quote < 0 else quote + 1
                continue
        piece = np.frombuffer(data, np.uint8, stop - at, at)
        is_quote = piece == _QUOTE_BYTE
        escaped = _find_escaped(piece, is_escaped=is_escaped)
        is_escaped = len(escaped) > 0 and int(escaped[-1]) == len(piece)
        is_quote[escaped[:-1] if is_escaped else escaped] = False
        quotes = np.flatnonzero(is_quote)
        kinds = np.frombuffer(data[at:stop].translate(_TOKEN_KINDS), np.uint8)
        found = np.flatnonzero(kinds != 0)
        found = found[(np.searchsorted(quotes, found) + in_string) % 2 == 0]
        in_string = bool((len(quotes) + in_string) % 2)
        if len(found):
            kinds = kinds[found]
            depths = np.cumsum(depth_changes[kinds]) + depth
            depth = int(depths[-1])
            if depths.max() > MAX_DEPTH:
                raise RecursionError
            yield TokenSlice(found + at, kinds, depths)
        at = stop


def _find_escaped(piece: "NDArray[uint8]", *, is_escaped: bool) -> "NDArray[int64]":
    """The places behind an odd number of backslashes; the last one may be behind the end."""
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
