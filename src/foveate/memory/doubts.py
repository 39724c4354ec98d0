"""Doubts about privacy: what is not written as a tag, but may be meant as one. It is then taken for one."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from foveate.memory.gate import Gate, folded

# Not so the address of a page.
_MARKED = re.compile(r"[:#](?!//)([^\s:#]+)")
# Of tags that a file or an entry has; those of Org that choose what is exported say nothing of that.
_OF_TAGS = re.compile(r"(?!SELECT_|EXCLUDE_)\w*(?:TAGS?|KEYWORDS)\Z")
# A thing may be called so without being so.
_NAMES = re.compile(
    r"\w*(?:TITLE|NAME|ALIAS|ALIASES|ID|CAPTION|RESULTS|ITEM|CALL|MACRO|LABEL|SELECT_TAGS|EXCLUDE_TAGS)\Z"
)
_NO = frozenset({"false", "no", "off", "0", "n", "f", "nil"})
_ITEM = re.compile(r"^[ \t>]*(?:[-+*]|\d{1,9}[.)])[ \t]+(\S.*)$", re.MULTILINE)
_TASK = re.compile(r"(?:\[[ xX-]\]|TODO|DONE)(?!\S)")
_BETWEEN_WORDS = re.compile(r"[\s:#,;|.!?(){}<>\"'`*=~/\[\]]+")


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
    last = "".join(line.rstrip().rsplit(None, 1)[-1:])
    return part(last, gate) if ":" in last and "//" not in last else ""


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
        is_marked = found[:1] in ("#", ":") or (found[-1:] == ":" and found.count(":") > 1)
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
