"""Tell what a sentence is about, and the values that it gives: numbers, dates, amounts, codes, names.

Two sentences are compared by their content words, by the types of their values, and by slots: a word in the
same place of the same frame as another word ("the staging port", "the production port") names another thing.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import takewhile, zip_longest

from foveate.compaction.facts.language import find_stem, language
from foveate.compaction.facts.rules import rules

_TOKEN = re.compile(r"https?://[^\s\"'<>)\]]{1,300}|[$€£¥#@~/]?\w[\w'’.,:/@+&%=-]{0,120}")
_TRAILING = ".,:'’-/=+&"
_CURRENCY_SIGNS = "$€£¥"
_DIGITS = re.compile(r"\d{1,20}(?:[.,]\d{1,20}){0,3}")
_MEASURE = re.compile(r"\d{1,20}(?:[.,]\d{1,20}){0,3}(?:[a-zµ°%]{1,4}|²|³)")
_CLOCK = re.compile(r"(?:[01]?\d|2[0-4])[:.h][0-5]\d(?::\d{2})?(?:am|pm)?|\d{1,2}(?:am|pm)", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./](?:\d{2}){1,2}|\d{2}-\d{2}")
_DOTTED = re.compile(
    r"v?\d{1,9}(?:\.\d{1,9}){2,4}(?:[a-z_-][\w-]{0,40})?|v\d{1,9}(?:\.\d{1,9}){0,4}", re.IGNORECASE
)
_ORDINAL = re.compile(r"\d{1,3}(?:st|nd|rd|th|º|ª|er|e)", re.IGNORECASE)
_DAY = re.compile(r"\d{1,2}(?:st|nd|rd|th)?")
_HOST = re.compile(r"[\w-]{1,60}(?:\.[\w-]{1,60}){0,6}\.[a-z]{2,12}", re.IGNORECASE)
_OPENING = re.compile(
    r"(?:(?:now|then|next|also|and|ok|okay|please|first|jetzt|dann|bitte)[\s,]{1,3}){1,4}", re.IGNORECASE
)
_CLAUSE_END = re.compile(
    r";\s+|(?<=[^\d\s][.!?])(?<!\bDr\.)(?<!\bMr\.)(?<!\bMrs\.)(?<!\bMs\.)(?<!\bProf\.)(?<!\bSt\.)(?<!\bNr\.)\s+(?=\S)"
    r"|(?<=\d[.!?])\s+(?=[A-Z][a-z]+\s)"
)
# Who says something is not what it is about: "Ana says that the hotel …".
_ATTRIBUTION = re.compile(
    r"^(?:[\w'’.-]{1,40}\s){1,5}"
    r"(?:says?|said|confirmed|reports|reported|wrote|thinks|told (?:me|us)|sagt|sagte|schreibt|dit|dice|diz"
    r"|(?:wants?|wanted|asks|asked|recommends?|recommended|suggests?|suggested|insists?|insisted|agreed|decided)"
    r"(?: (?:for|on|upon))?(?: (?:us|me|you))?(?: to)?)"
    r"(?:,?\s(?:that|dass|que|che))?\s(?=\S+\s\S)"
)
# Nor is what happened before: "After the pilot we incubate the plates for 36 hours."
_AFTER = re.compile(
    r"^(?:after the|following the|since|nach de[mr]|seit|après l[ea]|depuis|desde|dopo il|dopo la)"
    r"\s(?:[\w'’.-]{1,40}\s){1,3}?(?=(?:the|we|i|you|they|he|she|it|our|my|der|die|das|wir|ich|le|la|les|nous|je|el|il)\s)",
    re.IGNORECASE,
)
# A reason at the end of a sentence is about something else: "…, because Ana works until the 13th".
_REASON = re.compile(
    r",?\s(?:because|due to|weil|wegen|parce que|à cause|porque|debido a|perché|a causa)\b"
    r"|,\s(?:since|as|da|denn|car|puisque|ya que|poiché|pois)\s",
    re.IGNORECASE,
)
# Somebody brings news: "The clinic called, …".
_REPORTED = re.compile(
    r"\b(?:called|rang|phoned|wrote|emailed|texted|replied|announced)(?:\s(?:us|me|back|again|today|yesterday))?[,:]\s",
    re.IGNORECASE,
)
# What is wrong: "on Thursday, not Tuesday", "in bed 5 instead of bed 2".
_REJECTED = re.compile(
    r"(?:,\s(?:and\s)?(?:not|nicht|pas|non|no|não)"
    r"|,?\s(?:instead of|rather than|statt|anstatt|au lieu de|en vez de|invece di|em vez de))"
    r"\s([^,.;:!?\n]{1,60})(?=[,.;:!?\n]|$)",
    re.IGNORECASE,
)
# Clauses of a sentence, also short ones: "Paula is ill, so Igor brings the projector."
_PART_END = re.compile(r"[,;:.!?]\s+|\s(?:so|also|donc|así que|quindi|então)\s")
_POSSESSIVE_ENDS = ("'s", "’s")
_CONTRACTED = re.compile(r"([^\W\d_][^\W_]*)['’]s")
POSSESSIVE = "'s"
_OWNER = "my"
_WORD_PARTS = re.compile(r"[^\W_]+")
_NOT_ENDS = ("n't", "n’t")
_BOUND_WORDS = frozenset(
    ("more", "later", "longer", "less", "fewer", "earlier", "mehr", "länger", "más", "plus", "più")
)
_OF_WORDS = frozenset(("of", "von", "sur", "de", "di"))
_ONLY_WORDS = frozenset(("only", "nur", "seulement", "solo", "sólo", "soltanto", "apenas", "somente"))
_DEFINITE_ARTICLES = frozenset(("the", "der", "die", "das", "den", "dem", "le", "la", "el", "il", "lo", "o"))
_MAX_WORDS = 50_000
_MAX_VALUE_WORDS = 12
_MAX_PARTS = 6
_PHONE_DIGITS = range(8, 16)
_MAX_PHONE_GROUP = 5
_HOUSE_NUMBER = re.compile(r"\d{1,5}[a-zA-Z]?")
_CAPITALS = re.compile(r"[A-Z][A-Z0-9-]{0,5}")
_CAPITALS_OR_DIGITS = re.compile(r"[A-Z0-9-]{0,5}\d[A-Z0-9-]{0,5}")
_UNIT = re.compile(r"(?<=\d)[a-zµ°%²³]{1,4}$")
_START, _END = "^", "$"


class ValueType(StrEnum):
    MONEY = "money"
    DATE = "date"
    TIME = "time"
    NUMBER = "number"
    CODE = "code"
    PATH = "path"
    ADDRESS = "address"
    NAME = "name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a sentence is about.

    `words` maps the stems of its content words to a word. `values` are lowercase, by type. `slots` are content
    words with the tokens before and after. `leading_names` are names at its start, which may be its subject.
    `topic` are the stems of the noun phrase at its start, if it has an article. `qualifiers` are the names and
    possessives that tell which thing it is, each with what relates it: ("in", "lisbon"), ("'s", "ana").
    """

    words: Mapping[str, str]
    values: Mapping[ValueType, frozenset[str]]
    all_values: frozenset[str]
    value_words: frozenset[str]
    slots: frozenset[tuple[str, str, str]]
    leading_names: frozenset[str]
    topic: tuple[str, ...]
    qualifiers: frozenset[tuple[str, str]]
    parts: tuple[frozenset[str], ...]
    """The words of each clause, and their stems."""
    condition: str
    """The stem of the first noun after a preposition at the start: "With the trailer …"."""
    has_cue: bool
    is_correction: bool
    """One of its cues says that something earlier is no longer true: "instead"."""
    is_negated: bool
    is_step: bool
    is_unique: bool
    """There can be only one such value: "the door code X", "only X may"."""
    units: Mapping[str, str]
    """What numbers count, by the number: "replica", or for units of measurement, what they measure."""
    phrases: frozenset[tuple[str, ...]]
    """The stems after each article that follows no preposition: what it is about, or what is done to it."""
    rejected: frozenset[str] = frozenset()
    """The words of what it says is wrong: "…, not Tuesday"."""
    heads: frozenset[str] = frozenset()
    """Its first word, and if that is followed by an article, the last word of what it stands for."""
    focuses: tuple["Subject", ...] = ()
    """Its clauses that give a value, if it has several: "We have more users, so run 5 replicas."."""

    @property
    def is_elliptical(self) -> bool:
        """Return whether it only gives a value, and does not say of what: "Make it 7 o'clock."."""
        units = language().dimensions
        return bool(self.all_values) and all(
            word in units or stem in self.units.values() for stem, word in self.words.items()
        )

    @property
    def has_hard_value(self) -> bool:
        return any(value_type is not ValueType.NAME for value_type in self.values)


