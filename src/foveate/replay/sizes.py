"""What messages weigh: as the offline counter says, or as a bill does, divided as the counter weighs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from foveate import wire
from foveate.cache.block_facts import BlockFacts
from foveate.cache.prompts import Piece
from foveate.cache.requests import BlockTokens, block_tokens_for
from foveate.cache.rules import Rules
from foveate.engine.bounds import asked_of
from foveate.errors import MalformedRequest
from foveate.replay.recordings import Said
from foveate.replay.stretches import RESULTS, THOUGHTS
from foveate.tokens import counter_for
from foveate.tokens.claude import family_of
from foveate.tokens.names import plain_name
from foveate.values import Area, Block, Format, Place, Ttl

# Of what nobody can read, so many bytes are a token.
_BYTES_A_TOKEN = 4
_OPAQUE = "opaque"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weighed:
    """One message: its blocks, and about how many tokens it has."""

    blocks: tuple[BlockFacts, ...]
    tokens: int
    own_marks: tuple[tuple[int, Ttl], ...]

    def opens_turn(self, role: str) -> bool:
        """Whether the user speaks in it, and not tools alone."""
        return role == "user" and any(facts.block.kind not in RESULTS for facts in self.blocks)

    def unthought(self) -> "Weighed":
        """The same without its thoughts."""
        kinds = [facts.block.kind in THOUGHTS for facts in self.blocks]
        if not any(kinds) or all(kinds):
            return self
        texts = [len(facts.block.said) for facts in self.blocks]
        left = sum(size for size, is_thought in zip(texts, kinds, strict=True) if not is_thought)
        return Weighed(
            blocks=tuple(facts for facts in self.blocks if facts.block.kind not in THOUGHTS),
            tokens=self.tokens * left // sum(texts),
            own_marks=(),
        )

    def pieces(self, tokens: int, rules: Rules, shares: BlockTokens) -> tuple[Piece, ...]:
        """Its pieces, which have so many tokens together."""
        return tuple(
            Piece(
                digest=facts.digest,
                tokens=share,
                kind=facts.block.kind,
                area=Area.MESSAGES,
                place=facts.block.place,
                markable=facts.block.kind in rules.markable and not facts.block.is_empty,
            )
            for facts, share in zip(self.blocks, shares.divided(tokens, 0, self.blocks), strict=True)
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
        self.shares = block_tokens_for(model)
        self._counter = counter_for(model)
        self._spoken = spoken
        self._known: dict[int, Weighed] = {}

    def weighed(self, said: Said) -> Weighed:
        """A message of the recording, weighed once."""
        found = self._known.get(id(said))
        if found is None:
            found = self._known[id(said)] = self._weigh(said)
        return found

    def _weigh(self, said: Said) -> Weighed:
        try:
            blocks = wire.message_blocks(self._spoken, said.raw, said.depth)
        except MalformedRequest:
            blocks = ()
        blocks = blocks or (_opaque(said),)
        facts = tuple(map(BlockFacts, blocks))
        marks = tuple((at, block.mark) for at, block in enumerate(blocks) if block.mark is not None)
        return Weighed(blocks=facts, tokens=self.message(said.raw), own_marks=marks)

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
        tokens = self.shares.shares(request, facts)
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
