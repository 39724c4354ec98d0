"""Find privacy tags, including words that are not written as tags but may be meant as such.

A doubtful case counts as private. Tags in single paragraphs and list items hide only these. Tags in code are
part of examples and do not count.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from foveate.memory.privacy import Gate, normalize_text

_FENCE = re.compile(r"^[ \t>]*+(`{3,}+|~{3,}+)(.*)$", re.MULTILINE)


class CodeRanges:
    """Ranges of code in a text. An unclosed block is not a range, because it may not be meant as code."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._ranges = list(ranges)
        self._starts = [start for start, _ in self._ranges]

    @classmethod
    def from_fences(cls, text: str) -> "CodeRanges":
        ranges = []
        opened: re.Match[str] | None = None
        for fence in _FENCE.finditer(text):
            if opened is None:
                opened = fence
            elif fence[1].startswith(opened[1]) and not fence[2].strip():
                ranges.append((opened.start(), fence.end()))
                opened = None
        return cls(ranges)

    def __contains__(self, index: int) -> bool:
        return self.find_end(index) is not None

    def find_end(self, index: int) -> int | None:
        """The end of the code at this position; None if there is none."""
        number = bisect_right(self._starts, index) - 1
        return self._ranges[number][1] if number >= 0 and index < self._ranges[number][1] else None


# Excludes URLs.
_MARKED_TAG = re.compile(r"[:#：＃](?!//)([^\s:#：＃]+)")
_SPACED_TAG = re.compile(r"(?<!\S)[:：][^\S\n]+([^\s:：]+)[^\S\n]+[:：](?!\S)")
# Properties with tags of a file or entry; Org's export settings are not.
_TAGS_PROPERTY = re.compile(r"(?!SELECT_|EXCLUDE_)\w*(?:TAGS?|KEYWORDS)\Z")
# A thing may have such a name without being private.
_NAME_PROPERTY = re.compile(
    r"\w*(?:TITLE|NAME|ALIAS|ALIASES|ID|CAPTION|RESULTS|ITEM|CALL|MACRO|LABEL|SELECT_TAGS|EXCLUDE_TAGS)\Z"
)
_FALSE_VALUES = frozenset({"false", "no", "off", "0", "n", "f", "nil"})
_BETWEEN_WORDS = re.compile(r"[\s:#：＃,;|.!?%(){}<>\"'`*=~/\[\]]+")
# Inline code, link targets and attributes, which only quote a word.
_CODE_OR_LINK = re.compile(
    r"(?<!`)(`{1,8})(?!`)[^\n]*?(?<!`)\1(?!`)"
    r"|(?<!\S)([=~])(?=\S)[^\n=~]*\2(?!\S)"
    r"|(?<![#＃])\[\[[^\[\]\n]*\](?:\]|(?=\[))"
    r"|(?<=\])\([^()\s]*\)"
    r"|(?<![\w-])[\w-]++=(?:\"[^\"\n]*\"|'[^'\n]*')"
    r"|(?<!\S)(?=[^\s#:]*(?:/|\.\w))[^\s#:]*[\w/]#\S*"
)
_URL = re.compile(r"(?<![\w+.-])[A-Za-z][\w+.-]*+://\S*")

