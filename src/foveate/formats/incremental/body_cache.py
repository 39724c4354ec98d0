"""Requests that go on from one that was read before: only what is new in them is read.

A client sends its whole past with every request, and mostly spells it as it did before. So a body begins with
the same bytes as that of the turn before, up to the end of some message: comparing these takes a hundredth of
the time that reading them would. What stands behind the messages may be another from turn to turn, as may the
last messages themselves, on which clients like to move their cache marks.

What the requests of a session begin with, up to their first message: the same bytes from turn to turn.

Where things lie in it is found out once, and holds for every body that begins with it.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import attrgetter
from threading import Lock
from typing import NamedTuple

import msgspec

from foveate.caching import register
from foveate.errors import MalformedRequest
from foveate.formats.incremental.envelope import MESSAGE_FIELDS
from foveate.formats.incremental.prefix_list import PrefixList
from foveate.formats.json_text.duplicate_keys import check_unique_keys
from foveate.formats.json_text.offsets import (
    ByteSpan,
    ObjectMembers,
    find_items,
    find_members,
    find_members_after,
    find_members_and_lists,
    value_span,
)
from foveate.formats.json_text.offsets import find_items as item_spans
from foveate.formats.json_text.parse import Fields, parse_fields, parse_items
from foveate.model import Format, Request


class BodyPrefix:
    """The bytes of a body before its first message, and where in them what lies.

    `fields` are those that stand in it, as they came.
    """

    __slots__ = ("_items", "_members", "_message_field", "_values", "data", "fields")

    def __init__(self, data: bytes, message_field: str) -> None:
        """`messages` is the name that these go by.

        Raises:
            MalformedRequest: a body cannot begin so.
        """
        self.data = data
        closed = data + b"0]}"
        self.fields = {name: bytes(raw) for name, raw in parse_fields(closed).items() if name != message_field}
        self._values = find_members(closed, value_span(closed)).values
        self._message_field = message_field
        self._members: dict[ByteSpan, ObjectMembers] = {}
        self._items: dict[ByteSpan, tuple[ByteSpan, ...]] = {}

    def find_root(self, data: bytes, last: ByteSpan) -> ObjectMembers:
        """The members of a body that begins with it, and whose last message lies there.

        Raises:
            MalformedRequest: what stands behind that is not the rest of an object.
        """
        return find_members_after(data, self._values, self._message_field, last.end)

    def contains(self, span: ByteSpan) -> bool:
        """Whether something lies in it."""
        return span.end <= len(self.data)

    def members(self, span: ByteSpan) -> ObjectMembers:
        """Those of an object that lies in it."""
        found = self._members.get(span)
        if found is None:
            found = self._members[span] = find_members(self.data, span)
        return found

    def items(self, span: ByteSpan) -> tuple[ByteSpan, ...]:
        """Those of a list that lies in it."""
        found = self._items.get(span)
        if found is None:
            found = self._items[span] = find_items(self.data, span)
        return found


class MessageOffsets(NamedTuple):
    """Where the messages of a body lie, behind its head."""

    prefix: BodyPrefix
    spans: PrefixList[ByteSpan]

    def matches(self, data: bytes, messages: Sequence[bytes]) -> bool:
        """Whether it is `data` that these messages lie in so."""
        has_same_shape = len(messages) == len(self.spans) and data.startswith(self.prefix.data)
        return has_same_shape and data.startswith(messages[-1], self.spans[-1].start)


# Larger ones, and those of more objects, are not remembered: they would take the place of many others.
MAX_BODY_BYTES = 16 * 1024 * 1024
_MAX_OBJECTS = 25_000
_MIN_COUNTED_BYTES = 256 * 1024
# Shorter ones are read as quickly.
MIN_BODY_BYTES = 16 * 1024
_MAX_CACHE_BYTES = 32 * 1024 * 1024
_MAX_PREFIXES = 64
# So much of the first message tells most sessions of one agent apart.
_FIRST_MESSAGE_BYTES = 1024
# Of sessions that begin alike the last ones are tried.
_MAX_CANDIDATES = 4
# So much is compared at once, and where it differs, message by message.
_COMPARED_CHUNK_BYTES = 64 * 1024

_span_end = attrgetter("end")


class ContinuedBody(NamedTuple):
    """A body as it was read: its fields but the messages, and these, with where they lie."""

    fields: Fields
    messages: tuple[bytes, ...]
    message_offsets: MessageOffsets


class _CachedBody(NamedTuple):
    """A body, with its messages and where they lie."""

    body: bytes
    messages: tuple[bytes, ...]
    message_offsets: MessageOffsets


def is_too_large_to_cache(data: bytes) -> bool:
    """Whether a body is too large for anything of it to be remembered for the next request."""
    return len(data) > MAX_BODY_BYTES or (len(data) > _MIN_COUNTED_BYTES and data.count(b"{") > _MAX_OBJECTS)


class BodyCache:
    """The last body of each session, by which its next one is read. Threads may share it."""

    def __init__(self, max_bytes: int = _MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = Lock()
        self.clear()

    def clear(self) -> None:
        """Forget all of them."""
        self._bodies_by_prefix: OrderedDict[tuple[Format, bytes], dict[bytes, list[_CachedBody]]] = (
            OrderedDict()
        )
        self._order: OrderedDict[int, tuple[tuple[Format, bytes], bytes, _CachedBody]] = OrderedDict()
        self.held_bytes = 0

    def read(
        self, api_format: Format, data: bytes, check_rest: Callable[[int], None] | None = None
    ) -> ContinuedBody | None:
        """What a body says that goes on from one that was seen; None where it does not.

        `check_rest` is called with the place behind which the body is new, before that is read. A body that it
        refuses is not remembered: sent again, it would be taken for one that was accepted.
        """
        if len(data) < MIN_BODY_BYTES:
            return None
        for cached in self._find_candidates(api_format, data):
            known = _count_common_messages(cached, data)
            if known and check_rest is not None:
                check_rest(cached.message_offsets.spans[known - 1].end)
            found = _read_rest(api_format, cached, known, data) if known else None
            if found is not None:
                with self._lock:
                    self._remove(cached)
                    if len(data) <= MAX_BODY_BYTES:
                        self._put(api_format, data, found.messages, found.message_offsets)
                return found
        return None

    def known_bytes(self, api_format: Format, data: bytes) -> int:
        """How much of a body, from its beginning on, is that of one that was seen."""
        candidates = (
            (cached, _count_common_messages(cached, data)) for cached in self._find_candidates(api_format, data)
        )
        return max(
            (cached.message_offsets.spans[known - 1].end for cached, known in candidates if known), default=0
        )

    def put(self, request: Request) -> None:
        """Remember a body that was read whole."""
        name = MESSAGE_FIELDS.get(request.format)
        if name is None or len(request.body) < MIN_BODY_BYTES or not request.messages:
            return
        try:
            root, items_by_span = find_members_and_lists(
                request.body, value_span(request.body), {name: request.messages}
            )
            spans = items_by_span.get(root.values[name], ()) if name in root.values else ()
            if len(spans) != len(request.messages):
                return
            prefix = BodyPrefix(request.body[: spans[0].start], name)
        except MalformedRequest:
            return
        with self._lock:
            self._put(request.format, request.body, request.messages, MessageOffsets(prefix, PrefixList(spans)))

    def _find_candidates(self, api_format: Format, data: bytes) -> list[_CachedBody]:
        """Those that begin with the same head and the same words, the last one first."""
        with self._lock:
            for key in reversed(self._bodies_by_prefix):
                if key[0] is api_format and data.startswith(key[1]):
                    size = len(key[1])
                    found = self._bodies_by_prefix[key].get(data[size : size + _FIRST_MESSAGE_BYTES])
                    if found:
                        return found[: -_MAX_CANDIDATES - 1 : -1]
            return []

    def _put(
        self, api_format: Format, data: bytes, messages: tuple[bytes, ...], message_offsets: MessageOffsets
    ) -> None:
        prefix, end = message_offsets.prefix.data, message_offsets.spans[-1].end
        if end < len(prefix) + _FIRST_MESSAGE_BYTES:
            return
        cached = _CachedBody(data, messages, message_offsets)
        key, first = (api_format, prefix), data[len(prefix) : len(prefix) + _FIRST_MESSAGE_BYTES]
        self._bodies_by_prefix.setdefault(key, {}).setdefault(first, []).append(cached)
        self._bodies_by_prefix.move_to_end(key)
        self._order[id(cached)] = key, first, cached
        self.held_bytes += len(cached.body)
        while self._order and (
            self.held_bytes > self._max_bytes or len(self._bodies_by_prefix) > _MAX_PREFIXES
        ):
            self._remove(next(iter(self._order.values()))[2])

    def _remove(self, cached: _CachedBody) -> None:
        found = self._order.pop(id(cached), None)
        if found is None:
            return
        key, first, _ = found
        self.held_bytes -= len(cached.body)
        groups = self._bodies_by_prefix.get(key, {})
        others = [other for other in groups.get(first, ()) if other is not cached]
        if others:
            groups[first] = others
        else:
            groups.pop(first, None)
        if not groups:
            self._bodies_by_prefix.pop(key, None)


def _count_common_messages(cached: _CachedBody, data: bytes) -> int:
    """How many messages `data` begins with, of those seen."""
    body, spans = memoryview(cached.body), cached.message_offsets.spans
    same, end = spans[0].start, spans[-1].end
    while same < end and data.startswith(body[same : min(same + _COMPARED_CHUNK_BYTES, end)], same):
        same += _COMPARED_CHUNK_BYTES
    if same >= end:
        return len(spans)
    known = bisect_right(spans, same, key=_span_end)
    while known < len(spans):
        start = spans[known - 1].end if known else spans[0].start
        if not data.startswith(body[start : spans[known].end], start):
            break
        known += 1
    return known


def _read_rest(api_format: Format, cached: _CachedBody, known: int, data: bytes) -> ContinuedBody | None:
    """What a body says of which the first `known` messages are those seen; None where that is not certain."""
    name = MESSAGE_FIELDS[api_format]
    prefix, cached_spans = cached.message_offsets
    at = cached_spans[known - 1].end
    rest = data[at:].lstrip(b" \t\r\n")
    if rest.startswith(b","):
        rest = rest[1:].lstrip(b" \t\r\n")
        if not rest.startswith(b"{"):
            return None
    elif not rest.startswith(b"]"):
        return None
    at = len(data) - len(rest)
    try:
        shortened = b'{"%s":[%s' % (name.encode(), rest)  # the body without what was read before
        rest_fields = parse_fields(shortened)
        check_unique_keys(shortened, [*prefix.fields, *rest_fields])
        listed = bytes(rest_fields[name])
        new = parse_items(listed)
        trailing = rest[len(listed) - 1 :].lstrip(b" \t\r\n")
        if not rest.startswith(listed[1:]) or not trailing.startswith((b",", b"}")):
            return None  # that name stands twice in it, or half an emoji does
        trailing_fields = parse_fields(b"{" + (trailing[1:] if trailing.startswith(b",") else trailing))
        spans = [
            ByteSpan(start + at - 1, end + at - 1) for start, end in item_spans(listed, value_span(listed), new)
        ]
    except (MalformedRequest, msgspec.MsgspecError):
        return None  # whoever reads it whole says why
    if (
        name in trailing_fields
        or len(spans) != len(new)
        or not all(message.startswith(b"{") for message in new)
    ):
        return None
    known_spans = cached_spans if known == len(cached_spans) else PrefixList(cached_spans[:known])
    return ContinuedBody(
        fields={**prefix.fields, **trailing_fields},
        messages=cached.messages[:known] + new,
        message_offsets=MessageOffsets(prefix, known_spans.with_more(spans)),
    )


BODY_CACHE = BodyCache()
register(BODY_CACHE)
