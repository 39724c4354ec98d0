"""Find the parts of a note that are written like tags, or may be meant as tags.

A doubtful case counts. Tags in single paragraphs and list items apply only to these. Tags in code are part of
examples and do not count.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from unicodedata import category

from foveate.memory.parsing.outline import OutlineEntry, TagScope, TagToken
from foveate.unicode_normalization import normalize_unicode

Mentions = Callable[[str], bool]
"""Returns whether a text mentions a tag of interest. Other text is skipped, which saves most of the time."""


class TagText(NamedTuple):
    """The text of a tag-like token: one tag, or words any of which may be a tag."""

    text: str
    is_whole: bool = False


def normalize_text(text: str) -> str:
    """Normalize a text for comparisons of tags: case, and characters that look the same."""
    if text.isascii():
        return text.lower()
    # A letter can be composed of two characters or have another width, and looks the same.
    text = normalize_unicode(text, "NFKC")
    # Soft hyphens and zero-width characters are invisible.
    unseen = [letter for letter in set(text) if category(letter) == "Cf"]
    seen = text.translate(dict.fromkeys(map(ord, unseen))) if unseen else text
    return normalize_unicode(seen.casefold(), "NFKC")


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
        number = bisect_right(self._starts, index) - 1
        return self._ranges[number][1] if number >= 0 and index < self._ranges[number][1] else None


# Excludes URLs.
_MARKED_TAG = re.compile(r"[:#：＃](?!//)([^\s:#：＃]+)")
_SPACED_TAG = re.compile(r"(?<!\S)[:：][^\S\n]+([^\s:：]+)[^\S\n]+[:：](?!\S)")
# Properties with tags of a file or entry; Org's export settings are not.
_TAGS_PROPERTY = re.compile(r"(?!SELECT_|EXCLUDE_)\w*(?:TAGS?|KEYWORDS)\Z")
# A thing may have such a name without having the tag.
_NAME_PROPERTY = re.compile(
    r"\w*(?:TITLE|NAME|ALIAS|ALIASES|ID|CAPTION|RESULTS|ITEM|CALL|MACRO|LABEL|SELECT_TAGS|EXCLUDE_TAGS)\Z"
)
_FALSE_VALUES = frozenset({"false", "no", "off", "0", "n", "f", "nil"})
WORD_SEPARATORS = re.compile(r"[\s:#：＃,;|.!?%(){}<>\"'`*=~/\[\]]+")
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
    r"^(?>(?:[^\S\n]++|[\ufeff>*_+\-:\[(]|<!--|%%)*)(?:\#\+)?(?:file)?(?:tags?|(?P<keywords>keywords))"
    r"[*_]{0,2}[^\S\n]*[:：]{1,2}[*_]{0,2}"
    r"(?P<said>[^\S\n]*+\S.*|(?>(?:[^\S\n]*+\n(?:[^\S\n]*+[-*+][^\S\n].*)?)*))",
    re.MULTILINE | re.IGNORECASE,
)
# A property in the syntax of note apps, in a line or in brackets: `draft:: true`, `[tags:: a]`.
_INLINE_PROPERTY = re.compile(
    r"(?:^(?>(?:[^\S\n]++|[\ufeff>*+-])*)|[\[(])([\w@/-]{1,60}+)[^\S\n]*+::[^\S\n]++([^\])\n]*+)", re.MULTILINE
)
# Key lines at the top of a file, where keywords are those of the file.
_METADATA = re.compile(r"\s*+(?:[^\W\d][\w -]{0,40}:.*\n){2,}")
# A line of nothing but marked tags, also in a comment or a list; not a property or setting.
_LONE_TAGS = re.compile(
    r"^(?>(?:[^\S\n]++|[\ufeff>*+-]|\#(?=[^\S\n])|<!--|%%)*)(?!#\+|:[\w+-]++:[^\S\n]+\S)"
    r"((?:[#:@：＃＠](?!#)\S++|[:：][^\S\n]+[^\s:：]++[^\S\n]+[:：])"
    r"(?>(?:[^\S\n]+[#:@：＃＠](?!#)\S++)*))[^\S\n]*+(?:-->|%%)?[^\S\n]*$",
    re.MULTILINE,
)
_BETWEEN_TAGS = re.compile(r"[,;|:：\n]|-->|%%")
# End of a sentence, or an opening parenthesis.
_SENTENCE = re.compile(r"[.!?](?![^\s)])|(?<=\s)\(")
_MAX_WORDS_PER_TAG = 3
_MAX_LISTED_WORDS = 6


def blank_code_and_links(text: str) -> str:
    """Replace inline code and link targets by spaces, keeping positions."""
    text = _URL.sub(_blank_url, text) if "://" in text else text
    return _CODE_OR_LINK.sub(lambda match: " " * len(match[0]), text)


def _blank_url(match: re.Match[str]) -> str:
    # Tags directly after the URL still count.
    url, last = match[0], match[0].rfind("/")
    colon = url.find(":", last) if url[-1] == ":" else len(url)
    return " " * colon + url[colon:]


def tags_in_heading(line: str) -> Iterator[TagText]:
    """Words that are marked anywhere in a heading, `:tag` or `#tag`, or start with @.

    In Org, tags are at the end, after a space and between colons. A writer who forgot one of these, or added
    text after it, still meant a tag.
    """
    line = blank_code_and_links(line)
    yield from (TagText(match[1]) for match in _MARKED_TAG.finditer(line))
    yield from map(TagText, _SPACED_TAG.findall(line))
    yield from _tags_with_at_sign(line)
    last = "".join(line.rstrip().rsplit(None, 1)[-1:])
    if ":" in last:
        yield TagText(last)


def _tags_with_at_sign(text: str) -> Iterator[TagText]:
    if "@" in text or "＠" in text:
        for word in WORD_SEPARATORS.split(text):
            if "@" in word or "＠" in word:
                yield TagText(word, is_whole=True)


def tags_in_list(tags: Iterable[str]) -> Iterator[TagText]:
    """The tags of a list; only a single word may contain a tag as a part of it."""
    return (TagText(tag, is_whole=len(tag.split()) > 1) for tag in tags)


def tags_in_property(key: str, value: str) -> Iterator[TagText]:
    """Tags that a property or setting assigns.

    They are a list of tags or keywords, a whole value (`visibility: tag`), or the key (`tag: t`).
    """
    name = normalize_text(key).upper().replace("-", "_")
    if _TAGS_PROPERTY.match(name):
        yield TagText(value)
        return
    if normalize_text(value).strip() not in _FALSE_VALUES:
        yield TagText(key, is_whole=True)
    if not _NAME_PROPERTY.match(name):
        yield TagText(value, is_whole=True)


class TagLine(NamedTuple):
    start: int
    tag: TagText


def find_tag_lines(text: str, mentions: Mentions) -> Iterator[TagLine]:
    """Tags in Markdown lines such as `Tags: a, b`, and in lines of nothing but tags."""
    top = _METADATA.match(text)
    top_end = top.end() if top else 0
    for line in _TAG_LINE.finditer(text):
        if (not line["keywords"] or line.start() < top_end) and mentions(line["said"]):
            for tag in tags_in_list(_split_listed_tags(line["said"])):
                yield TagLine(line.start(), tag)
    for field in _INLINE_PROPERTY.finditer(text):
        if mentions(field[0]):
            for tag in tags_in_property(field[1], field[2].strip()):
                yield TagLine(text.rfind("\n", 0, field.start(1)) + 1, tag)
    yield from (line for line in find_lone_tag_lines(text) if mentions(line.tag.text))


def _split_listed_tags(text: str) -> list[str]:
    """The tags in a short list, `a, b` or `a b`; in a sentence only words with a sign."""
    parts = [part.strip().lstrip("-*+ ") for part in _BETWEEN_TAGS.split(text)]
    words = [part.split() for part in parts]
    tags = [word for part_words in words for word in part_words if word[0] in "#＃@＠["]
    max_words, count = max(map(len, words)), sum(map(len, words))
    is_sentence = count > _MAX_WORDS_PER_TAG and max_words > 1 and _SENTENCE.search(text)
    if count == max_words <= _MAX_LISTED_WORDS and not is_sentence:
        tags += [*parts, *(word for part_words in words for word in part_words)]
    elif max_words <= _MAX_WORDS_PER_TAG and not is_sentence:
        tags += parts
    return tags


def find_lone_tag_lines(text: str) -> Iterator[TagLine]:
    return (TagLine(line.start(), TagText(line[1])) for line in _LONE_TAGS.finditer(text))


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


class TextBlocks:
    """Paragraphs, list items and table rows of a text."""

    def __init__(self, text: str, code: CodeRanges) -> None:
        self._text = text
        self._code = code

    def find_tokens(self, entries: Iterable[OutlineEntry], mentions: Mentions) -> Iterator[TagToken]:
        for entry in entries:
            if entry.content >= entry.end or not mentions(self._text[entry.content : entry.end]):
                continue
            for line in _LINE_WITH_SIGN.finditer(self._text, entry.content, entry.end):
                if mentions(line[0]) and line.start() not in self._code:
                    for tag in _tags_in_line(line[0]):
                        yield TagToken(line.start(), *tag, TagScope.BLOCK)

    def find_range(self, position: int, start: int, end: int) -> tuple[int, int]:
        """The block of the line at `position`, between `start` and `end`.

        An item includes what is nested below it; in a table the block is the row.
        """
        line_end = self._text.find("\n", position, end)
        begin = _block_start(self._text, position, start, self._code)
        return begin, _block_end(self._text, begin, line_end if line_end >= 0 else end, end, self._code)


def _tags_in_line(line: str) -> Iterator[TagText]:
    """Tags in a line of content.

    In prose, `#tag` and `@tag` count. At the end of a list item or table cell, and anywhere in a task, `:tag:`
    counts too.
    """
    line = _MARKUP.sub(" ", blank_code_and_links(line))
    if line.lstrip(" \t>").startswith("|"):
        for cell in line.split("|"):
            yield from _signed_tags(cell, is_ending=True, is_task=False)
        return
    item = _LIST_ITEM.match(line)
    is_task = bool(item and _TASK_STATE.match(line, item.end()))
    yield from _signed_tags(line, is_ending=bool(item), is_task=is_task)


def _signed_tags(text: str, *, is_ending: bool, is_task: bool) -> Iterator[TagText]:
    """Tags with a sign. With `is_ending`, colons mark one at the end of the text."""
    # Backwards, until a word is not a tag.
    for word in reversed(text.split()):
        normalized = normalize_text(word).lstrip(_OPENING_CHARS)
        has_sign = normalized[:1] in ("#", "@")
        has_colon = normalized[:1] == ":" or (normalized[-1:] == ":" and normalized.count(":") > 1)
        if has_sign or (has_colon and (is_ending or is_task)):
            yield from _tags_with_at_sign(word)
            yield from (TagText(match[1]) for match in _SIGNED_WORD.finditer(word))
        is_ending = is_ending and (has_sign or has_colon)


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