# A line such as `Tags: a, b`, also in a comment or a list, or with the tags in a list below it.
_TAG_LINE = re.compile(
    r"^(?:[^\S\n]|[\ufeff>*_+\-:\[(]|<!--|%%)*+(?:\#\+)?(?:file)?(?:tags?|(?P<keywords>keywords))"
    r"[*_]{0,2}[^\S\n]*[:：]{1,2}[*_]{0,2}"
    r"(?P<said>[^\S\n]*+\S.*|(?:[^\S\n]*+\n(?:[^\S\n]*+[-*+][^\S\n].*)?)*+)",
    re.MULTILINE | re.IGNORECASE,
)
# A property in the syntax of note apps, in a line or in brackets: `private:: true`, `[tags:: a]`.
_INLINE_PROPERTY = re.compile(
    r"(?:^(?:[^\S\n]|[\ufeff>*+-])*+|[\[(])([\w@/-]{1,60}+)[^\S\n]*+::[^\S\n]++([^\])\n]*+)", re.MULTILINE
)
# Key lines at the top of a file, where keywords are those of the file.
_METADATA = re.compile(r"\s*+(?:[^\W\d][\w -]{0,40}:.*\n){2,}")
# A line of nothing but marked tags, also in a comment or a list; not a property or setting.
_LONE_TAGS = re.compile(
    r"^(?:[^\S\n]|[\ufeff>*+-]|\#(?=[^\S\n])|<!--|%%)*+(?!#\+|:[\w+-]++:[^\S\n]+\S)"
    r"((?:[#:@：＃＠](?!#)\S++|[:：][^\S\n]+[^\s:：]++[^\S\n]+[:：])"
    r"(?:[^\S\n]+[#:@：＃＠](?!#)\S++)*+)[^\S\n]*+(?:-->|%%)?[^\S\n]*$",
    re.MULTILINE,
)
_BETWEEN_TAGS = re.compile(r"[,;|:：\n]|-->|%%")
# End of a sentence, or an opening parenthesis.
_SENTENCE = re.compile(r"[.!?](?![^\s)])|(?<=\s)\(")
_MAX_WORDS_PER_TAG = 3
_MAX_LISTED_WORDS = 6


def mentions_privacy_tag(text: str, gate: Gate) -> bool:
    """Return whether a privacy tag occurs anywhere, even inside a word. If not, no more checks are needed."""
    normalized = normalize_text(text)
    return any(tag in normalized for tag in gate.tags)


def blank_code_and_links(text: str) -> str:
    """Replace inline code and link targets by spaces, keeping positions."""
    text = _URL.sub(_blank_url, text) if "://" in text else text
    return _CODE_OR_LINK.sub(lambda match: " " * len(match[0]), text)


def _blank_url(match: re.Match[str]) -> str:
    # Tags directly after the URL still count.
    url, last = match[0], match[0].rfind("/")
    colon = url.find(":", last) if url[-1] == ":" else len(url)
    return " " * colon + url[colon:]


def find_tag_in_heading(line: str, gate: Gate) -> str:
    """The privacy tag that is marked anywhere in a heading, `:private` or `#private`; empty if there is none.

    In Org, tags are at the end, after a space and between colons. A writer who forgot one of these, or added
    text after it, still meant a tag.
    """
    line = blank_code_and_links(line)
    for match in _MARKED_TAG.finditer(line):
        if tag := find_tag_in_word(match[1], gate):
            return tag
    for word in _SPACED_TAG.findall(line):
        if tag := find_tag_in_word(word, gate):
            return tag
    if at_tag := find_at_tag(line, gate):
        return at_tag
    last = "".join(line.rstrip().rsplit(None, 1)[-1:])
    return find_tag_in_word(last, gate) if ":" in last else ""


def find_at_tag(text: str, gate: Gate) -> str:
    """The privacy tag that starts with @ and is a word of `text`; empty if there is none."""
    if "@" not in text and "＠" not in text:
        return ""
    words = _BETWEEN_WORDS.split(text)
    return next((word for word in words if ("@" in word or "＠" in word) and gate.is_private(word)), "")


def find_tag_in_word(word: str, gate: Gate) -> str:
    """The privacy tag in a word: `private`, `private/bank`, `(private)`; empty if there is none."""
    if gate.is_private(word):
        return word.strip().strip(":#")
    return find_tag_in_text(word, gate)


def find_tag_in_list(tags: Iterable[str], gate: Gate) -> str:
    """The first privacy tag among `tags`, perhaps as part of a single word; empty if there is none."""
    private_tags = (
        find_tag_in_word(tag, gate) if len(tag.split()) < 2 or gate.is_private(tag) else "" for tag in tags
    )
    return next(filter(None, private_tags), "")


