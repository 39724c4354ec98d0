"""The output and the exit code of a command that fails with an error of ours."""

import pytest
import typer

from foveate.cli.shared.errors import report_errors
from foveate.errors import BudgetExceeded, SectionSize


def print_error(sections: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Print the line for an error about this many sections."""
    sizes = tuple(SectionSize(f"part {i}", "high", 9000, 1000 + i) for i in range(sections))
    with pytest.raises(typer.Exit) as raised, report_errors(as_json=False):
        raise BudgetExceeded("too much", "cut it", limit_tokens=3000, tokens=90_000, sections=sizes)
    assert raised.value.exit_code == 3
    return capsys.readouterr().err


def test_of_many_sections_only_the_largest_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: they were searched for in the error's text, and all were listed if its text differed."""
    largest = ", ".join(f"part {i} (high) {1000 + i:,}" for i in range(1999, 1987, -1))

    assert print_error(2000, capsys) == (f"foveate: too much: {largest} and 1,988 more; cut it\n")


def test_of_a_few_sections_all_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    sizes_text = ", ".join(f"part {i} (high) {1000 + i:,}" for i in range(12))

    assert print_error(12, capsys) == f"foveate: too much: {sizes_text}; cut it\n"