@dataclass(slots=True)
class Token:
    text: str
    lower: str
    start: int
    is_function_word: bool
    is_cue: bool = False
    relation: str = ""
    """How a name tells which thing is meant: its preposition."""
    value_type: ValueType | None = None
    value: str = ""
    continues: bool = False
    """Part of the value of the token before."""


def find_subject(sentence: str, *, with_clauses: bool = False) -> Subject:
    """The subject of a sentence without its label; `with_clauses`: and those of its clauses."""
    sentence = _AFTER.sub("", _ATTRIBUTION.sub("", cut_reason(sentence), count=1), count=1)
    rejected = _REJECTED.search(sentence)
    if rejected:
        sentence = sentence[: rejected.start()] + sentence[rejected.end() :]
    cue_spans = [
        match.span()
        for match in language().update_cues.finditer(sentence)
        if not _is_sequence(sentence, match) and not _is_attribute(sentence, match)
    ]
    clauses = [_read_clause(sentence, start, end, cue_spans) for start, end in _clause_ranges(sentence)]
    # What follows a semicolon or a full stop often has another subject. Only clauses with values count, if any.
    valued = [clause for clause in clauses if any(token.value_type is not None for token in clause)]
    opening = _OPENING.match(sentence)
    is_step = language().step_cues.match(sentence, opening.end() if opening else 0) is not None
    has_cue = (
        bool(cue_spans)
        or rejected is not None
        or _REPORTED.search(sentence) is not None
        or any(map(_moves_to_value, clauses))
    )
    parts = _split_parts(sentence)
    is_correction = any(sentence[start:end].lower() in language().correction_cues for start, end in cue_spans)
    return _build_subject(
        valued or clauses,
        parts=parts,
        has_cue=has_cue,
        is_step=is_step,
        is_correction=is_correction,
        rejected=frozenset(find_stem(word) for word in split_words(rejected[1].lower()))
        if rejected
        else frozenset(),
        focuses=tuple(_find_focuses(sentence, cue_spans, has_cue=has_cue, is_step=is_step))
        if with_clauses and len(parts) > 1
        else (),
    )


