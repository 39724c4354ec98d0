"""Paths of budget files."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A path that does not exist yet."""
    return tmp_path / "budget.yaml"


@pytest.fixture(scope="module")
def lasting_file() -> Iterator[Path]:
    """A path shared by all examples of a property."""
    with TemporaryDirectory() as folder:
        yield Path(folder) / "budget.yaml"
