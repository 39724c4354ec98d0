"""What messages weigh: as the offline counter says, or where a bill says the sum, roughly, to divide it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import msgspec

from foveate import wire
from foveate.cache.block_facts import BlockFacts
from foveate.cache.prompts import PromptPiece
from foveate.cache.requests import block_tokens_for
from foveate.cache.rules import CacheRules
from foveate.engine.bounds import read_cost_parameters
from foveate.errors import MalformedRequest
from foveate.replay.parts import RecordedBlock, read_blocks
from foveate.replay.recordings import RecordedMessage
from foveate.replay.stretches import THINKING_KINDS, TOOL_RESULT_KINDS
from foveate.tokens import counter_for
from foveate.tokens.claude import claude_family
from foveate.tokens.names import normalize_model_name
from foveate.values import Area, Format

# Where nobody counts, so many bytes are a token.
_FALLBACK_BYTES_PER_TOKEN = 4
_MAX_CACHED_NAMES = 256


class SizedMessage(msgspec.Struct, frozen=True, eq=False):
    """One message: its blocks, and about how many tokens they have together."""

    blocks: tuple[RecordedBlock, ...]
    tokens: int

    def opens_turn(self, role: str) -> bool:
        """Whether the user speaks in it, and not tools alone."""
        return role == "user" and any(block.kind not in TOOL_RESULT_KINDS for block in self.blocks)

    def without_thinking(self) -> "SizedMessage":
        """The same without its thoughts; one that holds nothing else stays."""
        remaining = [block for block in self.blocks if block.kind not in THINKING_KINDS]
        return self if not remaining or len(remaining) == len(self.blocks) else _combine_blocks(remaining)

    def pieces(self, tokens: int, rules: CacheRules) -> tuple[PromptPiece, ...]:
        """Its pieces, which have so many tokens together."""
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
class SizedFront:
    """The tools and the system prompt of a request, which are marked, and how long its answer may be."""

    pieces: tuple[PromptPiece, ...]
    breakpoints: tuple[int, ...]
    reserve_tokens: int


class MessageSizer:
    """Weighs the messages of recordings in one format, for one model."""

    def __init__(self, model: str, api_format: Format) -> None:
        self._counter = counter_for(model)
        self._block_tokens = block_tokens_for(model)
        self._spoken = api_format
        self._sized: dict[int, SizedMessage] = {}

    def size_message(self, message: RecordedMessage) -> SizedMessage:
        """A message of the recording, weighed once and roughly: by how much there is to be read in it."""
        found = self._sized.get(id(message))
        if found is None:
            found = self._sized[id(message)] = _combine_blocks(read_blocks(self._spoken, message))
        return found

    def count_message(self, raw: bytes) -> int:
        """About how many tokens a message has; none where there is none."""
        if not raw:
            return 0
        try:
            return self._counter.count_message(wire.parse_message(self._spoken, raw)).tokens
        except MalformedRequest:
            return len(raw) // _FALLBACK_BYTES_PER_TOKEN

    def size_front(self, envelope: bytes) -> SizedFront:
        """What a request holds beside its messages.

        Raises:
            MalformedRequest: they cannot be read.
        """
        request = wire.parse_request(envelope, self._spoken)
        blocks = wire.preamble_blocks(request, wire.message_history(request))
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
        return SizedFront(
            pieces=tuple(pieces),
            breakpoints=tuple(at for at, block in enumerate(blocks) if block.breakpoint_ttl is not None),
            reserve_tokens=read_cost_parameters(request).output_tokens or 0,
        )


@lru_cache(_MAX_CACHED_NAMES)
def tokenizer_name(model: str) -> str:
    """What tells whether two models count alike, as far as that is known."""
    return claude_family(model) if "claude" in model.lower() else normalize_model_name(model)


def divide_tokens(tokens: int, weights: Sequence[int]) -> list[int]:
    """`tokens` in whole numbers by `weights`; evenly where nothing weighs anything."""
    if not weights:
        return []
    weights = weights if any(weights) else [1] * len(weights)
    total = sum(weights)
    ends = [tokens * end // total for end in accumulate(weights)]
    return [end - start for start, end in pairwise((0, *ends))]
