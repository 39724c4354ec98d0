"""The first field in which two blocks differ, and what a person is shown of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import regex

from foveate.cache.wording import Reworded, Wording, common_prefix, reworded
from foveate.wire.body import as_record, compact

_EXCERPT_CHARS = 60
_BEFORE_CHARS = 16
_ELLIPSIS = "…"
# A reader's character; what `budget.graphemes` is exact about, good enough for the ends of an excerpt.
_GRAPHEME = regex.compile(r"\X")
_LONGEST_GRAPHEME_CHARS = 32
_FURTHEST_BACK_CHARS = 1024

Step = str | int


class How(StrEnum):
    """What happened to a field."""

    CHANGED = "changed"
    ADDED = "added"
    REMOVED = "removed"
    KEY_ORDER = "key_order"
    ITEM_ORDER = "item_order"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """A field that differs: the path to it, its text on both sides, and what changed in that.

    A string is its own text; everything else is its JSON.
    """

    path: tuple[Step, ...]
    how: How
    before: str
    after: str
    change: Reworded

    @property
    def name(self) -> str:
        """The path as it is written: `input_schema.properties.city`, `content[0].text`."""
        return written(self.path)

    @property
    def is_text(self) -> bool:
        """Whether its words say what changed."""
        return self.how is How.CHANGED


def written(path: Sequence[Step]) -> str:
    """A path as people write it."""
    parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(parts).removeprefix(".")


def first_change(before: Any, after: Any) -> FieldChange:
    """The first field in which two values, whose JSON is not the same, differ."""
    path: list[Step] = []
    while True:
        step, how = _step(before, after)
        if step is None:
            return _changed(path, how, before, after)
        path.append(step)
        if how is How.ADDED:
            return _changed(path, how, None, after[step])
        if how is How.REMOVED:
            return _changed(path, how, before[step], None)
        before, after = before[step], after[step]


def _step(before: Any, after: Any) -> tuple[Any, How]:
    """Into which field to look further; nowhere where the whole is what changed."""
    if isinstance(before, dict) and isinstance(after, dict):
        return _step_in_object(before, after)
    if isinstance(before, list) and isinstance(after, list):
        return _step_in_list(before, after)
    return None, How.CHANGED


def _step_in_object(before: dict[str, Any], after: dict[str, Any]) -> tuple[str | None, How]:
    for name, inner in before.items():
        if name in after and inner != after[name]:
            return name, How.CHANGED
    for how, one, other in ((How.REMOVED, before, after), (How.ADDED, after, before)):
        for name in one:
            if name not in other:
                return name, how
    for name, inner in before.items():  # equal for Python, in another order for a provider, or 1 and 1.0
        if compact(inner) != compact(after[name]):
            return name, How.CHANGED
    return None, How.KEY_ORDER


def _step_in_list(before: list[Any], after: list[Any]) -> tuple[int | None, How]:
    spelled = [compact(entry) for entry in before], [compact(entry) for entry in after]
    if sorted(spelled[0]) == sorted(spelled[1]):
        return None, How.ITEM_ORDER
    for at, (one, other) in enumerate(zip(*spelled, strict=False)):
        if one != other:
            if spelled[0][at:] == spelled[1][at + 1 :]:
                return at, How.ADDED
            if spelled[0][at + 1 :] == spelled[1][at:]:
                return at, How.REMOVED
            return at, How.CHANGED
    shared = min(len(before), len(after))
    return shared, How.ADDED if len(after) > shared else How.REMOVED


def _changed(path: Sequence[Step], how: How, before: Any, after: Any) -> FieldChange:
    was, now = _text(before), _text(after)
    if how is How.CHANGED and isinstance(before, str) and isinstance(after, str):
        change = reworded(was, now)
    else:
        start = common_prefix(was, now)
        tail = common_prefix(was[start:][::-1], now[start:][::-1])
        change = Reworded(
            wording=Wording.EDITED, start=start, end_before=len(was) - tail, end_after=len(now) - tail
        )
    return FieldChange(path=tuple(path), how=how, before=was, after=now, change=change)


def _text(found: Any) -> str:
    if found is None:
        return ""
    return found if isinstance(found, str) else compact(found).decode("utf-8", "replace")


def size_bytes(text: str) -> int:
    """How long a text is as it is sent."""
    return len(text.encode("utf-8", "surrogatepass"))


def excerpt(text: str, start: int, end: int) -> str:
    """What stands from `start` to `end`, with a little of what is around it; never more than 60 characters."""
    opens = _boundary(text, max(0, start - _BEFORE_CHARS))
    lead = _ELLIPSIS if opens else ""
    room = _EXCERPT_CHARS - len(lead)
    wanted = min(len(text), max(end, start) + _BEFORE_CHARS)
    if wanted - opens <= room and wanted == len(text):
        return lead + text[opens:]
    closes = min(_boundary(text, min(opens + room - 1, wanted)), len(text))
    return lead + text[opens:closes] + (_ELLIPSIS if closes < len(text) else "")


def _boundary(text: str, at: int) -> int:
    """The last place up to `at` that is not inside of a reader's character."""
    if not 0 < at < len(text):
        return max(0, min(at, len(text)))
    least = max(0, at - _FURTHEST_BACK_CHARS)
    back = at
    while back > least and not text[back].isascii():  # of a row of flags, each is told by all that stand before
        back -= 1
    last = back
    # Of what is cut out: in a text, a flag would be looked at from the beginning of its row on.
    for found in _GRAPHEME.finditer(text[back : at + _LONGEST_GRAPHEME_CHARS]):
        if back + found.start() > at:
            break
        last = back + found.start()
    return last


def gist(said: Any) -> str:
    """What a block says, in short: its text, or its JSON."""
    if isinstance(said, dict):
        for name in ("text", "thinking", "content", "output"):
            if isinstance(said.get(name), str) and said[name]:
                return str(said[name])
    return _text(said)


def tool_name(said: Any) -> str:
    """What a tool is called; one of the provider's own without a name, by its kind."""
    found = as_record(said)
    nested = (as_record(found.get(name)).get("name") for name in ("function", "toolSpec", "custom"))
    names = (found.get("name"), *nested, found.get("type"), next(iter(found), None))
    return next((name for name in names if isinstance(name, str) and name), "")
