"""How many tokens each block of a request takes: those of a message, shared among its blocks.

A message's tokens are shared by how many tokens the blocks' own texts are, so that all add up to the whole.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from typing import Any, Protocol

from msgspec import structs

from foveate.cache.block_facts import BlockFacts, Shared, facts_of, is_picture
from foveate.cache.prompts import CachedPrompt, Piece, landmarks_of
from foveate.cache.rules import Rules
from foveate.tokens import RequestCount, RequestCounter
from foveate.tokens.caches import register
from foveate.tokens.memo import Memo
from foveate.values import Block, Request, TokenCount, Ttl
from foveate.wire.body import value

# A session of 2,000 turns with a handful of tool calls in each.
_KEPT_WEIGHTS = 16 * 1024
_KEPT_NOTES = 256

# Fields that hold what is encoded or sealed. It is not billed by its letters; so many of them weigh a token.
_SEALED = frozenset(
    ("data", "bytes", "file_data", "signature", "encrypted_content", "thoughtSignature", "thought_signature")
)
_SEALED_CHARS_PER_TOKEN = 16
_LONG_WORD_CHARS = 64
# Of more than so many long words, nobody knows all any longer, and all are counted at once.
_MOST_APART = 16

_row = attrgetter("row")


class Counter(Protocol):
    """What counts a request and its texts: a `tokens.RequestCounter`, or one that stands in for it."""

    def text(self, text: str) -> TokenCount:
        """The count of a text alone."""

    def request(self, request: Request) -> RequestCount:
        """The count of a whole request, part by part."""


class BlockTokens:
    """How many tokens each block of a request takes, by one model's counter. Safe to share between threads."""

    def __init__(self, counter: Counter, *, capacity: int = _KEPT_WEIGHTS) -> None:
        self._counter = counter
        self._weights: Memo[int] = Memo(capacity)
        self._notes: dict[object, object] = {}
        # That of the requests of a session, message by message.
        self.counter = counter if isinstance(counter, RequestCounter) else None
        register(self)

    def drop(self) -> None:
        """Forget what blocks weigh."""
        self._weights = Memo(self._weights.capacity)
        self._notes = {}

    def note(self, *made_of: object) -> object:
        """The key under which something made with these tokens is noted; the same for the same things."""
        if len(self._notes) > _KEPT_NOTES:
            self._notes = {}
        return self._notes.setdefault(made_of, object())

    def divided(self, tokens: int, image_tokens: int, blocks: Sequence[BlockFacts]) -> Sequence[int]:
        """The tokens of some blocks that are `tokens` together, of which their images are `image_tokens`."""
        if len(blocks) == 1:
            return (tokens,)
        shares = _divided(tokens - image_tokens, [self._weight(facts) for facts in blocks])
        if not image_tokens:
            return shares
        images = [facts.images for facts in blocks]
        seen = images if any(images) else [1] * len(blocks)
        return [share + image for share, image in zip(shares, _divided(image_tokens, seen), strict=True)]

    def of(self, request: Request, blocks: Sequence[Block]) -> list[int]:
        """The tokens of each of `blocks`, which are all that `request` has; they add up to its count.

        Raises:
            MalformedRequest: a part cannot be read, or is nested too deeply.
        """
        return self.shares(request, facts_of(blocks))

    def shares(self, request: Request, blocks: Sequence[BlockFacts]) -> list[int]:
        """The same, for who knows the blocks."""
        if not blocks:
            return []
        rows = {part.name: part.tokens for part in self._counter.request(request).parts}
        own = {row: list(group) for row, group in groupby(blocks, _row)}
        images = rows.pop("images", 0)
        around = owed = 0  # by messages that have no block, to the next that has one
        found: dict[str, Sequence[int]] = {}
        for row, tokens in rows.items():
            group = own.get(row)
            if group is not None:
                found[row] = self._shared(tokens + owed, group)
                owed = 0
            elif row.startswith("messages"):
                owed += tokens
            else:
                around += tokens
        shares = [share for row in own for share in found.get(row, [0] * len(own[row]))]
        seen = [facts.images for facts in blocks]
        if any(seen):
            shares = [share + image for share, image in zip(shares, _divided(images, seen), strict=True)]
            images = 0
        shares[-1] += owed
        # What goes around it all is counted at the front, so that what a growing session has sent stays what it
        # was, but for the one token by which a sum may be rounded up or down.
        shares[0] += around + images
        return shares

    def _shared(self, tokens: int, group: list[BlockFacts]) -> Sequence[int]:
        """The tokens of one row, among its blocks."""
        if len(group) == 1:
            return (tokens,)
        known = group[0].shared
        if known is not None and known.by is self and known.tokens == tokens and known.group == group:
            return known.shares
        shares = _divided(tokens, [self._weight(facts) for facts in group])
        group[0].shared = Shared(by=self, tokens=tokens, group=group, shares=shares)
        return shares

    def _weight(self, facts: BlockFacts) -> int:
        """The tokens of a block's own text, at least 1."""
        weights = self._weights
        found = weights.get(facts.digest)
        if found is None:
            words, sealed_chars = _legible(value(facts.block.said))
            # Long ones are counted alone, as they have been with their message: who was asked then knows them.
            texts = [word for word in words if len(word) >= _LONG_WORD_CHARS]
            if len(texts) <= _MOST_APART:
                texts.append(" ".join([word for word in words if len(word) < _LONG_WORD_CHARS]))
            else:
                texts = [" ".join(words)]
            tokens = sum([self._counter.text(text).tokens for text in texts])
            found = max(tokens + sealed_chars // _SEALED_CHARS_PER_TOKEN, 1)
            weights.put(facts.digest, found)
        return found


def marked_at_end(prompt: CachedPrompt, ttl: Ttl | None) -> CachedPrompt:
    """With the mark that a client leaves to its provider to place: on the last block that takes one."""
    if ttl is None:
        return prompt
    pieces = prompt.pieces
    last = next((at for at in reversed(range(len(pieces))) if pieces[at].markable), None)
    if last is None or pieces[last].mark is not None:
        return replace(prompt, double_marks=1)
    borne = (*pieces[:last], structs.replace(pieces[last], mark=ttl), *pieces[last + 1 :])
    landmarks = landmarks_of(prompt)
    return replace(prompt, pieces=borne, landmarks=landmarks._replace(marks={**landmarks.marks, last: ttl}))


def piece_of(facts: BlockFacts, tokens: int, rules: Rules) -> Piece:
    block = facts.block
    piece = Piece(
        digest=facts.digest,
        tokens=tokens,
        kind=block.kind,
        area=block.place.area,
        place=block.place,
        mark=block.mark,
        markable=block.kind in rules.markable and not block.is_empty,
    )
    facts.piece, facts.markable = piece, rules.markable
    return piece


def _divided(tokens: int, weights: Sequence[int]) -> list[int]:
    """`tokens` in whole numbers by `weights`, less than one away from each one's part; nothing for none."""
    if not weights:
        return []
    total = sum(weights)
    ends = [tokens * end // total for end in accumulate(weights)]
    return [end - start for start, end in pairwise((0, *ends))]


def _legible(said: Any) -> tuple[list[str], int]:
    """The words in a block's JSON but for its images, and how many characters of it are sealed."""
    words: list[str] = []
    sealed_chars = 0
    waiting = [said]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, dict) and not is_picture(entry):
            for name, inner in entry.items():
                if name in _SEALED and isinstance(inner, str):
                    sealed_chars += len(inner)
                else:
                    words.append(name)
                    waiting.append(inner)
        elif isinstance(entry, list):
            waiting += entry
        elif isinstance(entry, str):
            words.append("" if entry.startswith("data:") else entry)
        elif not isinstance(entry, dict):
            words.append(str(entry))
    return words, sealed_chars
