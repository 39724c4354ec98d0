"""Files of budgets to write and to read."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """One that is not there yet."""
    return tmp_path / "budget.yaml"


@pytest.fixture(scope="module")
def lasting_file() -> Iterator[Path]:
    """One for all examples of a property."""
    with TemporaryDirectory() as folder:
        yield Path(folder) / "budget.yaml"
