"""Blocks and sizes of recorded messages: counted offline, or estimated in order to divide a known total."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import msgspec

from foveate import formats
from foveate.engine.spending.cost_ceiling import read_cost_parameters
from foveate.errors import MalformedRequest
from foveate.formats.json_text.parse import as_dict, as_text, json_type_name, parse_json, to_json
from foveate.formats.layout import BREAKPOINT_FIELDS, remove_breakpoints
from foveate.model import Area, Block, Format, Place
from foveate.prompt_cache.prompt.blocks import BlockFacts, count_images
from foveate.prompt_cache.prompt.build import block_tokens_for
from foveate.prompt_cache.prompt.cached_prompt import PromptPiece, compute_digest
from foveate.prompt_cache.rules import CacheRules
from foveate.replay.recording import RecordedMessage
from foveate.replay.simulator.prompts import THINKING_KINDS, TOOL_RESULT_KINDS
from foveate.tokens import counter_for
from foveate.tokens.model_names import normalize_model_name
from foveate.tokens.tokenizers.claude import claude_family

_OPAQUE_KIND = "opaque"
_TEXT_KIND = "text"
_TEXT_KINDS = frozenset((_TEXT_KIND, "input_text", "output_text"))
# Names that occur in a message with breakpoints, unless they are written with escapes.
_BREAKPOINT_NAMES = tuple(f'"{name}"'.encode() for name in BREAKPOINT_FIELDS)
_ESCAPE = b"\\u"
# Approximate bytes per token, and overhead per block.
_BYTES_PER_TOKEN = 4
_BLOCK_OVERHEAD_TOKENS = 8
_IMAGE_TOKENS = 1_500
_IMAGE = b"image"
_OPAQUE_FIELDS = ("signature", "data")
_MAX_CACHED_NAMES = 256


# A struct, since one is created for every recorded block, and structs are created several times as fast as
# dataclasses.
class RecordedBlock(msgspec.Struct, frozen=True, eq=False, gc=False):
    digest: bytes
    kind: str
    place: Place
    is_empty: bool
    approximate_tokens: int


def read_blocks(api_format: Format, message: RecordedMessage) -> tuple[RecordedBlock, ...]:
    """The blocks of a message; one opaque block if it cannot be read."""
    try:
        blocks = (
            _read_anthropic_blocks(message)
            if api_format is Format.ANTHROPIC
            else _read_wire_blocks(api_format, message)
        )
    except (MalformedRequest, RecursionError):
        blocks = ()
    return blocks or (_make_opaque_block(message),)


def _read_wire_blocks(api_format: Format, message: RecordedMessage) -> tuple[RecordedBlock, ...]:
    blocks = formats.message_blocks(api_format, message.raw, message.depth)
    return tuple(map(_convert_block, blocks))


def _read_anthropic_blocks(recorded: RecordedMessage) -> tuple[RecordedBlock, ...]:
    """The blocks of an Anthropic message. Faster than the general parser, since replays never edit them."""
    raw = recorded.raw
    message = as_dict(parse_json(raw))
    role = as_text(message.get("role")).encode("utf-8", "replace") + b"\0"
    may_have_breakpoints = _ESCAPE in raw or any(name in raw for name in _BREAKPOINT_NAMES)
    blocks = []
    for number, entry in enumerate(_content_blocks(message.get("content"))):
        is_record = isinstance(entry, dict)
        kind = as_text(entry.get("type")) if is_record else ""
        content = to_json(remove_breakpoints(entry) if may_have_breakpoints else entry)
        blocks.append(
            RecordedBlock(
                compute_digest(role + content),
                kind or json_type_name(entry),
                Place(Area.MESSAGES, recorded.depth, number),
                kind in _TEXT_KINDS and not as_text(entry.get("text")).strip(),
                _estimate_tokens(kind, content, entry),
            )
        )
    return tuple(blocks)


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
    """Estimate the tokens of a block without encoded data (images, signatures)."""
    if _IMAGE in content and (images := count_images(entry)):
        return images * _IMAGE_TOKENS
    size = len(content)
    if kind in THINKING_KINDS:
        fields = as_dict(entry)
        size -= sum(len(as_text(fields.get(name))) for name in _OPAQUE_FIELDS)
    return _BLOCK_OVERHEAD_TOKENS + size // _BYTES_PER_TOKEN


def _make_opaque_block(message: RecordedMessage) -> RecordedBlock:
    """One block for a message that cannot be read; it accepts no breakpoint."""
    content_digest = compute_digest(message.role.encode("utf-8", "replace") + b"\0" + message.raw)
    approximate_tokens = _BLOCK_OVERHEAD_TOKENS + len(message.raw) // _BYTES_PER_TOKEN
    return RecordedBlock(
        content_digest, _OPAQUE_KIND, Place(Area.MESSAGES, message.depth, 0), False, approximate_tokens
    )


class SizedMessage(msgspec.Struct, frozen=True, eq=False):
    blocks: tuple[RecordedBlock, ...]
    tokens: int

    def opens_turn(self, role: str) -> bool:
        """Return whether it is a user message with more than tool results."""
        return role == "user" and any(block.kind not in TOOL_RESULT_KINDS for block in self.blocks)

    def without_thinking(self) -> "SizedMessage":
        remaining = [block for block in self.blocks if block.kind not in THINKING_KINDS]
        return self if not remaining or len(remaining) == len(self.blocks) else _combine_blocks(remaining)

    def pieces(self, tokens: int, rules: CacheRules) -> tuple[PromptPiece, ...]:
        blocks, breakpoint_kinds = self.blocks, rules.breakpoint_kinds
        shares = (
            (tokens,)
            if len(blocks) == 1
            else divide_tokens(tokens, [block.approximate_tokens for block in blocks])
        )
        return tuple(
            [
                PromptPiece(
                    digest=block.digest,
                    tokens=share,
                    kind=block.kind,
                    area=Area.MESSAGES,
                    place=block.place,
                    accepts_breakpoint=block.kind in breakpoint_kinds and not block.is_empty,
                )
                for block, share in zip(blocks, shares, strict=True)
            ]
        )


def _combine_blocks(blocks: Sequence[RecordedBlock]) -> SizedMessage:
    return SizedMessage(tuple(blocks), sum([block.approximate_tokens for block in blocks]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedPreamble:
    pieces: tuple[PromptPiece, ...]
    breakpoints: tuple[int, ...]
    reserve_tokens: int


class MessageSizer:
    def __init__(self, model: str, api_format: Format) -> None:
        self._counter = counter_for(model)
        self._block_tokens = block_tokens_for(model)
        self._api_format = api_format
        self._sized: dict[int, SizedMessage] = {}

    def size_message(self, message: RecordedMessage) -> SizedMessage:
        """Estimate the size of a message from its readable bytes; cached."""
        sized_message = self._sized.get(id(message))
        if sized_message is None:
            sized_message = self._sized[id(message)] = _combine_blocks(read_blocks(self._api_format, message))
        return sized_message

    def count_message(self, raw: bytes) -> int:
        if not raw:
            return 0
        try:
            return self._counter.count_message(formats.parse_message(self._api_format, raw)).tokens
        except MalformedRequest:
            return len(raw) // _BYTES_PER_TOKEN

    def size_preamble(self, envelope: bytes) -> SizedPreamble:
        """Size what a request contains besides its messages.

        Raises:
            MalformedRequest: it cannot be read.
        """
        request = formats.parse_request(envelope, self._api_format)
        blocks = formats.preamble_blocks(request, formats.message_history(request))
        facts = [BlockFacts(block) for block in blocks]
        tokens = self._block_tokens.divide_request_facts(request, facts)
        pieces = [
            PromptPiece(
                digest=fact.digest,
                tokens=share,
                kind=fact.block.kind,
                area=fact.block.place.area,
                place=fact.block.place,
                accepts_breakpoint=not fact.block.is_empty,
            )
            for fact, share in zip(facts, tokens, strict=True)
        ]
        return SizedPreamble(
            pieces=tuple(pieces),
            breakpoints=tuple(at for at, block in enumerate(blocks) if block.breakpoint_ttl is not None),
            reserve_tokens=read_cost_parameters(request).output_tokens or 0,
        )


@lru_cache(_MAX_CACHED_NAMES)
def tokenizer_name(model: str) -> str:
    """A name that is the same for models known to use the same tokenizer."""
    return claude_family(model) if "claude" in model.lower() else normalize_model_name(model)


def divide_tokens(tokens: int, weights: Sequence[int]) -> list[int]:
    """Divide `tokens` into whole numbers in proportion to `weights`; evenly if all weights are 0."""
    if not weights:
        return []
    weights = weights if any(weights) else [1] * len(weights)
    total = sum(weights)
    ends = [tokens * end // total for end in accumulate(weights)]
    return [end - start for start, end in pairwise((0, *ends))]
