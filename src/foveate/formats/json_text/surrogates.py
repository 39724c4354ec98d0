"""Repair of lone surrogate escapes in JSON, which no decoder accepts."""

import re

_BACKSLASH = ord("\\")
# Any escaped surrogate, and the second half of a pair.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_LOW_SURROGATE = re.compile(rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HIGH_SURROGATE_DIGITS = b"89abAB"
_ESCAPE_BYTES = len(rb"\ud83d")


def repair_surrogates(data: bytes) -> bytes:
    r"""Replace each lone surrogate escape by `\ufffd`, which has the same length, so offsets stay valid."""
    repaired: bytearray | None = None
    paired_end = 0
    for match in _SURROGATE.finditer(data):
        at = match.start()
        if at < paired_end or _is_escaped(data, at):
            continue
        if data[at + 3] in _HIGH_SURROGATE_DIGITS and _LOW_SURROGATE.match(data, match.end()):
            paired_end = match.end() + _ESCAPE_BYTES
            continue
        repaired = bytearray(data) if repaired is None else repaired
        repaired[at : match.end()] = rb"\ufffd"
    return data if repaired is None else bytes(repaired)


def _is_escaped(data: bytes, at: int) -> bool:
    r"""Return whether the backslash at `at` is itself escaped: `\\ud83d` is a backslash followed by letters."""
    run_start, size = at, 16
    while run_start and data[run_start - 1] == _BACKSLASH:
        run_start = max(at - size, 0)
        run = data[run_start:at]
        if length := len(run.rstrip(b"\\")):
            run_start += length
            break
        size *= 2
    return (at - run_start) % 2 == 1
