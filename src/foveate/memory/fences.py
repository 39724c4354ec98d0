"""Where code stands in a text, in which a tag is part of an example."""

import re
from bisect import bisect_right
from collections.abc import Iterable

_FENCE = re.compile(r"^[ \t>]*+(`{3,}+|~{3,}+)(.*)$", re.MULTILINE)


class Code:
    """Places from one to another, in order. What was never closed is none: it may not be meant as code."""

    def __init__(self, places: Iterable[tuple[int, int]] = ()) -> None:
        self._places = list(places)
        self._starts = [start for start, _ in self._places]

    @classmethod
    def fenced(cls, text: str) -> "Code":
        """What stands between two fences of Markdown."""
        found = []
        opened: re.Match[str] | None = None
        for fence in _FENCE.finditer(text):
            if opened is None:
                opened = fence
            elif fence[1].startswith(opened[1]) and not fence[2].strip():
                found.append((opened.start(), fence.end()))
                opened = None
        return cls(found)

    def __contains__(self, place: int) -> bool:
        """Whether code stands here."""
        return self.end(place) is not None

    def end(self, place: int) -> int | None:
        """Where the code ends that stands here, if there is any."""
        number = bisect_right(self._starts, place) - 1
        return self._places[number][1] if number >= 0 and place < self._places[number][1] else None
