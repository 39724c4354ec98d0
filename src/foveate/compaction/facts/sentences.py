"""Find sentences that contain a constraint, a decision, an open task or an error.

Apostrophes and full-width letters are normalized, and wrapped lines are joined. The phrases are data
(`facts.toml`). Every pattern is bounded, so the time is linear in the text.
"""

import re
from collections.abc import Iterator, Sequence

from foveate.compaction.facts.rules import FactKind, rules

_MAX_SENTENCE_CHARS = 400
_MIN_SENTENCE_WORDS = 3
_MIN_CONSTRAINT_WORDS = 2  # "Never commit."
# A wrapped line of prose has about this length, unless its last word shows that it continues.
_WRAPPED_CHARS = 40
# How far before a phrase its clause may start.
_CLAUSE_CHARS = 200
# Lines of listed files, tables and lists; and code that handles errors.
_DISPLAYED_LINE = re.compile(r"\s*(?:\d+[\t→|│:-]|[|?+*/`-])")
_CODE = re.compile(r"=>|\b(?:throw|raise|except|catch)\b|(?<!:)//|/\*")
_CODE_ENDS = tuple(";{,")
_MAYBE_CODE_ENDS = tuple("}])>")
# A name followed by a colon reports an error, even if the line ends in a bracket.
_REPORTED_ERROR = re.compile(
    r"\W*+(?:E +)?(?:[\w.]*(?:Error|Exception)|error|fatal)(?:\[\w+\])?: |segmentation fault", re.IGNORECASE
)
# "0 failed", "no errors", "Errors: 0", "exit code 0".
_NONE_BEFORE, _NONE_AFTER = re.compile(r"\b(?:0|no|without) $", re.IGNORECASE), re.compile(r"s?:? 0\b")
# Tools report errors in few words or after a colon; prose about errors is longer.
_PROSE_WORDS = 14
_SPEAKER = re.compile(r"(?<!\w)i (?:really |just |still )?$", re.IGNORECASE)
# "I've never been there", "she had always wanted to", "you don't know": a report, not an order.
_PERFECT = re.compile(r"(?:\b(?:have|has|had)|\w'(?:ve|d)|\b(?:he|she|it)'s) $", re.IGNORECASE)
_ONCE = re.compile(r" once\b", re.IGNORECASE)
_CLAUSE_END = re.compile(r"[,;:(–—]")
# "e.g." and "i.e." do not end a sentence.
# Nor do titles, and numbers before a month: "am 3. Mai".
_MONTH = r"(?:Jan|Feb|M[aä]r|Apr|Ma[iy]|Jun|Jul|Aug|Sep|O[ck]t|Nov|De[cz])"
_SENTENCE_END = re.compile(
    r"[.!?](?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bz\.B\.)(?<!\bDr\.)(?<!\bMr\.)(?<!\bMrs\.)(?<!\bMs\.)(?<!\bProf\.)(?<!\bSt\.)(?<!\bNr\.)"
    rf"(?:(?<!\d\.)|(?!\s{_MONTH}))\s+|[。！？]"
)
_QUESTION_ENDS = ("?", "？")
# Variants of letters and apostrophes; one to one, so that positions stay the same.
_LETTER_MAP = str.maketrans(
    {"’": "'", "‘": "'", "ʼ": "'", "＇": "'", "´": "'", "\u00a0": " ", "\u202f": " "}
    | {chr(0xFEE0 + at): chr(at) for at in range(0x30, 0x7B) if chr(at).isalnum()}
)
# Start of a line that does not continue prose, and ends of lines that are not continued.
_BLOCK_START = re.compile(r"\s*(?:[-*+•>#|`~\[<{]|\d{1,4}[.)]|//|$)")
_NOT_PROSE = re.compile(r"\s*(?:[#|`~<{]|//)")
_LINE_ENDS = tuple(".!?:;。！？：；…`{}|>")
_SENTENCE_BREAK = re.compile(r"[.!?。！？]\s")
_MAX_UNFINISHED_CHARS = 20
_LIST_MARKERS = " \t>#*•"
_CHECKBOX = re.compile(
    r"^[ \t]{0,20}(?:[-*+]|\d{1,4}[.)])?[ \t]{0,4}(?:\[ \]|☐)[ \t]{1,4}(?P<task>\S.{0,400})$", re.MULTILINE
)
_FIRST_WORD = re.compile(r"\w+")
_NEXT_WORD = re.compile(r"\s{1,3}[\w`\"'“«/.]")
# Characters that prose does not contain.
_CODE_LIKE = re.compile(r"[={}<>|]|\w\(|\"\"\"|^\s*\d{1,6}[:\t]")


