"""Split sentences into clauses that can be carried without the rest."""

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from foveate.compaction.facts.language import language
from foveate.compaction.facts.prose import find_label, strip_label
from foveate.compaction.facts.sentences import normalize_letters
from foveate.compaction.facts.statements import is_request
from foveate.compaction.facts.subjects import split_words

# Where a sentence may be cut. A colon follows what the rest is about.
_CLAUSE_END = re.compile(
    r"[;.!?](?<!\bDr\.)(?<!\bMr\.)(?<!\bMrs\.)(?<!\bMs\.)(?<!\bProf\.)(?<!\bSt\.)(?<!\bNr\.)\s+|,\s+"
    r"|(?<!\s)\s++(?:[–—-]\s+|(?=(?:and|but|so|because|since|although|though|while|which|und|aber|weil|denn"
    r"|obwohl|et|mais|parce que|y|pero|porque|ma|perché|mas)\s))",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
# A name or a noun, and a verb in the third person or in the past: "Ximena travels", "the roof carries".
_ENGLISH_SUBJECT = re.compile(
    r"\W*(?:(?:and|but|so|because|while)\s)?"
    r"(?:(?:the|The|my|My|our|Our|her|Her|his|His)\s[\w-]+|[A-Z][\w'-]+(?:\s[A-Z][\w'-]+){0,3})"
    r"\s[a-z]{3,}(?:s|ed)\b(?!\s*,)"
)
_EDGES = " ,;:–—-"
_MAX_CLAUSES = 12
_MAX_TEXTS = 20_000
_MIN_REQUEST_WORDS = 2


@dataclass(frozen=True, slots=True)
class Clause:
    """A part of a sentence that can be carried without the rest, or only with the part that is its head."""

    start: int
    end: int
    head: int | None = None
    """The number of that part: "the rent is £42", for "by the end of March"."""


@lru_cache(maxsize=_MAX_TEXTS)
def split_clauses(text: str) -> tuple[Clause, ...]:
    label = len(text) - len(strip_label(text)) if find_label(text) else 0
    ends = [match.end() for match in _CLAUSE_END.finditer(text, label)][: _MAX_CLAUSES - 1]
    plain = normalize_letters(text)
    clauses: list[Clause] = []
    has_head = False
    for start, end in pairwise([0, *ends, len(text)]):
        if start == end:
            continue
        part = plain[start:end]
        stands_alone = _stands_alone(part)
        if stands_alone and not has_head:
            clauses = [Clause(0, end)]  # "After the pilot, …"
        elif stands_alone or not clauses:
            clauses.append(Clause(start, end))
        elif _is_binding(part):
            clauses[-1] = replace(clauses[-1], end=end)
        else:
            head = clauses[-1].head
            clauses.append(Clause(start, end, len(clauses) - 1 if head is None else head))
        has_head = has_head or stands_alone
    return tuple(clauses)


def whole_clause(text: str) -> Clause:
    return Clause(0, len(text))


def _stands_alone(part: str) -> bool:
    """Return whether a part of a text has a subject or a verb."""
    return _ENGLISH_SUBJECT.match(part) is not None or any(
        word in language().clause_words
        or word.partition("'")[0] in language().clause_words
        or word.endswith("'s")
        for word in _WORD.findall(part.lower())
    )


def _is_binding(part: str) -> bool:
    """Return whether what a part of a text belongs to could be false without it: "if possible"."""
    return any(word in language().bindings or word.endswith("n't") for word in _WORD.findall(part.lower()))


def trim_clause(text: str) -> str:
    """The text without words at its start that only connect it with what was said before."""
    text = text.strip().rstrip(_EDGES)
    if text.startswith("(") and ")" not in text:
        text = text[1:]
    while (match := language().fillers.match(text)) is not None:
        rest = text[match.end() :].lstrip(" ,;:–—-!.")
        if len(rest.split()) < 2:
            break
        text = rest
    return text


def find_asking_clause(sentence: str) -> str:
    clauses = (trim_clause(sentence[clause.start : clause.end]) for clause in split_clauses(sentence))
    return next((clause for clause in clauses if is_request(clause) and _says_what(clause)), "")


def _says_what(clause: str) -> bool:
    """Return whether a request has words of its own: not "please, go ahead"."""
    words = set(split_words(clause.lower())) - language().function_words
    return len(words) >= _MIN_REQUEST_WORDS
