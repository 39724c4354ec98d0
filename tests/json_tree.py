"""An oracle for edits: a slow, plain JSON scanner, and trees that know which of their bytes must have stayed.

It shares nothing with the product. A `Node` is a stretch of the original text. A test edits the tree: it puts
plain Python (new text), or Python with nodes in it (old text in a new place), where an edit should. `compare`
then scans what the product wrote and holds it against the tree: new parts by what they say, all others byte for
byte, with the blanks, commas and keys between them.
"""

import json
import random
from dataclasses import dataclass, field
from typing import Any

BLANKS = b" \t\r\n"
BOM = b"\xef\xbb\xbf"


@dataclass
class Entry:
    """A member or item: what stood there (None, if it is new), what stands there now, and its key."""

    was: "Node | None"
    now: Any
    key: str = ""


@dataclass
class Node:
    """A stretch of a JSON text; `entries` are its members or items."""

    data: bytes
    start: int
    end: int
    entries: list[Entry] = field(default_factory=list)
    size: int = 0

    @property
    def raw(self) -> bytes:
        return self.data[self.start : self.end]

    @property
    def sign(self) -> str:
        return chr(self.data[self.start])

    @property
    def is_as_it_came(self) -> bool:
        return len(self.entries) == self.size and all(
            entry.now is entry.was and isinstance(entry.now, Node) and entry.now.is_as_it_came
            for entry in self.entries
        )

    def get(self, key: str) -> "Node | None":
        """The last member of that name, if it is text of the original."""
        found = [entry.now for entry in self.entries if entry.key == key]
        return found[-1] if found and isinstance(found[-1], Node) else None

    def value(self) -> Any:
        return json.loads(self.raw)

    def put(self, key: str, new: Any) -> None:
        """Another value for the last member of that name, or one more member."""
        for entry in reversed(self.entries):
            if entry.key == key:
                entry.now = new
                return
        self.entries.append(Entry(None, new, key))

    def items(self) -> list[Any]:
        return [entry.now for entry in self.entries]


def scan(data: bytes) -> Node:
    """The tree of a JSON text, which may stand behind a byte order mark; fails where it is no JSON."""
    node, at = _scan(data, _blank(data, len(BOM) if data.startswith(BOM) else 0))
    assert _blank(data, at) == len(data)
    return node


def _scan(data: bytes, at: int) -> tuple[Node, int]:
    node = Node(data, at, at)
    if data[at] in b"{[":
        closing = b"}" if data[at] == ord("{") else b"]"
        at = _blank(data, at + 1)
        while data[at] != closing[0]:
            if node.entries:
                assert data[at] == ord(",")
                at = _blank(data, at + 1)
            key = ""
            if closing == b"}":
                end = _string_end(data, at)
                key = json.loads(data[at:end])
                at = _blank(data, end)
                assert data[at] == ord(":")
                at = _blank(data, at + 1)
            inner, at = _scan(data, at)
            node.entries.append(Entry(inner, inner, key))
            at = _blank(data, at)
        at += 1
    elif data[at] == ord('"'):
        at = _string_end(data, at)
    else:
        while at < len(data) and data[at] not in b",]} \t\r\n":
            at += 1
        json.loads(data[node.start : at])
    node.end = at
    node.size = len(node.entries)
    return node, at


def _blank(data: bytes, at: int) -> int:
    while at < len(data) and data[at] in BLANKS:
        at += 1
    return at


def _string_end(data: bytes, at: int) -> int:
    assert data[at] == ord('"')
    at += 1
    while data[at] != ord('"'):
        at += 2 if data[at] == ord("\\") else 1
    return at + 1


