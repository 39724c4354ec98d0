"""What messages weigh: as the offline counter says, or where a bill says the sum, roughly, to divide it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import msgspec

from foveate import wire
from foveate.cache.block_facts import BlockFacts
from foveate.cache.prompts import Piece
from foveate.cache.requests import block_tokens_for
from foveate.cache.rules import Rules
from foveate.engine.bounds import asked_of
from foveate.errors import MalformedRequest
from foveate.replay.parts import Part, parts_of
from foveate.replay.recordings import Said
from foveate.replay.stretches import RESULTS, THOUGHTS
from foveate.tokens import counter_for
from foveate.tokens.claude import family_of
from foveate.tokens.names import plain_name
from foveate.values import Area, Format

# Where nobody counts, so many bytes are a token.
_BYTES_A_TOKEN = 4
_KEPT_NAMES = 256


class Weighed(msgspec.Struct, frozen=True, eq=False):
    """One message: its blocks, and about how many tokens they have together."""

    parts: tuple[Part, ...]
    tokens: int

    def opens_turn(self, role: str) -> bool:
        """Whether the user speaks in it, and not tools alone."""
        return role == "user" and any(part.kind not in RESULTS for part in self.parts)

    def unthought(self) -> "Weighed":
        """The same without its thoughts; one that holds nothing else stays."""
        left = [part for part in self.parts if part.kind not in THOUGHTS]
        return self if not left or len(left) == len(self.parts) else _together(left)

    def pieces(self, tokens: int, rules: Rules) -> tuple[Piece, ...]:
        """Its pieces, which have so many tokens together."""
        parts, markable = self.parts, rules.markable
        shares = (tokens,) if len(parts) == 1 else divided(tokens, [part.weight for part in parts])
        return tuple(
            [
                Piece(
                    digest=part.digest,
                    tokens=share,
                    kind=part.kind,
                    area=Area.MESSAGES,
                    place=part.place,
                    markable=part.kind in markable and not part.is_empty,
                )
                for part, share in zip(parts, shares, strict=True)
            ]
        )


def _together(parts: Sequence[Part]) -> Weighed:
    return Weighed(tuple(parts), sum([part.weight for part in parts]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The tools and the system prompt of a request, which are marked, and how long its answer may be."""

    pieces: tuple[Piece, ...]
    marks: tuple[int, ...]
    reserve_tokens: int


class Scale:
    """Weighs the messages of recordings in one format, for one model."""

    def __init__(self, model: str, spoken: Format) -> None:
        self._counter = counter_for(model)
        self._shares = block_tokens_for(model)
        self._spoken = spoken
        self._known: dict[int, Weighed] = {}

    def weighed(self, said: Said) -> Weighed:
        """A message of the recording, weighed once and roughly: by how much there is to be read in it."""
        found = self._known.get(id(said))
        if found is None:
            found = self._known[id(said)] = _together(parts_of(self._spoken, said))
        return found

    def message(self, raw: bytes) -> int:
        """About how many tokens a message has; none where there is none."""
        if not raw:
            return 0
        try:
            return self._counter.message(wire.message(self._spoken, raw)).tokens
        except MalformedRequest:
            return len(raw) // _BYTES_A_TOKEN

    def front(self, around: bytes) -> Shown:
        """What a request holds beside its messages.

        Raises:
            MalformedRequest: they cannot be read.
        """
        request = wire.read(around, self._spoken)
        blocks = wire.front_blocks(request, wire.trail(request))
        facts = [BlockFacts(block) for block in blocks]
        tokens = self._shares.shares(request, facts)
        pieces = [
            Piece(
                digest=one.digest,
                tokens=share,
                kind=one.block.kind,
                area=one.block.place.area,
                place=one.block.place,
                markable=not one.block.is_empty,
            )
            for one, share in zip(facts, tokens, strict=True)
        ]
        return Shown(
            pieces=tuple(pieces),
            marks=tuple(at for at, block in enumerate(blocks) if block.mark is not None),
            reserve_tokens=asked_of(request).output_tokens or 0,
        )


@lru_cache(_KEPT_NAMES)
def tokenizer_of(model: str) -> str:
    """What tells whether two models count alike, as far as that is known."""
    return family_of(model) if "claude" in model.lower() else plain_name(model)


def divided(tokens: int, weights: Sequence[int]) -> list[int]:
    """`tokens` in whole numbers by `weights`; evenly where nothing weighs anything."""
    if not weights:
        return []
    weights = weights if any(weights) else [1] * len(weights)
    total = sum(weights)
    ends = [tokens * end // total for end in accumulate(weights)]
    return [end - start for start, end in pairwise((0, *ends))]
