"""What single words and sentences of a text are, told by rules: a path, an identifier, a number, a constraint.

Every pattern is bounded and starts only where a word starts, so a text costs time in proportion to its length,
whatever it holds. The words by which sentences are told are data (`fold/facts.toml`).
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

_TABLE = Path(__file__).with_name("facts.toml")
# Longer ones are data: base64, minified code, hashes of whole files.
_MAX_WORD_CHARS = 200
_MAX_SENTENCE_CHARS = 400
_MIN_SENTENCE_WORDS = 3


class FactKind(StrEnum):
    """What a fact is."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What `fold/facts.toml` says, ready to be matched."""

    sentences: Mapping[FactKind, re.Pattern[str]]
    refusing: frozenset[str]
    wishing: re.Pattern[str]
    asking: re.Pattern[str]
    number: re.Pattern[str]
    extensions: frozenset[str]
    path_arguments: frozenset[str]
    deeds: Mapping[str, str]


@cache
def rules() -> Rules:
    """The rules, read once."""
    table = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    kinds = (FactKind.CONSTRAINT, FactKind.TASK, FactKind.DECISION, FactKind.ERROR)
    units = "|".join(re.escape(unit) for unit in sorted(table["units"], key=len, reverse=True))
    return Rules(
        sentences={kind: _phrases(table[kind.value]) for kind in kinds},
        refusing=frozenset(table["refusing"]),
        wishing=re.compile(rf"\s+(?:{_any(table['wishing'])})\b", re.IGNORECASE),
        asking=re.compile(
            rf"\W*(?:(?:{_any(table['before_asking'])})\W+){{0,3}}(?:{_any(table['asking'])})\b", re.IGNORECASE
        ),
        number=re.compile(
            rf"(?<![\w.,/-])(?:\d{{4}}-\d\d-\d\d|\d{{2,5}}x\d{{2,5}}|"
            rf"[$€£#]?\d{{1,20}}(?:[.,]\d{{1,20}}){{0,5}}(?:e[+-]?\d{{1,3}}|"
            rf" ?(?:{units})(?:/(?:s|sec|min|h|day|month))?(?!\w))?)(?![\w/])",
            re.IGNORECASE,
        ),
        extensions=frozenset(table["extensions"]),
        path_arguments=frozenset(table["path_arguments"]),
        deeds=table["deeds"],
    )


def _phrases(phrases: Sequence[str]) -> re.Pattern[str]:
    """Any of the phrases: as whole words where they are of letters with cases, anywhere where they are not."""
    spaced = [phrase for phrase in phrases if phrase.upper() != phrase.lower()]
    dense = [phrase for phrase in phrases if phrase.upper() == phrase.lower()]
    # An error's name ends in the word that tells it: ValueError, FileNotFoundException.
    endings = [phrase.capitalize() for phrase in spaced if phrase in ("error", "exception")]
    # What a phrase can begin with is looked at first: most places of a text are then passed by at once.
    parts = [rf"(?<!\w)(?=\w)(?i:{_any(spaced)})(?!\w)"]
    for inside, end in ((dense, ""), (endings, r"s?\b")):
        if inside:
            parts.append(rf"(?=[{''.join(sorted({phrase[0] for phrase in inside}))}])(?:{_any(inside)}){end}")
    return re.compile("|".join(parts))


def _any(phrases: Sequence[str]) -> str:
    return "|".join(map(re.escape, phrases))


