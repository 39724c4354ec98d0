"""What counts for an agent's requests without asking anybody, as its options say, and how sure that is."""

import math
from dataclasses import replace
from functools import lru_cache

from foveate.cache.requests import BlockTokens, block_tokens_for
from foveate.cache.rules import Rules, rules_for
from foveate.fold.overflow import lower_end
from foveate.tokens import RequestCounter, counter_for
from foveate.tokens.memo import DEFAULT_CAPACITY
from foveate.tokens.options import Backend, CounterOptions, offline_counters
from foveate.values import TokenCount

_KEPT_RULES = 256
_KEPT_BLOCKS = 64
# Minimums are rounded up to these, so that the same rules serve again.
_STEP_TOKENS = 16
# No tokenizer is farther than this from the one that stands in for it.
_FARTHEST = 2


def offline_counter(options: CounterOptions, model: str) -> RequestCounter:
    """What counts for a model here."""
    if _is_usual(options):
        return counter_for(model)
    return offline_counters(options)(model)


def block_tokens(options: CounterOptions, model: str) -> BlockTokens:
    """How many tokens blocks take for a model, by the same counter."""
    return block_tokens_for(model) if _is_usual(options) else _block_tokens(options, model)


def _is_usual(options: CounterOptions) -> bool:
    is_plain = options.backend is not Backend.ESTIMATE and options.vocabulary is None
    return is_plain and options.cache_capacity == DEFAULT_CAPACITY


@lru_cache(_KEPT_BLOCKS)
def _block_tokens(options: CounterOptions, model: str) -> BlockTokens:
    return BlockTokens(offline_counter(options, model))


def surely_kept(rules: Rules, model: str, provider: str, *, blocks: int, count: TokenCount | None) -> Rules:
    """`rules` with the minimum that a prefix has to have, as it is counted here, to be kept without doubt.

    Blocks are counted raw, `blocks` tokens in all. `count` is what they come to as far as is known by now; its
    lower end, or half of it, is what they have at the least. A mark that is ignored costs nothing, so a count
    of which hardly anything is known does not keep a long prompt from being marked.
    """
    least = rules.minimum_tokens
    if not least or not blocks or (count is not None and count.exact and count.tokens == blocks):
        return rules
    sure = blocks / _FARTHEST if count is None else max(lower_end(count), count.tokens / _FARTHEST, 1)
    needed = math.ceil(least * blocks / sure / _STEP_TOKENS) * _STEP_TOKENS
    return _with_minimum(model, provider, needed)


@lru_cache(_KEPT_RULES)
def _with_minimum(model: str, provider: str, minimum_tokens: int) -> Rules:
    return replace(rules_for(model, provider), minimum_tokens=minimum_tokens)