def _moves_to_value(tokens: Sequence[Token]) -> bool:
    """Return whether something changes to a value: "slides to 28 November", but not "from 9:00 to 17:00"."""
    return not any(token.lower in _ORIGINS for token in tokens) and any(
        token.lower in _TARGETS
        and following.value_type not in (None, ValueType.NAME)
        and not (before and before.lower == "up")
        for before, token, following in zip((None, *tokens), tokens, tokens[1:], strict=False)
    )


_ORIGINS, _TARGETS = frozenset(("from", "von", "between", "zwischen")), frozenset(("to", "auf"))


def _find_focuses(
    sentence: str, cue_spans: Sequence[tuple[int, int]], *, has_cue: bool, is_step: bool
) -> Iterator[Subject]:
    ends = [(match.start(), match.end()) for match in _PART_END.finditer(sentence)]
    start = 0
    for end, next_start in [*ends, (len(sentence), 0)][:_MAX_PARTS]:
        tokens = _read_clause(sentence, start, end, cue_spans)
        if any(token.value_type is not None for token in tokens):
            yield _build_subject(
                [tokens], parts=_split_parts(sentence[start:end]), has_cue=has_cue, is_step=is_step
            )
        start = next_start


def _split_parts(sentence: str) -> tuple[frozenset[str], ...]:
    words = map(split_words, _PART_END.split(sentence.lower()))
    return tuple(frozenset((*found, *map(find_stem, found))) for found in words if found)


def starts_with_value(sentence: str) -> bool:
    """Return whether a value other than a name comes before every content word."""
    tokens = _read_clause(sentence, 0, len(sentence), ())
    first = next((token for token in tokens if not token.is_function_word), None)
    return first is not None and first.value_type not in (None, ValueType.NAME)


def _is_sequence(sentence: str, cue: re.Match[str]) -> bool:
    """Return whether a cue at the start only orders steps: "Now look at …"."""
    opening = _OPENING.match(sentence)
    return (
        opening is not None
        and cue.end() <= opening.end()
        and language().step_cues.match(sentence, opening.end()) is not None
    )


def _is_attribute(sentence: str, cue: re.Match[str]) -> bool:
    """Return whether a cue only describes a thing: "the raised bed"."""
    words = sentence[: cue.start()].split()
    return (
        cue[0].lower() in language().attribute_cues
        and bool(words)
        and words[-1].lower() in language().determiners
    )


def cut_reason(sentence: str) -> str:
    """The sentence without a reason at its end, unless only the reason gives a value."""
    match = _REASON.search(sentence)
    return sentence[: match.start()] if match and match.start() else sentence


def _clause_ranges(sentence: str) -> Iterator[tuple[int, int]]:
    start = 0
    for match in _CLAUSE_END.finditer(sentence):
        yield start, match.start()
        start = match.end()
    yield start, len(sentence)


