"""Lone surrogates in JSON texts: escapes of half a character, which no decoder takes."""

import re

_BACKSLASH = ord("\\")
# Where an escaped surrogate may begin, and the second half of a pair.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_LOW_SURROGATE = re.compile(rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HIGH_DIGITS = b"89abAB"
_ESCAPE_BYTES = len(rb"\ud83d")


def repaired(data: bytes) -> bytes:
    r"""`data` with each lone surrogate escape as `\ufffd`: same length, same offsets."""
    mended: bytearray | None = None
    paired_end = 0
    for match in _SURROGATE.finditer(data):
        at = match.start()
        if at < paired_end or _is_escaped(data, at):
            continue
        if data[at + 3] in _HIGH_DIGITS and _LOW_SURROGATE.match(data, match.end()):
            paired_end = match.end() + _ESCAPE_BYTES
            continue
        mended = bytearray(data) if mended is None else mended
        mended[at : match.end()] = rb"\ufffd"
    return data if mended is None else bytes(mended)


def _is_escaped(data: bytes, at: int) -> bool:
    r"""Whether the backslash at `at` is itself escaped: `\\ud83d` is a backslash, then letters."""
    head, size = at, 16
    while head and data[head - 1] == _BACKSLASH:
        head = max(at - size, 0)
        run = data[head:at]
        if length := len(run.rstrip(b"\\")):
            head += length
            break
        size *= 2
    return (at - head) % 2 == 1
