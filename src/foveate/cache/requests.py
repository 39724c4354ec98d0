"""A request as a provider's cache sees it: its blocks with their digests, tokens and marks.

The request is counted once, as it will be billed; a message's tokens are then shared among its blocks by how
many tokens their own texts are, so that all pieces add up to the whole. What a block weighs is remembered, so
that a session that grows by a turn counts one turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from typing import Any, Protocol

from foveate import wire
from foveate.cache import parameters
from foveate.cache.parameters import Setting
from foveate.cache.prompts import CachedPrompt, Piece, digest
from foveate.cache.rules import Rules
from foveate.errors import MalformedRequest
from foveate.tokens import RequestCount, counter_for
from foveate.tokens.caches import register
from foveate.tokens.memo import Memo
from foveate.values import Area, Block, Request, TokenCount, Ttl
from foveate.wire.body import TOO_DEEP, value

# A session of 2,000 turns with a handful of tool calls in each.
_KEPT_WEIGHTS = 16 * 1024
_KEPT_MODELS = 64

# Fields that hold what is encoded or sealed. It is not billed by its letters; so many of them weigh a token.
_SEALED = frozenset(
    ("data", "bytes", "file_data", "signature", "encrypted_content", "thoughtSignature", "thought_signature")
)
_SEALED_CHARS_PER_TOKEN = 16

_THINKING = frozenset(("thinking", "redacted_thinking", "reasoningContent"))  # the last on Bedrock
_RESULTS = frozenset(("tool_result", "toolResult"))


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
        self._weights: Memo[tuple[int, int]] = Memo(capacity)
        register(self)

    def drop(self) -> None:
        """Forget what blocks weigh."""
        self._weights = Memo(self._weights.capacity)

    def of(self, request: Request, blocks: Sequence[Block]) -> list[int]:
        """The tokens of each of `blocks`, which are all that `request` has; they add up to its count.

        Raises:
            MalformedRequest: a part cannot be read, or is nested too deeply.
        """
        if not blocks:
            return []
        rows = {part.name: part.tokens for part in self._counter.request(request).parts}
        owed = 0  # by messages that have no block, to the next that has one
        shares: list[int] = []
        for row, own in _by_row(blocks, rows):
            tokens = rows.pop(row, 0) + owed
            owed = 0 if own else tokens
            shares += _shared(
                tokens, [self._weight(block)[0] for block in own] if len(own) > 1 else [1] * len(own)
            )
        seen = [self._weight(block)[1] if b"image" in block.said else 0 for block in blocks]
        if any(seen):
            images = _shared(rows.pop("images", 0), seen)
            shares = [share + image for share, image in zip(shares, images, strict=True)]
        shares[-1] += sum(rows.values())  # what goes around it all, and rows that no block stands for
        return shares

    def _weight(self, block: Block) -> tuple[int, int]:
        """The tokens of a block's own text, at least 1, and how many images it holds."""
        weights = self._weights
        key = digest(block.said)
        found = weights.get(key)
        if found is None:
            said = value(block.said)
            texts, sealed_chars = _legible(said)
            tokens = self._counter.text(texts).tokens + sealed_chars // _SEALED_CHARS_PER_TOKEN
            found = max(tokens, 1), parameters.pictures(said)
            weights.put(key, found)
        return found


@lru_cache(_KEPT_MODELS)
def block_tokens_for(model: str) -> BlockTokens:
    """How many tokens blocks take for `model`, counted offline."""
    return BlockTokens(counter_for(model))


def cached_prompt(request: Request, rules: Rules, tokens: BlockTokens) -> CachedPrompt:
    """`request` as the cache of a model with `rules` sees it.

    Raises:
        MalformedRequest: a part cannot be read, or is nested too deeply.
    """
    blocks = blocks_read(request, rules)
    try:
        settings = parameters.settings(request, blocks, rules)
        return prompt_of(request, blocks, settings, rules, tokens)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP) from None


def blocks_read(request: Request, rules: Rules) -> tuple[Block, ...]:
    """The blocks of `request` that its provider reads; some leave out the thinking of earlier turns.

    Raises:
        MalformedRequest: a part cannot be read, or is nested too deeply.
    """
    blocks = wire.blocks(request)
    if not rules.drops_thinking:
        return blocks
    speaks = (b.place.index for b in reversed(blocks) if b.role == "user" and b.kind not in _RESULTS)
    last = next(speaks, 0)
    return tuple(block for block in blocks if block.kind not in _THINKING or block.place.index >= last)


def prompt_of(
    request: Request, blocks: Sequence[Block], settings: Sequence[Setting], rules: Rules, tokens: BlockTokens
) -> CachedPrompt:
    """The same for who has the blocks that are read, and the settings, of the request already."""
    pieces = [
        Piece(
            digest=_digest(block),
            tokens=share,
            kind=block.kind,
            area=block.place.area,
            place=block.place,
            mark=block.mark,
            markable=block.kind in rules.markable and not block.is_empty,
        )
        for block, share in zip(blocks, tokens.of(request, blocks), strict=True)
    ]
    options = parameters.cache_options(request)
    automatic = wire.automatic_mark(request)
    marked = _marked_at_end(pieces, automatic)
    return CachedPrompt(
        model=request.model,
        pieces=marked,
        settings=parameters.digests(settings),
        only_marked=options.only_marked,
        ttl=options.ttl,
        double_marks=int(automatic is not None and marked == tuple(pieces)),
    )


def _marked_at_end(pieces: Sequence[Piece], ttl: Ttl | None) -> tuple[Piece, ...]:
    """With the mark that a client leaves to its provider to place: on the last block that takes one."""
    last = next((at for at in reversed(range(len(pieces))) if pieces[at].markable), None)
    if ttl is None or last is None or pieces[last].mark is not None:
        return tuple(pieces)
    return (*pieces[:last], replace(pieces[last], mark=ttl), *pieces[last + 1 :])


def _digest(block: Block) -> bytes:
    """Of a message also who says it: the same words of somebody else are no prefix."""
    if block.place.area is not Area.MESSAGES:
        return digest(block.said)
    return digest(block.role.encode("utf-8", "replace") + b"\0" + block.said)


def _by_row(blocks: Sequence[Block], rows: Mapping[str, int]) -> list[tuple[str, list[Block]]]:
    """The blocks that share each row of a count, in their order, and between them the messages without any."""
    found: list[tuple[str, list[Block]]] = []
    reached = 0
    for row, own in groupby(blocks, _row):
        group = list(own)
        if group[0].place.area is Area.MESSAGES:
            found += [(f"messages[{index}]", []) for index in range(reached, group[0].place.index)]
            reached = group[0].place.index + 1
        found.append((row, group))
    return [(row, own) for row, own in found if own or row in rows]


def _row(block: Block) -> str:
    place = block.place
    return f"messages[{place.index}]" if place.area is Area.MESSAGES else str(place.area)


def _shared(tokens: int, weights: Sequence[int]) -> list[int]:
    """`tokens` in whole numbers by `weights`, less than one away from each one's part; nothing for none."""
    if not weights:
        return []
    total = sum(weights)
    ends = [tokens * end // total for end in accumulate(weights)]
    return [end - start for start, end in pairwise((0, *ends))]


def _legible(said: Any) -> tuple[str, int]:
    """The words in a block's JSON but for its images, and how many characters of it are sealed."""
    words: list[str] = []
    sealed_chars = 0
    waiting = [said]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, dict) and not parameters.is_picture(entry):
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
    return " ".join(words), sealed_chars