def _read_clause(sentence: str, start: int, end: int, cue_spans: Sequence[tuple[int, int]]) -> list[Token]:
    tokens = _split_tokens(sentence, start, end)
    for token in tokens if cue_spans else ():
        is_in_cue = any(cue_start <= token.start < cue_end for cue_start, cue_end in cue_spans)
        token.is_cue = is_in_cue and (
            token.lower in language().update_words or not _is_in_gap(token, cue_spans)
        )
    is_german = not language().german_words.isdisjoint([token.lower for token in tokens])
    _mark_hard_values(tokens, is_german=is_german)
    _mark_names(tokens, is_german=is_german)
    return tokens


def read_tokens(sentence: str) -> list[Token]:
    return _read_clause(
        sentence, 0, len(sentence), [match.span() for match in language().update_cues.finditer(sentence)]
    )


def _is_in_gap(token: Token, cue_spans: Sequence[tuple[int, int]]) -> bool:
    """Return whether words of a cue stand on both sides: "not … any more"."""
    end = token.start + len(token.text)
    return any(start < token.start and end < cue_end for start, cue_end in cue_spans)


def _split_tokens(sentence: str, start: int, end: int) -> list[Token]:
    function_words = language().function_words
    tokens: list[Token] = []
    matches = [(match.start(), match[0].rstrip(_TRAILING)) for match in _TOKEN.finditer(sentence, start, end)]
    for number, (position, text) in enumerate(matches):
        if not text:
            continue
        contracted = _CONTRACTED.fullmatch(text)
        if contracted and _is_verb(text, sentence[position + len(text) : end], matches[number + 1 :]):
            tokens += (
                Token(contracted[1], contracted[1].lower(), position, False),
                Token("is", "is", position + contracted.end(1) + 1, True),
            )
            continue
        lower = text.lower()
        is_letter = len(text) == 1 and text.isupper() and text != "I" and bool(tokens)  # "server A"
        is_acronym = len(text) == 2 and text.isupper() and lower != "ok"  # "CI"
        is_function_word = lower in function_words and not (is_letter or is_acronym)
        tokens.append(Token(text, lower, position, is_function_word or _is_clitic(lower)))
    return tokens


def _is_clitic(lower: str) -> bool:
    """Return whether a word is a function word with another one attached: "we're", "shouldn't"."""
    stem, apostrophe, _ = lower.replace("’", "'").partition("'")
    return bool(apostrophe) and (stem in language().function_words or lower.endswith(_NOT_ENDS))


def _is_verb(text: str, rest: str, following: Sequence[tuple[int, str]]) -> bool:
    """Return whether an ending is a verb, and not of an owner: "the fee's £20", "the van's rented"."""
    words = language()
    if text[:-2].lower() in words.function_words:
        return False
    after = following[0][1] if following and rest.startswith(" ") else ""
    lower = after.lower()
    if lower in words.function_words or not after:
        is_owner = lower in words.auxiliaries or words.conjunctions.fullmatch(lower) is not None
        return bool(after) and not is_owner
    is_date = lower in words.weekdays or lower in words.months
    is_number = after[0].isdigit() and not _ORDINAL.fullmatch(after)
    return is_date or is_number or after[0] in _CURRENCY_SIGNS or lower.endswith("ed")


