"""JSON documents with errors: odd values, duplicate and escaped keys, broken bytes.

Mutations are small numbers that a test draws, so that a failure shrinks to few of them.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st


@dataclass(frozen=True)
class Raw:
    """Bytes that are written unchanged, JSON or not."""

    data: bytes


class Members(list[tuple[bytes, Any]]):
    """Members of an object in order: the quoted bytes of each key, and its value."""


Mutation = tuple[str, int, int]
"""Kind, place (modulo the number of places), and variant."""

_DEEP = 900
ODD_VALUES: Sequence[bytes] = (
    b"null", b"true", b"0", b"-1", b"1.5", b'""', b'"x"', b"[]", b"{}", b"[null]", b"[[]]", b"[{}]",
    b'{"type":null}', b'{"type":"text"}', b'{"type":"tool_use"}', b'{"type":"tool_result"}', b'{"":{}}',
    # Numbers that parsers may round, or that are not JSON.
    b"2147483648", b"9223372036854775808", b"18446744073709551616", b"-9223372036854775809", b"9" * 400,
    b"1e400", b"-1e400", b"1e-400", b"1e308", b"-0", b"-0.0", b"1E+2", b"0.1e1", b"NaN", b"Infinity",
    b"-Infinity", b"01", b"+1", b"1.", b".5", b"0x10", b"1_000", b"1e", b"--1", b"1000000000000",
    # Texts.
    b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\u0000"', b'"\\x"', b'"\\u12"', b'"\n"', b'"\xff"', b'"\xc0\x80"',
    b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\xef\xbb\xbf"', b'"\\u202e"', b'"1e999"', b'"NaN"',
    b'"' + b"a" * 70_000 + b'"', b'"' + b'\\"' * 5_000 + b'"', b'"data:image/png;base64,!"',
    # Shapes.
    b"[" * _DEEP + b"]" * _DEEP, b'{"a":' * _DEEP + b"1" + b"}" * _DEEP, b"[" * 100_000,
    b'{"$ref":"#"}', b"[1,]", b"[,1]", b"{,}", b'{"a":1,}', b'{"a"}', b'{"a":}', b"{a:1}", b"'x'", b"tru", b"",
    b"nullnull", b"/* */1", b"1//", b'"', b"]", b"}", b"\x00",
)  # fmt: skip
# Keys that have a meaning somewhere in the formats, or for some reader.
KEYS: Sequence[str] = (
    "", "type", "model", "messages", "content", "system", "tools", "input", "role", "stream", "stream_options",
    "max_tokens", "cache_control", "thread", "usage", "input_tokens", "output_tokens", "prompt_tokens", "cost",
    "completion_tokens", "total_tokens", "cache_read_input_tokens", "cache_creation", "iterations", "choices",
    "usageMetadata", "promptTokenCount", "x_groq", "timings", "error", "contents", "service_tier", "id",
    "previous_response_id", "conversation", "__proto__", "index", "delta", "message", "response", "metadata",
)  # fmt: skip


def parse(text: bytes | str) -> Any:
    """Return a document that keeps the order and the spelling of its keys."""

    def members(pairs: list[tuple[str, Any]]) -> Members:
        return Members((quote(key), value) for key, value in pairs)

    return json.loads(text, object_pairs_hook=members)


def quote(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")


def write(node: Any) -> bytes:
    if isinstance(node, Raw):
        return node.data
    if isinstance(node, Members):
        return b"{" + b",".join(key + b":" + write(value) for key, value in node) + b"}"
    if isinstance(node, list):
        return b"[" + b",".join(map(write, node)) + b"]"
    return quote(node) if isinstance(node, str) else json.dumps(node).encode()


Place = tuple[int, ...]


def _places(node: Any, place: Place = ()) -> Iterator[Place]:
    """Yield where each value stands: the positions in the lists and objects around it."""
    yield place
    if isinstance(node, list):
        for at, item in enumerate(node):
            inner = item[1] if isinstance(node, Members) else item
            yield from _places(inner, (*place, at))


def _value(node: Any, place: Place) -> Any:
    for at in place:
        node = node[at][1] if isinstance(node, Members) else node[at]
    return node


def _replace_at(node: Any, place: Place, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a document with another value in one place."""
    if not place:
        return change(node)
    copied = type(node)(node)
    first, rest = place[0], place[1:]
    if isinstance(node, Members):
        key, value = node[first]
        copied[first] = (key, _replace_at(value, rest, change))
    else:
        copied[first] = _replace_at(node[first], rest, change)
    return copied


def _set_odd(root: Any, place: Place, variant: int) -> Any:
    return _replace_at(root, place, lambda _: Raw(ODD_VALUES[variant % len(ODD_VALUES)]))


def _remove(root: Any, place: Place, _: int) -> Any:
    def remove_item(owner: Any) -> Any:
        return type(owner)(item for at, item in enumerate(owner) if at != place[-1])

    return _replace_at(root, place[:-1], remove_item) if place else root


def _repeat(root: Any, place: Place, variant: int) -> Any:
    """Repeat an item or a member; the second time a member may have another value or an escaped key."""

    def repeat_item(owner: Any) -> Any:
        item = owner[place[-1]]
        if isinstance(owner, Members):
            key, value = item
            key = _escape_key(key, variant) if variant % 3 == 1 else key
            value = Raw(ODD_VALUES[variant % len(ODD_VALUES)]) if variant % 2 else value
            copy = (key, value)
        else:
            copy = item
        changed = type(owner)(owner)
        changed.insert(place[-1] + variant % 2, copy)
        return changed

    return _replace_at(root, place[:-1], repeat_item) if place else root