_WORD = re.compile(r"[\w./\\:@~#+\-]+(?:\(\))?")
_URL = re.compile(r"\bhttps?://[^\s\"'<>`\\)\]}]{1,400}")
_ESCAPES = re.compile(r"\\[ntr]?")
_WINDOWS_PATH = re.compile(r"(?:[A-Za-z]:|\\)\\[\w.\\+@~-]{1,180}|(?:[\w.+@~-]+\\(?![ntr]))+[\w+@~-]+\.\w{1,8}")
_LINE_OF_FILE = re.compile(r"(?::\d+)+:?$")
_VERSION = re.compile(r"(?:v\d+(?:\.\d+){0,3}|\d+\.\d+\.\d+(?:\.\d+)?)(?:[-.+]?[a-z]+[\w.]*)?", re.IGNORECASE)
_DIGEST = re.compile(
    r"(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE
)
_MEASURE = re.compile(r"\d[\d.,]*[a-z]{1,3}", re.IGNORECASE)
_COLOUR = re.compile(r"#(?:[0-9a-f]{3,4}|[0-9a-f]{6}|[0-9a-f]{8})", re.IGNORECASE)
_SCOPED = re.compile(r"@[a-z0-9][\w.-]{0,60}/[a-z0-9][\w./-]{0,100}", re.IGNORECASE)
_TICKET = re.compile(r"#\d{1,9}|[A-Z][A-Z0-9]{1,9}-\d{1,9}")
_FLAG = re.compile(r"--[a-z][\w-]{1,60}")
_PART = re.compile(r"[\w-]+")
_KEBAB = re.compile(r"[a-z]\w*(?:-\w+){2,6}|[a-z]+\d*-\w*\d\w*")
_CAPITAL = r"[A-ZÀ-ÞА-Я][^\W\dA-Z_][\w-]{1,30}"
_NAME = re.compile(rf"(?<=[^\W\d_A-Z] ){_CAPITAL}(?: {_CAPITAL}){{0,3}}")
_QUOTED = re.compile(
    r"`([^`\n]{2,80})`|\"([^\"\n]{3,80})\"|“([^”\n]{3,80})”|«([^»\n]{3,80})»|「([^」\n]{2,80})」"
)
# Lines of files, tables and lists; and what code says of errors that it deals with.
_SHOWN_LINE = re.compile(r"\s*(?:\d+[\t→|│:-]|[|?+*/`-])")
_CODE = re.compile(r"=>|\b(?:throw|raise|except|catch)\b|(?<!:)//|/\*")
_CODE_ENDS = tuple(";{,")
_MAYBE_CODE_ENDS = tuple("}])>")
# What is named with a colon after it is told, not dealt with; also where it ends in a bracket.
_TOLD_ERROR = re.compile(
    r"\W*(?:E +)?(?:[\w.]*(?:Error|Exception)|error|fatal)(?:\[\w+\])?: |segmentation fault", re.IGNORECASE
)
# "0 failed", "no errors", "Errors: 0", "exit code 0".
_NONE_BEFORE, _NONE_AFTER = re.compile(r"\b(?:0|no|without) $", re.IGNORECASE), re.compile(r"s?:? 0\b")
# Tools tell of errors in few words, or after a colon; texts about errors use many.
_PROSE_WORDS = 14
_LISTED_LINE = re.compile(r"^ {0,9}\d{1,7}(?=[\t→|:│]| {2,})", re.MULTILINE)
_SPEAKER = re.compile(r"(?<!\w)i (?:really |just |still )?$", re.IGNORECASE)
_CLAUSE_END = re.compile(r"[,;:(–—]")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_LEAD = " \t>#*•"
_BOX = re.compile(
    r"^[ \t]{0,20}(?:[-*+]|\d{1,4}[.)])?[ \t]{0,4}(?:\[ \]|☐)[ \t]{1,4}(?P<task>\S.{0,400})$", re.MULTILINE
)


def words_of(text: str) -> list[str]:
    """The words of a text in which a path or an identifier may stand; as often as they stand."""
    return _WORD.findall(text)


def classified(word: str) -> tuple[tuple[FactKind, str], ...]:
    """The paths, identifiers and versions that one word holds."""
    if len(word) > _MAX_WORD_CHARS:
        return ()
    if "\\" in word:
        if match := _WINDOWS_PATH.fullmatch(word.rstrip(".:")):
            return ((FactKind.PATH, match[0]),)
        return tuple(found for piece in _ESCAPES.split(word) if piece for found in classified(piece))
    bare = _LINE_OF_FILE.sub("", word.rstrip(".:-+@~")).lstrip(":+@") or word
    if bare.startswith(("http:", "https:")) or _MEASURE.fullmatch(bare):
        return ()  # told by `urls_in` and `numbers_in`
    if scoped := _SCOPED.fullmatch(word.rstrip(".:-+@~")):
        return ((FactKind.PATH, scoped[0]),)
    if is_path(bare):
        return ((FactKind.PATH, bare),)
    if _VERSION.fullmatch(bare):
        return ((FactKind.VERSION, bare),)
    if any(pattern.fullmatch(bare) for pattern in (_DIGEST, _TICKET, _COLOUR, _FLAG, _KEBAB)):
        return ((FactKind.IDENTIFIER, bare),)
    called = bare.endswith("()")
    parts = _PART.findall(bare)
    return tuple(
        (FactKind.IDENTIFIER, part.strip("-"))
        for at, part in enumerate(parts)
        if is_identifier(part.strip("-"), called=called and at == len(parts) - 1)
    )


def is_path(word: str) -> bool:
    """Whether a word is the path of a file or a folder, and not a choice ("and/or") or a fraction."""
    if "//" in word or ":" in word:
        return False
    folder, slash, last = word.rpartition("/")
    stem, dot, extension = last.rpartition(".")
    if dot and extension.lower() in rules().extensions and (stem or slash):
        return not stem.isdigit() or bool(folder)
    if not slash or not any(char.isalpha() for char in word):
        return False
    return (word[0] in "/~." and len(word) > 2) or word.count("/") > 1 or (last == "" and len(folder) > 1)


def is_identifier(word: str, *, called: bool = False) -> bool:
    """Whether a word was made for code: `snake_case`, `camelCase`, `CONSTANT`, `sha256`, or `called()`."""
    if len(word) < 3 or word.isdigit() or not any(char.isalpha() for char in word):
        return False
    if "_" in word.strip("_") or word[0] == "_" or called:
        return True
    if word.isupper():
        return True
    if any(char.isupper() for char in word[1:]) and not word.isupper() and any(char.islower() for char in word):
        return True
    return word[0].isalpha() and any(char.isdigit() for char in word)


