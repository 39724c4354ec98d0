"""Charts for the script and as text."""

import json
import re

from jinja2 import Environment, PackageLoader, StrictUndefined

from foveate.web import formatting
from foveate.web.charts import OTHER_COLOUR, SERIES_COLOURS, Chart, ChartEvent, Series, Shape, Unit

NAME = "</script><script>alert(1)</script>"
CHART = Chart(
    id="window",
    title="Window",
    description="it grows",
    labels=("1", "2"),
    series=(
        Series(name=NAME, values=(0.5, None), colour="one"),
        Series(name="limit", values=(1, 1), colour="limit", shape=Shape.LIMIT),
    ),
    unit=Unit.DOLLARS,
    stacked=True,
    events=(ChartEvent(label=1, kind="compaction", description="compacted & shortened"),),
)


def render_chart(chart: Chart) -> str:
    templates = Environment(loader=PackageLoader("foveate.web"), autoescape=True, undefined=StrictUndefined)
    templates.filters.update(formatting.FILTERS)
    return templates.from_string('{% from "parts.html" import figure %}{{ figure(chart) }}').render(chart=chart)


def test_the_script_gets_the_same_numbers_as_the_table() -> None:
    text = render_chart(CHART)

    script = re.search(r'<script type="application/json" class="drawn">(.*?)</script>', text, re.DOTALL)
    assert script is not None
    assert json.loads(script[1]) == {
        "labels": ["1", "2"],
        "unit": "dollars",
        "stacked": True,
        "series": [
            {"name": NAME, "values": [0.5, None], "colour": "one", "shape": "area"},
            {"name": "limit", "values": [1, 1], "colour": "limit", "shape": "limit"},
        ],
        "events": [{"label": 1, "kind": "compaction", "description": "compacted & shortened"}],
    }
    cells = re.findall(r"<td[^>]*>(.*?)</td>", text)
    assert cells == ["$0.500", "$1.000", "", "–", "$1.000", "compacted &amp; shortened "]


def test_names_are_escaped_in_markup_and_scripts() -> None:
    text = render_chart(CHART)

    assert "<script>alert" not in text
    assert text.count("</script>") == 1


def test_a_chart_has_a_text_alternative() -> None:
    text = render_chart(CHART)

    assert 'role="img" aria-label="Window: it grows"' in text
    assert re.findall(r'<th scope="(\w+)"', text) == ["col", "col", "col", "col", "row", "row"]


def test_every_colour_of_a_series_is_in_the_styles_for_light_and_dark() -> None:
    from foveate.web.app import load_assets

    styles = load_assets()["foveate.css"].plain.decode()
    for colour in (*SERIES_COLOURS, OTHER_COLOUR, "limit", "compaction", "miss", "good"):
        assert styles.count(f"--{colour}:") == 2, colour
