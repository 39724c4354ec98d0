"""Marks for the cache that a recorded request bears, told from its text."""

import re

from foveate.values import Ttl
from foveate.wire.marks import MEMBERS, POINT

# In a text, the quotes would be escaped.
_NAMES = tuple(f'"{name}"'.encode() for name in (*MEMBERS, POINT))
_LONG = re.compile(rb'"(?:%s)"\s*:\s*\{[^{}]*"ttl"\s*:\s*"1h"' % "|".join((*MEMBERS, POINT)).encode())


def marks_seen(text: bytes) -> Ttl | None:
    """For how long the marks in a request's JSON ask to keep it; None where it bears none."""
    if not any(name in text for name in _NAMES):
        return None
    return Ttl.ONE_HOUR if _LONG.search(text) else Ttl.FIVE_MINUTES