def find_tag_in_property(key: str, value: str, gate: Gate) -> str:
    """The privacy tag that a property or setting assigns; empty if there is none.

    It is one of several tags or keywords, a whole value (`visibility: private`), or the key (`private: t`).
    """
    name = normalize_text(key).upper().replace("-", "_")
    if _TAGS_PROPERTY.match(name):
        return find_tag_in_text(value, gate)
    if gate.is_private(key):
        return "" if normalize_text(value).strip() in _FALSE_VALUES else key.strip(":#")
    return value.strip().strip(":#") if not _NAME_PROPERTY.match(name) and gate.is_private(value) else ""


class TagLine(NamedTuple):
    start: int
    tag: str


def find_tag_lines(text: str, code: CodeRanges, gate: Gate) -> list[TagLine]:
    """Markdown lines such as `Tags: private`, and lines of nothing but tags, in order."""
    top = _METADATA.match(text)
    top_end = top.end() if top else 0
    tag_lines = [
        TagLine(line.start(), tag)
        for line in _TAG_LINE.finditer(text)
        if (not line["keywords"] or line.start() < top_end) and (tag := _find_listed_tag(line["said"], gate))
    ]
    tag_lines += [
        TagLine(text.rfind("\n", 0, field.start(1)) + 1, tag)
        for field in _INLINE_PROPERTY.finditer(text)
        if (tag := find_tag_in_property(field[1], field[2].strip(), gate))
    ]
    tag_lines += find_lone_tag_lines(text, gate)
    return sorted(tag_line for tag_line in tag_lines if tag_line.start not in code)


def _find_listed_tag(text: str, gate: Gate) -> str:
    """The privacy tag in a short list of tags, `a, b` or `a b`; empty if it is a sentence.

    A word with a sign is a tag in any case.
    """
    parts = [part.strip().lstrip("-*+ ") for part in _BETWEEN_TAGS.split(text)]
    words = [part.split() for part in parts]
    tags = [word for part_words in words for word in part_words if word[0] in "#＃@＠["]
    max_words, count = max(map(len, words)), sum(map(len, words))
    is_sentence = count > _MAX_WORDS_PER_TAG and max_words > 1 and _SENTENCE.search(text)
    if count == max_words <= _MAX_LISTED_WORDS and not is_sentence:
        tags += [*parts, *(word for part_words in words for word in part_words)]
    elif max_words <= _MAX_WORDS_PER_TAG and not is_sentence:
        tags += parts
    return find_tag_in_list(tags, gate)


def find_lone_tag_lines(text: str, gate: Gate) -> list[TagLine]:
    """Lines of nothing but tags, with a privacy tag among them."""
    return [
        TagLine(line.start(), tag)
        for line in _LONE_TAGS.finditer(text)
        if (tag := find_tag_in_text(line[1], gate))
    ]


def find_tag_in_text(text: str, gate: Gate) -> str:
    """The first privacy tag that is a word of `text`; empty if there is none."""
    for word in _BETWEEN_WORDS.split(text):
        if gate.is_private(word):
            return word
    normalized = normalize_text(text)
    # A tag of several words, or with a dot.
    return next((tag for tag in sorted(gate.tags) if _BETWEEN_WORDS.search(tag) and tag in normalized), "")


_LINE_WITH_SIGN = re.compile(r"^[^\n#＃@＠:：]*+[#＃@＠:：].*$", re.MULTILINE)
_SIGNED_WORD = re.compile(r"[:#：＃]([^\s:#：＃]+)")
_LIST_ITEM = re.compile(r"[ \t>]*(?:[-+*]|\d{1,9}[.)])[ \t]+(?=\S)")
_TASK_STATE = re.compile(
    r"(?:\[[ xX/-]\]|TODO|DONE|LATER|NOW|DOING|NEXT|WAIT|WAITING|HOLD|STARTED|IN-PROGRESS|CANCELL?ED)(?!\S)"
)
_INDENT = re.compile(r"[ \t>]*")
# Settings, drawers and table rows, which are not part of a paragraph.
_STANDALONE_LINE = re.compile(r"[ \t>]*(?:\||#\+|:\S+:(?!\S))")
# HTML tags, and the signs around Obsidian's comments.
_MARKUP = re.compile(r"<[^<>\n]*>|%%")
_OPENING_CHARS = "(*_~[{\"'"


