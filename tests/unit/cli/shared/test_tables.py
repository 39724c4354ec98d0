"""Tables, bars, wrapped text and columns of money."""

import io
import subprocess
import sys
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from foveate.cli.shared.console import Display, display_for
from foveate.cli.shared.tables import (
    BarPart,
    Column,
    Fit,
    Styled,
    draw_bar,
    format_amount,
    format_dollar_column,
    format_table,
    join_styled,
    shorten_middle,
    style_text,
    wrap_text,
)

NAME = Column(heading="name", fit=Fit.SHORTEN)
CALLS = Column(heading="calls", align="right")
COLUMNS = (NAME, CALLS, Column(heading="errors", align="right", optional=True))
ROWS = [("ana", "12", "0"), ("bob", "1,234", "0")]
PIPE = Display(is_terminal=False)
LONG = "an-agent-with-a-very-long-name-that-ends-in-7"


def test_a_table_has_aligned_columns_and_no_column_of_zeros() -> None:
    assert format_table(COLUMNS, ROWS, Display(), total=("total", "1,246", "0")) == [
        "name   calls",
        "ana       12",
        "bob    1,234",
        "total  1,246",
    ]


def test_the_header_is_dim_and_the_total_bold_if_the_display_has_colours() -> None:
    heading, row, total = format_table(
        (NAME, CALLS), [("ana", Styled("1", "red"))], Display(colours=True), total=("all", "1")
    )

    assert heading.startswith("\x1b[2mname")
    assert "\x1b[31m" in row
    assert total.startswith("\x1b[1mall")


def test_long_names_are_shortened_in_the_middle_on_a_terminal_only() -> None:
    rows = [(LONG, "1")]

    assert format_table((NAME, CALLS), rows, Display(columns=30))[1] == "an-agent-wi…t-ends-in-7      1"
    assert format_table((NAME, CALLS), rows, PIPE)[1] == f"{LONG}      1"


def test_columns_are_left_out_in_their_order_on_narrow_terminals_only() -> None:
    columns = (
        NAME,
        Column(heading="second", drop_order=2),
        Column(heading="first", drop_order=1),
        CALLS,
    )
    rows = [("ana", "x" * 10, "y" * 10, "1")]

    assert format_table(columns, rows, Display(columns=30))[0].split() == ["name", "second", "calls"]
    assert format_table(columns, rows, Display(columns=15))[0].split() == ["name", "calls"]
    assert format_table(columns, rows, Display(columns=15, is_terminal=False))[0].split() == [
        "name", "second", "first", "calls",
    ]  # fmt: skip


def test_a_wrapped_column_continues_under_its_first_line_on_a_terminal() -> None:
    columns = (Column(), Column(fit=Fit.WRAP))
    rows = [("ok", "one two three four five six seven"), ("no", "short")]

    assert format_table(columns, rows, Display(columns=30)) == [
        "ok  one two three four five",
        "    six seven",
        "no  short",
    ]
    assert format_table(columns, rows, PIPE)[0] == "ok  one two three four five six seven"


def test_columns_are_wrapped_before_others_are_shortened() -> None:
    columns = (NAME, Column(fit=Fit.WRAP, min_cells=8))

    assert format_table(columns, [(LONG, "one two three")], Display(columns=55))[1:] == [
        f"{LONG}  one two",
        f"{' ' * len(LONG)}  three",
    ]
    assert format_table(columns, [(LONG, "one two three")], Display(columns=40))[1] == (
        f"{shorten_middle(LONG, 30, Display())}  one two"
    )


@pytest.mark.parametrize(("cell", "is_shown"), [("", False), ("-", False), ("$0.00", False), ("待办", True)])
def test_an_optional_column_is_left_out_if_all_cells_are_empty_or_zero(cell: str, is_shown: bool) -> None:
    columns = (Column(heading="name"), Column(heading="state", optional=True))

    assert ("state" in format_table(columns, [("ana", cell), ("bob", "0")], PIPE)[0]) is is_shown


@given(
    name=st.text(max_size=40),
    columns=st.integers(1, 100),
    encoding=st.sampled_from(["utf-8", "ascii", "latin-1"]),
    is_terminal=st.booleans(),
)
def test_names_never_become_control_codes_or_markup(
    name: str, columns: int, encoding: str, is_terminal: bool
) -> None:
    display = Display(columns=columns, encoding=encoding, is_terminal=is_terminal)
    lines = format_table((NAME, CALLS), [(f"[red]{name}[/red]", "1")], display, total=("all", "1"))

    assert len(lines) == 3
    assert all(line.isprintable() and display.can_show(line) for line in lines)
    if not is_terminal:
        assert lines[1].startswith(f"[red]{display.escape(name)}[/red]")


def test_a_pipe_is_not_a_terminal() -> None:
    assert not display_for(io.StringIO()).is_terminal


@pytest.mark.parametrize("cells", [0, 1, 2, 5, 20])
def test_a_shortened_text_keeps_its_start_and_end(cells: int) -> None:
    shortened = shorten_middle(LONG, cells, Display())

    assert cell_len(shortened) <= cells
    assert LONG.startswith(shortened.partition("…")[0])
    assert LONG.endswith(shortened.partition("…")[2])
    assert cell_len(shorten_middle("本棚" * 20, 9, Display(encoding="ascii"))) <= 9


def test_text_is_wrapped_between_words_and_long_words_stay_whole() -> None:
    assert wrap_text(f"see {LONG} for\nmore", Display(columns=20), indent=2) == [
        "  see",
        f"  {LONG}",
        "  for more",
    ]
    assert style_text("a\x1b", "dim", Display(colours=True)) == "\x1b[2ma\\x1b\x1b[0m"
    assert style_text("a", "dim", Display()) == "a"


def test_every_part_of_a_bar_that_is_not_empty_has_a_cell() -> None:
    parts = [BarPart(size=1, glyph="a"), BarPart(size=998, glyph="b"), BarPart(size=0, glyph="c")]

    def draw(*more: BarPart, full: float) -> str:
        return join_styled(draw_bar([*parts, *more], cells=10, full=full), Display())

    assert draw(full=999) == "abbbbbbbbb"
    assert draw(BarPart(size=1, glyph="d", style="red"), full=1000) == "abbbbbbbbd"
    assert draw(full=1998) == "abbbb     "
    assert join_styled(draw_bar([], cells=3, full=0), Display()) == "   "


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        (["12.346", "0.5", None], ["$12.35", "$0.50", "unknown"]),
        (["0.0123", "1.2"], ["$0.0123", "$1.2000"]),
        (["0.000001", "0"], ["<$0.0001", "$0.0000"]),
        (["1234", "0.004", "-0.2"], ["$1,234.00", "<$0.01", "-$0.20"]),
        ([], []),
    ],
)
def test_amounts_of_a_column_have_one_precision(amounts: list[str | None], expected: list[str]) -> None:
    assert format_dollar_column([None if text is None else Decimal(text) for text in amounts]) == expected


def test_an_amount_in_a_sentence_has_no_needless_decimals() -> None:
    assert [format_amount(Decimal(text)) for text in ("0.01", "0.0123", "3", "-0.02")] == [
        "$0.01", "$0.0123", "$3.00", "-$0.02",
    ]  # fmt: skip


@pytest.mark.process
def test_importing_the_module_does_not_import_rich() -> None:
    script = "import foveate.cli.shared.tables, sys; sys.exit('rich' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
