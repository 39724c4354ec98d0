"""Oracle for byte edits: a slow, plain JSON scanner, and trees that know which bytes must be unchanged.

It shares no code with the product. A `TreeNode` is a slice of the original text. A test edits the tree by
putting plain Python values (new text), or values that contain nodes (moved text), where an edit should.
`compare` then scans the written bytes: new parts must have the same value, all others must be identical byte
for byte, including the whitespace, commas and keys between them.
"""

import json
import random
from dataclasses import dataclass, field
from typing import Any

BLANKS = b" \t\r\n"
BOM = b"\xef\xbb\xbf"


@dataclass
class TreeEntry:
    """A member or item: its original (None if new), its current value, and its key."""

    original: "TreeNode | None"
    current: Any
    key: str = ""


@dataclass
class TreeNode:
    """A slice of a JSON text; `entries` are its members or items."""

    data: bytes
    start: int
    end: int
    entries: list[TreeEntry] = field(default_factory=list)
    size: int = 0

    @property
    def raw(self) -> bytes:
        return self.data[self.start : self.end]

    @property
    def first_char(self) -> str:
        return chr(self.data[self.start])

    @property
    def is_unchanged(self) -> bool:
        return len(self.entries) == self.size and all(
            entry.current is entry.original
            and isinstance(entry.current, TreeNode)
            and entry.current.is_unchanged
            for entry in self.entries
        )

    def get(self, key: str) -> "TreeNode | None":
        """Return the last member with that key if it is original text."""
        values = [entry.current for entry in self.entries if entry.key == key]
        return values[-1] if values and isinstance(values[-1], TreeNode) else None

    def value(self) -> Any:
        return json.loads(self.raw)

    def put(self, key: str, new: Any) -> None:
        """Replace the last member with that key, or append one."""
        for entry in reversed(self.entries):
            if entry.key == key:
                entry.current = new
                return
        self.entries.append(TreeEntry(None, new, key))

    def items(self) -> list[Any]:
        return [entry.current for entry in self.entries]


def scan(data: bytes) -> TreeNode:
    """Parse a JSON text, with or without a byte order mark. Fails if it is not JSON."""
    node, at = _scan(data, _skip_blanks(data, len(BOM) if data.startswith(BOM) else 0))
    assert _skip_blanks(data, at) == len(data)
    return node


def _scan(data: bytes, at: int) -> tuple[TreeNode, int]:
    node = TreeNode(data, at, at)
    if data[at] in b"{[":
        closing = b"}" if data[at] == ord("{") else b"]"
        at = _skip_blanks(data, at + 1)
        while data[at] != closing[0]:
            if node.entries:
                assert data[at] == ord(",")
                at = _skip_blanks(data, at + 1)
            key = ""
            if closing == b"}":
                end = _string_end(data, at)
                key = json.loads(data[at:end])
                at = _skip_blanks(data, end)
                assert data[at] == ord(":")
                at = _skip_blanks(data, at + 1)
            inner, at = _scan(data, at)
            node.entries.append(TreeEntry(inner, inner, key))
            at = _skip_blanks(data, at)
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


def _skip_blanks(data: bytes, at: int) -> int:
    while at < len(data) and data[at] in BLANKS:
        at += 1
    return at


def _string_end(data: bytes, at: int) -> int:
    assert data[at] == ord('"')
    at += 1
    while data[at] != ord('"'):
        at += 2 if data[at] == ord("\\") else 1
    return at + 1


def compare(expected: Any, written: TreeNode) -> None:
    """Fail if the written text differs in value, or spells original text differently."""
    if isinstance(expected, TreeNode):
        if expected.is_unchanged:
            assert written.raw == expected.raw
        else:
            assert written.first_char == expected.first_char
            _compare_entries(expected, written)
    elif isinstance(expected, dict):
        assert [entry.key for entry in written.entries] == list(expected)
        for entry, expected_value in zip(written.entries, expected.values(), strict=True):
            compare(expected_value, entry.current)
    elif isinstance(expected, list):
        assert written.first_char == "["
        for entry, expected_value in zip(written.entries, expected, strict=True):
            compare(expected_value, entry.current)
    else:
        assert written.value() == expected
        assert type(written.value()) is type(expected)


