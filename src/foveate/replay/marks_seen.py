"""Marks for the cache that a recorded request bears, told from its text."""

import re

from foveate.values import Ttl
from foveate.wire.marks import BREAKPOINT_FIELDS, CACHE_POINT_FIELD

# In a text, the quotes would be escaped.
_QUOTED_NAMES = tuple(f'"{name}"'.encode() for name in (*BREAKPOINT_FIELDS, CACHE_POINT_FIELD))
_LONG_TTL = re.compile(
    rb'"(?:%s)"\s*:\s*\{[^{}]*"ttl"\s*:\s*"1h"' % "|".join((*BREAKPOINT_FIELDS, CACHE_POINT_FIELD)).encode()
)


def find_breakpoint_ttl(text: bytes) -> Ttl | None:
    """For how long the marks in a request's JSON ask to keep it; None where it bears none."""
    if not any(name in text for name in _QUOTED_NAMES):
        return None
    return Ttl.ONE_HOUR if _LONG_TTL.search(text) else Ttl.FIVE_MINUTES