def find_unchecked_tasks(text: str) -> Iterator[str]:
    return (match["task"].strip() for match in _CHECKBOX.finditer(text))


def normalize_letters(text: str) -> str:
    """Normalize apostrophes and letters without changing the length."""
    return text if text.isascii() else text.translate(_LETTER_MAP)


def split_sentences(text: str) -> Iterator[str]:
    """Split a text at sentence ends and line ends, except in wrapped paragraphs."""
    return (text[start:end] for start, end in sentence_ranges(text))


def find_fact_sentences(text: str, kinds: Sequence[FactKind]) -> Iterator[tuple[FactKind, str]]:
    """The sentences of one of `kinds`, with their exact wording, each on one line."""
    normalized = normalize_letters(text)
    patterns = [rules().sentences[kind] for kind in kinds]
    if FactKind.CONSTRAINT in kinds:
        patterns.append(_order_phrases(normalized))
    if not any(pattern.search(normalized) for pattern in patterns):
        return
    for start, end in sentence_ranges(normalized):
        sentence = normalized[start:end]
        for kind in kinds:
            if match := find_phrase(kind, sentence):
                min_words = _MIN_CONSTRAINT_WORDS if kind is FactKind.CONSTRAINT else _MIN_SENTENCE_WORDS
                if clean := _clip_sentence(text[start:end], match.start(), min_words=min_words):
                    yield kind, " ".join(clean.split()) if "\n" in clean else clean
                break


def sentence_ranges(text: str) -> Iterator[tuple[int, int]]:
    for paragraph_start, end in _paragraph_ranges(text):
        start = paragraph_start
        for match in _SENTENCE_END.finditer(text, paragraph_start, end):
            yield start, match.start() + 1
            start = match.end()
        end -= text.endswith("\n", start, end)
        if start < end:
            yield start, end


def _paragraph_ranges(text: str) -> Iterator[tuple[int, int]]:
    """Ranges of lines, with wrapped paragraphs as one range, up to the maximum length of a sentence."""
    start = end = 0
    before = ""
    for line in text.splitlines(keepends=True):
        if start < end and not (
            _continues(before.strip(), line)
            and _open_chars(text, start, end) + len(line) <= _MAX_SENTENCE_CHARS
        ):
            yield start, end
            start = end
        before = line
        end += len(line)
    if start < end:
        yield start, end


def _open_chars(text: str, start: int, end: int) -> int:
    """The length of the last sentence of a range, or more than the maximum."""
    first = max(start, end - _MAX_SENTENCE_CHARS - 1)
    return end - max((match.end() for match in _SENTENCE_BREAK.finditer(text, first, end)), default=first)


def _continues(line: str, next_line: str) -> bool:
    """Return whether a line of prose is wrapped and continues in `next_line`."""
    if not line or line.endswith(_LINE_ENDS) or _NOT_PROSE.match(line) or _BLOCK_START.match(next_line):
        return False
    is_wrapped = len(line) >= _WRAPPED_CHARS and next_line.lstrip()[:1].islower()
    last_word = line.rpartition(" ")[2][-_MAX_UNFINISHED_CHARS:]
    if not is_wrapped and not rules().unfinished.search(last_word):
        return False
    return not (_CODE_LIKE.search(line) or _CODE_LIKE.search(next_line))


def find_phrase(kind: FactKind, sentence: str) -> re.Match[str] | None:
    pattern = rules().sentences[kind]
    if kind is not FactKind.CONSTRAINT:
        return pattern.search(sentence)
    asks = is_question(sentence)
    if asks and rules().asking_inside.search(sentence):  # a question, in a script without spaces
        return None
    constraints = (match for match in pattern.finditer(sentence) if _is_constraint(sentence, match, asks))
    if constraint := next(constraints, None):
        return constraint
    # Checked once: a sentence may contain thousands of phrases.
    if asks or _CODE_LIKE.search(sentence):
        return None
    orders = _order_phrases(sentence).finditer(sentence)
    return next((match for match in orders if _is_order(sentence, match)), None)


