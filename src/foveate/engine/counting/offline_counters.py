"""Local counters for an agent's requests, and safety margins for their error."""

import math
from dataclasses import replace
from functools import lru_cache

from foveate.caching import DEFAULT_CAPACITY
from foveate.compaction.overflow import lower_bound_tokens
from foveate.model import TokenCount
from foveate.prompt_cache.prompt.blocks import BlockTokens
from foveate.prompt_cache.prompt.build import block_tokens_for
from foveate.prompt_cache.rules import CacheRules, rules_for
from foveate.tokens import RequestCounter, counter_for
from foveate.tokens.offline_counters import Backend, CounterOptions, offline_counter_factory

_MAX_RULES = 256
_MAX_BLOCK_COUNTERS = 64
# Minimums are rounded up, so that the same rules can be reused.
_MINIMUM_STEP_TOKENS = 16
# No tokenizer differs more from its substitute.
_MAX_COUNT_RATIO = 2


def offline_counter(options: CounterOptions, model: str) -> RequestCounter:
    if _is_default(options):
        return counter_for(model)
    return offline_counter_factory(options)(model)


def block_tokens(options: CounterOptions, model: str) -> BlockTokens:
    return block_tokens_for(model) if _is_default(options) else _custom_block_tokens(options, model)


def _is_default(options: CounterOptions) -> bool:
    is_plain = options.backend is not Backend.ESTIMATE and options.vocabulary is None
    return is_plain and options.cache_capacity == DEFAULT_CAPACITY


@lru_cache(_MAX_BLOCK_COUNTERS)
def _custom_block_tokens(options: CounterOptions, model: str) -> BlockTokens:
    return BlockTokens(offline_counter(options, model))


def conservative_minimum(
    rules: CacheRules, model: str, provider: str, *, blocks: int, count: TokenCount | None
) -> CacheRules:
    """`rules` with a minimum that a prefix certainly reaches, whatever the error of the local count.

    Blocks have `blocks` raw tokens in all. `count` is what they come to as far as is known; at least its lower
    end, or half of it. An ignored breakpoint costs nothing, so a poor count does not keep a long prompt from
    having one.
    """
    minimum_tokens = rules.minimum_tokens
    if not minimum_tokens or not blocks or (count is not None and count.exact and count.tokens == blocks):
        return rules
    min_tokens = (
        blocks / _MAX_COUNT_RATIO
        if count is None
        else max(lower_bound_tokens(count), count.tokens / _MAX_COUNT_RATIO, 1)
    )
    required_tokens = (
        math.ceil(minimum_tokens * blocks / min_tokens / _MINIMUM_STEP_TOKENS) * _MINIMUM_STEP_TOKENS
    )
    return _with_minimum(model, provider, required_tokens)


@lru_cache(_MAX_RULES)
def _with_minimum(model: str, provider: str, minimum_tokens: int) -> CacheRules:
    return replace(rules_for(model, provider), minimum_tokens=minimum_tokens)
