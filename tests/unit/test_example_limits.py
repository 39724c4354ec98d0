"""Number of examples of a property, in quick runs and in whole ones."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.harness.example_limits import QUICK, limit_examples


@pytest.fixture(params=[QUICK, "dev"])
def profile(request: pytest.FixtureRequest) -> Iterator[str]:
    """Profile of Hypothesis that is in force during the test."""
    before = settings.get_current_profile_name()
    settings.load_profile(request.param)
    yield request.param
    settings.load_profile(before)


def test_only_a_quick_run_tries_fewer_examples_than_requested(profile: str) -> None:
    assert limit_examples(80) == (15 if profile == QUICK else 80)
    assert limit_examples(10) == 10


def test_a_property_of_a_quick_run_limits_its_examples(root: Path) -> None:
    """An explicit number takes precedence over that of the profile."""
    files = [*(root / "tests" / "unit").rglob("*.py"), *(root / "tests" / "contract").rglob("*.py")]
    unlimited = re.compile(r"max_examples=\d")

    assert len(files) > 100
    assert [path.name for path in files if unlimited.search(path.read_text(encoding="utf-8"))] == []