def _mark_hard_values(tokens: Sequence[Token], *, is_german: bool) -> None:
    words = language()
    before: Token | None = None  # the value that ends just before
    for number, token in enumerate(tokens):
        if token.continues:
            continue
        if number and not (tokens[number - 1] is before or tokens[number - 1].continues):
            is_of = tokens[number - 1].lower in _OF_WORDS and tokens[number - 2] is before
            if not (before and is_of and _ORDINAL.fullmatch(before.text)):  # "the 3rd of March"
                before = None
        following = tokens[number + 1 : number + 1 + _MAX_VALUE_WORDS]
        lower = token.lower
        if lower in words.middays:
            _mark(token, ValueType.TIME)
        elif lower in words.number_words and not token.is_cue:
            _mark(token, ValueType.NUMBER, following, lambda other: other.lower in words.number_words)
        elif following and _is_split_code(token, following[0]):
            _mark(token, ValueType.CODE, following[:1])
        elif following and (groups := _find_phone(token, following)):
            _mark(token, ValueType.CODE, groups)
        elif following and not is_german and _is_house_number(token, following[0]):
            _mark(token, ValueType.ADDRESS, following, lambda other: _is_capitalized(other.text))
        elif _is_hyphenated_name(token, tokens[number - 1] if number else None, following):
            _mark(token, ValueType.CODE)
        elif value_type := _word_type(token.text):
            _mark(token, value_type)
            if len(following) > 1 and following[0].lower in _OF_WORDS and following[1].text.isdigit():
                _mark(token, value_type, following[:2])  # "3 of 5"
        elif (
            lower in words.weekdays
            or lower.removesuffix("s") in words.weekdays
            or (lower in words.frequencies and not (following and _is_content(following[0])))
        ):
            _mark(token, ValueType.DATE)
        elif lower in words.months and (
            token.text[0].isupper()
            or (before and before.value_type is ValueType.NUMBER)
            or (len(lower) > 3 and following and _DAY.fullmatch(following[0].text))
        ):
            if before is not None and before.value_type is ValueType.NUMBER:
                before.value_type, token.continues = ValueType.DATE, True
                if tokens[number - 1] is not before:
                    tokens[number - 1].continues = True
                    before.value += f" {tokens[number - 1].lower}"
                before.value += f" {lower}"
            elif following and (_DIGITS.fullmatch(following[0].text) or _ORDINAL.fullmatch(following[0].text)):
                _mark(token, ValueType.DATE, following[:1])
            elif len(lower) > 3:
                _mark(token, ValueType.DATE)
        elif before is not None and before.value_type is ValueType.NUMBER:
            if lower in words.currencies:
                before.value_type, token.continues = ValueType.MONEY, True
            elif lower in words.times_of_day:
                before.value_type, token.continues = ValueType.TIME, True
        if token.value_type is not None:
            before = token


def _is_split_code(token: Token, following: Token) -> bool:
    """Return whether two words are one code: "EH6 6JH", "RAL 9010", "M-KL 4410"."""
    return (
        _CAPITALS.fullmatch(token.text) is not None
        and _CAPITALS_OR_DIGITS.fullmatch(following.text) is not None
        and following.start == token.start + len(token.text) + 1
        and not token.is_function_word
    )


def _find_phone(token: Token, following: Sequence[Token]) -> Sequence[Token]:
    """The groups of digits after the first one of a phone number: "07700 900 112", "31 6 0000 2264"."""
    groups = [token]
    for other in following:
        is_group = other.text.isdecimal() and len(other.text) <= _MAX_PHONE_GROUP
        if not is_group or other.start != groups[-1].start + len(groups[-1].text) + 1:
            break
        groups.append(other)
    sizes = [len(group.text) for group in groups]
    is_phone = (
        token.text.isdecimal() and sum(sizes) in _PHONE_DIGITS and (token.text[0] == "0" or max(sizes) > 2)
    )
    return groups[1:] if is_phone else ()


def _is_hyphenated_name(token: Token, before: Token | None, following: Sequence[Token]) -> bool:
    """Return whether words with hyphens name something: "goes to orders-eu-west", "called orders-rs"."""
    parts = token.lower.split("-")
    words = language()
    is_joined = not (words.prepositions | words.determiners).isdisjoint(parts)
    is_plain = all(map(str.isalpha, parts)) and not is_joined
    if len(parts) < _MIN_NAME_PARTS or not is_plain or (following and _is_content(following[0])):
        return False
    is_named = before is not None and before.lower in _NAMING_WORDS
    return token.text.islower() and (
        is_named or (len(parts) > _MIN_NAME_PARTS and words.number_words.isdisjoint(parts))
    )


# Other words have two hyphens only if one part is a function word: "up-to-date".
_MIN_NAME_PARTS = 2
_NAMING_WORDS = frozenset(("called", "named", "to", "into"))


def _mark(
    token: Token,
    value_type: ValueType,
    following: Sequence[Token] = (),
    is_part: Callable[[Token], bool] = bool,
) -> None:
    token.value_type, token.value = value_type, token.lower
    for other in following:
        if not is_part(other):
            break
        other.continues = True
        token.value += f" {other.lower}"


@lru_cache(maxsize=_MAX_WORDS)
def _word_type(text: str) -> ValueType | None:
    if text[0] in _CURRENCY_SIGNS and any(char.isdigit() for char in text):
        return ValueType.MONEY
    if not any(char.isdigit() for char in text):
        if text.startswith(("http://", "https://")) or text[0] in "/~" or ("@" in text and "." in text):
            return ValueType.PATH
        if "/" in text.strip("/") and len(text) > 6 and text.lower() == text:
            return ValueType.PATH
        if "_" in text.strip("_") or (_HOST.fullmatch(text) and text.islower()):
            return ValueType.CODE
        return None
    if _CLOCK.fullmatch(text):
        return ValueType.TIME
    if _DATE.fullmatch(text):
        return ValueType.DATE
    if _DIGITS.fullmatch(text) or _MEASURE.fullmatch(text.lower()) or _ORDINAL.fullmatch(text):
        return ValueType.NUMBER
    if _DOTTED.fullmatch(text):
        return ValueType.CODE
    if "/" in text or "@" in text:
        return ValueType.PATH
    return ValueType.CODE


