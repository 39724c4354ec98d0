"""What changed between two texts: a timestamp, a counter, an id, spaces, or the words themselves."""

import json
import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import regex

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
# Tried in this order at each place: what says most first.
_TELLING = re.compile(
    rf"(?<![\w-])(?=\w)(?:(?P<uuid>{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}})"
    rf"|(?P<timestamp>{_WEEKDAY}\s{_MONTH}\s+\d{{1,2}}\s{_CLOCK}{_ZONE}\s\d{{4}}|\d{{8}}T\d{{6}}{_ZONE}"
    rf"|{_DAY}(?:T|,?\s(?:(?:at|um|à)\s)?){_CLOCK}{_ZONE}|\d{{4}}(?:-\d{{2}}){{2}}[T_-]\d{{2}}(?:-\d{{2}}){{2}}"
    rf"|1[5-9]\d{{8}}(?:\d{{3}})?(?:\.\d+)?)"
    rf"|(?P<date>{_DAY}|{_WEEKDAY}|{_MONTH}(?:,?\s\d{{4}})?|(?:19|20)\d\d-(?:0[1-9]|1[0-2]))"
    rf"|(?P<time>{_CLOCK}{_ZONE}))(?![\w])"
)
_WORD = re.compile(r"[A-Za-z0-9_-]+(?:[.,]\d+)*")
_BEFORE_IN_WORD = re.compile(r"[A-Za-z0-9_-]|(?<=\d)[.,](?=\d)")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{15,}={0,2}")
_BEFORE_IN_BASE64 = re.compile(r"[A-Za-z0-9+/]")
# Only from the start of a word on: a long one would be looked at again from each of its letters.
_CHANGING = re.compile(rf"{_TELLING.pattern}|(?<![\w-])[\w-]*\d[\w-]*(?:[.,]\d+)*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
# How far around a difference a timestamp that holds it may reach.
_AROUND_CHARS = 64
# How much of two texts is compared word by word.
_COMPARED_CHARS = 64 * 1024
_SHORTEST_ID_CHARS = 6
_LONGEST_ID_CHARS = 128
_SHORTEST_DRAWN_NUMBER = 9
# A turn is a message or two.
_LARGEST_COUNTER_STEP = 2
_LONGEST_COUNTER = 18
# What is counted by ones and twos is not money, a share or a measure.
_MEASURED_BEFORE = re.compile(r"[$€£¥₹]\s?$|\b(?:USD|EUR|GBP|CHF|JPY)\s?$")
_MEASURED_BEHIND = re.compile(
    r"\s?(?:[%‰°$€£¥₹]|(?:USD|EUR|GBP|CHF|JPY|euros?|dollars?|pounds?|cents?|percent|[KMGT]i?B|bytes|[kcmµn]?[gmsl]"
    r"|px|pt|em|min|hours?|days?|weeks?|months?|years?|degrees?)\b)"
)
# Composing letters takes the square of a run of marks; those of all languages are short (Unicode's own bound).
_LONG_RUN_OF_MARKS = regex.compile(r"\p{M}{31,}")
_CAPITAL_INSIDE = re.compile(r"[a-z][A-Z].*[a-z]|[A-Z]{2}[a-z]")
# What stands in the place of a text that was cut is a line, and what was cut is more than that.
_PLACEHOLDER_CHARS = 200
_LEAST_CUT_CHARS = 100


class Wording(StrEnum):
    """What changed in a text."""

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
class Reworded:
    """What changed, and from where to where it stands on each side, in characters."""

    wording: Wording
    start: int
    end_before: int
    end_after: int


def reworded(before: str, after: str) -> Reworded:
    """What changed between two texts that are not the same."""
    start = common_prefix(before, after)
    telling = _telling(before, after, start) or _identifier(before, after, start)
    if telling is not None:
        return telling
    tail = common_prefix(before[start:][::-1], after[start:][::-1])
    return Reworded(
        wording=_otherwise(before, after, start, tail),
        start=start,
        end_before=len(before) - tail,
        end_after=len(after) - tail,
    )


def common_prefix(one: str, other: str) -> int:
    """How many characters two texts share at their start."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    step = 64
    while (
        one[low : low + step] == other[low : low + step]
    ):  # doubled, so that an early difference is found soon
        low += step
        step *= 2
    high = min(high, low + step)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _telling(before: str, after: str, at: int) -> Reworded | None:
    """A timestamp, date, time or UUID that stands on both sides where they first differ."""
    one, other = _match_at(before, at), _match_at(after, at)
    if one is None or other is None or one.start() != other.start() or one[0] == other[0]:
        return None
    found = one.lastgroup
    if found is None or found != other.lastgroup:
        return None
    if not _is_steady(_rest_of_line(before, one.end()), _rest_of_line(after, other.end())):
        return None
    return Reworded(wording=Wording(found), start=one.start(), end_before=one.end(), end_after=other.end())


def _match_at(text: str, at: int) -> re.Match[str] | None:
    start = max(0, at - _AROUND_CHARS)
    for found in _TELLING.finditer(text, start, at + _AROUND_CHARS):
        if found.start() <= at <= found.end():
            return found
    return None


def _rest_of_line(text: str, at: int) -> str:
    end = text.find("\n", at)
    return text[at:] if end < 0 else text[at:end]


def _identifier(before: str, after: str, at: int) -> Reworded | None:
    """A number or an id in texts that are the same but for such words."""
    for word, inside in ((_WORD, _BEFORE_IN_WORD), (_BASE64, _BEFORE_IN_BASE64)):
        one, other = _word_at(before, at, word, inside), _word_at(after, at, word, inside)
        if one is None or other is None or one[0] != other[0]:
            continue
        (start, end_before), (_, end_after) = one, other
        was, now = before[start:end_before], after[start:end_after]
        wording = _numbering(was, now) or (Wording.RANDOM_ID if _is_random(was, now) else None)
        if wording is None:
            continue
        lead, rest = before[max(0, start - _AROUND_CHARS) : start], before[end_before:]
        is_lone = rest == after[end_after:] and not _is_measured(lead, rest)
        if wording is Wording.COUNTER and not is_lone:
            wording = Wording.NUMBER
        if _is_steady(rest, after[end_after:]):
            return Reworded(wording=wording, start=start, end_before=end_before, end_after=end_after)
    return None


def _word_at(text: str, at: int, word: re.Pattern[str], inside: re.Pattern[str]) -> tuple[int, int] | None:
    """The word that holds a place; none where it is longer than an id can be."""
    start = at
    while start > 0 and at - start <= _LONGEST_ID_CHARS and inside.match(text, start - 1):
        start -= 1
    found = word.match(text, start, start + _LONGEST_ID_CHARS + 1)
    if found is None or found.end() - start > _LONGEST_ID_CHARS:
        return None
    return start, found.end()


def _is_measured(before: str, behind: str) -> bool:
    """Whether a number between these has a unit."""
    return bool(_MEASURED_BEFORE.search(before) or _MEASURED_BEHIND.match(behind))


def _numbering(was: str, now: str) -> Wording | None:
    """Two words that differ in one number alone."""
    if _NUMBER.sub("#", was) != _NUMBER.sub("#", now):
        return None
    pairs = zip(_NUMBER.findall(was), _NUMBER.findall(now), strict=True)
    changed = [(one, other) for one, other in pairs if one != other]
    if len(changed) != 1:
        return None
    one, other = changed[0]
    if _counts_up(one.replace(",", ""), other.replace(",", "")):
        return Wording.COUNTER
    is_drawn = one.isdecimal() and len(one) == len(other) >= _SHORTEST_DRAWN_NUMBER
    return Wording.RANDOM_ID if is_drawn else Wording.NUMBER


def _counts_up(one: str, other: str) -> bool:
    if not (one.isdecimal() and other.isdecimal()) or max(len(one), len(other)) > _LONGEST_COUNTER:
        return False
    return 0 < int(other) - int(one) <= _LARGEST_COUNTER_STEP


def _is_random(was: str, now: str) -> bool:
    """Whether two words look like ids that somebody drew: of about one length, digits or capitals all over."""
    if min(len(was), len(now)) < _SHORTEST_ID_CHARS or abs(len(was) - len(now)) > 2:
        return False
    if not any(map(str.isalpha, was + now)):
        return False
    start = common_prefix(was, now)
    tail = common_prefix(was[start:][::-1], now[start:][::-1])
    parts = was[start : len(was) - tail], now[start : len(now) - tail]
    return any(map(str.isdigit, "".join(parts))) or all(map(_CAPITAL_INSIDE.search, parts))


def _is_steady(before: str, after: str) -> bool:
    """Whether two texts are the same but for what changes by itself: times, numbers, ids.

    Of long ones, whether their beginnings are.
    """
    if before == after:
        return True
    shared = max(0, common_prefix(before[::-1], after[::-1]) - _AROUND_CHARS)
    was, now = before[: len(before) - shared], after[: len(after) - shared]
    is_cut = max(len(was), len(now)) > _COMPARED_CHARS
    was, now = (_CHANGING.sub("\0", text[:_COMPARED_CHARS]) for text in (was, now))
    # The words at the cut may be torn, and not in the same place.
    end = min(len(was), len(now)) - _AROUND_CHARS if is_cut else max(len(was), len(now))
    return was[:end] == now[:end]


def _otherwise(before: str, after: str, head: int, tail: int) -> Wording:
    if "".join(before.split()) == "".join(after.split()):
        return Wording.WHITESPACE
    if _composed(before) == _composed(after):
        return Wording.UNICODE
    was, now = _parsed(before), _parsed(after)
    if was is not None and was == now:
        return Wording.JSON_SPELLING
    if len(before) - len(after) >= _LEAST_CUT_CHARS and head + tail >= len(after) - _PLACEHOLDER_CHARS:
        return Wording.SHORTENED
    return Wording.EXTENDED if head == len(before) else Wording.EDITED


def _composed(text: str) -> str:
    return text if _LONG_RUN_OF_MARKS.search(text) else unicodedata.normalize("NFC", text)


def _parsed(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