def find_private_blocks(
    text: str, start: int, end: int, code: CodeRanges, gate: Gate
) -> Iterator[tuple[int, int]]:
    """Ranges of the blocks between two positions that contain a privacy tag.

    In prose, `#private` and `@personal` count. At the end of a list item or table cell, and anywhere in a task,
    `:private:` counts too. An item includes what is nested below it; in a table the block is the row.
    """
    if start >= end or not mentions_privacy_tag(text[start:end], gate):
        return
    for line in _LINE_WITH_SIGN.finditer(text, start, end):
        if line.start() < start or not mentions_privacy_tag(line[0], gate) or line.start() in code:
            continue
        if _is_private_line(blank_code_and_links(line[0]), gate):
            begin = _block_start(text, line.start(), start, code)
            start = _block_end(text, begin, line.end(), end, code)
            yield begin, start


def _is_private_line(line: str, gate: Gate) -> bool:
    line = _MARKUP.sub(" ", line)
    if line.lstrip(" \t>").startswith("|"):
        return any(_has_tag(cell, gate, is_ending=True, is_task=False) for cell in line.split("|"))
    item = _LIST_ITEM.match(line)
    is_task = bool(item and _TASK_STATE.match(line, item.end()))
    return _has_tag(line, gate, is_ending=bool(item), is_task=is_task)


def _has_tag(text: str, gate: Gate, *, is_ending: bool, is_task: bool) -> bool:
    """Return whether a line or cell has a privacy tag. With `is_ending`, colons mark one at its end."""
    # Backwards, until a word is not a tag.
    for word in reversed(text.split()):
        normalized = normalize_text(word).lstrip(_OPENING_CHARS)
        has_sign = normalized[:1] in ("#", "@")
        has_colon = normalized[:1] == ":" or (normalized[-1:] == ":" and normalized.count(":") > 1)
        counts = has_sign or (has_colon and (is_ending or is_task))
        if counts and (
            find_at_tag(word, gate)
            or any(find_tag_in_word(match[1], gate) for match in _SIGNED_WORD.finditer(word))
        ):
            return True
        is_ending = is_ending and (has_sign or has_colon)
    return False


def _block_start(text: str, position: int, floor: int, code: CodeRanges) -> int:
    while (
        position > floor and not _LIST_ITEM.match(text, position) and not _STANDALONE_LINE.match(text, position)
    ):
        line_above = text.rfind("\n", floor, position - 1) + 1 or floor
        if (
            _is_blank(text[line_above:position])
            or line_above in code
            or _STANDALONE_LINE.match(text, line_above)
        ):
            break
        position = line_above
    return position


def _block_end(text: str, begin: int, position: int, last: int, code: CodeRanges) -> int:
    position = _next_line_start(text, position, last)
    if _STANDALONE_LINE.match(text, begin):
        return position
    item, indent, end, has_gap = _LIST_ITEM.match(text, begin), _indent_width(text, begin), position, False
    while position < last:
        after = _next_line_start(text, position, last)
        if _is_blank(text[position:after]):
            has_gap = True
        elif has_gap if not item else not _belongs_to_item(text, position, indent, has_gap):
            break
        else:
            closed = code.find_end(position)
            after = _next_line_start(text, closed, last) if closed is not None else after
            end, has_gap = after, False
        position = after
    return end


def _belongs_to_item(text: str, position: int, indent: int, has_gap: bool) -> bool:
    """Return whether a line belongs to the item above it: it is indented more, or continues its text."""
    return _indent_width(text, position) > indent or not (has_gap or _LIST_ITEM.match(text, position))


def _indent_width(text: str, position: int) -> int:
    match = _INDENT.match(text, position)
    return len(match[0].expandtabs(4)) if match else 0


def _is_blank(line: str) -> bool:
    return not line.strip(" \t\r\n>")


def _next_line_start(text: str, position: int, last: int) -> int:
    end = text.find("\n", position, last)
    return last if end < 0 else end + 1