def _is_house_number(token: Token, following: Token) -> bool:
    """Return whether an address starts with a number: "14 Elm Street"."""
    return (
        _HOUSE_NUMBER.fullmatch(token.text) is not None
        and _is_capitalized(following.text)
        and following.start == token.start + len(token.text) + 1
        and not (following.is_function_word or following.lower in language().months)
        and not (following.lower in language().dimensions or following.lower in language().currencies)
    )


def _is_capitalized(text: str) -> bool:
    return text.partition("'")[0].partition("’")[0].istitle()  # "Tanner's Row"


def _mark_names(tokens: Sequence[Token], *, is_german: bool) -> None:
    """Mark capitalized words; in German, where every noun is capitalized, only two or more in a row."""
    number = 0
    while number < len(tokens):
        end = number
        while end < len(tokens) and _is_name_word(tokens[end]) and (end == number or _is_adjacent(tokens, end)):
            end += 1
        length = end - number
        is_name = length > (1 if is_german else 0) and not (
            number == 0 and length == 1 and not tokens[0].text.isupper()
        )
        if (
            is_name
            and number == 0
            and (
                tokens[0].is_function_word
                or (length > 1 and (len(tokens[1].text) == 1 or tokens[0].lower in language().cancel_words))
            )
        ):
            number += 1  # "The Hague" is rarer than "The Hendersons", and "Server A" is a server
            continue
        if is_name:
            name = tokens[number]
            name.value_type = ValueType.NAME
            name.value = " ".join(token.lower for token in tokens[number:end])
            for token in tokens[number + 1 : end]:
                token.continues = True
        number = max(end, number + 1)


def _is_name_word(token: Token) -> bool:
    return (
        token.text[0].isupper()
        and token.value_type is None
        and not (token.is_cue or token.continues or token.is_function_word)
        and not (len(token.text) > 1 and token.text.isupper() and token.lower in language().dimensions)  # "GB"
    )


def _is_adjacent(tokens: Sequence[Token], number: int) -> bool:
    before, token = tokens[number - 1], tokens[number]
    return token.start - before.start - len(before.text) == 1


def split_words(text: str) -> list[str]:
    return _WORD_PARTS.findall(text)


def _build_subject(
    clauses: Sequence[Sequence[Token]],
    *,
    parts: tuple[frozenset[str], ...],
    has_cue: bool,
    is_step: bool,
    is_correction: bool = False,
    rejected: frozenset[str] = frozenset(),
    focuses: tuple[Subject, ...] = (),
) -> Subject:
    values: dict[ValueType, set[str]] = {}
    words: dict[str, str] = {}
    function_words, dimensions = language().function_words, language().dimensions
    slots: set[tuple[str, str, str]] = set()
    leading_names: set[str] = set()
    qualifiers: set[tuple[str, str]] = set()
    units: dict[str, str] = {}
    phrases: set[tuple[str, ...]] = set()
    for tokens in clauses:
        _unmark_qualifiers(tokens)
        units.update(_units(tokens))
        phrases.update(_phrases(tokens))
        frame: list[tuple[str, bool]] = []
        for number, token in enumerate(tokens):
            if number and not _is_adjacent(tokens, number):
                frame.append((",", False))
            if token.value_type is not None:
                values.setdefault(token.value_type, set()).add(token.value)
                if token.value_type is ValueType.NAME and not any(is_content for _, is_content in frame):
                    leading_names.add(token.value)
                if token.value_type is ValueType.PATH and "/" in token.value[1:-1] and ":" not in token.value:
                    folder = token.value[: token.value.index("/", 1) + 1]
                    words.setdefault(folder, folder)
                frame.append((f"<{token.value_type.value}>", False))
            elif token.continues or token.is_cue:
                continue
            elif token.is_function_word:
                frame.append((token.lower, False))
            else:
                for part in _WORD_PARTS.findall(token.lower):
                    is_word = part == token.lower or part not in function_words
                    if (len(part) > 1 or part.isdigit()) and is_word:
                        stem = find_stem(part)
                        words.setdefault(stem, part)
                        # Units of the same are not different things: "24 hours", "90 minutes".
                        is_unit = part in dimensions and bool(frame) and frame[-1][0].startswith("<")
                        frame.append((dimensions[part], False) if is_unit else (stem, True))
        slots.update(_slots(frame))
        qualifiers.update(_qualifiers(tokens))
    all_values = frozenset().union(*values.values())
    return Subject(
        words=words,
        values={value_type: frozenset(found) for value_type, found in values.items()},
        all_values=all_values,
        value_words=frozenset(split_words(" ".join(all_values))),
        slots=frozenset(slots),
        leading_names=frozenset(leading_names),
        topic=_find_topic(clauses[0]) if clauses else (),
        qualifiers=frozenset(qualifiers),
        parts=parts,
        condition=_find_condition(clauses[0]) if clauses else "",
        has_cue=has_cue,
        is_correction=is_correction,
        is_step=is_step,
        is_unique=any(map(_has_unique_value, clauses)),
        is_negated=any(map(_is_negated, clauses)),
        units=units,
        rejected=rejected,
        focuses=focuses,
        phrases=frozenset(phrases),
        heads=_find_heads(clauses[0]) if clauses else frozenset(),
    )


