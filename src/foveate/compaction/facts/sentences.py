"""Which sentences of a text tell something: a constraint, a decision, an open task, an error.

They are read with one kind of apostrophe and of letters, and over the ends of lines where prose was wrapped.
The words by which they are told are data (`fold/facts.toml`). Every pattern is bounded, so that time grows with
the text alone.
"""

import re
from collections.abc import Iterator, Sequence

from foveate.compaction.facts.rules import FactKind, rules

_MAX_SENTENCE_CHARS = 400
_MIN_SENTENCE_WORDS = 3
_MIN_CONSTRAINT_WORDS = 2  # "Never commit."
# A line of prose that goes on in the next one is about so long, unless its last word says so.
_WRAPPED_CHARS = 40
# How far before a phrase a clause may begin.
_CLAUSE_CHARS = 200
# Lines of files, tables and lists; and what code says of errors that it deals with.
_DISPLAYED_LINE = re.compile(r"\s*(?:\d+[\t→|│:-]|[|?+*/`-])")
_CODE = re.compile(r"=>|\b(?:throw|raise|except|catch)\b|(?<!:)//|/\*")
_CODE_ENDS = tuple(";{,")
_MAYBE_CODE_ENDS = tuple("}])>")
# What is named with a colon after it is told, not dealt with; also where it ends in a bracket.
_REPORTED_ERROR = re.compile(
    r"\W*+(?:E +)?(?:[\w.]*(?:Error|Exception)|error|fatal)(?:\[\w+\])?: |segmentation fault", re.IGNORECASE
)
# "0 failed", "no errors", "Errors: 0", "exit code 0".
_NONE_BEFORE, _NONE_AFTER = re.compile(r"\b(?:0|no|without) $", re.IGNORECASE), re.compile(r"s?:? 0\b")
# Tools tell of errors in few words, or after a colon; texts about errors use many.
_PROSE_WORDS = 14
_SPEAKER = re.compile(r"(?<!\w)i (?:really |just |still )?$", re.IGNORECASE)
_CLAUSE_END = re.compile(r"[,;:(–—]")
# "e.g." and "i.e." end nothing.
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bz\.B\.)\s+|(?<=[。！？])|$")
_QUESTION_ENDS = ("?", "？")
# Letters and apostrophes that are written otherwise; one for one, so that places stay the same.
_LETTER_MAP = str.maketrans(
    {"’": "'", "‘": "'", "ʼ": "'", "＇": "'", "´": "'", "\u00a0": " ", "\u202f": " "}
    | {chr(0xFEE0 + at): chr(at) for at in range(0x30, 0x7B) if chr(at).isalnum()}
)
# What begins a line that is not prose that goes on; and how a line ends after which nothing goes on.
_BLOCK_START = re.compile(r"\s*(?:[-*+•>#|`~\[<{]|\d{1,4}[.)]|//|$)")
_NOT_PROSE = re.compile(r"\s*(?:[#|`~<{]|//)")
_LINE_ENDS = tuple(".!?:;。！？：；…`{}|>")
_SENTENCE_BREAK = re.compile(r"[.!?。！？]\s")
_UNFINISHED_CHARS = 20
_LIST_MARKERS = " \t>#*•"
_CHECKBOX = re.compile(
    r"^[ \t]{0,20}(?:[-*+]|\d{1,4}[.)])?[ \t]{0,4}(?:\[ \]|☐)[ \t]{1,4}(?P<task>\S.{0,400})$", re.MULTILINE
)
_FIRST_WORD = re.compile(r"\w+")
_NEXT_WORD = re.compile(r"\s{1,3}[\w`\"'“«/.]")
# What prose has none of.
_CODE_LIKE = re.compile(r"[={}<>|]|\w\(|\"\"\"|^\s*\d{1,6}[:\t]")


def find_unchecked_tasks(text: str) -> Iterator[str]:
    """The boxes of a list that nobody has ticked."""
    return (match["task"].strip() for match in _CHECKBOX.finditer(text))


def normalize_letters(text: str) -> str:
    """A text as long as it was, with one kind of apostrophe and of letters."""
    return text if text.isascii() else text.translate(_LETTER_MAP)


def split_sentences(text: str) -> Iterator[str]:
    """The sentences of a text: between full stops and the ends of lines, but for lines that were wrapped."""
    return (text[start:end] for start, end in _sentence_ranges(text))


def find_fact_sentences(text: str, kinds: Sequence[FactKind]) -> Iterator[tuple[FactKind, str]]:
    """The sentences of a text that are of one of `kinds`, word for word, each on one line."""
    normalized = normalize_letters(text)
    patterns = [rules().sentences[kind] for kind in kinds]
    if FactKind.CONSTRAINT in kinds:
        patterns.append(rules().orders)
    if not any(pattern.search(normalized) for pattern in patterns):
        return
    for start, end in _sentence_ranges(normalized):
        sentence = normalized[start:end]
        for kind in kinds:
            if match := _find_phrase(kind, sentence):
                min_words = _MIN_CONSTRAINT_WORDS if kind is FactKind.CONSTRAINT else _MIN_SENTENCE_WORDS
                if clean := _clip_sentence(text[start:end], match.start(), min_words=min_words):
                    yield kind, " ".join(clean.split()) if "\n" in clean else clean
                break


def _sentence_ranges(text: str) -> Iterator[tuple[int, int]]:
    for begin, end in _paragraph_ranges(text):
        start = begin
        for match in _SENTENCE_END.finditer(text, begin, end):
            if match.start() > start:
                yield start, match.start()
            start = match.end()


