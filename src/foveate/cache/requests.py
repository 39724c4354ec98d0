"""A request as a provider's cache sees it: its blocks with their digests, tokens and marks.

The request is counted once, as it will be billed; a message's tokens are then shared among its blocks by how
many tokens their own texts are, so that all pieces add up to the whole. What was made of a message is noted
with it, so that a session that grows by a turn counts and reads one turn.
"""

from collections.abc import Sequence
from functools import lru_cache

from foveate import wire
from foveate.cache import parameters
from foveate.cache.block_facts import BlockFacts, facts_of
from foveate.cache.block_tokens import BlockTokens, marked_at_end, piece_of
from foveate.cache.prompts import CachedPrompt, all_keys
from foveate.cache.rules import Rules
from foveate.cache.trailing import trailed_prompt
from foveate.errors import MalformedRequest
from foveate.tokens import counter_for
from foveate.values import Block, Request
from foveate.wire.body import TOO_DEEP

__all__ = ["BlockTokens", "block_tokens_for", "blocks_read", "cached_prompt"]

_KEPT_MODELS = 64

_THINKING = frozenset(
    ("thinking", "redacted_thinking", "reasoning", "reasoningContent")  # Responses, and Bedrock
)
_RESULTS = frozenset(("tool_result", "toolResult"))


@lru_cache(_KEPT_MODELS)
def block_tokens_for(model: str) -> BlockTokens:
    """How many tokens blocks take for `model`, counted offline."""
    return BlockTokens(counter_for(model))


def cached_prompt(request: Request, rules: Rules, tokens: BlockTokens) -> CachedPrompt:
    """`request` as the cache of a model with `rules` sees it.

    Raises:
        MalformedRequest: a part cannot be read, or is nested too deeply.
    """
    try:
        trailed = trailed_prompt(request, rules, tokens)
        return trailed or _prompt(request, facts_of(blocks_read(request, rules)), rules, tokens)
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


def _prompt(request: Request, known: Sequence[BlockFacts], rules: Rules, tokens: BlockTokens) -> CachedPrompt:
    """The same, of the whole of it at once."""
    found = parameters.body_of(request)
    pieces = [
        facts.piece
        if facts.piece is not None and facts.piece.tokens == share and facts.markable is rules.markable
        else piece_of(facts, share, rules)
        for facts, share in zip(known, tokens.shares(request, known), strict=True)
    ]
    options = parameters.cache_options_in(found)
    settings = parameters.digests(parameters.settings_in(found, known, rules))
    # System and developer messages at the start are part of the front, as they are in a prompt that is read
    # message by message: a session may change from the one way to the other.
    front = len(wire.front_blocks(request, wire.trail(request)))
    prompt = CachedPrompt(
        model=request.model,
        pieces=tuple(pieces),
        settings=settings,
        only_marked=options.only_marked,
        ttl=options.ttl,
        keys=all_keys(request.model, pieces, settings, front),
    )
    return marked_at_end(prompt, wire.automatic_mark(request) if "cache_control" in found else None)
