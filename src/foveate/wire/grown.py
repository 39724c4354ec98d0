"""Requests that go on from one that was read before: only what is new in them is read.

A client sends its whole past with every request, and mostly spells it as it did before. So a body begins with
the same bytes as that of the turn before, up to the end of some message: comparing these takes a hundredth of
the time that reading them would. What stands behind the messages may be another from turn to turn, as may the
last messages themselves, on which clients like to move their cache marks.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from operator import attrgetter
from threading import Lock
from typing import NamedTuple

import msgspec

from foveate.errors import MalformedRequest
from foveate.values import Format, Request
from foveate.wire.around import MESSAGES
from foveate.wire.begun import Begun
from foveate.wire.body import Fields, fields, items
from foveate.wire.duplicate_keys import check_unique_keys
from foveate.wire.heads import Head, Laid
from foveate.wire.spans import Span, members_around, whole
from foveate.wire.spans import items as item_spans

# Larger ones, and those of more objects, are not remembered: they would take the place of many others.
MAX_BYTES = 16 * 1024 * 1024
_MAX_OBJECTS = 25_000
_MUCH_BYTES = 256 * 1024
# Shorter ones are read as quickly.
LEAST_BYTES = 16 * 1024
_KEPT_BYTES = 32 * 1024 * 1024
_KEPT_HEADS = 64
# So much of the first message tells most sessions of one agent apart.
_FIRST_BYTES = 1024
# Of sessions that begin alike the last ones are tried.
_ALIKE = 4
# So much is compared at once, and where it differs, message by message.
_COMPARED_BYTES = 64 * 1024

_end_of = attrgetter("end")


class Read(NamedTuple):
    """A body as it was read: its fields but the messages, and these, with where they lie."""

    fields: Fields
    messages: tuple[bytes, ...]
    laid: Laid


class _Seen(NamedTuple):
    """A body, with its messages and where they lie."""

    body: bytes
    messages: tuple[bytes, ...]
    laid: Laid


def is_huge(data: bytes) -> bool:
    """Whether a body is too large for anything of it to be remembered for the next request."""
    return len(data) > MAX_BYTES or (len(data) > _MUCH_BYTES and data.count(b"{") > _MAX_OBJECTS)


class Grown:
    """The last body of each session, by which its next one is read. Threads may share it."""

    def __init__(self, most_bytes: int = _KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = Lock()
        self.drop()

    def drop(self) -> None:
        """Forget all of them."""
        self._heads: OrderedDict[tuple[Format, bytes], dict[bytes, list[_Seen]]] = OrderedDict()
        self._order: OrderedDict[int, tuple[tuple[Format, bytes], bytes, _Seen]] = OrderedDict()
        self.held_bytes = 0

    def read(self, spoken: Format, data: bytes, check_rest: Callable[[int], None] | None = None) -> Read | None:
        """What a body says that goes on from one that was seen; None where it does not.

        `check_rest` is called with the place behind which the body is new, before that is read. A body that it
        refuses is not remembered: sent again, it would be taken for one that was accepted.
        """
        if len(data) < LEAST_BYTES:
            return None
        for seen in self._alike(spoken, data):
            known = _common(seen, data)
            if known and check_rest is not None:
                check_rest(seen.laid.spans[known - 1].end)
            found = _rest(spoken, seen, known, data) if known else None
            if found is not None:
                with self._lock:
                    self._forget(seen)
                    if len(data) <= MAX_BYTES:
                        self._keep(spoken, data, found.messages, found.laid)
                return found
        return None

    def known_bytes(self, spoken: Format, data: bytes) -> int:
        """How much of a body, from its beginning on, is that of one that was seen."""
        alike = ((seen, _common(seen, data)) for seen in self._alike(spoken, data))
        return max((seen.laid.spans[known - 1].end for seen, known in alike if known), default=0)

    def keep(self, request: Request) -> None:
        """Remember a body that was read whole."""
        name = MESSAGES.get(request.format)
        if name is None or len(request.body) < LEAST_BYTES or not request.messages:
            return
        try:
            root, walked = members_around(request.body, whole(request.body), {name: request.messages})
            spans = walked.get(root.values[name], ()) if name in root.values else ()
            if len(spans) != len(request.messages):
                return
            head = Head(request.body[: spans[0].start], name)
        except MalformedRequest:
            return
        with self._lock:
            self._keep(request.format, request.body, request.messages, Laid(head, Begun(spans)))

    def _alike(self, spoken: Format, data: bytes) -> list[_Seen]:
        """Those that begin with the same head and the same words, the last one first."""
        with self._lock:
            for key in reversed(self._heads):
                if key[0] is spoken and data.startswith(key[1]):
                    size = len(key[1])
                    found = self._heads[key].get(data[size : size + _FIRST_BYTES])
                    if found:
                        return found[: -_ALIKE - 1 : -1]
            return []

    def _keep(self, spoken: Format, data: bytes, messages: tuple[bytes, ...], laid: Laid) -> None:
        head, end = laid.head.data, laid.spans[-1].end
        if end < len(head) + _FIRST_BYTES:
            return
        seen = _Seen(data, messages, laid)
        key, first = (spoken, head), data[len(head) : len(head) + _FIRST_BYTES]
        self._heads.setdefault(key, {}).setdefault(first, []).append(seen)
        self._heads.move_to_end(key)
        self._order[id(seen)] = key, first, seen
        self.held_bytes += len(seen.body)
        while self._order and (self.held_bytes > self._most_bytes or len(self._heads) > _KEPT_HEADS):
            self._forget(next(iter(self._order.values()))[2])

    def _forget(self, seen: _Seen) -> None:
        found = self._order.pop(id(seen), None)
        if found is None:
            return
        key, first, _ = found
        self.held_bytes -= len(seen.body)
        groups = self._heads.get(key, {})
        alike = [other for other in groups.get(first, ()) if other is not seen]
        if alike:
            groups[first] = alike
        else:
            groups.pop(first, None)
        if not groups:
            self._heads.pop(key, None)


def _common(seen: _Seen, data: bytes) -> int:
    """How many messages `data` begins with, of those seen."""
    body, spans = memoryview(seen.body), seen.laid.spans
    same, end = spans[0].start, spans[-1].end
    while same < end and data.startswith(body[same : min(same + _COMPARED_BYTES, end)], same):
        same += _COMPARED_BYTES
    if same >= end:
        return len(spans)
    known = bisect_right(spans, same, key=_end_of)
    while known < len(spans):
        start = spans[known - 1].end if known else spans[0].start
        if not data.startswith(body[start : spans[known].end], start):
            break
        known += 1
    return known


def _rest(spoken: Format, seen: _Seen, known: int, data: bytes) -> Read | None:
    """What a body says of which the first `known` messages are those seen; None where that is not certain."""
    name = MESSAGES[spoken]
    head, seen_spans = seen.laid
    at = seen_spans[known - 1].end
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
        found = fields(shortened)
        check_unique_keys(shortened, [*head.fields, *found])
        listed = bytes(found[name])
        new = items(listed)
        behind = rest[len(listed) - 1 :].lstrip(b" \t\r\n")
        if not rest.startswith(listed[1:]) or not behind.startswith((b",", b"}")):
            return None  # that name stands twice in it, or half an emoji does
        after = fields(b"{" + (behind[1:] if behind.startswith(b",") else behind))
        spans = [Span(start + at - 1, end + at - 1) for start, end in item_spans(listed, whole(listed), new)]
    except (MalformedRequest, msgspec.MsgspecError):
        return None  # whoever reads it whole says why
    if name in after or len(spans) != len(new) or not all(one.startswith(b"{") for one in new):
        return None
    begun = seen_spans if known == len(seen_spans) else Begun(seen_spans[:known])
    return Read(
        fields={**head.fields, **after},
        messages=seen.messages[:known] + new,
        laid=Laid(head, begun.with_more(spans)),
    )


GROWN = Grown()