def _find_heads(tokens: Sequence[Token]) -> frozenset[str]:
    """The first word; and what a verb at the start is about: "Set the log level to …"."""
    first = next((number for number, token in enumerate(tokens) if _is_content(token)), None)
    if first is None:
        return frozenset()
    heads = {find_stem(part) for part in split_words(tokens[first].lower)}
    if first + 1 < len(tokens) and tokens[first + 1].lower in language().determiners:
        nouns = list(takewhile(_is_content, tokens[first + 2 :]))
        heads.update(find_stem(noun.lower) for noun in nouns[-1:])
    return frozenset(heads)


def _units(tokens: Sequence[Token]) -> Iterator[tuple[str, str]]:
    """Each number with what it counts."""
    dimensions = language().dimensions
    number = ""
    for token in tokens:
        if token.value_type is not None:
            number = token.value if token.value_type is ValueType.NUMBER else ""
            if number and (attached := _UNIT.search(number)):
                if not _ORDINAL.fullmatch(number):
                    yield number, dimensions.get(attached[0], attached[0])
                number = ""
        elif not token.continues:
            if number and token.lower in dimensions:
                yield number, dimensions[token.lower]
            elif number and _is_content(token) and token.text.islower():  # not "12 Elm Street"
                yield number, find_stem(token.lower)
            number = ""


def _phrases(tokens: Sequence[Token]) -> Iterator[tuple[str, ...]]:
    determiners = language().determiners
    for number, token in enumerate(tokens):
        if token.lower in determiners and token.text != "I" and not token.continues:
            if number and tokens[number - 1].lower in language().prepositions:
                continue
            nouns = takewhile(_is_content, tokens[number + 1 : number + 1 + _MAX_VALUE_WORDS])
            if phrase := tuple(find_stem(noun.lower) for noun in nouns):
                yield phrase


def _find_topic(tokens: Sequence[Token]) -> tuple[str, ...]:
    """Stems of the words between an article at the start and the next word without a meaning of its own."""
    start = next((number for number, token in enumerate(tokens) if not token.is_cue), len(tokens))
    if start == len(tokens) or tokens[start].lower not in language().determiners:
        return ()
    topic = takewhile(_is_content, (token for token in tokens[start + 1 :] if not token.is_cue))
    return tuple(find_stem(token.lower.removesuffix("'s")) for token in topic)


def _find_condition(tokens: Sequence[Token]) -> str:
    if not tokens or tokens[0].is_cue or tokens[0].lower not in language().prepositions:
        return ""
    return next((find_stem(token.lower) for token in tokens[1:3] if _is_content(token)), "")


def _qualifiers(tokens: Sequence[Token]) -> Iterator[tuple[str, str]]:
    prepositions = language().prepositions
    for number, token in enumerate(tokens[:-1]):
        if token.lower in prepositions and number and _is_content(tokens[number - 1]):
            after = tokens[number + 1 :]
            noun = next((other for other in after[:2] if other.lower not in language().determiners), None)
            if noun is not None and _is_content(noun):
                yield token.lower, find_stem(noun.lower)
            break  # "the budget for food", but not what follows the verb
    for token in tokens:
        if token.lower.endswith(_POSSESSIVE_ENDS) and token.lower[:-2] not in language().function_words:
            yield POSSESSIVE, token.lower[:-2]
        elif owner := language().owners.get(token.lower):
            yield _OWNER, owner
        elif token.relation:
            yield token.relation, token.value


def _is_negated(tokens: Sequence[Token]) -> bool:
    """Return whether a clause has a negation: not "no longer", which announces a change, nor "no more than"."""
    negations = rules().negations
    return any(
        (token.lower in negations or token.lower.endswith(_NOT_ENDS))
        and not (token.is_cue or token.continues)
        and not (following and following.lower in _BOUND_WORDS)
        for token, following in zip_longest(tokens, tokens[1:])
    )


