"""Doubts about privacy: what is not written as a tag, but may be meant as one. It is then taken for one."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from foveate.memory.fences import Code
from foveate.memory.gate import Gate, folded

# Not so the address of a page.
_MARKED = re.compile(r"[:#：＃](?!//)([^\s:#：＃]+)")
_SPACED = re.compile(r"(?<!\S)[:：][^\S\n]+([^\s:：]+)[^\S\n]+[:：](?!\S)")
# Of tags that a file or an entry has; those of Org that choose what is exported say nothing of that.
_OF_TAGS = re.compile(r"(?!SELECT_|EXCLUDE_)\w*(?:TAGS?|KEYWORDS)\Z")
# A thing may be called so without being so.
_NAMES = re.compile(
    r"\w*(?:TITLE|NAME|ALIAS|ALIASES|ID|CAPTION|RESULTS|ITEM|CALL|MACRO|LABEL|SELECT_TAGS|EXCLUDE_TAGS)\Z"
)
_NO = frozenset({"false", "no", "off", "0", "n", "f", "nil"})
_BETWEEN_WORDS = re.compile(r"[\s:#：＃,;|.!?%(){}<>\"'`*=~/\[\]]+")
# Places where a text speaks of something without saying it: code, and what a link leads to.
_SPOKEN_OF = re.compile(
    r"(?<!`)(`{1,8})(?!`)[^\n]*?(?<!`)\1(?!`)"
    r"|(?<!\S)([=~])(?=\S)[^\n=~]*\2(?!\S)"
    r"|(?<![#＃])\[\[[^\[\]\n]*\](?:\]|(?=\[))"
    r"|(?<=\])\([^()\s]*\)"
    r"|(?<![\w-])[\w-]++=(?:\"[^\"\n]*\"|'[^'\n]*')"
    r"|(?<!\S)(?=[^\s#:]*(?:/|\.\w))[^\s#:]*[\w/]#\S*"
)
_ADDRESS = re.compile(r"(?<![\w+.-])[A-Za-z][\w+.-]*+://\S*")

# A line such as `Tags: a, b`, also in a comment or a list, and with the tags in a list below it.
_SAID = re.compile(
    r"^(?:[^\S\n]|[\ufeff>*_+\-:\[(]|<!--|%%)*+(?:\#\+)?(?:file)?(?:tags?|(?P<keywords>keywords))"
    r"[*_]{0,2}[^\S\n]*[:：]{1,2}[*_]{0,2}"
    r"(?P<said>[^\S\n]*+\S.*|(?:[^\S\n]*+\n(?:[^\S\n]*+[-*+][^\S\n].*)?)*+)",
    re.MULTILINE | re.IGNORECASE,
)
# A property as note apps write it, in a line of its own or in brackets: `private:: true`, `[tags:: a]`.
_FIELD = re.compile(
    r"(?:^(?:[^\S\n]|[\ufeff>*+-])*+|[\[(])([\w@/-]{1,60}+)[^\S\n]*+::[^\S\n]++([^\])\n]*+)", re.MULTILINE
)
# Lines with a key each at the top of a file, where keywords are those of the file.
_METADATA = re.compile(r"\s*+(?:[^\W\d][\w -]{0,40}:.*\n){2,}")
# A line of nothing but tags, each of them marked, also in a comment or a list. Not so a property or setting.
_ALONE = re.compile(
    r"^(?:[^\S\n]|[\ufeff>*+-]|\#(?=[^\S\n])|<!--|%%)*+(?!#\+|:[\w+-]++:[^\S\n]+\S)"
    r"((?:[#:@：＃＠](?!#)\S++|[:：][^\S\n]+[^\s:：]++[^\S\n]+[:：])"
    r"(?:[^\S\n]+[#:@：＃＠](?!#)\S++)*+)[^\S\n]*+(?:-->|%%)?[^\S\n]*$",
    re.MULTILINE,
)
_BETWEEN_TAGS = re.compile(r"[,;|:：\n]|-->|%%")
# A sentence ends, or puts something in brackets.
_SENTENCE = re.compile(r"[.!?](?![^\s)])|(?<=\s)\(")
_FEW_WORDS = 3
_MOST_WORDS = 6


def mentions(text: str, gate: Gate) -> bool:
    """Whether any privacy tag is in `text` at all, even inside a word: where not, there is no doubt."""
    said = folded(text)
    return any(tag in said for tag in gate.tags)


def said_itself(text: str) -> str:
    """The text with blanks for what it only speaks of: code in a line, and where links lead. Places stay."""
    text = _ADDRESS.sub(_without_address, text) if "://" in text else text
    return _SPOKEN_OF.sub(lambda found: " " * len(found[0]), text)


def _without_address(found: re.Match[str]) -> str:
    # Tags that were glued to it still count.
    address, last = found[0], found[0].rfind("/")
    colon = address.find(":", last) if address[-1] == ":" else len(address)
    return " " * colon + address[colon:]


def meant_in_heading(line: str, gate: Gate) -> str:
    """The privacy tag that is marked as one anywhere in a heading, `:private` or `#private`; or nothing.

    Org wants tags at the end, a blank before them and colons around. Who forgot one of these, or wrote on
    behind it, meant the tag all the same.
    """
    line = said_itself(line)
    for found in _MARKED.finditer(line):
        if tag := part(found[1], gate):
            return tag
    for word in _SPACED.findall(line):
        if tag := part(word, gate):
            return tag
    if at := at_tag(line, gate):
        return at
    last = "".join(line.rstrip().rsplit(None, 1)[-1:])
    return part(last, gate) if ":" in last else ""


def at_tag(text: str, gate: Gate) -> str:
    """The privacy tag that begins with an @, which marks it, and is a word of `text`; or nothing."""
    if "@" not in text and "＠" not in text:
        return ""
    words = _BETWEEN_WORDS.split(text)
    return next((word for word in words if ("@" in word or "＠" in word) and gate.is_private(word)), "")


def part(word: str, gate: Gate) -> str:
    """The privacy tag that a word is or has as a part: `private`, `private/bank`, `(private)`; or nothing."""
    if gate.is_private(word):
        return word.strip().strip(":#")
    return mentioned(word, gate)


def among(tags: Iterable[str], gate: Gate) -> str:
    """The first of these tags that is private, or is one word with a privacy tag as a part; or nothing."""
    found = (part(tag, gate) if len(tag.split()) < 2 or gate.is_private(tag) else "" for tag in tags)
    return next(filter(None, found), "")


def meant_in_property(key: str, value: str, gate: Gate) -> str:
    """The privacy tag that a property or setting gives to what it belongs to; or nothing.

    It is among tags or keywords, or all of another value (`visibility: private`), or the key (`private: t`).
    """
    name = folded(key).upper().replace("-", "_")
    if _OF_TAGS.match(name):
        return mentioned(value, gate)
    if gate.is_private(key):
        return "" if folded(value).strip() in _NO else key.strip(":#")
    return value.strip().strip(":#") if not _NAMES.match(name) and gate.is_private(value) else ""


class Said(NamedTuple):
    """Where a line says of a file or of what it stands in that it has a privacy tag."""

    start: int
    tag: str


def said_tags(text: str, code: Code, gate: Gate) -> list[Said]:
    """The lines of Markdown such as `Tags: private`, and those of nothing but tags, in their order."""
    top = _METADATA.match(text)
    top_end = top.end() if top else 0
    found = [
        Said(line.start(), tag)
        for line in _SAID.finditer(text)
        if (not line["keywords"] or line.start() < top_end) and (tag := _listed(line["said"], gate))
    ]
    found += [
        Said(text.rfind("\n", 0, field.start(1)) + 1, tag)
        for field in _FIELD.finditer(text)
        if (tag := meant_in_property(field[1], field[2].strip(), gate))
    ]
    found += alone(text, gate)
    return sorted(said for said in found if said.start not in code)


def _listed(said: str, gate: Gate) -> str:
    """The privacy tag in a short list of tags, `a, b` or `a b`; or nothing, as where it is a sentence.

    A word with a sign before it is a tag whatever stands beside it.
    """
    parts = [part.strip().lstrip("-*+ ") for part in _BETWEEN_TAGS.split(said)]
    words = [part.split() for part in parts]
    tags = [word for each in words for word in each if word[0] in "#＃@＠["]
    longest, count = max(map(len, words)), sum(map(len, words))
    is_sentence = count > _FEW_WORDS and longest > 1 and _SENTENCE.search(said)
    if count == longest <= _MOST_WORDS and not is_sentence:
        tags += [*parts, *(word for each in words for word in each)]
    elif longest <= _FEW_WORDS and not is_sentence:
        tags += parts
    return among(tags, gate)


def alone(text: str, gate: Gate) -> list[Said]:
    """The lines of nothing but tags with a privacy tag among them."""
    return [Said(line.start(), tag) for line in _ALONE.finditer(text) if (tag := mentioned(line[1], gate))]


def mentioned(text: str, gate: Gate) -> str:
    """The first privacy tag that is a word of `text`; or nothing."""
    for word in _BETWEEN_WORDS.split(text):
        if gate.is_private(word):
            return word
    said = folded(text)
    # One that is itself of several words, or has a dot in it.
    return next((tag for tag in sorted(gate.tags) if _BETWEEN_WORDS.search(tag) and tag in said), "")
