"""Coverage of properties: their first examples are watched, and the others tried at a third of the time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest
from coverage import Coverage

# What an example reaches, these have reached but for what is rare, and that has a test of its own.
_WATCHED = 12


@contextmanager
def first_examples(item: pytest.Item) -> Iterator[None]:
    """Watch no more than the first examples of a property while it is tried."""
    tried = getattr(getattr(item, "obj", None), "hypothesis", None)
    measuring = Coverage.current()
    if tried is None or measuring is None:
        yield
        return
    whole: Callable[..., Any] = tried.inner_test
    examples = 0

    @wraps(whole)
    def example(*given: Any, **named: Any) -> Any:
        nonlocal examples
        examples += 1
        if examples == _WATCHED + 1:
            measuring.stop()
        return whole(*given, **named)

    tried.inner_test = example
    try:
        yield
    finally:
        tried.inner_test = whole
        if examples > _WATCHED:
            measuring.start()
