"""Limits on the messages, tools, values and nesting of a request.

They are checked before the request is parsed, in time proportional to its size.
"""

import re
from itertools import accumulate

import msgspec

from foveate.errors import RequestLimitExceeded
from foveate.formats.json_text.large_json import (
    COMMA,
    DEFAULT_SIZES,
    LARGE_BYTES,
    MAX_DEPTH,
    OPEN,
    TokenSlice,
    scan_tokens,
)
from foveate.formats.json_text.offsets import ByteSpan

MAX_VALUES = 320_000
"""Maximum number of lists, objects, strings and numbers; each takes up to a hundred bytes in Python.

No request with more fits a context window."""

# A list of numbers contains token ids to embed, not messages.
_NAMED_LIST = re.compile(
    rb'[ \t\r\n]*+("[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t\r\n]*+:[ \t\r\n]*+\[[ \t\r\n]*+[^-0-9]', re.DOTALL
)
_STRING_DECODER = msgspec.json.Decoder(str)
_MAX_NAME_BYTES = 64 * 1024
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DEPTH_CHANGES = [{"[": 1, "{": 1, "]": -1, "}": -1}.get(chr(sign), 0) for sign in range(256)]


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_messages: int = 20_000
    max_tools: int = 2_000
    max_depth: int = 100

    def check(self, data: bytes) -> None:
        """Check a request body. Invalid JSON is left to the parser.

        Raises:
            RequestLimitExceeded: a limit is exceeded.
        """
        if len(data) < LARGE_BYTES and data.count(b",") < self.max_messages:
            self.check_depth(data)
            return
        lists = _ListCounter(min(self.max_tools, self.max_messages))
        depth = values = 1
        try:
            for token_slice in scan_tokens(data, 0, len(data), DEFAULT_SIZES.slice_bytes):
                depth = max(depth, int(token_slice.depths.max()))
                values += int((token_slice.kinds == OPEN).sum() + (token_slice.kinds == COMMA).sum())
                lists.add(token_slice)
        except RecursionError:
            depth = MAX_DEPTH + 1
        for name, number in lists.name_lists(data):
            if name in ("messages", "input"):
                self.check_messages(number, name)
            elif name in ("tools", "functions"):
                self.check_tools(number)
        if depth > self.max_depth:
            raise RequestLimitExceeded("levels of nesting", depth, self.max_depth, setting="max_depth")
        if values > MAX_VALUES:
            raise RequestLimitExceeded("JSON values", values, MAX_VALUES)

    def check_rest(self, data: bytes, span: ByteSpan, depth_before: int) -> None:
        """Check a body of which only `span` was not checked before.

        Raises:
            RequestLimitExceeded: a limit is exceeded.
        """
        rest = span.read(data)
        if len(rest) < LARGE_BYTES and rest.count(b",") < self.max_messages:
            self.check_depth(rest, depth_before)
        else:
            self.check(data)

    def check_messages(self, number: int, name: str = "messages") -> None:
        if number > self.max_messages:
            label = "input items" if name == "input" else name
            raise RequestLimitExceeded(label, number, self.max_messages, setting="max_messages")

    def check_tools(self, number: int) -> None:
        if number > self.max_tools:
            raise RequestLimitExceeded("tools", number, self.max_tools, setting="max_tools")

    def check_depth(self, data: bytes, depth_before: int = 0) -> None:
        """Check the nesting of a small part of a request.

        Raises:
            RequestLimitExceeded: it is nested too deeply.
        """
        if depth_before + data.count(b"{") + data.count(b"[") > self.max_depth:
            depth = nesting_depth(data, depth_before)
            if depth > self.max_depth:
                raise RequestLimitExceeded("levels of nesting", depth, self.max_depth, setting="max_depth")


def nesting_depth(data: bytes, depth_before: int = 0) -> int:
    # Without escaped quotes, every other part between two quotes is outside strings.
    outside = data.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]
    brackets = b"".join(outside).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_DEPTH_CHANGES.__getitem__, brackets), initial=depth_before))


class _ListCounter:
    """Counts the items of top-level lists, and keeps those with at least `min_items`."""

    def __init__(self, min_items: int) -> None:
        self._min_items = min_items
        self._found: list[tuple[int, int]] = []  # start of a member, number of items
        self._start, self._commas = 0, 0  # of the open member

    def add(self, token_slice: TokenSlice) -> None:
        import numpy as np

        self._start = self._start or int(token_slice.positions[0]) + 1
        is_comma = token_slice.kinds == COMMA
        ends = token_slice.positions[is_comma & (token_slice.depths == 1)]
        commas = token_slice.positions[is_comma & (token_slice.depths == 2)]
        if not len(ends):
            self._commas += len(commas)
            return
        before = np.searchsorted(commas, ends)
        counts = np.diff(before, prepend=-self._commas)
        starts = np.concatenate(([self._start], ends[:-1] + 1))
        for place in np.flatnonzero(counts + 1 >= self._min_items):
            self._found.append((int(starts[place]), int(counts[place]) + 1))
        self._start, self._commas = int(ends[-1]) + 1, len(commas) - int(before[-1])

    def name_lists(self, data: bytes) -> list[tuple[str, int]]:
        names: list[tuple[str, int]] = []
        for start, number in (*self._found, (self._start, self._commas + 1)):
            match = _NAMED_LIST.match(data, start, start + _MAX_NAME_BYTES)
            if match is not None:
                try:
                    names.append((_STRING_DECODER.decode(match[1]), number))
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue  # not a valid name
        return names
