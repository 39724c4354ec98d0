"""Doubts about privacy: what is not written as a tag, but may be meant as one. It is then taken for one."""

import re

from foveate.memory.gate import Gate, folded

# Not so the address of a page.
_MARKED = re.compile(r"[:#](?!//)([^\s:#]+)")
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


def mentioned(text: str, gate: Gate) -> str:
    """The first privacy tag that is a word of `text`; or nothing."""
    for word in _BETWEEN_WORDS.split(text):
        if gate.is_private(word):
            return word
    said = folded(text)
    # One that is itself of several words, or has a dot in it.
    return next((tag for tag in sorted(gate.tags) if _BETWEEN_WORDS.search(tag) and tag in said), "")
