"""No test of sections leaves a watcher running."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from foveate.engine.sections.sources import SectionSources
from tests.support.scenarios.injected_sections import OPENED_SOURCES

WATCHER = "foveate-watcher"


@pytest.fixture(autouse=True)
def closed_sources() -> Iterator[None]:
    """Close the sources that a test has opened. A watcher takes a moment to stop, so they stop concurrently."""
    opened = len(OPENED_SOURCES)
    yield
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(SectionSources.close, OPENED_SOURCES[opened:]))
    del OPENED_SOURCES[opened:]
    watchers = [thread for thread in threading.enumerate() if thread.name == WATCHER]
    assert len(watchers) <= opened  # those of shared fixtures
