"""Token counters of unknown models: like others, but finer or coarser."""

from collections.abc import Callable
from dataclasses import replace

from foveate.model import Request, TokenCount
from foveate.prompt_cache.prompt.blocks import BlockTokens
from foveate.tokens import RequestCount, RequestCounter, counter_for


class ScaledCounter:
    """Counts `rate` times as many tokens as another counter."""

    def __init__(self, counter: RequestCounter, rate: float) -> None:
        self._counter = counter
        self._rate = rate

    def text(self, text: str) -> TokenCount:
        return self._scale(self._counter.text(text))

    def count_request(self, request: Request) -> RequestCount:
        count = self._counter.count_request(request)
        parts = tuple(replace(part, tokens=round(part.tokens * self._rate)) for part in count.parts)
        return replace(count, total=self._scale(count.total), parts=parts)

    def _scale(self, count: TokenCount) -> TokenCount:
        tokens = round(count.tokens * self._rate)
        return TokenCount(tokens, count.exact, tokens)


def scaled_block_tokens(rate: float) -> Callable[[str], BlockTokens]:
    """Return a factory of scaled block counters for each model."""
    by_model: dict[str, BlockTokens] = {}

    def block_tokens_for_model(model: str) -> BlockTokens:
        if model not in by_model:
            by_model[model] = BlockTokens(ScaledCounter(counter_for(model), rate))
        return by_model[model]

    return block_tokens_for_model