def compare(expected: Any, found: Node) -> None:
    """Fails where `found` says something else than `expected`, or spells old text in a new way."""
    if isinstance(expected, Node):
        if expected.is_as_it_came:
            assert found.raw == expected.raw
        else:
            assert found.sign == expected.sign
            _compare_entries(expected, found)
    elif isinstance(expected, dict):
        assert [entry.key for entry in found.entries] == list(expected)
        for entry, wanted in zip(found.entries, expected.values(), strict=True):
            compare(wanted, entry.now)
    elif isinstance(expected, list):
        assert found.sign == "["
        for entry, wanted in zip(found.entries, expected, strict=True):
            compare(wanted, entry.now)
    else:
        assert found.value() == expected
        assert type(found.value()) is type(expected)


def _compare_entries(expected: Node, found: Node) -> None:
    assert [entry.key for entry in found.entries] == [entry.key for entry in expected.entries]
    for entry, wanted in zip(found.entries, expected.entries, strict=True):
        compare(wanted.now, entry.now)
    before: Node | None = None  # the last original, and where what stands for it now ends
    at, between, new = found.start + 1, b"", 0
    originals = _originals(expected)
    for entry, wanted in zip(found.entries, expected.entries, strict=True):
        between += found.data[at : entry.now.start]
        at = entry.now.end
        if wanted.was is None:
            between = between.replace(f'"{wanted.key}":'.encode(), b"", 1)
            new += 1
            continue
        _compare_gap(expected, before, wanted.was, between, new, originals)
        before, between, new = wanted.was, b"", 0
    between += found.data[at : found.end - 1]
    _compare_gap(expected, before, None, between, new, originals)


def _originals(node: Node) -> list[Node]:
    return scan(node.raw).items()


def _compare_gap(
    node: Node, before: Node | None, after: Node | None, between: bytes, new: int, originals: list[Node]
) -> None:
    """What lies between two that stayed: as it was, with a comma for each new one that stands there now."""
    starts = [node.start + one.start for one in originals]
    first = 0 if before is None else starts.index(before.start) + 1
    last = len(starts) if after is None else starts.index(after.start)
    start = node.start + 1 if before is None else before.end
    end = node.end - 1 if after is None else after.start
    found = between.replace(b",", b"")
    if first == last:  # nothing was dropped in between
        was = node.data[start:end]
        assert found == was.replace(b",", b"")
        assert between.count(b",") == was.count(b",") + (new if starts else max(0, new - 1))
    else:
        head = node.data[start : starts[first]].replace(b",", b"")
        tail = node.data[node.start + originals[last - 1].end : end].replace(b",", b"")
        assert found in (head, tail, head + tail)


def spell(value: Any, seed: int) -> bytes:
    """`value` as JSON, spelled as oddly as JSON allows: blanks, escapes, numbers."""
    return _spelled(value, random.Random(seed)).encode()


def _spelled(value: Any, dice: random.Random) -> str:
    match value:
        case dict():
            inside = [
                f"{_blanks(dice)}{_text(key, dice)}{_blanks(dice)}:{_blanks(dice)}"
                f"{_spelled(inner, dice)}{_blanks(dice)}"
                for key, inner in value.items()
            ]
            return "{" + (",".join(inside) or _blanks(dice)) + "}"
        case list():
            inside = [_blanks(dice) + _spelled(inner, dice) + _blanks(dice) for inner in value]
            return "[" + (",".join(inside) or _blanks(dice)) + "]"
        case str():
            return _text(value, dice)
        case bool() | None:
            return json.dumps(value)
        case int():
            return dice.choice([str(value), str(value), f"{value}.0", f"{value}E0", f"{value}.00e+0"])
        case _:
            return repr(value)


def _blanks(dice: random.Random) -> str:
    return dice.choice(["", "", "", " ", "\n\t", "\r\n  "])


def _text(text: str, dice: random.Random) -> str:
    escaping = dice.random() < 0.3
    return '"' + "".join(_char(char, escaping and dice.random() < 0.4) for char in text) + '"'


def _char(char: str, escape: bool) -> str:
    if escape or "\ud800" <= char <= "\udfff":
        return json.dumps(char)[1:-1] if ord(char) > 0xFFFF else f"\\u{ord(char):04x}"
    return json.dumps(char, ensure_ascii=False)[1:-1]
