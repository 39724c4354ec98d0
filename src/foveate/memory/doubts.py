"""Doubts about privacy: what is not written as a tag, but may be meant as one. It is then taken for one."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

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
_ITEM = re.compile(r"^[ \t>]*(?:[-+*]|\d{1,9}[.)])[ \t]+(\S.*)$", re.MULTILINE)
_TASK = re.compile(r"(?:\[[ xX-]\]|TODO|DONE)(?!\S)")
_BETWEEN_WORDS = re.compile(r"[\s:#：＃,;|.!?(){}<>\"'`*=~/\[\]]+")

# A line such as `Tags: a, b`, also in a comment or a list, and with the tags in a list below it.
_SAID = re.compile(
    r"^(?:[^\S\n]|[\ufeff>*_+\-:\[(]|<!--|%%)*+(?:file)?(?:tags?|keywords)[*_]{0,2}[^\S\n]*[:：]{1,2}[*_]{0,2}"
    r"(?P<said>[^\S\n]*+\S.*|(?:[^\S\n]*+\n(?:[^\S\n]*+[-*+][^\S\n].*)?)*+)"
    r"|[\[(](?:tags?|keywords)[ \t]*::(?P<field>[^\])\n]*+)",
    re.MULTILINE | re.IGNORECASE,
)
# A line of nothing but tags, each of them marked, also in a comment or a list. Not so a property or setting.
_ALONE = re.compile(
    r"^(?:[^\S\n]|[\ufeff>*+-]|<!--|%%)*+(?!#\+|:[\w+-]++:[^\S\n]+\S)"
    r"((?:[#:@：＃](?!#)\S++|[:：][^\S\n]+[^\s:：]++[^\S\n]+[:：])"
    r"(?:[^\S\n]+[#:@：＃](?!#)\S++)*+)[^\S\n]*+(?:-->|%%)?[^\S\n]*$",
    re.MULTILINE,
)
_FENCE = re.compile(r"^[ \t>]*+(`{3,}+|~{3,}+)(.*)$", re.MULTILINE)


def mentions(text: str, gate: Gate) -> bool:
    """Whether any privacy tag is in `text` at all, even inside a word: where not, there is no doubt."""
    said = folded(text)
    return any(tag in said for tag in gate.tags)


def meant_in_heading(line: str, gate: Gate) -> str:
    """The privacy tag that is marked as one anywhere in a heading, `:private` or `#private`; or nothing.

    Org wants tags at the end, a blank before them and colons around. Who forgot one of these, or wrote on
    behind it, meant the tag all the same.
    """
    for found in _MARKED.finditer(line):
        if tag := part(found[1], gate):
            return tag
    for word in _SPACED.findall(line):
        if tag := part(word, gate):
            return tag
    if at := at_tag(line, gate):
        return at
    last = "".join(line.rstrip().rsplit(None, 1)[-1:])
    return part(last, gate) if ":" in last and "//" not in last else ""


def at_tag(text: str, gate: Gate) -> str:
    """The privacy tag that begins with an @, which marks it, and is a word of `text`; or nothing."""
    if "@" not in text:
        return ""
    return next((word for word in _BETWEEN_WORDS.split(text) if "@" in word and gate.is_private(word)), "")


def part(word: str, gate: Gate) -> str:
    """The privacy tag that a word is or has as a part: `private`, `private/bank`, `(private)`; or nothing."""
    if gate.is_private(word):
        return word.strip().strip(":#")
    return mentioned(word, gate)


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
    is_code: bool = False


def said_tags(text: str, gate: Gate) -> list[Said]:
    """The lines of Markdown such as `Tags: private`, and those of nothing but tags, in their order."""
    found = [
        Said(line.start(), tag)
        for line in _SAID.finditer(text)
        if (tag := mentioned(line["said"] or line["field"] or "", gate))
    ]
    found += alone(text, gate)
    if not found:
        return []
    fences = _fences(text)
    starts = [start for start, _ in fences]
    for number, said in enumerate(found):
        fence = bisect_right(starts, said.start) - 1
        if fence >= 0 and said.start < fences[fence][1]:
            found[number] = said._replace(is_code=True)
    return sorted(found)


def alone(text: str, gate: Gate) -> list[Said]:
    """The lines of nothing but tags with a privacy tag among them."""
    return [Said(line.start(), tag) for line in _ALONE.finditer(text) if (tag := mentioned(line[1], gate))]


def _fences(text: str) -> list[tuple[int, int]]:
    """Where code is that stands between two fences."""
    found = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif fence[1].startswith(opened[1]) and not fence[2].strip():
            found.append((opened.start(), fence.end()))
            opened = None
    return found


class Item(NamedTuple):
    """A line of a list that may be meant as private, and what it says."""

    start: int
    end: int
    text: str
    tag: str


def private_items(text: str, gate: Gate) -> Iterator[Item]:
    """Those items of lists that end with a privacy tag, marked as one; and tasks that have one at all."""
    for item in _ITEM.finditer(text):
        if mentions(item[1], gate) and (tag := _meant_in_item(item[1], gate)):
            yield Item(item.start(), item.end(), item[1].strip(), tag)


def _meant_in_item(line: str, gate: Gate) -> str:
    is_task = bool(_TASK.match(line))
    for word in reversed(line.split()):
        found = folded(word).lstrip("(*_~")
        if found[:1] == "@" and (tag := at_tag(word, gate)):
            return tag
        is_marked = found[:1] in ("#", ":", "@", "：", "＃") or (found[-1:] == ":" and found.count(":") > 1)
        if is_marked and (
            tag := next(filter(None, (part(each[1], gate) for each in _MARKED.finditer(word))), "")
        ):
            return tag
        if not is_marked and not is_task:
            break
    return ""


def mentioned(text: str, gate: Gate) -> str:
    """The first privacy tag that is a word of `text`; or nothing."""
    for word in _BETWEEN_WORDS.split(text):
        if gate.is_private(word):
            return word
    said = folded(text)
    # One that is itself of several words, or has a dot in it.
    return next((tag for tag in sorted(gate.tags) if _BETWEEN_WORDS.search(tag) and tag in said), "")
