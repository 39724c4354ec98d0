"""Charts: series over labels, with a text alternative.

`charts.js` draws a chart with Chart.js, and `parts.html` adds the same data as a table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

SERIES_COLOURS = ("one", "two", "three", "four", "five", "six", "seven")
"""Colour names of the style sheet."""
OTHER_COLOUR = "eight"
"""Colour of all other series."""


class Unit(StrEnum):
    """Unit of the values, which decides how they are formatted."""

    DOLLARS = "dollars"
    TOKENS = "tokens"
    PERCENT = "percent"
    NUMBER = "number"
    SECONDS = "seconds"


class Shape(StrEnum):
    """Drawing style of a series; a limit is a dashed line."""

    AREA = "area"
    LINE = "line"
    BAR = "bar"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One value for each label of the chart; None if there is none. `colour` is a name in the style sheet."""

    name: str
    values: Sequence[float | None]
    colour: str
    shape: Shape = Shape.AREA


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartEvent:
    """An event at a label. `kind` is `compaction` or `miss`; `description` is its text."""

    label: int
    kind: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Series over labels. `stacked` series other than lines are stacked. `id` is unique on its page."""

    id: str
    title: str
    description: str
    labels: Sequence[str]
    series: Sequence[Series]
    unit: Unit
    stacked: bool = False
    events: Sequence[ChartEvent] = ()

    @property
    def values(self) -> list[float | None]:
        return [value for item in self.series for value in item.values]

    @property
    def script_data(self) -> dict[str, Any]:
        return {
            "labels": list(self.labels),
            "unit": self.unit.value,
            "stacked": self.stacked,
            "series": [
                {
                    "name": item.name,
                    "values": list(item.values),
                    "colour": item.colour,
                    "shape": item.shape.value,
                }
                for item in self.series
            ],
            "events": [
                {"label": item.label, "kind": item.kind, "description": item.description}
                for item in self.events
            ],
        }
