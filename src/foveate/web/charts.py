"""What a chart shows: series over labels, and the sentence that tells it to who cannot see it.

`charts.js` draws it with Chart.js, and `parts.html` writes the same as a table beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

SERIES_COLOURS = ("one", "two", "three", "four", "five", "six", "seven")
"""Of series, by their names in the styles."""
OTHER_COLOUR = "eight"
"""The colour of all others."""


class Unit(StrEnum):
    """What the values are; as `words` writes them."""

    DOLLARS = "dollars"
    TOKENS = "tokens"
    PERCENT = "percent"
    NUMBER = "number"
    SECONDS = "seconds"


class Shape(StrEnum):
    """How a series is drawn; a limit is a dashed line that the others are held against."""

    AREA = "area"
    LINE = "line"
    BAR = "bar"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values, one for each label of its chart; None where there is none. `colour` is a name in the styles."""

    name: str
    values: Sequence[float | None]
    colour: str
    shape: Shape = Shape.AREA


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartEvent:
    """Something that happened at a label: `kind` is `fold` or `break`, `says` is what."""

    label: int
    kind: str
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Series over labels. Those that are `stacked` stand on each other, but for lines. `id` is of one page."""

    id: str
    title: str
    says: str
    labels: Sequence[str]
    series: Sequence[Series]
    unit: Unit
    stacked: bool = False
    events: Sequence[ChartEvent] = ()

    @property
    def drawn(self) -> dict[str, Any]:
        """What the script is given."""
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
            "events": [{"label": item.label, "kind": item.kind, "says": item.says} for item in self.events],
        }
