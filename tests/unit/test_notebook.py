"""HTML for notebooks."""

import foveate
from foveate.notebook import BarRow, render_bars, render_text


def test_bars_are_scaled_to_the_largest_row_and_names_are_escaped() -> None:
    rows = [
        BarRow(name="a", tokens=50, tokens_before=100, size="50 of 100"),
        BarRow(name="<b>", tokens=0, tokens_before=0, size="0"),
        BarRow(name="c", tokens=1, tokens_before=100_000, size="1 of 100,000"),
    ]

    html = render_bars("1 < 2", rows)

    assert "1 &lt; 2" in html
    assert "&lt;b&gt;" in html
    assert "width:240px" not in html  # the cut part of the last row takes the rest
    assert "width:239px" in html
    assert html.count("width:1px") == 2
    assert "width:0px" not in html


def test_texts_are_escaped() -> None:
    assert "&lt;script&gt;" in render_text("view", "<script>")


def test_counts_are_shown_with_their_bound() -> None:
    body = {"model": "nobody/knows-this", "messages": [{"role": "user", "content": "Hello!"}]}
    estimate, exact = foveate.count_request(body), foveate.count("Hello!")

    assert exact._repr_html_() == "<strong>2</strong> tokens"
    assert "at most" in estimate.total._repr_html_()
    assert "messages[0]" in estimate._repr_html_()
    assert repr(estimate).startswith("<RequestCount nobody/knows-this: ~")
    assert "messages" not in repr(estimate)
