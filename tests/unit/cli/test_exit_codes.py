"""How an error of ours ends a command: its line and its exit code."""

import pytest
import typer

from foveate.cli.exit_codes import report_errors
from foveate.errors import BudgetExceeded, SectionSize


def told(sections: int, capsys: pytest.CaptureFixture[str]) -> str:
    """The line for an error about so many sections."""
    sizes = tuple(SectionSize(f"part {i}", "high", 9000, 1000 + i) for i in range(sections))
    with pytest.raises(typer.Exit) as ended, report_errors(as_json=False):
        raise BudgetExceeded("too much", "cut it", limit_tokens=3000, tokens=90_000, sections=sizes)
    assert ended.value.exit_code == 3
    return capsys.readouterr().err


def test_of_many_sections_only_the_largest_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Was: they were looked for in the error's own words, and all were listed where those were others."""
    largest = ", ".join(f"part {i} (high) {1000 + i:,}" for i in range(1999, 1987, -1))

    assert told(2000, capsys) == (f"foveate: too much: {largest} and 1,988 more; cut it\n")


def test_of_a_few_sections_all_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    listed = ", ".join(f"part {i} (high) {1000 + i:,}" for i in range(12))

    assert told(12, capsys) == f"foveate: too much: {listed}; cut it\n"
