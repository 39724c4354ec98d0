"""Doubts about privacy: what is not written as a tag, but may be meant as one. It is then taken for one."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from foveate.memory.fences import CodeRanges
from foveate.memory.gate import Gate, normalize_text

# Not so the address of a page.
_MARKED_TAG = re.compile(r"[:#：＃](?!//)([^\s:#：＃]+)")
_SPACED_TAG = re.compile(r"(?<!\S)[:：][^\S\n]+([^\s:：]+)[^\S\n]+[:：](?!\S)")
# Of tags that a file or an entry has; those of Org that choose what is exported say nothing of that.
_TAGS_PROPERTY = re.compile(r"(?!SELECT_|EXCLUDE_)\w*(?:TAGS?|KEYWORDS)\Z")
# A thing may be called so without being so.
_NAME_PROPERTY = re.compile(
    r"\w*(?:TITLE|NAME|ALIAS|ALIASES|ID|CAPTION|RESULTS|ITEM|CALL|MACRO|LABEL|SELECT_TAGS|EXCLUDE_TAGS)\Z"
)
_FALSE_VALUES = frozenset({"false", "no", "off", "0", "n", "f", "nil"})
_BETWEEN_WORDS = re.compile(r"[\s:#：＃,;|.!?%(){}<>\"'`*=~/\[\]]+")
# Places where a text speaks of something without saying it: code, and what a link leads to.
_CODE_OR_LINK = re.compile(
    r"(?<!`)(`{1,8})(?!`)[^\n]*?(?<!`)\1(?!`)"
    r"|(?<!\S)([=~])(?=\S)[^\n=~]*\2(?!\S)"
    r"|(?<![#＃])\[\[[^\[\]\n]*\](?:\]|(?=\[))"
    r"|(?<=\])\([^()\s]*\)"
    r"|(?<![\w-])[\w-]++=(?:\"[^\"\n]*\"|'[^'\n]*')"
    r"|(?<!\S)(?=[^\s#:]*(?:/|\.\w))[^\s#:]*[\w/]#\S*"
)
_URL = re.compile(r"(?<![\w+.-])[A-Za-z][\w+.-]*+://\S*")

# A line such as `Tags: a, b`, also in a comment or a list, and with the tags in a list below it.
_TAG_LINE = re.compile(
    r"^(?:[^\S\n]|[\ufeff>*_+\-:\[(]|<!--|%%)*+(?:\#\+)?(?:file)?(?:tags?|(?P<keywords>keywords))"
    r"[*_]{0,2}[^\S\n]*[:：]{1,2}[*_]{0,2}"
    r"(?P<said>[^\S\n]*+\S.*|(?:[^\S\n]*+\n(?:[^\S\n]*+[-*+][^\S\n].*)?)*+)",
    re.MULTILINE | re.IGNORECASE,
)
# A property as note apps write it, in a line of its own or in brackets: `private:: true`, `[tags:: a]`.
_INLINE_PROPERTY = re.compile(
    r"(?:^(?:[^\S\n]|[\ufeff>*+-])*+|[\[(])([\w@/-]{1,60}+)[^\S\n]*+::[^\S\n]++([^\])\n]*+)", re.MULTILINE
)
# Lines with a key each at the top of a file, where keywords are those of the file.
_METADATA = re.compile(r"\s*+(?:[^\W\d][\w -]{0,40}:.*\n){2,}")
# A line of nothing but tags, each of them marked, also in a comment or a list. Not so a property or setting.
_LONE_TAGS = re.compile(
    r"^(?:[^\S\n]|[\ufeff>*+-]|\#(?=[^\S\n])|<!--|%%)*+(?!#\+|:[\w+-]++:[^\S\n]+\S)"
    r"((?:[#:@：＃＠](?!#)\S++|[:：][^\S\n]+[^\s:：]++[^\S\n]+[:：])"
    r"(?:[^\S\n]+[#:@：＃＠](?!#)\S++)*+)[^\S\n]*+(?:-->|%%)?[^\S\n]*$",
    re.MULTILINE,
)
_BETWEEN_TAGS = re.compile(r"[,;|:：\n]|-->|%%")
# A sentence ends, or puts something in brackets.
_SENTENCE = re.compile(r"[.!?](?![^\s)])|(?<=\s)\(")
_MAX_WORDS_PER_TAG = 3
_MAX_LISTED_WORDS = 6


def mentions_privacy_tag(text: str, gate: Gate) -> bool:
    """Whether any privacy tag is in `text` at all, even inside a word: where not, there is no doubt."""
    normalized = normalize_text(text)
    return any(tag in normalized for tag in gate.tags)


def blank_code_and_links(text: str) -> str:
    """The text with blanks for what it only speaks of: code in a line, and where links lead. Places stay."""
    text = _URL.sub(_blank_url, text) if "://" in text else text
    return _CODE_OR_LINK.sub(lambda found: " " * len(found[0]), text)


def _blank_url(found: re.Match[str]) -> str:
    # Tags that were glued to it still count.
    address, last = found[0], found[0].rfind("/")
    colon = address.find(":", last) if address[-1] == ":" else len(address)
    return " " * colon + address[colon:]


def find_tag_in_heading(line: str, gate: Gate) -> str:
    """The privacy tag that is marked as one anywhere in a heading, `:private` or `#private`; or nothing.

    Org wants tags at the end, a blank before them and colons around. Who forgot one of these, or wrote on
    behind it, meant the tag all the same.
    """
    line = blank_code_and_links(line)
    for found in _MARKED_TAG.finditer(line):
        if tag := find_tag_in_word(found[1], gate):
            return tag
    for word in _SPACED_TAG.findall(line):
        if tag := find_tag_in_word(word, gate):
            return tag
    if at := find_at_tag(line, gate):
        return at
    last = "".join(line.rstrip().rsplit(None, 1)[-1:])
    return find_tag_in_word(last, gate) if ":" in last else ""


def find_at_tag(text: str, gate: Gate) -> str:
    """The privacy tag that begins with an @, which marks it, and is a word of `text`; or nothing."""
    if "@" not in text and "＠" not in text:
        return ""
    words = _BETWEEN_WORDS.split(text)
    return next((word for word in words if ("@" in word or "＠" in word) and gate.is_private(word)), "")


def find_tag_in_word(word: str, gate: Gate) -> str:
    """The privacy tag that a word is or has as a part: `private`, `private/bank`, `(private)`; or nothing."""
    if gate.is_private(word):
        return word.strip().strip(":#")
    return find_tag_in_text(word, gate)


def find_tag_in_list(tags: Iterable[str], gate: Gate) -> str:
    """The first of these tags that is private, or is one word with a privacy tag as a part; or nothing."""
    found = (
        find_tag_in_word(tag, gate) if len(tag.split()) < 2 or gate.is_private(tag) else "" for tag in tags
    )
    return next(filter(None, found), "")


def find_tag_in_property(key: str, value: str, gate: Gate) -> str:
    """The privacy tag that a property or setting gives to what it belongs to; or nothing.

    It is among tags or keywords, or all of another value (`visibility: private`), or the key (`private: t`).
    """
    name = normalize_text(key).upper().replace("-", "_")
    if _TAGS_PROPERTY.match(name):
        return find_tag_in_text(value, gate)
    if gate.is_private(key):
        return "" if normalize_text(value).strip() in _FALSE_VALUES else key.strip(":#")
    return value.strip().strip(":#") if not _NAME_PROPERTY.match(name) and gate.is_private(value) else ""


class TagLine(NamedTuple):
    """Where a line says of a file or of what it stands in that it has a privacy tag."""

    start: int
    tag: str


def find_tag_lines(text: str, code: CodeRanges, gate: Gate) -> list[TagLine]:
    """The lines of Markdown such as `Tags: private`, and those of nothing but tags, in their order."""
    top = _METADATA.match(text)
    top_end = top.end() if top else 0
    found = [
        TagLine(line.start(), tag)
        for line in _TAG_LINE.finditer(text)
        if (not line["keywords"] or line.start() < top_end) and (tag := _find_listed_tag(line["said"], gate))
    ]
    found += [
        TagLine(text.rfind("\n", 0, field.start(1)) + 1, tag)
        for field in _INLINE_PROPERTY.finditer(text)
        if (tag := find_tag_in_property(field[1], field[2].strip(), gate))
    ]
    found += find_lone_tag_lines(text, gate)
    return sorted(tag_line for tag_line in found if tag_line.start not in code)


def _find_listed_tag(text: str, gate: Gate) -> str:
    """The privacy tag in a short list of tags, `a, b` or `a b`; or nothing, as where it is a sentence.

    A word with a sign before it is a tag whatever stands beside it.
    """
    parts = [part.strip().lstrip("-*+ ") for part in _BETWEEN_TAGS.split(text)]
    words = [part.split() for part in parts]
    tags = [word for each in words for word in each if word[0] in "#＃@＠["]
    longest, count = max(map(len, words)), sum(map(len, words))
    is_sentence = count > _MAX_WORDS_PER_TAG and longest > 1 and _SENTENCE.search(text)
    if count == longest <= _MAX_LISTED_WORDS and not is_sentence:
        tags += [*parts, *(word for each in words for word in each)]
    elif longest <= _MAX_WORDS_PER_TAG and not is_sentence:
        tags += parts
    return find_tag_in_list(tags, gate)


def find_lone_tag_lines(text: str, gate: Gate) -> list[TagLine]:
    """The lines of nothing but tags with a privacy tag among them."""
    return [
        TagLine(line.start(), tag)
        for line in _LONE_TAGS.finditer(text)
        if (tag := find_tag_in_text(line[1], gate))
    ]


def find_tag_in_text(text: str, gate: Gate) -> str:
    """The first privacy tag that is a word of `text`; or nothing."""
    for word in _BETWEEN_WORDS.split(text):
        if gate.is_private(word):
            return word
    normalized = normalize_text(text)
    # One that is itself of several words, or has a dot in it.
    return next((tag for tag in sorted(gate.tags) if _BETWEEN_WORDS.search(tag) and tag in normalized), "")
