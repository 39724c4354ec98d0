"""The line of a heading: its state, its priority and its tags, as Org writes them and many do in Markdown."""

import re
import unicodedata
from collections.abc import Container

from foveate.memory.doubts import find_tag_in_heading, mentions_privacy_tag
from foveate.memory.gate import Gate

_TAGS = re.compile(r":[\w@#%:]+:\Z")
_PRIORITY = re.compile(r"\[#([A-Za-z]|[0-9]{1,2})\]\s*")


def split_tags(line: str) -> tuple[str, tuple[str, ...]]:
    """The line without tags such as `:a:b:` at its end, and these tags."""
    if line[-1:] != ":":
        return line, ()
    *before, last = line.rsplit(None, 1)
    if not _are_tags(last):
        return line, ()
    tags = tuple(tag for tag in last.split(":") if tag)
    return ("".join(before), tags) if tags else (line, ())


def _are_tags(word: str) -> bool:
    if _TAGS.match(word):
        return True
    # Org takes combining marks for letters, without which many languages cannot be written.
    return word[0] == ":" and all(
        letter.isalnum() or letter in "_@#%:" or unicodedata.category(letter)[0] == "M" for letter in word
    )


def split_state(line: str, states: Container[str]) -> tuple[str, str]:
    """The line without one of `states` at its beginning, and this state."""
    first, *rest = line.split(None, 1) or [""]
    return ("".join(rest), first) if first in states else (line, "")


def split_priority(line: str) -> tuple[str, str]:
    """The line without a priority such as `[#A]` at its beginning, and this priority."""
    found = _PRIORITY.match(line) if line[:2] == "[#" else None
    return (line[found.end() :], found[1].upper()) if found else (line, "")


def add_suspected_tag(line: str, tags: tuple[str, ...], gate: Gate) -> tuple[str, ...]:
    """The tags of a heading, also with one that only may be meant."""
    if not mentions_privacy_tag(line, gate) or any(map(gate.is_private, tags)):
        return tags
    tag = find_tag_in_heading(line, gate)
    return (*tags, tag) if tag else tags
