"""Find the values in a sentence, each with what it counts and the words around it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from foveate.compaction.facts.language import find_stem, language
from foveate.compaction.facts.subjects import Token, ValueType, read_tokens, split_words

_PART_END = re.compile(
    r"[,;:.!?](?<!\bDr\.)(?<!\bMr\.)(?<!\bMrs\.)(?<!\bMs\.)(?<!\bProf\.)(?<!\bSt\.)(?<!\bNr\.)\s+"
    r"|\s(?:and|but|so|und|aber|et|mais|y|pero|e|ma|mas)\s"
)
_ATTACHED_UNIT = re.compile(r"(?<=\d)[a-zµ°%²³]{1,4}$")
# "SK" in SK4411, "v2.14." in v2.14.0, "192.168.1." in 192.168.1.20.
_CODE_PREFIX = re.compile(r"(?=.{2})(?:[a-z]{1,4}-)?[a-z]{1,10}-?(?=\d)|(?:\w{1,8}[.-]){1,4}(?=\d)|0x")
ORDINAL = re.compile(r"\d{1,2}(?:st|nd|rd|th)")
_MAX_HOUR = 24
_PATH_JOINTS = frozenset("/\\")
_MAX_TEXTS = 20_000
_MAX_WORD_CHARS = 20


@dataclass(frozen=True, slots=True)
class Mention:
    """A value in a text, what it counts, and the stems of the words and names around it."""

    value_type: ValueType
    value: str
    start: int
    end: int
    unit: str
    """The word for what a number counts or measures, or the letters that a code starts with."""
    dimension: str
    """The same for all units that measure the same."""
    near: frozenset[str]
    """Those in the same part of the sentence."""
    part: str
    """That part."""

    @property
    def normal(self) -> str:
        """The value without signs that people leave out: "£950", "4:40pm", "thurs"."""
        return _normalize(self.value)


@dataclass(frozen=True, slots=True)
class Wording:
    mentions: tuple[Mention, ...]
    stems: frozenset[str]


@lru_cache(maxsize=_MAX_TEXTS)
def find_mentions(text: str) -> Wording:
    tokens = read_tokens(text)
    ends = [*_part_starts(text), len(text) + 1]
    mentions: list[Mention] = []
    every: set[str] = set()
    number = 0
    before = subject = frozenset[str]()
    for start, end in pairwise(ends):
        part: list[Token] = []
        while number < len(tokens) and tokens[number].start < end:
            part.append(tokens[number])
            number += 1
        stems = [frozenset(_stems(token)) for token in part]
        for position, (article, token) in enumerate(pairwise(part[:-1]), 1):
            is_noun = stems[position + 1] or part[position + 1].lower in language().auxiliaries
            if article.lower in language().determiners and token.is_function_word and is_noun:
                stems[position] = frozenset((find_stem(token.lower),))  # "the back bed", "the fine is"
        words = frozenset[str]().union(*stems)
        has_verb = any(token.is_function_word or token.is_cue for token in part)
        first = next(
            (at for at, token in enumerate(part) if token.value_type not in (None, ValueType.NAME)), len(part)
        )
        own_subject = frozenset[str]().union(*stems[:first])
        # "Rex weighs 6 kg and gets 55 g", "For the orders service: pool size 20"
        inherited = (frozenset() if own_subject else subject) | (frozenset() if has_verb else before)
        for position, token in enumerate(part):
            is_in_path = token.start and text[token.start - 1] in _PATH_JOINTS
            if token.value_type is None or is_in_path or _is_title(text, token, part[position + 1 :]):
                continue
            last = position + 1
            while last < len(part) and part[last].continues:
                last += 1
            near = inherited.union(*stems[:position], *stems[last:])
            is_time = _is_bare_time(part[position - 1] if position else None, token, part[last:])
            unit = _find_unit(token, part[last : last + 2])
            value, value_start = token.value, token.start
            if mentions and _is_weekday_of(mentions[-1], token, text):
                weekday = mentions.pop()
                value, value_start = f"{weekday.value} {value}", weekday.start
            mentions.append(
                Mention(
                    ValueType.TIME if is_time else token.value_type,
                    value,
                    value_start,
                    part[last - 1].start + len(part[last - 1].text),
                    unit,
                    language().dimensions.get(unit, unit),
                    near,
                    text[start:end],
                )
            )
        every |= words
        if first == len(part):
            before = words
        subject = own_subject or subject
    return Wording(tuple(mentions), frozenset(every))


@lru_cache(maxsize=_MAX_TEXTS)
def _normalize(value: str) -> str:
    first, _, date = value.partition(" ")
    if first.removesuffix("s") in language().weekdays:
        return _normalize_date(date) or value[:3]
    return (_normalize_date(value) or _OMITTED_SIGNS.sub("", value)) if any(map(str.isdigit, value)) else value


def _normalize_date(value: str) -> str:
    """A day and a month, the same for "6 October", "6th of Oct" and "October 6"; empty if there is no month."""
    words = value.replace(".", "").split()
    months = [word for word in words if word in language().months]
    days = [match[1] for word in words if (match := _DAY.fullmatch(word))]
    if len(months) == len(days) == 1:
        return f"{days[0].lstrip('0')} {months[0][:_MONTH_CHARS]}"
    return value if months else ""


_DAY = re.compile(r"(\d{1,2})(?:st|nd|rd|th)?")
_MONTH_CHARS = 3
# A currency, commas between digits, and the half of the day.
_OMITTED_SIGNS = re.compile(r"^[$€£¥]|(?<=\d),(?=\d{3})|\s?[ap]\.?m\.?$|^0(?=\d)")


def split_parts(text: str) -> list[str]:
    """The parts of a sentence, each with what ends it."""
    return [text[start:end] for start, end in pairwise([*_part_starts(text), len(text)])]


def _part_starts(text: str) -> list[int]:
    """Where parts start; a date belongs to its weekday: "Sunday, 9 May"."""
    words = language()
    starts = [0]
    for match in _PART_END.finditer(text):
        start, end = match.span()
        before = text[max(start - _MAX_WORD_CHARS, 0) : start].rpartition(" ")[2].lower()
        after = text[end : end + _MAX_WORD_CHARS].partition(" ")[0].lower()
        is_date = before in words.weekdays and (after[:1].isdigit() or after in words.months)
        if not (is_date and text[start] == ","):
            starts.append(end)
    return starts


def _stems(token: Token) -> Iterator[str]:
    """Stems of a word or a name; of other values, only codes may name something."""
    if token.is_function_word or token.is_cue or token.value_type not in (None, ValueType.NAME, ValueType.CODE):
        return
    if token.continues and token.text[0].isdigit():
        return
    for word in split_words(token.lower):
        if len(word) > 1 and word not in language().dimensions:
            yield word if token.value_type is ValueType.NAME else find_stem(word)


def _is_weekday_of(before: Mention, token: Token, text: str) -> bool:
    """Return whether a date follows its weekday: "Sunday 9 May"."""
    is_date = token.value_type is ValueType.DATE and token.value not in language().weekdays
    return is_date and before.value in language().weekdays and text[before.end : token.start] in (" ", ", ")


def _is_title(text: str, token: Token, following: Sequence[Token]) -> bool:
    """Return whether a name is a title before another name: "Dr. Vance"."""
    is_name = token.value_type is ValueType.NAME and bool(following)
    return is_name and text.startswith(".", token.start + len(token.text))


def _is_bare_time(before: Token | None, token: Token, following: Sequence[Token]) -> bool:
    """Return whether a number is a time: "at 3", but not "at 3 euros" or "at 250"."""
    return (
        before is not None
        and before.lower in language().clock_prepositions
        and token.value.isdecimal()
        and int(token.value) <= _MAX_HOUR
        and (not following or following[0].is_function_word or following[0].is_cue)
    )


def _find_unit(token: Token, following: Sequence[Token]) -> str:
    dimensions = language().dimensions
    if token.value_type is ValueType.CODE and (prefix := _CODE_PREFIX.match(token.value)):
        return prefix[0]
    if token.value_type is not ValueType.NUMBER or ORDINAL.fullmatch(token.value):
        return ""
    if attached := _ATTACHED_UNIT.search(token.value):
        is_seat = len(attached[0]) == 1 and token.text[-1].isupper()  # "12A"
        return "" if is_seat else attached[0]
    if not following or following[0].value_type is not None:
        return ""
    first = following[0]
    if first.lower in dimensions:
        return first.lower
    is_noun = first.text.islower() and not (first.is_function_word or first.is_cue)
    if is_noun and len(following) > 1 and following[1].lower in dimensions:
        return following[1].lower  # "six rowing days"
    return find_stem(first.lower) if is_noun else ""
