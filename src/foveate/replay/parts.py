"""The blocks of recorded messages, each read once, and only as far as a replay asks for them."""

from collections.abc import Iterator
from typing import Any

import msgspec

from foveate import wire
from foveate.cache.block_facts import pictures
from foveate.cache.prompts import digest
from foveate.errors import MalformedRequest
from foveate.replay.recordings import Said
from foveate.replay.stretches import THOUGHTS
from foveate.values import Area, Block, Format, Place
from foveate.wire.body import as_record, as_text, compact, kind_of, value
from foveate.wire.marks import MEMBERS, without_marks

_OPAQUE = "opaque"
_TEXT = "text"
_TEXTS = frozenset((_TEXT, "input_text", "output_text"))
# What a message has in it that may bear marks; a name may also be written in escapes.
_MARKS = tuple(f'"{name}"'.encode() for name in MEMBERS)
_ESCAPE = b"\\u"
# About how many bytes a token has, and how many tokens go around a block.
_BYTES_A_TOKEN = 4
_BLOCK_TOKENS = 8
_IMAGE_TOKENS = 1_500
_IMAGE = b"image"
_SEALED = ("signature", "data")


# One is made of every block that was ever said, and a struct is made several times as fast as a dataclass.
class Part(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A block of a message: what tells it from others, and about how many tokens it has."""

    digest: bytes
    kind: str
    place: Place
    is_empty: bool
    weight: int


def parts_of(spoken: Format, said: Said) -> tuple[Part, ...]:
    """The blocks of a message; a message that cannot be read is one that takes no mark."""
    try:
        found = _anthropic(said) if spoken is Format.ANTHROPIC else _of_wire(spoken, said)
    except (MalformedRequest, RecursionError):
        found = ()
    return found or (_opaque(said),)


def _of_wire(spoken: Format, said: Said) -> tuple[Part, ...]:
    blocks = wire.message_blocks(spoken, said.raw, said.depth)
    return tuple(map(_part, blocks))


def _anthropic(said: Said) -> tuple[Part, ...]:
    """What `wire.message_blocks` says of such a message, without what only an edit asks of a block."""
    raw = said.raw
    message = as_record(value(raw))
    role = as_text(message.get("role")).encode("utf-8", "replace") + b"\0"
    may_be_marked = _ESCAPE in raw or any(name in raw for name in _MARKS)
    found = []
    for number, entry in enumerate(_entries(message.get("content"))):
        is_record = isinstance(entry, dict)
        kind = as_text(entry.get("type")) if is_record else ""
        written = compact(without_marks(entry) if may_be_marked else entry)
        found.append(
            Part(
                digest(role + written),
                kind or kind_of(entry),
                Place(Area.MESSAGES, said.depth, number),
                kind in _TEXTS and not as_text(entry.get("text")).strip(),
                _weight(kind, written, entry),
            )
        )
    return tuple(found)


def _entries(content: Any) -> Iterator[Any]:
    if isinstance(content, list):
        return iter(content)
    if isinstance(content, str):
        return iter(({"type": _TEXT, "text": content},))
    return iter(() if content is None else (content,))


def _part(block: Block) -> Part:
    written = block.said
    entry = value(written) if block.kind in THOUGHTS or _IMAGE in written else None
    role = block.role.encode("utf-8", "replace") + b"\0"
    return Part(
        digest(role + written), block.kind, block.place, block.is_empty, _weight(block.kind, written, entry)
    )


def _weight(kind: str, written: bytes, entry: Any) -> int:
    """About how many tokens a block has. What it only carries (a picture's bytes, a seal) is not read."""
    if _IMAGE in written and (images := pictures(entry)):
        return images * _IMAGE_TOKENS
    size = len(written)
    if kind in THOUGHTS:
        sealed = as_record(entry)
        size -= sum(len(as_text(sealed.get(name))) for name in _SEALED)
    return _BLOCK_TOKENS + size // _BYTES_A_TOKEN


def _opaque(said: Said) -> Part:
    """A message of which nothing is known but that it is there: no place for a mark."""
    told = digest(said.role.encode("utf-8", "replace") + b"\0" + said.raw)
    weight = _BLOCK_TOKENS + len(said.raw) // _BYTES_A_TOKEN
    return Part(told, _OPAQUE, Place(Area.MESSAGES, said.depth, 0), False, weight)