def urls_in(text: str) -> Iterator[str]:
    """The addresses in a text."""
    return (match[0].rstrip(".,;:!?*") for match in _URL.finditer(text))


def numbers_in(text: str) -> Iterator[str]:
    """The numbers in a text that say something: of three digits, with a point, or with a unit.

    The numbers of lines before the lines of a file are not among them.
    """
    for match in rules().number.finditer(_LISTED_LINE.sub("", text)):
        number = match[0].rstrip(".,")
        if not number.isdigit() or len(number) > 2:
            yield number


def names_in(text: str) -> Iterator[str]:
    """The names of people, products and places: words with a capital that do not begin a sentence."""
    return (match[0] for match in _NAME.finditer(text))


def quoted_in(text: str) -> Iterator[str]:
    """What stands in quotes or in backticks, on one line."""
    return (next(filter(None, match.groups())).strip() for match in _QUOTED.finditer(text))


def boxes_in(text: str) -> Iterator[str]:
    """The boxes of a list that nobody has ticked."""
    return (match["task"].strip() for match in _BOX.finditer(text))


def sentences_in(text: str, kinds: Sequence[FactKind]) -> Iterator[tuple[FactKind, str]]:
    """The sentences of a text that are of one of `kinds`, each on its own line or between full stops."""
    patterns = [(kind, rules().sentences[kind]) for kind in kinds]
    if not any(pattern.search(text) for _, pattern in patterns):
        return
    for line in text.splitlines():
        for sentence in _SENTENCE_END.split(line):
            for kind, pattern in patterns:
                if match := _telling(kind, pattern, sentence):
                    if clean := _clipped(sentence, match.start()):
                        yield kind, clean
                    break


def _telling(kind: FactKind, pattern: re.Pattern[str], sentence: str) -> re.Match[str] | None:
    """The first phrase by which a sentence is of its kind; of constraints, one that is meant so."""
    if kind is not FactKind.CONSTRAINT:
        return pattern.search(sentence)
    return next((match for match in pattern.finditer(sentence) if _holds_to(sentence, match)), None)


def _holds_to(sentence: str, match: re.Match[str]) -> bool:
    """Whether a phrase holds somebody to something: not "I don't know", nor "do we only have this one?"."""
    before = sentence[: match.start()]
    if match[0].lower() in rules().refusing and _SPEAKER.search(before):
        return bool(rules().wishing.match(sentence, match.end()))
    clause = _CLAUSE_END.split(before)[-1]
    return not (sentence.rstrip().endswith("?") and rules().asking.match(clause))


def telling_words(kind: FactKind, sentence: str) -> str:
    """The words by which a sentence is of its kind ("never", "instead of"); none where something else tells."""
    pattern = rules().sentences.get(kind)
    match = _telling(kind, pattern, sentence) if pattern else None
    return match[0] if match else ""


def errors_in(text: str) -> Iterator[str]:
    """The lines of a text that tell of an error, but for those of files in which errors are dealt with."""
    pattern = rules().sentences[FactKind.ERROR]
    if not pattern.search(text):
        return
    for line in text.splitlines():
        if len(line) > _MAX_SENTENCE_CHARS or not (match := pattern.search(line)):
            continue
        if _is_told(line, match) and (clean := _clipped(line, match.start(), least_words=2)):
            yield clean


def _is_told(line: str, match: re.Match[str]) -> bool:
    """Whether a line tells of an error that was met: not one of a file, nor one that says there was none."""
    bare = line.rstrip()
    if _SHOWN_LINE.match(line) or _CODE.search(line) or bare.endswith(_CODE_ENDS):
        return False
    if bare.endswith(_MAYBE_CODE_ENDS) and not _TOLD_ERROR.match(line):
        return False
    if _NONE_BEFORE.search(line, 0, match.start()) or _NONE_AFTER.match(line, match.end()):
        return False
    return ": " in line or len(line.split(maxsplit=_PROSE_WORDS)) <= _PROSE_WORDS


def _clipped(sentence: str, at: int, *, least_words: int = _MIN_SENTENCE_WORDS) -> str:
    """The sentence without marks of lists around it; of a very long one the stretch around `at`."""
    if len(sentence) > _MAX_SENTENCE_CHARS:
        start = max(0, at - _MAX_SENTENCE_CHARS // 2)
        sentence = sentence[start : start + _MAX_SENTENCE_CHARS]
        if start:
            sentence = sentence.partition(" ")[2] or sentence
    clean = sentence.strip(_LEAD).removeprefix("- ").strip(_LEAD)
    enough = len(clean.split()) >= least_words or any(ord(char) > 0x2E80 for char in clean)
    return clean if enough else ""
