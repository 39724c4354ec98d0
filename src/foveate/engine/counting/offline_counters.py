"""Local counters for an agent's requests, and safety margins for their error."""

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache, partial

from foveate.caching import DEFAULT_CAPACITY, LruCache
from foveate.compaction.overflow import lower_bound_tokens
from foveate.model import TokenCount
from foveate.prompt_cache.prompt.blocks import BlockTokens
from foveate.prompt_cache.prompt.build import block_tokens_for
from foveate.prompt_cache.rules import CacheRules, rules_for
from foveate.tokens import RequestCounter, counter_for
from foveate.tokens.offline_counters import (
    Backend,
    CounterOptions,
    has_loaded_vocabulary,
    offline_counter_factory,
)

_MAX_RULES = 256
_MAX_LOADED_COUNTERS = 1024
_MAX_BLOCK_COUNTERS = 64
# Minimums are rounded up, so that the same rules can be reused.
_MINIMUM_STEP_TOKENS = 16
# No tokenizer differs more from its substitute.
_MAX_COUNT_RATIO = 2


def offline_counter(options: CounterOptions, model: str) -> RequestCounter:
    if _is_default(options):
        return counter_for(model)
    return offline_counter_factory(options)(model)


async def load_counter(options: CounterOptions, model: str) -> None:
    """Load the vocabulary of a model in a thread, which takes up to half a second; once per process.

    If it cannot be loaded, whatever the reason, the first count raises it.
    """
    if not is_counter_loaded(options, model):
        with suppress(Exception):
            await asyncio.get_running_loop().run_in_executor(
                _vocabulary_loader(), partial(offline_counter, options, model)
            )
            _loaded_counters.put((options, model), True)


def is_counter_loaded(options: CounterOptions, model: str) -> bool:
    if _loaded_counters.get((options, model)) is None:
        if options.vocabulary is not None or not (
            options.backend is Backend.ESTIMATE or has_loaded_vocabulary(model)
        ):
            return False
        _loaded_counters.put((options, model), True)
    return True


@cache
def _vocabulary_loader() -> ThreadPoolExecutor:
    """A thread of its own, so that requests waiting for a vocabulary do not occupy those of others."""
    return ThreadPoolExecutor(1, thread_name_prefix="vocabulary")


_loaded_counters: LruCache[bool] = LruCache(_MAX_LOADED_COUNTERS)


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
