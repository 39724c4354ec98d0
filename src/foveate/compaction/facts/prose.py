"""Find the sentences that a person wrote as prose: not code, tables, headings, quoted lines or fragments."""

import re
from collections.abc import Iterator

from foveate.compaction.facts.language import language
from foveate.compaction.facts.sentences import sentence_ranges

_FENCE = re.compile(r"\s{0,12}(?:```|~~~)")
_NOT_PROSE = re.compile(r"\s*(?:>|\||#{1,6}\s|[=*_~+-]{3,40}$|</?[A-Za-z][\w-]{0,40}[\s>/])")
_CODE_LINE = re.compile(
    r"\s*(?:def|class|import|from|return|function|const|let|var|public|private|SELECT|INSERT|UPDATE)\s"
)
_CODE_ENDS = tuple("({;=:")
_INDENTED = re.compile(r"(?: {4}|\t)\s*\S")
_LIST_ITEM = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s")
_TABLE_BARS = 2
_QUOTED = re.compile(
    r"\"[^\"\n]{8,400}\"|“[^”\n]{8,400}”|„[^“”\n]{8,400}[“”]|«[^»\n]{8,400}»|`[^`\n]{1,400}`|「[^」\n]{4,400}」"
)
_LEAD_INS = (":", "：")
_ENDS = tuple(".!?。！？…)\"”»'")
# A label is a few words before a colon that start with a capital letter. A clause is not a label.
_LABEL = re.compile(r"\s*(?:[-*+•]\s{1,3})?[*_]{0,2}([^\W\d_][\w'&/ -]{1,38})[*_]{0,2}:[*_]{0,2}\s+(?=\S)")
_MAX_LABEL_WORDS = 4
_MIN_WORDS = 3
_MANY_LINES = 12


def prose_sentences(text: str) -> Iterator[tuple[int, int]]:
    """The ranges of whole sentences of prose in a text."""
    lines = text.strip().count("\n")
    for block_start, block_end in prose_blocks(text):
        for start, end in sentence_ranges(text[block_start:block_end]):
            sentence = text[block_start + start : block_start + end]
            if not _is_fragment(sentence, lines):
                yield block_start + start, block_start + end


def prose_blocks(text: str) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive lines of prose."""
    start = end = 0
    in_fence = False
    for line in text.splitlines(keepends=True):
        is_fence = _FENCE.match(line) is not None
        if is_fence or in_fence or _is_other(line[:500]):
            if start < end:
                yield start, end
            start = end + len(line)
        in_fence = in_fence != is_fence
        end += len(line)
    if start < end:
        yield start, end


def _is_other(line: str) -> bool:
    bare = line.rstrip()
    if _NOT_PROSE.match(bare) or line.count("|") >= _TABLE_BARS:
        return True
    if _CODE_LINE.match(line) and bare.endswith(_CODE_ENDS):
        return True
    return _INDENTED.match(line) is not None and _LIST_ITEM.match(line) is None


def _is_fragment(sentence: str, lines: int) -> bool:
    """Return whether a sentence of a text with some line ends is not whole."""
    bare = sentence.strip()
    if bare.endswith(_LEAD_INS):
        return True
    if bare.endswith(_ENDS) or (not bare.isascii() and max(bare) > "\u2e80"):
        return False
    words = bare.split()
    # People who type one line often leave out the full stop: "… if nobody's in".
    is_open = lines > 0 and words[-1:] and words[-1].strip(",:;").lower() in language().open_ends
    if len(words) < _MIN_WORDS or is_open:
        return len(words) > 1 or not bare
    # In a document, a line without an end is a title, a caption or a line of output, unless it is an item.
    return lines >= _MANY_LINES and _LIST_ITEM.match(sentence) is None and ":" not in bare


def mask_quotations(sentence: str) -> str:
    """The sentence with spaces for what it quotes, so that positions stay the same."""
    return _QUOTED.sub(lambda match: " " * len(match[0]), sentence)


def find_label(sentence: str) -> str:
    """The label of a labelled statement, as in "SAFETY RULE: …"; empty if there is none."""
    match = _LABEL.match(sentence)
    if match is None:
        return ""
    label = match[1].strip()
    words = label.lower().split()
    if label.isupper():
        return label if len(words) <= _MAX_LABEL_WORDS else ""
    is_clause = any(word in language().function_words for word in words[1:]) or language().update_cues.search(
        label
    )
    return label if label[0].isupper() and len(words) < _MAX_LABEL_WORDS and not is_clause else ""


def strip_label(sentence: str) -> str:
    match = _LABEL.match(sentence)
    return sentence[match.end() :] if match and find_label(sentence) else sentence