def _compare_entries(expected: TreeNode, written: TreeNode) -> None:
    assert [entry.key for entry in written.entries] == [entry.key for entry in expected.entries]
    for entry, expected_entry in zip(written.entries, expected.entries, strict=True):
        compare(expected_entry.current, entry.current)
    before: TreeNode | None = None  # the last original entry
    at, between, new = written.start + 1, b"", 0
    originals = _originals(expected)
    for entry, expected_entry in zip(written.entries, expected.entries, strict=True):
        between += written.data[at : entry.current.start]
        at = entry.current.end
        if expected_entry.original is None:
            between = between.replace(f'"{expected_entry.key}":'.encode(), b"", 1)
            new += 1
            continue
        _compare_gap(expected, before, expected_entry.original, between, new, originals)
        before, between, new = expected_entry.original, b"", 0
    between += written.data[at : written.end - 1]
    _compare_gap(expected, before, None, between, new, originals)


def _originals(node: TreeNode) -> list[TreeNode]:
    return scan(node.raw).items()


def _compare_gap(
    node: TreeNode,
    before: TreeNode | None,
    after: TreeNode | None,
    between: bytes,
    new: int,
    originals: list[TreeNode],
) -> None:
    """Compare what is between two unchanged entries: as before, with a comma for each new entry."""
    starts = [node.start + original.start for original in originals]
    first = 0 if before is None else starts.index(before.start) + 1
    last = len(starts) if after is None else starts.index(after.start)
    start = node.start + 1 if before is None else before.end
    end = node.end - 1 if after is None else after.start
    gap = between.replace(b",", b"")
    if first == last:  # nothing was removed in between
        original_gap = node.data[start:end]
        assert gap == original_gap.replace(b",", b"")
        assert between.count(b",") == original_gap.count(b",") + (new if starts else max(0, new - 1))
    else:
        head = node.data[start : starts[first]].replace(b",", b"")
        tail = node.data[node.start + originals[last - 1].end : end].replace(b",", b"")
        assert gap in (head, tail, head + tail)


def spell_oddly(value: Any, seed: int) -> bytes:
    """Serialize `value` with odd but valid whitespace, escapes and numbers."""
    return _spell(value, random.Random(seed)).encode()


def _spell(value: Any, dice: random.Random) -> str:
    match value:
        case dict():
            inside = [
                f"{_blanks(dice)}{_spell_text(key, dice)}{_blanks(dice)}:{_blanks(dice)}"
                f"{_spell(inner, dice)}{_blanks(dice)}"
                for key, inner in value.items()
            ]
            return "{" + (",".join(inside) or _blanks(dice)) + "}"
        case list():
            inside = [_blanks(dice) + _spell(inner, dice) + _blanks(dice) for inner in value]
            return "[" + (",".join(inside) or _blanks(dice)) + "]"
        case str():
            return _spell_text(value, dice)
        case bool() | None:
            return json.dumps(value)
        case int():
            return dice.choice([str(value), str(value), f"{value}.0", f"{value}E0", f"{value}.00e+0"])
        case _:
            return repr(value)


def _blanks(dice: random.Random) -> str:
    return dice.choice(["", "", "", " ", "\n\t", "\r\n  "])


def _spell_text(text: str, dice: random.Random) -> str:
    escaping = dice.random() < 0.3
    return '"' + "".join(_spell_char(char, escaping and dice.random() < 0.4) for char in text) + '"'


def _spell_char(char: str, escape: bool) -> str:
    if escape or "\ud800" <= char <= "\udfff":
        return json.dumps(char)[1:-1] if ord(char) > 0xFFFF else f"\\u{ord(char):04x}"
    return json.dumps(char, ensure_ascii=False)[1:-1]