def _paragraph_ranges(text: str) -> Iterator[tuple[int, int]]:
    """Where lines stand; lines of one wrapped paragraph as one, as long as a sentence may be."""
    begin = end = unended = 0
    before = ""
    for line in text.splitlines(keepends=True):
        fits = unended + len(line) <= _MAX_SENTENCE_CHARS
        if begin < end and not (fits and _continues(before.strip(), line)):
            yield begin, end
            begin, unended = end, 0
        ended = max((match.end() for match in _SENTENCE_BREAK.finditer(line)), default=None)
        unended = unended + len(line) if ended is None else len(line) - ended
        before = line
        end += len(line)
    if begin < end:
        yield begin, end


def _continues(line: str, following: str) -> bool:
    """Whether a line of prose was wrapped, and goes on in the following one."""
    if not line or line.endswith(_LINE_ENDS) or _NOT_PROSE.match(line) or _BLOCK_START.match(following):
        return False
    if _CODE_LIKE.search(line) or _CODE_LIKE.search(following):
        return False
    if rules().unfinished.search(line[-_UNFINISHED_CHARS:]):
        return True
    return len(line) >= _WRAPPED_CHARS and following.lstrip()[:1].islower()


def _find_phrase(kind: FactKind, sentence: str) -> re.Match[str] | None:
    """The first phrase by which a sentence is of its kind; of constraints, one that is meant so."""
    pattern = rules().sentences[kind]
    if kind is not FactKind.CONSTRAINT:
        return pattern.search(sentence)
    is_question = _is_question(sentence)
    if is_question and rules().asking_inside.search(sentence):  # it asks, in a script without spaces
        return None
    constraints = (
        match for match in pattern.finditer(sentence) if _is_constraint(sentence, match, is_question)
    )
    if found := next(constraints, None):
        return found
    # Looked for once: a sentence may have thousands of phrases.
    if is_question or _CODE_LIKE.search(sentence):
        return None
    return next((match for match in rules().orders.finditer(sentence) if _is_order(sentence, match)), None)


def _is_constraint(sentence: str, match: re.Match[str], is_question: bool) -> bool:
    """Whether a phrase holds somebody to something: not "I don't know", nor "do we only have this one?"."""
    before = sentence[max(0, match.start() - _CLAUSE_CHARS) : match.start()]
    if match[0].lower() in rules().refusing and _SPEAKER.search(before):
        return bool(rules().wishing.match(sentence, match.end()))
    clause = _CLAUSE_END.split(before)[-1]
    asks = rules().asking.match(clause) if clause.strip() else rules().asking.fullmatch(match[0])
    return not (is_question and asks)


def _is_order(sentence: str, match: re.Match[str]) -> bool:
    """Whether a phrase begins a clause that gives an order: "No emojis", not "No idea" or "No test was run"."""
    if match.start() > _CLAUSE_CHARS:
        before = "x" + sentence[match.start() - _CLAUSE_CHARS : match.start()]  # not its beginning
    else:
        before = sentence[: match.start()]
    if not rules().before_orders.search(before) or rules().no_orders.match(sentence, match.start()):
        return False
    rest = sentence[match.start() : match.end() + _CLAUSE_CHARS]
    first = _FIRST_WORD.match(rest)
    if first is None or rules().reporting.match(rest, first.end()):
        return False
    # "No, that is wrong."
    is_answer = first.end() == len(match[0]) and match[0].isascii()
    return not is_answer or _NEXT_WORD.match(sentence, match.end()) is not None


def _is_question(sentence: str) -> bool:
    return sentence.rstrip().endswith(_QUESTION_ENDS)


def find_error_lines(text: str) -> Iterator[str]:
    """The lines of a text that tell of an error, but for those of files in which errors are dealt with."""
    pattern = rules().sentences[FactKind.ERROR]
    if not pattern.search(text):
        return
    for line in text.splitlines():
        if len(line) > _MAX_SENTENCE_CHARS or not (match := pattern.search(line)):
            continue
        if _reports_error(line, match) and (clean := _clip_sentence(line, match.start(), min_words=2)):
            yield clean


def _reports_error(line: str, match: re.Match[str]) -> bool:
    """Whether a line tells of an error that was met: not one of a file, nor one that says there was none."""
    bare = line.rstrip()
    if _DISPLAYED_LINE.match(line) or _CODE.search(line) or bare.endswith(_CODE_ENDS):
        return False
    if bare.endswith(_MAYBE_CODE_ENDS) and not _REPORTED_ERROR.match(line):
        return False
    if _NONE_BEFORE.search(line, 0, match.start()) or _NONE_AFTER.match(line, match.end()):
        return False
    return ": " in line or len(line.split(maxsplit=_PROSE_WORDS)) <= _PROSE_WORDS


def _clip_sentence(sentence: str, at: int, *, min_words: int = _MIN_SENTENCE_WORDS) -> str:
    """The sentence without marks of lists around it; of a very long one the stretch around `at`."""
    if len(sentence) > _MAX_SENTENCE_CHARS:
        start = max(0, at - _MAX_SENTENCE_CHARS // 2)
        sentence = sentence[start : start + _MAX_SENTENCE_CHARS]
        if start:
            sentence = sentence.partition(" ")[2] or sentence
    clean = sentence.strip(_LIST_MARKERS).removeprefix("- ").strip(_LIST_MARKERS)
    enough = len(clean.split()) >= min_words or any(ord(char) > 0x2E80 for char in clean)
    return clean if enough else ""