def _order_phrases(text: str) -> re.Pattern[str]:
    """The phrases of orders. Those that start with any verb are German, and end in a negation."""
    return rules().all_orders if _GERMAN_NEGATION.search(text) else rules().orders


_GERMAN_NEGATION = re.compile(r"[nNkK](?i:icht|ein)")


def is_description(sentence: str) -> bool:
    """Return whether a sentence of a pasted text describes something: "The gateway never retries."."""
    match = find_phrase(FactKind.CONSTRAINT, normalize_letters(sentence))
    if match is None or not any(char.isalnum() for char in sentence[: match.start()]):
        return False  # "Never retry."
    is_order = rules().sentences[FactKind.CONSTRAINT].fullmatch(match[0]) is None
    return is_order or match[0].lower() in rules().describing


def _is_constraint(sentence: str, match: re.Match[str], is_question: bool) -> bool:
    """Return whether a phrase is a constraint: not "I don't know", nor "do we only have this one?"."""
    before = sentence[max(0, match.start() - _CLAUSE_CHARS) : match.start()]
    if match[0].lower() in rules().refusing and _SPEAKER.search(before):
        return bool(rules().wishing.match(sentence, match.end()))
    if _PERFECT.search(before) or (match[0].lower() == "never" and _ONCE.match(sentence, match.end())):
        return False
    clause = _CLAUSE_END.split(before)[-1]
    question_start = rules().asking.match(clause) if clause.strip() else rules().asking.fullmatch(match[0])
    return not (is_question and question_start)


def _is_order(sentence: str, match: re.Match[str]) -> bool:
    """Return whether a phrase starts an order: "No emojis", not "No idea" or "No test was run"."""
    if match.start() > _CLAUSE_CHARS:
        before = (
            "x" + sentence[match.start() - _CLAUSE_CHARS : match.start()]
        )  # so that the slice does not look like the start of the sentence
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


def is_question(sentence: str) -> bool:
    return sentence.rstrip().endswith(_QUESTION_ENDS)


def find_error_lines(text: str) -> Iterator[str]:
    """The lines that report an error, except lines of files that handle errors."""
    pattern = rules().sentences[FactKind.ERROR]
    for line in text.splitlines():
        if len(line) > _MAX_SENTENCE_CHARS or not (match := pattern.search(line)):
            continue
        if _reports_error(line, match) and (clean := _clip_sentence(line, match.start(), min_words=2)):
            yield clean


def _reports_error(line: str, match: re.Match[str]) -> bool:
    """Return whether a line reports an error that happened, and not a line of a file or "no errors"."""
    bare = line.rstrip()
    if _DISPLAYED_LINE.match(line) or _CODE.search(line) or bare.endswith(_CODE_ENDS):
        return False
    if bare.endswith(_MAYBE_CODE_ENDS) and not _REPORTED_ERROR.match(line):
        return False
    if _NONE_BEFORE.search(line, 0, match.start()) or _NONE_AFTER.match(line, match.end()):
        return False
    return ": " in line or len(line.split(maxsplit=_PROSE_WORDS)) <= _PROSE_WORDS


def clean_sentence(sentence: str) -> str:
    """The sentence on one line, without list markers."""
    clean = " ".join(sentence.strip(_LIST_MARKERS).removeprefix("- ").strip(_LIST_MARKERS).split())
    return clean.replace("**", "", 1) if clean.count("**") % 2 else clean  # the other half was a marker


def _clip_sentence(sentence: str, position: int, *, min_words: int = _MIN_SENTENCE_WORDS) -> str:
    """The sentence without list markers; if it is very long, the part around `position`."""
    if len(sentence) > _MAX_SENTENCE_CHARS:
        start = max(0, position - _MAX_SENTENCE_CHARS // 2)
        sentence = sentence[start : start + _MAX_SENTENCE_CHARS]
        if start:
            sentence = sentence.partition(" ")[2] or sentence
    clean = sentence.strip(_LIST_MARKERS).removeprefix("- ").strip(_LIST_MARKERS)
    is_long_enough = len(clean.split()) >= min_words or any(ord(char) > 0x2E80 for char in clean)
    return clean if is_long_enough else ""
