"""Parse requests that continue an earlier one: only the new bytes are parsed.

A client sends its whole history with every request, usually spelled as before, so a body starts with the same
bytes as that of the previous turn. Comparing them takes a hundredth of the time of parsing. The last messages
may differ, because clients move their cache breakpoints, and so may the fields after the messages.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from foveate.caching import register
from foveate.errors import MalformedRequest
from foveate.formats.incremental.envelope import MESSAGE_FIELDS, get_known_fields
from foveate.formats.json_text.duplicate_keys import check_unique_keys
from foveate.formats.json_text.offsets import (
    ByteSpan,
    ObjectMembers,
    find_items,
    find_members,
    find_members_after,
    find_members_and_lists,
    skip_whitespace,
    value_span,
)
from foveate.formats.json_text.parse import Fields, parse_fields, parse_items
from foveate.model import Format, Request


class BodyPrefix:
    """The bytes of a body before its first message, with its fields and their offsets."""

    __slots__ = ("_message_field", "_values", "data", "fields")

    def __init__(self, data: bytes, message_field: str) -> None:
        """Parse a prefix. `message_field` is the name of the list of messages.

        Raises:
            MalformedRequest: no body can start with it.
        """
        self.data = data
        closed = data + b"0]}"
        self.fields = {name: bytes(raw) for name, raw in parse_fields(closed).items() if name != message_field}
        self._values = find_members(closed, value_span(closed)).values
        self._message_field = message_field

    def find_root(self, data: bytes, last: ByteSpan, fields: Mapping[str, Any]) -> ObjectMembers:
        """Return the members of a body with this prefix whose last message is at `last`.

        `fields` are its other fields, as far as they are known.

        Raises:
            MalformedRequest: what follows is not the rest of an object.
        """
        return find_members_after(data, self._values, self._message_field, last.end, fields)


class MessageOffsets(NamedTuple):
    prefix: BodyPrefix
    spans: tuple[ByteSpan, ...]

    def matches(self, data: bytes, messages: Sequence[bytes]) -> bool:
        has_same_shape = len(messages) == len(self.spans) and data.startswith(self.prefix.data)
        return has_same_shape and data.startswith(messages[-1], self.spans[-1].start)


# Bodies that are larger or have more objects are not cached: they would displace many others.
MAX_BODY_BYTES = 16 * 1024 * 1024
_MAX_OBJECTS = 25_000
_MIN_COUNTED_BYTES = 256 * 1024
# Shorter bodies are parsed as quickly.
MIN_BODY_BYTES = 16 * 1024
_MAX_CACHE_BYTES = 32 * 1024 * 1024
_MAX_PREFIXES = 64
# These bytes of the first message distinguish most sessions of one agent.
_FIRST_MESSAGE_BYTES = 1024
# Of sessions with the same start, the latest are tried.
_MAX_CANDIDATES = 4
# Compared at once; a chunk that differs is compared message by message.
_COMPARED_CHUNK_BYTES = 64 * 1024

_span_end = attrgetter("end")


class _Ending(NamedTuple):
    """The end of a body from the closing bracket of its messages on, and the fields in it.

    Many clients write their tools there, the same ones in each request.
    """

    data: bytes
    fields: Fields


class ContinuedBody(NamedTuple):
    fields: Fields
    messages: tuple[bytes, ...]
    message_offsets: MessageOffsets
    ending: _Ending


class _CachedBody(NamedTuple):
    body: bytes
    messages: tuple[bytes, ...]
    message_offsets: MessageOffsets
    ending: _Ending


def is_too_large_to_cache(data: bytes) -> bool:
    return len(data) > MAX_BODY_BYTES or (len(data) > _MIN_COUNTED_BYTES and data.count(b"{") > _MAX_OBJECTS)


class BodyCache:
    """The last body of each session, from which its next one is parsed. Thread-safe."""

    def __init__(self, max_bytes: int = _MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = Lock()
        self.clear()

    def clear(self) -> None:
        self._bodies_by_prefix: OrderedDict[tuple[Format, bytes], dict[bytes, list[_CachedBody]]] = (
            OrderedDict()
        )
        self._order: OrderedDict[int, tuple[tuple[Format, bytes], bytes, _CachedBody]] = OrderedDict()
        self.held_bytes = 0

    def read(
        self, api_format: Format, data: bytes, check_rest: Callable[[ByteSpan], None] | None = None
    ) -> ContinuedBody | None:
        """Parse a body that continues a cached one; return None if it does not.

        `check_rest` is called with the span of the new bytes before anything is parsed. A body that it rejects
        is not cached, because it would then pass when it is sent again.
        """
        if len(data) < MIN_BODY_BYTES:
            return None
        for cached in self._find_candidates(api_format, data):
            known = _count_common_messages(cached, data)
            if known and check_rest is not None:
                start = cached.message_offsets.spans[known - 1].end
                has_same_ending = data.endswith(cached.ending.data)
                end = len(data) - len(cached.ending.data) if has_same_ending else len(data)
                check_rest(ByteSpan(start, max(start, end)))
            continued = _read_rest(api_format, cached, known, data) if known else None
            if continued is not None:
                with self._lock:
                    self._remove(cached)
                    if len(data) <= MAX_BODY_BYTES:
                        body = _CachedBody(
                            data, continued.messages, continued.message_offsets, continued.ending
                        )
                        self._put(api_format, body)
                return continued
        return None

    def known_bytes(self, api_format: Format, data: bytes) -> int:
        candidates = (
            (cached, _count_common_messages(cached, data)) for cached in self._find_candidates(api_format, data)
        )
        return max(
            (cached.message_offsets.spans[known - 1].end for cached, known in candidates if known), default=0
        )

    def put(self, request: Request) -> None:
        name = MESSAGE_FIELDS.get(request.format)
        if name is None or len(request.body) < MIN_BODY_BYTES or not request.messages:
            return
        try:
            root, items_by_span = find_members_and_lists(
                request.body, value_span(request.body), {name: request.messages}, get_known_fields(request)
            )
            spans = items_by_span.get(root.values[name], ()) if name in root.values else ()
            if len(spans) != len(request.messages):
                return
            prefix = BodyPrefix(request.body[: spans[0].start], name)
            ending_data = request.body[root.values[name].end - 1 :]
            ending_fields = parse_fields(b'{"%s":[%s' % (name.encode(), ending_data))
        except MalformedRequest:
            return
        ending = _Ending(ending_data, {key: raw for key, raw in ending_fields.items() if key != name})
        body = _CachedBody(request.body, request.messages, MessageOffsets(prefix, spans), ending)
        with self._lock:
            self._put(request.format, body)

    def _find_candidates(self, api_format: Format, data: bytes) -> list[_CachedBody]:
        with self._lock:
            for key in reversed(self._bodies_by_prefix):
                if key[0] is api_format and data.startswith(key[1]):
                    size = len(key[1])
                    bodies = self._bodies_by_prefix[key].get(data[size : size + _FIRST_MESSAGE_BYTES])
                    if bodies:
                        return bodies[: -_MAX_CANDIDATES - 1 : -1]
            return []

    def _put(self, api_format: Format, cached: _CachedBody) -> None:
        prefix, end = cached.message_offsets.prefix.data, cached.message_offsets.spans[-1].end
        if end < len(prefix) + _FIRST_MESSAGE_BYTES:
            return
        key, first = (api_format, prefix), cached.body[len(prefix) : len(prefix) + _FIRST_MESSAGE_BYTES]
        self._bodies_by_prefix.setdefault(key, {}).setdefault(first, []).append(cached)
        self._bodies_by_prefix.move_to_end(key)
        self._order[id(cached)] = key, first, cached
        self.held_bytes += len(cached.body) + len(cached.ending.data)
        while self._order and (
            self.held_bytes > self._max_bytes or len(self._bodies_by_prefix) > _MAX_PREFIXES
        ):
            self._remove(next(iter(self._order.values()))[2])

    def _remove(self, cached: _CachedBody) -> None:
        entry = self._order.pop(id(cached), None)
        if entry is None:
            return
        key, first, _ = entry
        self.held_bytes -= len(cached.body) + len(cached.ending.data)
        groups = self._bodies_by_prefix.get(key, {})
        others = [other for other in groups.get(first, ()) if other is not cached]
        if others:
            groups[first] = others
        else:
            groups.pop(first, None)
        if not groups:
            self._bodies_by_prefix.pop(key, None)


def _count_common_messages(cached: _CachedBody, data: bytes) -> int:
    body, spans = memoryview(cached.body), cached.message_offsets.spans
    position, end = spans[0].start, spans[-1].end
    while position < end and data.startswith(
        body[position : min(position + _COMPARED_CHUNK_BYTES, end)], position
    ):
        position += _COMPARED_CHUNK_BYTES
    if position >= end:
        return len(spans)
    known = bisect_right(spans, position, key=_span_end)
    while known < len(spans):
        start = spans[known - 1].end if known else spans[0].start
        if not data.startswith(body[start : spans[known].end], start):
            break
        known += 1
    return known


def _read_rest(api_format: Format, cached: _CachedBody, known: int, data: bytes) -> ContinuedBody | None:
    """Parse a body whose first `known` messages are cached; return None if that is not certain."""
    name = MESSAGE_FIELDS[api_format]
    prefix, cached_spans = cached.message_offsets
    at = cached_spans[known - 1].end
    at = skip_whitespace(data, at)
    if data.startswith(b",", at):
        at = skip_whitespace(data, at + 1)
        if not data.startswith(b"{", at):
            return None
    elif not data.startswith(b"]", at):
        return None
    rest = data[at:]
    has_same_ending = rest.endswith(cached.ending.data)
    if has_same_ending:
        rest = rest[: -len(cached.ending.data)] + b"]}"
    try:
        shortened = b'{"%s":[%s' % (name.encode(), rest)  # the body without the known messages
        rest_fields = parse_fields(shortened)
        check_unique_keys(shortened, [*prefix.fields, *rest_fields])
        list_json = bytes(rest_fields[name])
        new = parse_items(list_json)
        trailing = rest[skip_whitespace(rest, len(list_json) - 1) :]
        if not rest.startswith(list_json[1:]) or not trailing.startswith((b",", b"}")):
            return None  # a duplicate key, or a lone surrogate
        if not has_same_ending:
            trailing_fields = parse_fields(b"{" + (trailing[1:] if trailing.startswith(b",") else trailing))
            ending = _Ending(rest[len(list_json) - 2 :], trailing_fields)
        elif trailing == b"}":
            ending = cached.ending
        else:
            return None  # its bracket closes another list
        spans = [
            ByteSpan(start + at - 1, end + at - 1)
            for start, end in find_items(list_json, value_span(list_json), new)
        ]
    except (MalformedRequest, msgspec.MsgspecError):
        return None  # parsing the whole body reports the problem
    if name in ending.fields or len(spans) != len(new) or not all(message.startswith(b"{") for message in new):
        return None
    return ContinuedBody(
        fields={**prefix.fields, **ending.fields},
        messages=cached.messages[:known] + new,
        message_offsets=MessageOffsets(prefix, (*cached_spans[:known], *spans)),
        ending=ending,
    )


BODY_CACHE = BodyCache()
register(BODY_CACHE)
