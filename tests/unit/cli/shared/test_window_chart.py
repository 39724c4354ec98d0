"""Chart of a context window."""

from foveate.cli.shared.console import Display
from foveate.cli.shared.window_chart import WindowChartData, draw_window


def test_a_bar_spans_the_window_and_shows_every_part() -> None:
    window = WindowChartData(
        sections=[("system", 10), ("tool results", 900)],
        tokens=910,
        exact=True,
        window_tokens=2_000,
        reserved_tokens=500,
    )
    heading, bar, *rows = draw_window(window, Display(columns=80))

    assert heading == "context window: 910 of 2,000 tokens used (46%), 500 reserved for the response"
    assert len(bar) == 60
    assert (bar.count("█"), bar.count("▓"), bar.count("╌")) == (1, 26, 15)
    assert [row.split() for row in rows] == [
        ["█", "system", "10", "1.1%"],
        ["▓", "tool", "results", "900", "98.9%"],
    ]


def test_an_overfull_or_unknown_window_is_drawn() -> None:
    over = WindowChartData(sections=[("user", 3_000)], tokens=3_000, exact=False, window_tokens=2_000)
    heading, bar, _ = draw_window(over, Display(columns=80))
    assert "~3,000 of 2,000 tokens used (150%)" in heading
    assert bar == "█" * 60
    unknown = WindowChartData(sections=[], tokens=7, exact=True)
    assert list(draw_window(unknown, Display())) == [
        "context window: 7 tokens used; the size of the model's window is unknown"
    ]
