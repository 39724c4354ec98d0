"""Coverage of properties: their first examples are watched, and the others tried at a third of the time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest
from coverage import Coverage

# What an example reaches, these have reached but for what is rare, and that has a test of its own.
_MEASURED_EXAMPLES = 12


@contextmanager
def measure_first_examples(item: pytest.Item) -> Iterator[None]:
    """Watch no more than the first examples of a property while it is tried."""
    hypothesis_handle = getattr(getattr(item, "obj", None), "hypothesis", None)
    coverage = Coverage.current()
    if hypothesis_handle is None or coverage is None:
        yield
        return
    inner_test: Callable[..., Any] = hypothesis_handle.inner_test
    examples = 0

    @wraps(inner_test)
    def example(*given: Any, **named: Any) -> Any:
        nonlocal examples
        examples += 1
        if examples == _MEASURED_EXAMPLES + 1:
            coverage.stop()
        return inner_test(*given, **named)

    hypothesis_handle.inner_test = example
    try:
        yield
    finally:
        hypothesis_handle.inner_test = inner_test
        if examples > _MEASURED_EXAMPLES:
            coverage.start()
