"""What messages weigh: as the offline counter says, or where a bill says the sum, roughly, to divide it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from foveate import wire
from foveate.cache.block_facts import BlockFacts
from foveate.cache.prompts import Piece
from foveate.cache.requests import block_tokens_for
from foveate.cache.rules import Rules
from foveate.engine.bounds import asked_of
from foveate.errors import MalformedRequest
from foveate.replay.recordings import Said
from foveate.replay.stretches import RESULTS, THOUGHTS
from foveate.tokens import counter_for
from foveate.tokens.claude import family_of
from foveate.tokens.names import plain_name
from foveate.values import Area, Block, Format, Place
from foveate.wire.body import as_record, as_text, value

# Where nobody counts, so many bytes are a token.
_BYTES_A_TOKEN = 4
_OPAQUE = "opaque"
_IMAGE_TOKENS = 1_500
_BLOCK_TOKENS = 8
_SEALED = ("signature", "data")
_KEPT_NAMES = 256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weighed:
    """One message: its blocks, and about how many tokens each of them has."""

    blocks: tuple[BlockFacts, ...]
    weights: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """About how many it has together."""
        return sum(self.weights)

    def opens_turn(self, role: str) -> bool:
        """Whether the user speaks in it, and not tools alone."""
        return role == "user" and any(facts.block.kind not in RESULTS for facts in self.blocks)

    def unthought(self) -> "Weighed":
        """The same without its thoughts; one that holds nothing else stays."""
        left = [at for at, facts in enumerate(self.blocks) if facts.block.kind not in THOUGHTS]
        if not left or len(left) == len(self.blocks):
            return self
        return Weighed(
            blocks=tuple(self.blocks[at] for at in left), weights=tuple(self.weights[at] for at in left)
        )

    def pieces(self, tokens: int, rules: Rules) -> tuple[Piece, ...]:
        """Its pieces, which have so many tokens together."""
        shares = (tokens,) if len(self.blocks) == 1 else divided(tokens, self.weights)
        return tuple(
            [
                Piece(
                    digest=facts.digest,
                    tokens=share,
                    kind=facts.block.kind,
                    area=Area.MESSAGES,
                    place=facts.block.place,
                    markable=facts.block.kind in rules.markable and not facts.block.is_empty,
                )
                for facts, share in zip(self.blocks, shares, strict=True)
            ]
        )


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
            try:
                blocks = wire.message_blocks(self._spoken, said.raw, said.depth)
            except MalformedRequest:
                blocks = ()
            facts = tuple(map(BlockFacts, blocks or (_opaque(said),)))
            found = self._known[id(said)] = Weighed(blocks=facts, weights=tuple(map(_weight, facts)))
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


def _weight(facts: BlockFacts) -> int:
    """About how many tokens a block has. What it only carries (a picture's bytes, a seal) is not read."""
    block = facts.block
    if facts.images:
        return facts.images * _IMAGE_TOKENS
    size = len(block.said)
    if block.kind in THOUGHTS:
        sealed = as_record(value(block.said))
        size -= sum(len(as_text(sealed.get(name))) for name in _SEALED)
    return _BLOCK_TOKENS + size // _BYTES_A_TOKEN


@lru_cache(_KEPT_NAMES)
def tokenizer_of(model: str) -> str:
    """What tells whether two models count alike, as far as that is known."""
    return family_of(model) if "claude" in model.lower() else plain_name(model)


def _opaque(said: Said) -> Block:
    """A message of which nothing is known but that it is there: no place for a mark."""
    return Block(place=Place(Area.MESSAGES, said.depth, 0), kind=_OPAQUE, said=said.raw, role=said.role)


def divided(tokens: int, weights: Sequence[int]) -> list[int]:
    """`tokens` in whole numbers by `weights`; evenly where nothing weighs anything."""
    if not weights:
        return []
    weights = weights if any(weights) else [1] * len(weights)
    total = sum(weights)
    ends = [tokens * end // total for end in accumulate(weights)]
    return [end - start for start, end in pairwise((0, *ends))]
