"""What counts for an agent's requests without asking anybody, as its options say, and how sure that is.

Sizes of conversations that a provider stores, learnt from the usage of the responses in them.
"""

import math
from dataclasses import replace
from functools import lru_cache

from foveate.caching import DEFAULT_CAPACITY, LruCache
from foveate.compaction.overflow import lower_bound_tokens
from foveate.engine.request import RoutedRequest
from foveate.formats.incremental.envelope import get_parameters
from foveate.formats.json_text.parse import as_dict, as_text, parse_json
from foveate.model import Format, Request, TokenCount, Usage
from foveate.prompt_cache.prompt.blocks import BlockTokens
from foveate.prompt_cache.prompt.incremental import block_tokens_for
from foveate.prompt_cache.rules import CacheRules, rules_for
from foveate.tokens import RequestCounter, counter_for
from foveate.tokens.options import Backend, CounterOptions, offline_counter_factory

_MAX_RULES = 256
_MAX_BLOCK_COUNTERS = 64
# Minimums are rounded up to these, so that the same rules serve again.
_MINIMUM_STEP_TOKENS = 16
# No tokenizer is farther than this from the one that stands in for it.
_MAX_COUNT_RATIO = 2


def offline_counter(options: CounterOptions, model: str) -> RequestCounter:
    """What counts for a model here."""
    if _is_default(options):
        return counter_for(model)
    return offline_counter_factory(options)(model)


def block_tokens(options: CounterOptions, model: str) -> BlockTokens:
    """How many tokens blocks take for a model, by the same counter."""
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
    """`rules` with the minimum that a prefix has to have, as it is counted here, to be kept without doubt.

    Blocks are counted raw, `blocks` tokens in all. `count` is what they come to as far as is known by now; its
    lower end, or half of it, is what they have at the least. A mark that is ignored costs nothing, so a count
    of which hardly anything is known does not keep a long prompt from being marked.
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


_MAX_CONVERSATIONS = 16_384
# The items of an output are framed as messages, with about 4 tokens each, which are not billed as output.
_FRAME_TOKENS = 64


class StoredConversationSizes:
    """Tokens of OpenAI's stored conversations, by the id of their latest response or of the conversation.

    What the next request reads of them is the input and output of the response before, and what frames its
    output as messages. Only responses that this process has relayed are known.
    """

    def __init__(self) -> None:
        self._tokens: LruCache[int] = LruCache(_MAX_CONVERSATIONS)

    def stored_tokens(self, incoming: RoutedRequest, request: Request) -> TokenCount | None:
        """Return the size of the conversation that a request continues, without its own messages."""
        if request.format is not Format.RESPONSES:
            return None
        response, conversation = _continued_ids(request)
        kind, name = ("response", response) if response else ("conversation", conversation)
        tokens = self._tokens.get((incoming.agent, incoming.upstream, kind, name))
        return None if tokens is None else TokenCount(tokens, False, tokens + tokens // 100 + _FRAME_TOKENS)

    def record(self, incoming: RoutedRequest, request: Request, response_id: str, usage: Usage) -> None:
        """Remember the size of a conversation after a response that is whole."""
        if request.format is not Format.RESPONSES:
            return
        tokens = usage.cache.input_tokens + usage.output_tokens
        for kind, name in (("response", response_id), ("conversation", _continued_ids(request)[1])):
            if name:
                self._tokens.put((incoming.agent, incoming.upstream, kind, name), tokens)

    def forget_conversation(self, agent: str, upstream: str, conversation_id: str) -> None:
        """Forget the size of a conversation whose items were changed otherwise than by a response."""
        self._tokens.remove((agent, upstream, "conversation", conversation_id))


def _continued_ids(request: Request) -> tuple[str, str]:
    """Return the ids of the response and of the conversation that a request continues, empty if none."""
    parameters = get_parameters(request)
    conversation_value = parse_json(parameters.get("conversation"))
    conversation = (
        as_dict(conversation_value).get("id") if isinstance(conversation_value, dict) else conversation_value
    )
    return as_text(parse_json(parameters.get("previous_response_id"))), as_text(conversation)