def _has_unique_value(tokens: Sequence[Token]) -> bool:
    if any(token.lower in _ONLY_WORDS for token in tokens):
        return True
    for number, token in enumerate(tokens):
        if token.value_type is ValueType.CODE:
            start = number
            while start and _is_content(tokens[start - 1]):
                start -= 1
            if 0 < start < number and tokens[start - 1].lower in _DEFINITE_ARTICLES:
                return True
    return False


def _unmark_qualifiers(tokens: Sequence[Token]) -> None:
    """Let names and numbers count as words if they say what a value belongs to.

    "The train to Porto departs at 10:20." "The fee of stall 7 is 30 euros."
    """
    valued = [number for number, token in enumerate(tokens) if token.value_type is not None]
    for number in valued:
        token = tokens[number]
        is_first = (
            number < _MAX_KEY_POSITION and token.value_type is ValueType.CODE
        )  # "Flight TP123 leaves at 8:10."
        if not is_first and token.value_type is not ValueType.NUMBER:
            continue
        has_noun = number > 0 and not _follows_verb(tokens, number) and _is_content(tokens[number - 1])
        noun = tokens[number - 1] if has_noun else None
        if number == valued[-1]:
            is_name = noun is not None and _is_leading_number(tokens, number)
        else:
            is_name = noun is not None or number == 0
        if is_name:
            token.value_type = None
            token.relation = find_stem(noun.lower) if noun is not None else ""
    for number in valued[:-1]:
        if _is_qualifying_date(tokens, number):
            tokens[number].value_type, tokens[number].relation = None, tokens[number - 1].lower
    names = [number for number, token in enumerate(tokens) if token.value_type is ValueType.NAME]
    has_hard_value = any(token.value_type not in (None, ValueType.NAME) for token in tokens)
    for number in names if has_hard_value else names[:-1]:
        name = tokens[number]
        name.value_type = None
        before = tokens[number - 1].lower if number else ""
        if len(name.text) == 1 and number and _is_content(tokens[number - 1]):
            name.relation = find_stem(before)  # "server A"
        elif before in language().function_words and before not in language().determiners:
            name.relation = before
        for token in tokens[number + 1 :]:
            if not token.continues:
                break
            token.continues = False


def _follows_verb(tokens: Sequence[Token], number: int) -> bool:
    """Return whether a number counts something after a verb: "Rent 12 chairs", "The tent fits 4 people"."""
    if number == 1:
        return language().request_cues.fullmatch(tokens[0].lower) is not None
    return (
        tokens[number - 1].lower.endswith("s")
        and _is_content(tokens[number - 2])
        and number + 1 < len(tokens)
        and _is_content(tokens[number + 1])
    )


def _is_qualifying_date(tokens: Sequence[Token], number: int) -> bool:
    """Return whether a date tells which thing is meant: "The invoice from May is 300 euros."."""
    after = tokens[number + 1 : number + 1 + _MAX_VALUE_WORDS]
    following = next((token for token in after if not token.continues), None)
    return (
        tokens[number].value_type is ValueType.DATE
        and number > 1
        and tokens[number - 1].lower in language().prepositions
        and _is_content(tokens[number - 2])
        and following is not None
        and following.lower in language().auxiliaries
    )


# A code this early names what the sentence is about.
_MAX_KEY_POSITION = 3


def _is_leading_number(tokens: Sequence[Token], number: int) -> bool:
    """Return whether a number is part of the name at the start: "Step 0 of …", "The table 3 is …"."""
    start = 1 if tokens[0].lower in language().determiners else 0
    return (
        tokens[number].value_type is ValueType.NUMBER
        and all(map(_is_content, tokens[start:number]))
        and any(map(_is_content, tokens[number + 1 :]))
        and not tokens[number + 1].continues
        and not _is_content(tokens[number + 1])
    )


def _is_content(token: Token) -> bool:
    is_word = token.value_type is None and not token.continues and not token.is_cue
    return is_word and not token.is_function_word


def _slots(frame: Sequence[tuple[str, bool]]) -> Iterator[tuple[str, str, str]]:
    for number, (stem, is_content) in enumerate(frame):
        if is_content:
            left = frame[number - 1][0] if number else _START
            right, is_right_content = frame[number + 1] if number + 1 < len(frame) else (_END, False)
            # A following content word is what the word qualifies, whatever stands before.
            if is_right_content:
                yield "", stem, right
            elif not (left == "," and right in (",", _END)):  # "…, hurray."
                yield left, stem, right
