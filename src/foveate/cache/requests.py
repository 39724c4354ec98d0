"""A request as a provider's cache sees it: its blocks with their digests, tokens and marks.

The request is counted once, as it will be billed; a message's tokens are then shared among its blocks by how
many tokens their own texts are, so that all pieces add up to the whole. What was made of a message is noted
with it, so that a session that grows by a turn counts and reads one turn.
"""

from collections.abc import Sequence
from functools import lru_cache

from foveate import wire
from foveate.cache import parameters
from foveate.cache.block_facts import BlockFacts, look_up_facts
from foveate.cache.block_tokens import BlockTokens, add_automatic_breakpoint, make_piece
from foveate.cache.prompts import CachedPrompt, compute_prefix_keys
from foveate.cache.rules import CacheRules
from foveate.cache.trailing import build_incrementally
from foveate.errors import MalformedRequest
from foveate.tokens import counter_for
from foveate.values import Block, Request
from foveate.wire.body import TOO_DEEP_MESSAGE

__all__ = ["BlockTokens", "block_tokens_for", "build_cached_prompt", "read_visible_blocks"]

_MAX_MODELS = 64

_THINKING_KINDS = frozenset(
    ("thinking", "redacted_thinking", "reasoning", "reasoningContent")  # Responses, and Bedrock
)
_TOOL_RESULT_KINDS = frozenset(("tool_result", "toolResult"))


@lru_cache(_MAX_MODELS)
def block_tokens_for(model: str) -> BlockTokens:
    """How many tokens blocks take for `model`, counted offline."""
    return BlockTokens(counter_for(model))


def build_cached_prompt(request: Request, rules: CacheRules, tokens: BlockTokens) -> CachedPrompt:
    """`request` as the cache of a model with `rules` sees it.

    Raises:
        MalformedRequest: a part cannot be read, or is nested too deeply.
    """
    try:
        incremental = build_incrementally(request, rules, tokens)
        return incremental or _build_whole(
            request, look_up_facts(read_visible_blocks(request, rules)), rules, tokens
        )
    except RecursionError:
        raise MalformedRequest(TOO_DEEP_MESSAGE) from None


def read_visible_blocks(request: Request, rules: CacheRules) -> tuple[Block, ...]:
    """The blocks of `request` that its provider reads; some leave out the thinking of earlier turns.

    Raises:
        MalformedRequest: a part cannot be read, or is nested too deeply.
    """
    blocks = wire.request_blocks(request)
    if not rules.drops_thinking:
        return blocks
    user_messages = (
        b.place.index for b in reversed(blocks) if b.role == "user" and b.kind not in _TOOL_RESULT_KINDS
    )
    last = next(user_messages, 0)
    return tuple(block for block in blocks if block.kind not in _THINKING_KINDS or block.place.index >= last)


def _build_whole(
    request: Request, blocks: Sequence[BlockFacts], rules: CacheRules, tokens: BlockTokens
) -> CachedPrompt:
    """The same, of the whole of it at once."""
    fields = parameters.parameter_fields(request)
    pieces = [
        facts.piece
        if facts.piece is not None
        and facts.piece.tokens == share
        and facts.piece_kinds is rules.breakpoint_kinds
        else make_piece(facts, share, rules)
        for facts, share in zip(blocks, tokens.divide_request_facts(request, blocks), strict=True)
    ]
    options = parameters.parse_cache_options(fields)
    settings = parameters.digest_by_area(parameters.parse_cache_parameters(fields, blocks, rules))
    # System and developer messages at the start are part of the front, as they are in a prompt that is read
    # message by message: a session may change from the one way to the other.
    front = len(wire.preamble_blocks(request, wire.message_history(request)))
    prompt = CachedPrompt(
        model=request.model,
        pieces=tuple(pieces),
        settings=settings,
        explicit_only=options.explicit_only,
        ttl=options.ttl,
        keys=compute_prefix_keys(request.model, pieces, settings, front),
    )
    return add_automatic_breakpoint(
        prompt, wire.automatic_breakpoint(request) if "cache_control" in fields else None
    )
