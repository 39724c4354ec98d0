"""Texts that make a regular expression slow, derived from its parse tree."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from re import _constants as op  # pyrefly: ignore[missing-module-attribute] - the tree has no public name
from re import _parser as parser  # pyrefly: ignore[missing-module-attribute]
from typing import Any, TypeVar

Node = tuple[Any, Any]
Kind = TypeVar("Kind")

# At least one character of every class, common ones first.
_ALPHABET = "a0 \nA_-./:\\\"'`#*@,;=()[]{}<>|+~!?$%&^\t\r\f\0éß中。：＃\u0301\u200d\ufeffфзf9zZ"
_CHARS = (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)
_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
_CATEGORIES = {
    op.CATEGORY_DIGIT: r"\d",
    op.CATEGORY_NOT_DIGIT: r"\D",
    op.CATEGORY_SPACE: r"\s",
    op.CATEGORY_NOT_SPACE: r"\S",
    op.CATEGORY_WORD: r"\w",
    op.CATEGORY_NOT_WORD: r"\W",
}
# Units that are slow for many expressions.
_NASTY = (
    *(
        "a",
        "0",
        " ",
        "\n",
        "\t",
        "-",
        "*",
        "_",
        ".",
        "/",
        "\\",
        '"',
        "'",
        "`",
        "#",
        ":",
        "<",
        "[",
        "(",
        "{",
        "|",
    ),
    *(
        " \n",
        "\n ",
        "a\n",
        "a ",
        "a.",
        "a-",
        "a_",
        "0.",
        "0-",
        '\\"',
        "\r\n",
        "\r",
        "[a",
        "a: ",
        "- a\n",
        "é",
        "中",
    ),
    *(
        "\u0301",
        "\u200d",
        "🇦",
        "👩\u200d",
        "\u1100",
        "\uac00",
        "\ufeff",
        "# a\n",
        "* a\n",
        "```\n",
        "<!--",
        ":a",
        "#a",
    ),
)
# A suffix that hardly any expression matches.
_END = "\0\n!"
_MAX_OF_EACH = 24


@dataclass(frozen=True, slots=True)
class Attack:
    """A text of any size: a prefix, a repeated unit, and a suffix."""

    before: str
    unit: str
    after: str

    def text(self, size: int) -> str:
        """Return the text with about `size` characters."""
        return self.before + self.unit * (size // len(self.unit)) + self.after


def attacks(pattern: "re.Pattern[Any] | None" = None) -> list[Attack]:
    """Generate texts to attack an expression: derived from it, and bad for many expressions."""
    found = [Attack("", unit, _END) for unit in _NASTY]
    if pattern is not None:
        found += _generate(pattern)
    return list(dict.fromkeys(found))


def has_choice_in_possessive_group(pattern: "re.Pattern[Any]") -> bool:
    """Return whether an expression repeats possessively what can be matched in several ways."""
    return _has_possessive_choice(_parse(pattern))


def _has_possessive_choice(nodes: Sequence[Node]) -> bool:
    for kind, argument in nodes:
        inner = [argument[2]] if kind in _REPEATS else _inner_sequences(kind, argument)
        if kind is op.POSSESSIVE_REPEAT and not all(map(_is_plain, argument[2])):
            return True
        if any(map(_has_possessive_choice, inner)):
            return True
    return False


def _is_plain(node: Node) -> bool:
    """Return whether a node is a character, or repeats one possessively."""
    kind, argument = node
    return kind in _CHARS or (
        kind is op.POSSESSIVE_REPEAT and len(argument[2]) == 1 and argument[2][0][0] in _CHARS
    )


def _parse(pattern: "re.Pattern[Any]") -> Sequence[Node]:
    written = pattern.pattern
    text = written.decode("latin-1") if isinstance(written, bytes) else written
    return parser.parse(text, pattern.flags & ~re.UNICODE if isinstance(written, bytes) else pattern.flags)


def _generate(pattern: "re.Pattern[Any]") -> list[Attack]:
    tree = _parse(pattern)
    writer = _Writer(pattern.flags)
    random = Random(repr(pattern.pattern))
    repeats = list(dict.fromkeys(writer.repeats(tree, "")))
    pieces = list(dict.fromkeys(piece for piece in writer.pieces(tree) if piece))
    chars = list(dict.fromkeys(writer.chars(tree)))
    mixed = pieces + chars
    repeated = _sample(repeats, random)
    once = [("", unit) for unit in _sample(pieces, random) + _sample(chars, random)]
    if pieces:
        once += [("", "".join(random.choices(mixed, k=2))) for _ in range(_MAX_OF_EACH // 2)]
        once += [(random.choice(pieces), random.choice(mixed)) for _ in range(_MAX_OF_EACH // 4)]
        # All but the last part: every start scans far and fails.
        once += [("", piece[:-1]) for piece in _sample(pieces, random)[:10] if len(piece) > 1]
    return [
        *(Attack(before, unit, after) for before, unit in repeated for after in ("", _END)),
        *(Attack(before, unit, _END) for before, unit in once),
    ]


def _sample(found: list[Kind], random: Random) -> list[Kind]:
    return found if len(found) <= _MAX_OF_EACH else random.sample(found, _MAX_OF_EACH)


class _Writer:
    """Writes texts that parts of an expression match or nearly match."""

    def __init__(self, flags: int) -> None:
        self._flags = flags
        self._groups: dict[int, str] = {}
        self._accepted: dict[int, str] = {}

    def text(self, nodes: Iterable[Node], *, times: int = 1) -> str:
        """Write a text that a sequence matches, with repeats `times` times if possible."""
        return "".join(self._node(kind, argument, times) for kind, argument in nodes)

    def repeats(self, nodes: Sequence[Node], before: str) -> Iterator[tuple[str, str]]:
        """Yield the prefix of each repeat, and what it repeats."""
        for at, (kind, argument) in enumerate(nodes):
            ahead = before + self.text(list(nodes)[:at])
            if kind in _REPEATS:
                _, most, inner = argument
                if most > 1:
                    yield from self._repeat_unit(inner, ahead)
                yield from self.repeats(inner, ahead)
            for inner in _inner_sequences(kind, argument):
                yield from self.repeats(inner, ahead)

    def pieces(self, nodes: Sequence[Node]) -> Iterator[str]:
        """Yield what each part of the expression matches, nested parts too."""
        for times in (1, 2, 0):
            for at in range(len(nodes)):
                yield self.text(list(nodes)[: at + 1], times=times)
                yield self.text(list(nodes)[at:], times=times)
        for kind, argument in nodes:
            if kind in _REPEATS:
                yield from self.pieces(argument[2])
            for inner in _inner_sequences(kind, argument):
                yield from self.pieces(inner)

    def chars(self, nodes: Sequence[Node]) -> Iterator[str]:
        """Yield characters that are relevant to the expression, alone and on lines of their own."""
        for kind, argument in nodes:
            if kind in _CHARS:
                for char in self._accepted_chars(kind, argument)[:3]:
                    yield from (char, f"{char}\n", f" {char}", f"{char} ")
            if kind in _REPEATS:
                yield from self.chars(argument[2])
            for inner in _inner_sequences(kind, argument):
                yield from self.chars(inner)

    def _repeat_unit(self, inner: Sequence[Node], ahead: str) -> Iterator[tuple[str, str]]:
        for times in (1, 0, 2):
            if unit := self.text(inner, times=times):
                yield ahead, unit
                yield "", ahead + unit
                yield "", unit
        if len(inner) == 1 and inner[0][0] in _CHARS:
            for char in self._accepted_chars(*inner[0])[:6]:
                yield ahead, char

    def _node(self, kind: Any, argument: Any, times: int) -> str:
        if kind is op.LITERAL:
            return chr(argument)
        if kind in _CHARS:
            return self._accepted_chars(kind, argument)[:1]
        if kind in _REPEATS:
            least, most, inner = argument
            count: int = min(max(least, times), most, 64)
            return self.text(inner, times=times) * count
        if kind is op.BRANCH:
            return self.text(argument[1][0], times=times)
        if kind is op.SUBPATTERN:
            text = self.text(argument[3], times=times)
            self._groups[argument[0]] = text
            return text
        if kind is op.ATOMIC_GROUP:
            return self.text(argument, times=times)
        if kind is op.GROUPREF:
            return self._groups.get(argument, "")
        if kind is op.GROUPREF_EXISTS:
            return self.text(argument[1], times=times)
        return ""  # lookarounds

    def _accepted_chars(self, kind: Any, argument: Any) -> str:
        """Return the characters of the alphabet that a node for one character matches."""
        if kind is op.LITERAL:
            return chr(argument) if chr(argument) in _ALPHABET else ""
        if kind is op.NOT_LITERAL:
            return _ALPHABET.replace(chr(argument), "")
        if kind is op.ANY:
            return _ALPHABET if self._flags & re.DOTALL else _ALPHABET.replace("\n", "")
        accepted = self._accepted.get(id(argument))  # the tree exists as long as the writer
        if accepted is None:
            accepted = "".join(char for char in _ALPHABET if self._is_in(argument, char))
            self._accepted[id(argument)] = accepted
        return accepted

    def _is_in(self, members: Sequence[Node], char: str) -> bool:
        is_negated = members[0][0] is op.NEGATE
        found = any(
            (kind is op.LITERAL and ord(char) == argument)
            or (kind is op.RANGE and argument[0] <= ord(char) <= argument[1])
            or (kind is op.CATEGORY and re.match(_CATEGORIES[argument], char) is not None)
            for kind, argument in members
        )
        return found != is_negated


def _inner_sequences(kind: Any, argument: Any) -> Sequence[Sequence[Node]]:
    """Yield the sequences inside a node, unless it repeats one."""
    if kind is op.BRANCH:
        return list(argument[1])
    if kind is op.SUBPATTERN:
        return [argument[3]]
    if kind is op.ATOMIC_GROUP:
        return [argument]
    if kind in (op.ASSERT, op.ASSERT_NOT):
        return [argument[1]]
    if kind is op.GROUPREF_EXISTS:
        return [branch for branch in argument[1:] if branch is not None]
    return []