def _escape_key(key: bytes, variant: int) -> bytes:
    """Return the same key with its first character, or all of them, written as an escape."""
    text = json.loads(key)
    if not text:
        return key
    many = len(text) if variant % 2 else 1
    return b'"' + b"".join(b"\\u%04x" % ord(char) for char in text[:many]) + quote(text[many:])[1:]


def _change_key(root: Any, place: Place, variant: int) -> Any:
    def rename_key(owner: Any) -> Any:
        if not isinstance(owner, Members):
            return owner
        changed = Members(owner)
        key, value = owner[place[-1]]
        other = KEYS[variant // 2 % len(KEYS)]
        changed[place[-1]] = (_escape_key(key, variant // 2) if variant % 2 else quote(other), value)
        return changed

    return _replace_at(root, place[:-1], rename_key) if place else root


def _add_member(root: Any, place: Place, variant: int) -> Any:
    def add_item(owner: Any) -> Any:
        key = quote(KEYS[variant % len(KEYS)])
        value = Raw(ODD_VALUES[variant // len(KEYS) % len(ODD_VALUES)])
        if isinstance(owner, Members):
            return Members([*owner, (key, value)])
        return [*owner, value] if isinstance(owner, list) else Members([(key, value)])

    return _replace_at(root, place, add_item)


def _move(root: Any, place: Place, variant: int) -> Any:
    """Put the value of another place here."""
    others = list(_places(root))
    value_ = _value(root, others[variant % len(others)])
    return _replace_at(root, place, lambda _: value_)


def _wrap(root: Any, place: Place, variant: int) -> Any:
    def wrap_value(value: Any) -> Any:
        key = quote(KEYS[variant % len(KEYS)])
        return [value] if variant % 2 else Members([(key, value)])

    return _replace_at(root, place, wrap_value)


def _flood(root: Any, place: Place, variant: int) -> Any:
    """Repeat what a list holds many times over."""

    def repeat_items(value: Any) -> Any:
        return value * (2 ** (variant % 8)) if type(value) is list else value

    return _replace_at(root, place, repeat_items)


def _blank(root: Any, place: Place, variant: int) -> Any:
    blank = (b" ", b"\n", b"\t\r\n", b"\x0b", b"\xc2\xa0", b"/**/", b"\x00")[variant % 7]
    return _replace_at(root, place, lambda value: Raw(blank + write(value) + blank))


_MUTATIONS: dict[str, Callable[[Any, Place, int], Any]] = {
    "odd": _set_odd,
    "remove": _remove,
    "repeat": _repeat,
    "key": _change_key,
    "add": _add_member,
    "move": _move,
    "wrap": _wrap,
    "flood": _flood,
    "blank": _blank,
}
_NUMBERS = st.integers(0, 2**16)
mutations: st.SearchStrategy[list[Mutation]] = st.lists(
    st.tuples(st.sampled_from(sorted(_MUTATIONS)), _NUMBERS, _NUMBERS), max_size=4
)


def mutate(root: Any, todo: Sequence[Mutation]) -> Any:
    for name, where, variant in todo:
        places = list(_places(root))
        root = _MUTATIONS[name](root, places[where % len(places)], variant)
    return root


def set_token_numbers(root: Any, where: int, value: bytes) -> Any:
    """Return a document with another value for one of the numbers of tokens in it, if it has any."""
    found = [
        place
        for place in _places(root)
        if place and isinstance(owner := _value(root, place[:-1]), Members) and b"oken" in owner[place[-1]][0]
    ]
    leaves = [place for place in found if not isinstance(_value(root, place), list)]
    return _replace_at(root, leaves[where % len(leaves)], lambda _: Raw(value)) if leaves else root


_CORRUPTIONS: Sequence[Callable[[bytes, int], bytes]] = (
    lambda data, at: data[:at],
    lambda data, at: data[at:],
    lambda data, at: data[:at] + data[at + 1 :],
    lambda data, at: data[:at] + bytes((at % 256,)) + data[at + 1 :],
    lambda data, at: data[:at] + b"\xff" + data[at:],
    lambda data, at: data[:at] + b"\x00" + data[at:],
    lambda data, at: data + data[:at],
    lambda data, _: data + b"}",
    lambda data, _: b"\xef\xbb\xbf" + data,
    lambda data, at: b" \n\t" * at + data,
    lambda data, at: data.decode("utf-8", "replace").encode("utf-16" if at % 2 else "utf-16-le"),
    lambda data, _: data.decode("utf-8", "replace").encode("utf-32"),
    lambda data, _: data.decode("utf-8", "replace").encode("utf-7"),
    lambda data, _: data.decode("utf-8", "replace").encode("latin-1", "replace"),
    lambda *_: b"",
)
corruptions: st.SearchStrategy[tuple[int, int] | None] = st.none() | st.tuples(
    st.integers(0, len(_CORRUPTIONS) - 1), _NUMBERS
)


def corrupt(data: bytes, how: tuple[int, int] | None) -> bytes:
    """Truncate bytes or change them in one place; None leaves them unchanged."""
    if how is None:
        return data
    kind, at = how
    return _CORRUPTIONS[kind](data, at % (len(data) + 1))
