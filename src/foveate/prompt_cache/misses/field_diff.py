"""Finds the first field in which two blocks differ, classifies the change (a timestamp, a counter, an id,
whitespace, an edit), and makes excerpts of it.
"""

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import regex

from foveate.formats.json_text.parse import as_dict, to_json

_WEEKDAY = r"(?:(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?)"
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[AaPp]\.?[Mm]\b\.?)?"
_ZONE = r"(?:\s?(?:Z|UTC|GMT|[A-Z]{3,4}|[+-]\d{2}:?\d{2})\b)?"
_DAY = (
    rf"(?:\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{4}}年\d{{1,2}}月\d{{1,2}}日|\d{{1,2}}[-/.]\d{{1,2}}[-/.](?:\d{{4}}|\d{{2}})"
    rf"|(?:{_WEEKDAY},?\s)?{_MONTH}\.?\s\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s\d{{4}})?"
    rf"|(?:{_WEEKDAY},?\s)?\d{{1,2}}(?:st|nd|rd|th)?\.?\s{_MONTH}\.?(?:,?\s\d{{4}})?)"
)
_HEX = "[0-9a-fA-F]"
# Tried in this order at each position, most specific first.
_TIMESTAMP_OR_ID = re.compile(
    rf"(?<![\w-])(?=\w)(?:(?P<uuid>{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}})"
    rf"|(?P<timestamp>{_WEEKDAY}\s{_MONTH}\s+\d{{1,2}}\s{_CLOCK}{_ZONE}\s\d{{4}}|\d{{8}}T\d{{6}}{_ZONE}"
    rf"|{_DAY}(?:T|,?\s(?:(?:at|um|à)\s)?){_CLOCK}{_ZONE}|\d{{4}}(?:-\d{{2}}){{2}}[T_-]\d{{2}}(?:-\d{{2}}){{2}}"
    rf"|1[5-9]\d{{8}}(?:\d{{3}})?(?:\.\d+)?)"
    rf"|(?P<date>{_DAY}|{_WEEKDAY}|{_MONTH}(?:,?\s\d{{4}})?|(?:19|20)\d\d-(?:0[1-9]|1[0-2]))"
    rf"|(?P<time>{_CLOCK}{_ZONE}))(?![\w])"
)
_WORD = re.compile(r"[A-Za-z0-9_-]+(?:[.,]\d+)*")
_WORD_CHARACTER = re.compile(r"[A-Za-z0-9_-]|(?<=\d)[.,](?=\d)")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{15,}={0,2}")
_BASE64_CHARACTER = re.compile(r"[A-Za-z0-9+/]")
# Anchored at the start of a word, so that a long word is not scanned again from each of its letters.
_VOLATILE = re.compile(rf"{_TIMESTAMP_OR_ID.pattern}|(?<![\w-])[\w-]*\d[\w-]*(?:[.,]\d+)*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
# How far a timestamp may extend around a difference.
_SEARCH_RADIUS_CHARS = 64
# How much of two texts is compared word by word.
_MAX_COMPARED_CHARS = 64 * 1024
_MIN_ID_CHARS = 6
_MAX_ID_CHARS = 128
_MIN_RANDOM_NUMBER_DIGITS = 9
# A turn adds one or two messages.
_MAX_COUNTER_STEP = 2
_MAX_COUNTER_DIGITS = 18
# Amounts of money, percentages and measures are not counters.
_UNIT_BEFORE = re.compile(r"[$€£¥₹]\s?$|\b(?:USD|EUR|GBP|CHF|JPY)\s?$")
_UNIT_AFTER = re.compile(
    r"\s?(?:[%‰°$€£¥₹]|(?:USD|EUR|GBP|CHF|JPY|euros?|dollars?|pounds?|cents?|percent|[KMGT]i?B|bytes|[kcmµn]?[gmsl]"
    r"|px|pt|em|min|hours?|days?|weeks?|months?|years?|degrees?)\b)"
)
# Unicode normalization takes quadratic time in runs of combining marks. Real text has at most 30 (Unicode's
# stream-safe limit).
_LONG_COMBINING_RUN = regex.compile(r"\p{M}{31,}")
_CAPITAL_INSIDE = re.compile(r"[a-z][A-Z].*[a-z]|[A-Z]{2}[a-z]")
# A cut text is replaced by a line at most, and what was cut is longer than that.
_MAX_PLACEHOLDER_CHARS = 200
_MIN_CUT_CHARS = 100
_MAX_EXCERPT_CHARS = 60
_CONTEXT_CHARS = 16
_ELLIPSIS = "…"
# One user-perceived character. Less exact than `budget.graphemes`, but good enough for the ends of an
# excerpt.
_GRAPHEME = regex.compile(r"\X")
_MAX_GRAPHEME_CHARS = 32
_MAX_BACKTRACK_CHARS = 1024
PathStep = str | int


class TextChangeKind(StrEnum):
    TIMESTAMP = "timestamp"
    DATE = "date"
    TIME = "time"
    UUID = "uuid"
    RANDOM_ID = "random_id"
    COUNTER = "counter"
    NUMBER = "number"
    WHITESPACE = "whitespace"
    UNICODE = "unicode_form"
    JSON_SPELLING = "json_spelling"
    SHORTENED = "shortened"
    EXTENDED = "extended"
    EDITED = "edited"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChange:
    """Kind of a change, and its range on each side, in characters."""

    kind: TextChangeKind
    start: int
    end_before: int
    end_after: int


def compare_texts(before: str, after: str) -> TextChange:
    start = common_prefix_length(before, after)
    change = _find_timestamp_change(before, after, start) or _find_identifier_change(before, after, start)
    if change is not None:
        return change
    tail = common_prefix_length(before[start:][::-1], after[start:][::-1])
    return TextChange(
        kind=_classify_text_change(before, after, start, tail),
        start=start,
        end_before=len(before) - tail,
        end_after=len(after) - tail,
    )


def common_prefix_length(first: str, second: str) -> int:
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    step = 64
    while (
        first[low : low + step] == second[low : low + step]
    ):  # doubled, so that an early difference is found quickly
        low += step
        step *= 2
    high = min(high, low + step)
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _find_timestamp_change(before: str, after: str, at: int) -> TextChange | None:
    """A timestamp, date, time or UUID at the first difference on both sides."""
    first, second = _match_at(before, at), _match_at(after, at)
    if first is None or second is None or first.start() != second.start() or first[0] == second[0]:
        return None
    group = first.lastgroup
    if group is None or group != second.lastgroup:
        return None
    if not _differ_only_in_volatile(
        _read_rest_of_line(before, first.end()), _read_rest_of_line(after, second.end())
    ):
        return None
    return TextChange(
        kind=TextChangeKind(group), start=first.start(), end_before=first.end(), end_after=second.end()
    )


def _match_at(text: str, at: int) -> re.Match[str] | None:
    start = max(0, at - _SEARCH_RADIUS_CHARS)
    for match in _TIMESTAMP_OR_ID.finditer(text, start, at + _SEARCH_RADIUS_CHARS):
        if match.start() <= at <= match.end():
            return match
    return None


def _read_rest_of_line(text: str, at: int) -> str:
    end = text.find("\n", at)
    return text[at:] if end < 0 else text[at:end]


def _find_identifier_change(before: str, after: str, at: int) -> TextChange | None:
    """A number or an id, in texts that are otherwise the same except for such words."""
    for word, inside in ((_WORD, _WORD_CHARACTER), (_BASE64, _BASE64_CHARACTER)):
        first, second = _word_at(before, at, word, inside), _word_at(after, at, word, inside)
        if first is None or second is None or first[0] != second[0]:
            continue
        (start, end_before), (_, end_after) = first, second
        old_word, new_word = before[start:end_before], after[start:end_after]
        kind = _classify_number_change(old_word, new_word) or (
            TextChangeKind.RANDOM_ID if _are_random_ids(old_word, new_word) else None
        )
        if kind is None:
            continue
        lead, rest = before[max(0, start - _SEARCH_RADIUS_CHARS) : start], before[end_before:]
        is_only_change = rest == after[end_after:] and not _has_unit(lead, rest)
        if kind is TextChangeKind.COUNTER and not is_only_change:
            kind = TextChangeKind.NUMBER
        if _differ_only_in_volatile(rest, after[end_after:]):
            return TextChange(kind=kind, start=start, end_before=end_before, end_after=end_after)
    return None


def _word_at(text: str, at: int, word: re.Pattern[str], inside: re.Pattern[str]) -> tuple[int, int] | None:
    """The range of the word at a position; None if it is longer than an id can be."""
    start = at
    while start > 0 and at - start <= _MAX_ID_CHARS and inside.match(text, start - 1):
        start -= 1
    match = word.match(text, start, start + _MAX_ID_CHARS + 1)
    if match is None or match.end() - start > _MAX_ID_CHARS:
        return None
    return start, match.end()


def _has_unit(before: str, after: str) -> bool:
    return bool(_UNIT_BEFORE.search(before) or _UNIT_AFTER.match(after))


def _classify_number_change(before: str, after: str) -> TextChangeKind | None:
    """The kind of change if two words differ in exactly one number."""
    if _NUMBER.sub("#", before) != _NUMBER.sub("#", after):
        return None
    pairs = zip(_NUMBER.findall(before), _NUMBER.findall(after), strict=True)
    changed = [(first, second) for first, second in pairs if first != second]
    if len(changed) != 1:
        return None
    first, second = changed[0]
    if _counts_up(first.replace(",", ""), second.replace(",", "")):
        return TextChangeKind.COUNTER
    is_random = first.isdecimal() and len(first) == len(second) >= _MIN_RANDOM_NUMBER_DIGITS
    return TextChangeKind.RANDOM_ID if is_random else TextChangeKind.NUMBER


def _counts_up(first: str, second: str) -> bool:
    if not (first.isdecimal() and second.isdecimal()) or max(len(first), len(second)) > _MAX_COUNTER_DIGITS:
        return False
    return 0 < int(second) - int(first) <= _MAX_COUNTER_STEP


def _are_random_ids(before: str, after: str) -> bool:
    """Return whether two words look like generated ids: of similar length, with digits or mixed case."""
    if min(len(before), len(after)) < _MIN_ID_CHARS or abs(len(before) - len(after)) > 2:
        return False
    if not any(map(str.isalpha, before + after)):
        return False
    start = common_prefix_length(before, after)
    tail = common_prefix_length(before[start:][::-1], after[start:][::-1])
    parts = before[start : len(before) - tail], after[start : len(after) - tail]
    return any(map(str.isdigit, "".join(parts))) or all(map(_CAPITAL_INSIDE.search, parts))


def _differ_only_in_volatile(before: str, after: str) -> bool:
    """Return whether two texts are the same except for times, numbers and ids. Of long texts, only the start is
    compared.
    """
    if before == after:
        return True
    shared = max(0, common_prefix_length(before[::-1], after[::-1]) - _SEARCH_RADIUS_CHARS)
    old_text, new_text = before[: len(before) - shared], after[: len(after) - shared]
    is_cut = max(len(old_text), len(new_text)) > _MAX_COMPARED_CHARS
    old_text, new_text = (_VOLATILE.sub("\0", text[:_MAX_COMPARED_CHARS]) for text in (old_text, new_text))
    # Words at the cut may be split differently.
    end = (
        min(len(old_text), len(new_text)) - _SEARCH_RADIUS_CHARS
        if is_cut
        else max(len(old_text), len(new_text))
    )
    return old_text[:end] == new_text[:end]


def _classify_text_change(before: str, after: str, head: int, tail: int) -> TextChangeKind:
    if "".join(before.split()) == "".join(after.split()):
        return TextChangeKind.WHITESPACE
    if _normalize_unicode(before) == _normalize_unicode(after):
        return TextChangeKind.UNICODE
    old_value, new_value = _parse_json(before), _parse_json(after)
    if old_value is not None and old_value == new_value:
        return TextChangeKind.JSON_SPELLING
    if len(before) - len(after) >= _MIN_CUT_CHARS and head + tail >= len(after) - _MAX_PLACEHOLDER_CHARS:
        return TextChangeKind.SHORTENED
    return TextChangeKind.EXTENDED if head == len(before) else TextChangeKind.EDITED


def _normalize_unicode(text: str) -> str:
    return text if _LONG_COMBINING_RUN.search(text) else unicodedata.normalize("NFC", text)


def _parse_json(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class ChangeKind(StrEnum):
    CHANGED = "changed"
    ADDED = "added"
    REMOVED = "removed"
    KEY_ORDER = "key_order"
    ITEM_ORDER = "item_order"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """A field that differs: its path, its text on both sides, and what changed in the text.

    A string is its own text; other values are shown as JSON.
    """

    path: tuple[PathStep, ...]
    kind: ChangeKind
    before: str
    after: str
    text_change: TextChange

    @property
    def name(self) -> str:
        """The path in text form: `input_schema.properties.city`, `content[0].text`."""
        return format_path(self.path)

    @property
    def is_text(self) -> bool:
        return self.kind is ChangeKind.CHANGED


def format_path(path: Sequence[PathStep]) -> str:
    parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(parts).removeprefix(".")


def find_first_change(before: Any, after: Any) -> FieldChange:
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
    """The field to descend into; None if the value as a whole has changed."""
    if isinstance(before, dict) and isinstance(after, dict):
        return _next_step_in_object(before, after)
    if isinstance(before, list) and isinstance(after, list):
        return _next_step_in_list(before, after)
    return None, ChangeKind.CHANGED


def _next_step_in_object(before: dict[str, Any], after: dict[str, Any]) -> tuple[str | None, ChangeKind]:
    for name, inner in before.items():
        if name in after and inner != after[name]:
            return name, ChangeKind.CHANGED
    for kind, first, second in ((ChangeKind.REMOVED, before, after), (ChangeKind.ADDED, after, before)):
        for name in first:
            if name not in second:
                return name, kind
    for name, inner in before.items():  # equal in Python, but not in JSON: another key order, or 1 and 1.0
        if to_json(inner) != to_json(after[name]):
            return name, ChangeKind.CHANGED
    return None, ChangeKind.KEY_ORDER


def _next_step_in_list(before: list[Any], after: list[Any]) -> tuple[int | None, ChangeKind]:
    json_lists = [to_json(entry) for entry in before], [to_json(entry) for entry in after]
    if sorted(json_lists[0]) == sorted(json_lists[1]):
        return None, ChangeKind.ITEM_ORDER
    for at, (first, second) in enumerate(zip(*json_lists, strict=False)):
        if first != second:
            if json_lists[0][at:] == json_lists[1][at + 1 :]:
                return at, ChangeKind.ADDED
            if json_lists[0][at + 1 :] == json_lists[1][at:]:
                return at, ChangeKind.REMOVED
            return at, ChangeKind.CHANGED
    shared = min(len(before), len(after))
    return shared, ChangeKind.ADDED if len(after) > shared else ChangeKind.REMOVED


def _make_change(path: Sequence[PathStep], kind: ChangeKind, before: Any, after: Any) -> FieldChange:
    old_text, new_text = _as_text(before), _as_text(after)
    if kind is ChangeKind.CHANGED and isinstance(before, str) and isinstance(after, str):
        change = compare_texts(old_text, new_text)
    else:
        start = common_prefix_length(old_text, new_text)
        tail = common_prefix_length(old_text[start:][::-1], new_text[start:][::-1])
        change = TextChange(
            kind=TextChangeKind.EDITED,
            start=start,
            end_before=len(old_text) - tail,
            end_after=len(new_text) - tail,
        )
    return FieldChange(path=tuple(path), kind=kind, before=old_text, after=new_text, text_change=change)


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else to_json(value).decode("utf-8", "replace")


def size_bytes(text: str) -> int:
    """The length of a text in UTF-8."""
    return len(text.encode("utf-8", "surrogatepass"))


def make_excerpt(text: str, start: int, end: int) -> str:
    """The text from `start` to `end` with a little context, at most 60 characters."""
    first = _grapheme_boundary(text, max(0, start - _CONTEXT_CHARS))
    lead = _ELLIPSIS if first else ""
    room = _MAX_EXCERPT_CHARS - len(lead)
    context_end = min(len(text), max(end, start) + _CONTEXT_CHARS)
    if context_end - first <= room and context_end == len(text):
        return lead + text[first:]
    last = min(_grapheme_boundary(text, min(first + room - 1, context_end)), len(text))
    return lead + text[first:last] + (_ELLIPSIS if last < len(text) else "")


def _grapheme_boundary(text: str, at: int) -> int:
    """The last grapheme boundary up to `at`."""
    if not 0 < at < len(text):
        return max(0, min(at, len(text)))
    earliest = max(0, at - _MAX_BACKTRACK_CHARS)
    back = at
    while back > earliest and not text[back].isascii():  # where a flag starts depends on all flags before it
        back -= 1
    last = back
    # Matched on a slice: in the whole text, the match would start inside a run of flags.
    for match in _GRAPHEME.finditer(text[back : at + _MAX_GRAPHEME_CHARS]):
        if back + match.start() > at:
            break
        last = back + match.start()
    return last


def main_text(content: Any) -> str:
    """The main text of a block, or its JSON."""
    if isinstance(content, dict):
        for name in ("text", "thinking", "content", "output"):
            if isinstance(content.get(name), str) and content[name]:
                return str(content[name])
    return _as_text(content)


def tool_name(tool: Any) -> str:
    """For a provider's built-in tool without a name, its type."""
    fields = as_dict(tool)
    nested = (as_dict(fields.get(name)).get("name") for name in ("function", "toolSpec", "custom"))
    names = (fields.get("name"), *nested, fields.get("type"), next(iter(fields), None))
    return next((name for name in names if isinstance(name, str) and name), "")
