"""An empty store for tests of `foveate compactions`."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from foveate.store import Store, open_store
from tests.support.stores.templates import ensure_store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await open_store(ensure_store(tmp_path / "foveate.sqlite")) as opened:
        yield opened
