"""Long counts that let other threads in sooner than the interpreter would by itself.

A thread that wants to run waits for the interpreter's switch interval, 5 ms, before the one that runs is asked
to let go. While something long is being counted the interval is 1 ms, so that an event loop beside it keeps its
pace; afterwards it is again what it was.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_SHORT_SECONDS = 0.001
# What has more characters or bytes than this takes long enough for another thread to notice.
_LONG = 64 * 1024

_lock = Lock()
_counting = 0
_usual_seconds = 0.005


@contextmanager
def courtesy(size: int) -> Iterator[None]:
    """The short interval for as long as anybody is inside with something long."""
    global _counting, _usual_seconds
    if size <= _LONG:
        yield
        return
    with _lock:
        if not _counting:
            _usual_seconds = sys.getswitchinterval()
            sys.setswitchinterval(min(_SHORT_SECONDS, _usual_seconds))
        _counting += 1
    try:
        yield
    finally:
        with _lock:
            _counting -= 1
            if not _counting:
                sys.setswitchinterval(_usual_seconds)
