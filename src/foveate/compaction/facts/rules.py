"""Load the rules for facts from `facts.toml`, and classify words by them: paths, identifiers, numbers, URLs.

Every pattern is bounded and starts at the start of a word, so the time is linear in the text.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

_RULES_FILE = Path(__file__).with_name("facts.toml")


class FactKind(StrEnum):
    CONSTRAINT = "constraint"
    TASK = "task"
    DECISION = "decision"
    ERROR = "error"
    PATH = "path"
    URL = "url"
    IDENTIFIER = "identifier"
    VERSION = "version"
    NUMBER = "number"
    QUOTED = "quoted"
    NAME = "name"


SENTENCE_KINDS = frozenset((FactKind.CONSTRAINT, FactKind.TASK, FactKind.DECISION, FactKind.ERROR))


@dataclass(frozen=True, slots=True, kw_only=True)
class FactRules:
    sentences: Mapping[FactKind, re.Pattern[str]]
    orders: re.Pattern[str]
    """Those of `all_orders` that do not start with any verb, which takes long to match."""
    all_orders: re.Pattern[str]
    no_orders: re.Pattern[str]
    before_orders: re.Pattern[str]
    reporting: re.Pattern[str]
    describing: frozenset[str]
    refusing: frozenset[str]
    wishing: re.Pattern[str]
    asking: re.Pattern[str]
    asking_inside: re.Pattern[str]
    unfinished: re.Pattern[str]
    negations: frozenset[str]
    small_words: frozenset[str]
    number: re.Pattern[str]
    extensions: frozenset[str]
    path_arguments: frozenset[str]
    file_actions: Mapping[str, str]


@cache
def rules() -> FactRules:
    table = tomllib.loads(_RULES_FILE.read_text(encoding="utf-8"))
    unit_names: list[str] = table["units"]
    units = "|".join(re.escape(unit) for unit in sorted(unit_names, key=len, reverse=True))
    openings, dense_openings = (_alternatives(phrases) for phrases in _split_by_script(table["before_orders"]))
    return FactRules(
        sentences={kind: compile_phrases(table[kind.value]) for kind in FactKind if kind in SENTENCE_KINDS},
        orders=compile_phrases([phrase for phrase in table["orders"] if phrase[0] != "*"]),
        all_orders=compile_phrases(table["orders"]),
        no_orders=compile_phrases(table["no_orders"]),
        before_orders=re.compile(
            rf"(?:^|[,;:(–—，；：、])\W{{0,9}}(?:(?:{openings})\W{{1,3}}|(?:{dense_openings})){{0,3}}$|(?<!\w)(?:{openings})\W{{1,3}}$",
            re.IGNORECASE,
        ),
        reporting=re.compile(
            rf"(?:\W{{1,3}}\w{{1,40}}){{0,4}}?\W{{1,3}}(?:{_alternatives(table['reporting'])})\b", re.IGNORECASE
        ),
        describing=frozenset(table["describing"]),
        refusing=frozenset(table["refusing"]),
        wishing=re.compile(rf"\s+(?:{_alternatives(table['wishing'])})\b", re.IGNORECASE),
        asking=re.compile(
            rf"\W*(?:(?:{_alternatives(table['before_asking'])})\W+){{0,3}}(?:{_alternatives(table['asking'])})\b",
            re.IGNORECASE,
        ),
        asking_inside=re.compile(_alternatives(table["asking_inside"])),
        unfinished=re.compile(rf"(?<!\w)(?:{_alternatives(table['unfinished'])})$", re.IGNORECASE),
        negations=frozenset(table["negations"]),
        small_words=frozenset(table["small_words"]),
        number=re.compile(
            # It starts with a set, so that the engine skips what is not a number.
            r"[$€£#\d](?<![\w.,/-].)(?:(?<=\d)(?:\d{3}-\d\d-\d\d|\d{1,4}x\d{2,5})|"
            r"(?:(?<=\d)\d{0,19}|(?<!\d)\d{1,20})(?:[.,]\d{1,20}){0,5}(?:e[+-]?\d{1,3}|"
            rf" ?(?:{units})(?:/(?:s|sec|min|h|day|month))?(?!\w))?)(?![\w/])",
            re.IGNORECASE,
        ),
        extensions=frozenset(table["extensions"]),
        path_arguments=frozenset(table["path_arguments"]),
        file_actions=table["file_actions"],
    )


def _split_by_script(phrases: Sequence[str]) -> tuple[list[str], list[str]]:
    """Phrases of scripts with letter case, and phrases of scripts without spaces."""
    spaced = [phrase for phrase in phrases if phrase.upper() != phrase.lower()]
    return spaced, [phrase for phrase in phrases if phrase.upper() == phrase.lower()]


def compile_phrases(phrases: Sequence[str]) -> re.Pattern[str]:
    """Match any of the phrases: as whole words in scripts with letter case, anywhere in others."""
    spaced, dense = _split_by_script(phrases)
    # The names of errors end in this word: ValueError, FileNotFoundException.
    endings = [phrase.capitalize() for phrase in spaced if phrase in ("error", "exception")]
    # Grouped by the first letter, so that a word is compared only with phrases that start like it. The letter
    # is a set, since the engine skips alternatives that start with another one, but not if it ignores case.
    by_start: dict[str, list[str]] = {}
    for phrase in spaced:
        start = f"[{phrase[0].lower()}{phrase[0].upper()}]" if phrase[0].isalpha() else ""
        by_start.setdefault(start, []).append(_phrase_pattern(phrase)[1 if start else 0 :])
    groups = (f"{start}(?i:{'|'.join(group)})" for start, group in by_start.items())
    parts = [rf"\b(?=\w)(?:{'|'.join(groups)})"]
    for inside, end in ((dense, ""), (endings, r"s?\b")):
        if inside:
            starts = "".join(sorted({phrase[0] for phrase in inside}))
            rests = (f"(?<={phrase[0]}){_phrase_pattern(phrase)[1:]}" for phrase in inside)
            parts.append(f"[{starts}](?:{'|'.join(rests)}){end}")
    return re.compile("|".join(parts))


def _alternatives(phrases: Sequence[str]) -> str:
    return "|".join(map(_phrase_pattern, phrases))


_GAP = r"(?:[^.!?;\n]|\.(?=\d)){0,40}?(?<!\w)"


def _phrase_pattern(phrase: str) -> str:
    """The pattern of a phrase: "…" stands for some words of a clause and "*" for the rest of a word."""
    parts = [part.strip() for part in phrase.split("…")]
    return _GAP.join(map(_words_pattern, parts))


def _words_pattern(part: str) -> str:
    # A letter with case ends with its word; an apostrophe does not.
    end = r"(?!\w)" if part[-1] == "*" or part[-1].upper() != part[-1].lower() else ""
    words = (re.escape(word).replace(r"\*", r"\w{0,30}") for word in part.split())
    return r"\s{1,3}".join(words) + end


# Longer words are data: base64, minified code, hashes of whole files.
_MAX_WORD_CHARS = 200
_WORD = re.compile(r"[\w./\\:@~#+\-]+(?:\(\))?")
_URL = re.compile(r"http(?<!\whttp)s?://[^\s\"'<>`\\)\]}]{1,400}")
_ESCAPES = re.compile(r"\\[ntr]?")
_WINDOWS_PATH = re.compile(r"(?:[A-Za-z]:|\\)\\[\w.\\+@~-]{1,180}|(?:[\w.+@~-]+\\(?![ntr]))+[\w+@~-]+\.\w{1,8}")
# Matched against the reversed word, so that its end is read only once.
_LINE_OF_FILE = re.compile(r"(?:\d+:)+")
_VERSION = re.compile(r"(?:v\d+(?:\.\d+){0,3}|\d+\.\d+\.\d+(?:\.\d+)?)(?:[-.+]?[a-z][\w.]*)?", re.IGNORECASE)
_MEASURE = re.compile(r"\d[\d.,]*[a-z]{1,3}", re.IGNORECASE)
_SCOPED = re.compile(r"@[a-z0-9][\w.-]{0,60}/[a-z0-9][\w./-]{0,100}", re.IGNORECASE)
_DIGEST = r"(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_COLOUR = r"#(?:[0-9a-f]{3,4}|[0-9a-f]{6}|[0-9a-f]{8})"
_TICKET = r"#\d{1,9}|[A-Z][A-Z0-9]{1,9}-\d{1,9}"
_FLAG = r"--[a-z][\w-]{1,60}"
_KEBAB = r"[a-z]\w*(?:-\w+){2,6}|[a-z]+\d*-[^\W\d]*\d\w*"
_IDENTIFIER = re.compile(rf"(?i:{_DIGEST}|{_COLOUR})|{_TICKET}|{_FLAG}|{_KEBAB}")
_PART = re.compile(r"[\w-]+")
_SLASH = re.compile("/")
_CAPITAL, _NAME_REST = r"[A-ZÀ-ÞА-Я]", r"[^\W\dA-Z_][\w-]{1,30}"
_NAME = re.compile(rf"{_CAPITAL}(?<=[^\W\d_A-Z] .){_NAME_REST}(?: {_CAPITAL}{_NAME_REST}){{0,3}}")
_QUOTED = re.compile(
    r"`([^`\n]{2,80})`|\"([^\"\n]{3,80})\"|“([^”\n]{3,80})”|«([^»\n]{3,80})»|「([^」\n]{2,80})」"
)
_LISTED_LINE = re.compile(r"^ {0,9}\d{1,7}(?=[\t→|:│]| {2,})", re.MULTILINE)


def split_words(text: str) -> list[str]:
    return _WORD.findall(text)


def classify_word(word: str) -> tuple[tuple[FactKind, str], ...]:
    if len(word) > _MAX_WORD_CHARS or (word.isalpha() and word[1:].islower()):
        return ()  # most words are not from code
    if "\\" in word:
        if match := _WINDOWS_PATH.fullmatch(word.rstrip(".:")):
            return ((FactKind.PATH, match[0]),)
        return tuple(fact for piece in _ESCAPES.split(word) if piece for fact in classify_word(piece))
    bare = _strip_punctuation(word)
    if bare.startswith(("http:", "https:")) or _MEASURE.fullmatch(bare):
        return ()  # found by `find_urls` and `find_numbers`
    if scoped := _SCOPED.fullmatch(word.rstrip(".:-+@~")):
        return ((FactKind.PATH, scoped[0]),)
    if is_path(bare):
        return ((FactKind.PATH, bare),)
    if _VERSION.fullmatch(bare):
        return ((FactKind.VERSION, bare),)
    if _IDENTIFIER.fullmatch(bare):
        return ((FactKind.IDENTIFIER, bare),)
    is_called = bare.endswith("()")
    parts = _PART.findall(bare)
    return tuple(
        (FactKind.IDENTIFIER, part.strip("-"))
        for number, part in enumerate(parts)
        if is_identifier(part.strip("-"), is_called=is_called and number == len(parts) - 1)
    )


def names_in_word(word: str) -> Iterator[str]:
    """Further names that a word mentions: itself and its parts.

    A path also mentions its parent folders and its last part and, if it is absolute, all its ends:
    "/work/src/app.py" mentions "src/app.py", but "lib/src/app.py" does not.
    """
    bare = _strip_punctuation(word)
    if bare.startswith(("http:", "https:")):
        return  # only a complete URL counts
    yield bare
    if _VERSION.fullmatch(bare) or len(word) > _MAX_WORD_CHARS:
        return
    yield from (part.strip("-") for part in _PART.findall(bare) if not part.isdigit())
    if is_path(bare):
        for slash in (match.start() for match in _SLASH.finditer(bare, 1)):
            yield bare[:slash]
            yield bare[: slash + 1]
            if bare[0] in "/~" or bare.find("/", slash + 1) < 0:
                yield bare[slash + 1 :]


def _strip_punctuation(word: str) -> str:
    """The word without surrounding punctuation and line numbers."""
    bare = word.rstrip(".:-+@~")
    if line := _LINE_OF_FILE.match(bare[::-1]):
        bare = bare[: -line.end()]
    return bare.lstrip(":+@") or word


def is_path(word: str) -> bool:
    """Return whether a word is a path, and not an alternative ("and/or") or a fraction."""
    if "//" in word or ":" in word:
        return False
    folder, slash, last = word.rpartition("/")
    stem, dot, extension = last.rpartition(".")
    if dot and extension.lower() in rules().extensions and (stem or slash):
        return not stem.isdigit() or bool(folder)
    if not slash or not any(map(str.isalpha, word)):
        return False
    return (word[0] in "/~." and len(word) > 2) or word.count("/") > 1 or (last == "" and len(folder) > 1)


def is_identifier(word: str, *, is_called: bool = False) -> bool:
    """Return whether a word is from code: `snake_case`, `camelCase`, `CONSTANT`, `sha256`, or `called()`."""
    if len(word) < 3 or word.isdigit() or not any(map(str.isalpha, word)):
        return False
    if "_" in word.strip("_") or word[0] == "_" or is_called:
        return True
    if word.isupper():
        return True
    if any(map(str.isupper, word[1:])) and any(map(str.islower, word)):
        return True
    return word[0].isalpha() and any(map(str.isdigit, word))


def find_urls(text: str) -> Iterator[str]:
    return (match[0].rstrip(".,;:!?*") for match in _URL.finditer(text))


def find_numbers(text: str) -> Iterator[str]:
    """Numbers with three digits, a decimal point or a unit, without line numbers of listed files."""
    for match in rules().number.finditer(_LISTED_LINE.sub("", text)):
        number = match[0].rstrip(".,")
        if not number.isdigit() or len(number) > 2:
            yield number


def strip_unit(number: str) -> str:
    return number.rstrip("/%€$°abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZµ ")


def find_names(text: str) -> Iterator[str]:
    return (match[0] for match in _NAME.finditer(text))


def find_quotes(text: str) -> Iterator[str]:
    return (next(filter(None, match.groups())).strip() for match in _QUOTED.finditer(text))


def find_whole(name: str, text: str) -> Iterator[int]:
    """Where `name` occurs in `text`, and not only inside a longer name."""
    position = text.find(name)
    while position >= 0:
        end = position + len(name)
        if not (
            _continues_name(text[max(0, position - 2) : position][::-1]) or _continues_name(text[end : end + 2])
        ):
            yield position
        position = text.find(name, position + 1)


def _continues_name(neighbours: str) -> bool:
    return _is_word_char(neighbours[:1]) or (neighbours[:1] in _JOINTS and _is_word_char(neighbours[1:]))


def _is_word_char(char: str) -> bool:
    return char.isalnum() or char == "_"


_JOINTS = frozenset("./\\:@-")
