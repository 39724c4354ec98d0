"""Where a text may be cut: between extended grapheme clusters, as `regex` knows them."""

import re

import regex

_CLUSTER = regex.compile(r"\X")
# Before the second of two plain letters there is always a border.
_SURE = re.compile("[ -~\u4e00-\u9fff\u3041-\u3096](?=[ -~\u4e00-\u9fff\u3041-\u3096])")
_WINDOW_CHARS = 64


def floor(text: str, at: int) -> int:
    """The largest border that is not beyond `at`."""
    if at <= 0 or at >= len(text):
        return max(min(at, len(text)), 0)
    last = border = _sure(text, at)
    for cluster in _CLUSTER.finditer(text, border):
        if cluster.end() > at:
            break
        last = cluster.end()
    return last


def ceil(text: str, at: int) -> int:
    """The smallest border that is not before `at`."""
    found = floor(text, at)
    return found if found == at else after(text, found)


def after(text: str, at: int) -> int:
    """The border that follows the one at `at`; the end of the text where there is none."""
    found = _CLUSTER.match(text, at)
    return len(text) if found is None else found.end()


def before(text: str, at: int) -> int:
    """The border before the one at `at`; 0 where there is none."""
    return floor(text, at - 1)


def _sure(text: str, at: int) -> int:
    """A place not beyond `at` that is a border for sure."""
    window = _WINDOW_CHARS
    while window < at:
        found = [sure.end() for sure in _SURE.finditer(text, at - window, at)]
        if found:
            return found[-1]
        window *= 2
    return 0
