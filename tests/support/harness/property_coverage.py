"""Measure coverage only in the first examples of a property, so that the others run three times as fast."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest
from coverage import Coverage

# These reach what later examples reach, except rare cases that have tests of their own.
_MEASURED_EXAMPLES = 12


@contextmanager
def measure_first_examples(item: pytest.Item) -> Iterator[None]:
    """Stop measuring coverage after the first examples of a property."""
    hypothesis_handle = getattr(getattr(item, "obj", None), "hypothesis", None)
    coverage = Coverage.current()
    if hypothesis_handle is None or coverage is None:
        yield
        return
    inner_test: Callable[..., Any] = hypothesis_handle.inner_test
    examples = 0

    @wraps(inner_test)
    def example(*args: Any, **kwargs: Any) -> Any:
        nonlocal examples
        examples += 1
        if examples == _MEASURED_EXAMPLES + 1:
            coverage.stop()
        return inner_test(*args, **kwargs)

    hypothesis_handle.inner_test = example
    try:
        yield
    finally:
        hypothesis_handle.inner_test = inner_test
        if examples > _MEASURED_EXAMPLES:
            coverage.start()
