"""Where code stands in a text, in which a tag is part of an example."""

import re
from bisect import bisect_right
from collections.abc import Iterable

_FENCE = re.compile(r"^[ \t>]*+(`{3,}+|~{3,}+)(.*)$", re.MULTILINE)


class CodeRanges:
    """Places from one to another, in order. What was never closed is none: it may not be meant as code."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._ranges = list(ranges)
        self._starts = [start for start, _ in self._ranges]

    @classmethod
    def from_fences(cls, text: str) -> "CodeRanges":
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

    def __contains__(self, index: int) -> bool:
        """Whether code stands here."""
        return self.end_of(index) is not None

    def end_of(self, index: int) -> int | None:
        """Where the code ends that stands here, if there is any."""
        number = bisect_right(self._starts, index) - 1
        return self._ranges[number][1] if number >= 0 and index < self._ranges[number][1] else None
