"""The blocks of recorded messages, each read once, and only as far as a replay asks for them."""

from collections.abc import Iterator
from typing import Any

import msgspec

from foveate import wire
from foveate.cache.block_facts import count_images
from foveate.cache.prompts import compute_digest
from foveate.errors import MalformedRequest
from foveate.replay.recordings import RecordedMessage
from foveate.replay.stretches import THINKING_KINDS
from foveate.values import Area, Block, Format, Place
from foveate.wire.body import as_dict, as_text, json_type_name, parse_json, to_json
from foveate.wire.marks import BREAKPOINT_FIELDS, remove_breakpoints

_OPAQUE_KIND = "opaque"
_TEXT_KIND = "text"
_TEXT_KINDS = frozenset((_TEXT_KIND, "input_text", "output_text"))
# What a message has in it that may bear marks; a name may also be written in escapes.
_BREAKPOINT_NAMES = tuple(f'"{name}"'.encode() for name in BREAKPOINT_FIELDS)
_ESCAPE = b"\\u"
# About how many bytes a token has, and how many tokens go around a block.
_BYTES_PER_TOKEN = 4
_BLOCK_OVERHEAD_TOKENS = 8
_IMAGE_TOKENS = 1_500
_IMAGE = b"image"
_OPAQUE_FIELDS = ("signature", "data")


# One is made of every block that was ever said, and a struct is made several times as fast as a dataclass.
class RecordedBlock(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A block of a message: what tells it from others, and about how many tokens it has."""

    digest: bytes
    kind: str
    place: Place
    is_empty: bool
    approximate_tokens: int


def read_blocks(api_format: Format, message: RecordedMessage) -> tuple[RecordedBlock, ...]:
    """The blocks of a message; a message that cannot be read is one that takes no mark."""
    try:
        found = (
            _read_anthropic_blocks(message)
            if api_format is Format.ANTHROPIC
            else _read_wire_blocks(api_format, message)
        )
    except (MalformedRequest, RecursionError):
        found = ()
    return found or (_make_opaque_block(message),)


def _read_wire_blocks(api_format: Format, message: RecordedMessage) -> tuple[RecordedBlock, ...]:
    blocks = wire.message_blocks(api_format, message.raw, message.depth)
    return tuple(map(_convert_block, blocks))


def _read_anthropic_blocks(recorded: RecordedMessage) -> tuple[RecordedBlock, ...]:
    """What `wire.message_blocks` says of such a message, without what only an edit asks of a block."""
    raw = recorded.raw
    message = as_dict(parse_json(raw))
    role = as_text(message.get("role")).encode("utf-8", "replace") + b"\0"
    may_have_breakpoints = _ESCAPE in raw or any(name in raw for name in _BREAKPOINT_NAMES)
    found = []
    for number, entry in enumerate(_content_blocks(message.get("content"))):
        is_record = isinstance(entry, dict)
        kind = as_text(entry.get("type")) if is_record else ""
        content = to_json(remove_breakpoints(entry) if may_have_breakpoints else entry)
        found.append(
            RecordedBlock(
                compute_digest(role + content),
                kind or json_type_name(entry),
                Place(Area.MESSAGES, recorded.depth, number),
                kind in _TEXT_KINDS and not as_text(entry.get("text")).strip(),
                _estimate_tokens(kind, content, entry),
            )
        )
    return tuple(found)


def _content_blocks(content: Any) -> Iterator[Any]:
    if isinstance(content, list):
        return iter(content)
    if isinstance(content, str):
        return iter(({"type": _TEXT_KIND, "text": content},))
    return iter(() if content is None else (content,))


def _convert_block(block: Block) -> RecordedBlock:
    content = block.canonical_json
    entry = parse_json(content) if block.kind in THINKING_KINDS or _IMAGE in content else None
    role = block.role.encode("utf-8", "replace") + b"\0"
    return RecordedBlock(
        compute_digest(role + content),
        block.kind,
        block.place,
        block.is_empty,
        _estimate_tokens(block.kind, content, entry),
    )


def _estimate_tokens(kind: str, content: bytes, entry: Any) -> int:
    """About how many tokens a block has. What it only carries (a picture's bytes, a seal) is not read."""
    if _IMAGE in content and (images := count_images(entry)):
        return images * _IMAGE_TOKENS
    size = len(content)
    if kind in THINKING_KINDS:
        fields = as_dict(entry)
        size -= sum(len(as_text(fields.get(name))) for name in _OPAQUE_FIELDS)
    return _BLOCK_OVERHEAD_TOKENS + size // _BYTES_PER_TOKEN


def _make_opaque_block(message: RecordedMessage) -> RecordedBlock:
    """A message of which nothing is known but that it is there: no place for a mark."""
    content_digest = compute_digest(message.role.encode("utf-8", "replace") + b"\0" + message.raw)
    approximate_tokens = _BLOCK_OVERHEAD_TOKENS + len(message.raw) // _BYTES_PER_TOKEN
    return RecordedBlock(
        content_digest, _OPAQUE_KIND, Place(Area.MESSAGES, message.depth, 0), False, approximate_tokens
    )
