"""Mentions in a text, by two measures of `compaction_carry` that are independent of the product.

`mentions` finds paths, identifiers and numbers by a few plain patterns. `odd_words` takes every word that does
not look like plain language.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from foveate.model import Message, Part, Text, Thinking, ToolCall, ToolResult


class Kind(StrEnum):
    """Kind of a mention."""

    PATH = "paths"
    IDENTIFIER = "identifiers"
    NUMBER = "numbers"
    CONSTRAINT = "constraints"


@dataclass(frozen=True, slots=True)
class Mention:
    kind: Kind
    text: str


_PATH = re.compile(
    r"(?:(?:https?://|~?/|\.{1,2}/)?(?:[\w.@+-]+/)+[\w.@+-]*\w|~?/[\w.@+-]*\w|\b[\w-]+\.[a-z]{1,5}\b)"
)
_EXTENSION = re.compile(
    r"\.(?:py|js|ts|tsx|jsx|json|md|html?|css|toml|ya?ml|txt|sh|c|h|cpp|go|rs|java|rb|lock|cfg|ini|log|sql|db|csv|"
    r"xml|svg|png|mjs|php|patch|diff)$"
)
_IDENTIFIER = re.compile(
    r"\b(?:[A-Za-z]\w*_\w+|_\w+|[a-z]+[a-z0-9]*[A-Z]\w*|[A-Z][a-z0-9]+[A-Z]\w*|[A-Z][A-Z0-9]{2,}|[0-9a-f]{7,40}|"
    r"[A-Za-z]\w+(?=\(\)))\b"
)
_NUMBER = re.compile(
    r"(?<![\w.#/-])#?\$?\d[\d,]*(?:\.\d+)*(?:\s?(?:%|(?:ms|s|px|r?em|x|k|[KMG]i?B|kb|mb|bytes|tokens|lines)\b))?(?!\w|\.\d)"
)
# Line numbers that a tool puts before the lines of a file: nobody needs them later.
_GUTTER = re.compile(r"^\s*\d+[\t→|]", re.MULTILINE)
_CONSTRAINT = re.compile(
    r"[^.!?\n]*\b(?:never|must|(?<!\bi )(?:do not|don't|dont)|always|only|should not|shouldn't|make sure)\b"
    r"[^.!?\n]*(?!\?)(?=[.!\n]|$)",
    re.IGNORECASE,
)
# A slash, an underscore, an inner capital, a digit beside a letter, or only capitals.
_ODD = re.compile(r"[/_]|[a-z][A-Z]|[a-zA-Z]\d|\d[a-zA-Z]|^[A-Z]{3,}$")
_WORD = re.compile(r"[\w./@~#-]{3,80}")


def authored_text(message: Message) -> str:
    """Join what the user or the model writes in a message: texts, thinking and tool arguments."""
    return "\n".join(
        text for part in message.parts if not isinstance(part, ToolResult) for text in _texts(part)
    )


def result_text(message: Message) -> str:
    """Join the texts of tool results in a message."""
    return "\n".join(text for part in message.parts if isinstance(part, ToolResult) for text in _texts(part))


def _texts(part: Part) -> Iterator[str]:
    match part:
        case Text() | Thinking():
            yield part.text
        case ToolCall():
            yield part.name
            yield part.arguments.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')
        case ToolResult():
            for inner in part.parts:
                yield from _texts(inner)
        case _:
            return


def mentions(text: str) -> set[Mention]:
    """Return the paths, identifiers and numbers in a text."""
    result = set()
    text = _GUTTER.sub("", text)
    for match in _PATH.finditer(text):
        path = match[0].rstrip(".")
        if path.count("/") > 1 or _EXTENSION.search(path):
            result.add(Mention(Kind.PATH, path))
    result |= {Mention(Kind.IDENTIFIER, match[0]) for match in _IDENTIFIER.finditer(text)}
    for match in _NUMBER.finditer(text):
        number = match[0].strip(",.")
        if sum(char.isdigit() for char in number) > 2 or not number.isdigit():
            result.add(Mention(Kind.NUMBER, number))
    return result


def odd_words(text: str) -> set[str]:
    """Return the words that are not plain language, without punctuation at their ends."""
    bare = (word.rstrip("./-").lstrip("-.") for word in _WORD.findall(text))
    return {word for word in bare if len(word) > 2 and _ODD.search(word)}


def constraints(message: Message) -> set[Mention]:
    """Return the constraints that a user states in a message."""
    if message.role != "user":
        return set()
    return {
        Mention(Kind.CONSTRAINT, match[0].strip())
        for match in _CONSTRAINT.finditer(authored_text(message))
        if len(match[0].split()) > 2
    }


def is_mentioned(mention: Mention, text: str) -> bool:
    """Return whether a text contains the mention as a whole word, not as a part of a longer one."""
    if mention.kind is Kind.CONSTRAINT:
        return " ".join(mention.text.split()) in " ".join(text.split())
    at = text.find(mention.text)
    while at >= 0:
        end = at + len(mention.text)
        if not (_is_word_char(text[at - 1 : at]) or _is_word_char(text[end : end + 1])):
            return True
        at = text.find(mention.text, at + 1)
    return False


def _is_word_char(char: str) -> bool:
    return char.isalnum() or char == "_"
