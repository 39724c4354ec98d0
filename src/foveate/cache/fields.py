"""The first field in which two blocks differ, and what a person is shown of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import regex

from foveate.cache.wording import TextChange, TextChangeKind, common_prefix_length, compare_texts
from foveate.wire.body import as_dict, to_json

_MAX_EXCERPT_CHARS = 60
_CONTEXT_CHARS = 16
_ELLIPSIS = "…"
# A reader's character; what `budget.graphemes` is exact about, good enough for the ends of an excerpt.
_GRAPHEME = regex.compile(r"\X")
_MAX_GRAPHEME_CHARS = 32
_MAX_BACKTRACK_CHARS = 1024

PathStep = str | int


class ChangeKind(StrEnum):
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

    path: tuple[PathStep, ...]
    kind: ChangeKind
    before: str
    after: str
    text_change: TextChange

    @property
    def name(self) -> str:
        """The path as it is written: `input_schema.properties.city`, `content[0].text`."""
        return format_path(self.path)

    @property
    def is_text(self) -> bool:
        """Whether its words say what changed."""
        return self.kind is ChangeKind.CHANGED


def format_path(path: Sequence[PathStep]) -> str:
    """A path as people write it."""
    parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(parts).removeprefix(".")


def find_first_change(before: Any, after: Any) -> FieldChange:
    """The first field in which two values, whose JSON is not the same, differ."""
    path: list[PathStep] = []
    while True:
        step, kind = _next_step(before, after)
        if step is None:
            return _make_change(path, kind, before, after)
        path.append(step)
        if kind is ChangeKind.ADDED:
            return _make_change(path, kind, None, after[step])
        if kind is ChangeKind.REMOVED:
            return _make_change(path, kind, before[step], None)
        before, after = before[step], after[step]


def _next_step(before: Any, after: Any) -> tuple[Any, ChangeKind]:
    """Into which field to look further; nowhere where the whole is what changed."""
    if isinstance(before, dict) and isinstance(after, dict):
        return _next_step_in_object(before, after)
    if isinstance(before, list) and isinstance(after, list):
        return _next_step_in_list(before, after)
    return None, ChangeKind.CHANGED


def _next_step_in_object(before: dict[str, Any], after: dict[str, Any]) -> tuple[str | None, ChangeKind]:
    for name, inner in before.items():
        if name in after and inner != after[name]:
            return name, ChangeKind.CHANGED
    for kind, one, other in ((ChangeKind.REMOVED, before, after), (ChangeKind.ADDED, after, before)):
        for name in one:
            if name not in other:
                return name, kind
    for name, inner in before.items():  # equal for Python, in another order for a provider, or 1 and 1.0
        if to_json(inner) != to_json(after[name]):
            return name, ChangeKind.CHANGED
    return None, ChangeKind.KEY_ORDER


def _next_step_in_list(before: list[Any], after: list[Any]) -> tuple[int | None, ChangeKind]:
    spelled = [to_json(entry) for entry in before], [to_json(entry) for entry in after]
    if sorted(spelled[0]) == sorted(spelled[1]):
        return None, ChangeKind.ITEM_ORDER
    for at, (one, other) in enumerate(zip(*spelled, strict=False)):
        if one != other:
            if spelled[0][at:] == spelled[1][at + 1 :]:
                return at, ChangeKind.ADDED
            if spelled[0][at + 1 :] == spelled[1][at:]:
                return at, ChangeKind.REMOVED
            return at, ChangeKind.CHANGED
    shared = min(len(before), len(after))
    return shared, ChangeKind.ADDED if len(after) > shared else ChangeKind.REMOVED


def _make_change(path: Sequence[PathStep], kind: ChangeKind, before: Any, after: Any) -> FieldChange:
    was, now = _as_text(before), _as_text(after)
    if kind is ChangeKind.CHANGED and isinstance(before, str) and isinstance(after, str):
        change = compare_texts(was, now)
    else:
        start = common_prefix_length(was, now)
        tail = common_prefix_length(was[start:][::-1], now[start:][::-1])
        change = TextChange(
            kind=TextChangeKind.EDITED, start=start, end_before=len(was) - tail, end_after=len(now) - tail
        )
    return FieldChange(path=tuple(path), kind=kind, before=was, after=now, text_change=change)


def _as_text(found: Any) -> str:
    if found is None:
        return ""
    return found if isinstance(found, str) else to_json(found).decode("utf-8", "replace")


def size_bytes(text: str) -> int:
    """How long a text is as it is sent."""
    return len(text.encode("utf-8", "surrogatepass"))


def make_excerpt(text: str, start: int, end: int) -> str:
    """What stands from `start` to `end`, with a little of what is around it; never more than 60 characters."""
    first = _grapheme_boundary(text, max(0, start - _CONTEXT_CHARS))
    lead = _ELLIPSIS if first else ""
    room = _MAX_EXCERPT_CHARS - len(lead)
    wanted = min(len(text), max(end, start) + _CONTEXT_CHARS)
    if wanted - first <= room and wanted == len(text):
        return lead + text[first:]
    last = min(_grapheme_boundary(text, min(first + room - 1, wanted)), len(text))
    return lead + text[first:last] + (_ELLIPSIS if last < len(text) else "")


def _grapheme_boundary(text: str, at: int) -> int:
    """The last place up to `at` that is not inside of a reader's character."""
    if not 0 < at < len(text):
        return max(0, min(at, len(text)))
    earliest = max(0, at - _MAX_BACKTRACK_CHARS)
    back = at
    while (
        back > earliest and not text[back].isascii()
    ):  # of a row of flags, each is told by all that stand before
        back -= 1
    last = back
    # Of what is cut out: in a text, a flag would be looked at from the beginning of its row on.
    for found in _GRAPHEME.finditer(text[back : at + _MAX_GRAPHEME_CHARS]):
        if back + found.start() > at:
            break
        last = back + found.start()
    return last


def main_text(content: Any) -> str:
    """What a block says, in short: its text, or its JSON."""
    if isinstance(content, dict):
        for name in ("text", "thinking", "content", "output"):
            if isinstance(content.get(name), str) and content[name]:
                return str(content[name])
    return _as_text(content)


def tool_name(tool: Any) -> str:
    """What a tool is called; one of the provider's own without a name, by its kind."""
    found = as_dict(tool)
    nested = (as_dict(found.get(name)).get("name") for name in ("function", "toolSpec", "custom"))
    names = (found.get("name"), *nested, found.get("type"), next(iter(found), None))
    return next((name for name in names if isinstance(name, str) and name), "")
