"""Compaction runners, and summaries for them."""

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal

from foveate.compaction.compact import CompactionResult, CompactionRunner
from foveate.compaction.plan import CompactionCandidate, CompactionOptions
from foveate.compaction.store import CompactionStore
from foveate.compaction.summarize.summarizer import Summarizer
from foveate.model import CacheUsage, Usage
from foveate.tokens import counter_for
from tests.support.scenarios.compaction_sessions import MODEL, OPTIONS, RULE, Body
from tests.support.stores.memory_compaction_store import InMemoryCompactionStore

COMPLETE_SUMMARY = (
    f"The user looks for the slow parser in src/parsers. {RULE} Next was to say which one it was."
)
INCOMPLETE_SUMMARY = "The user looks for the slow parser, and has asked which one it was."
USAGE = Usage(cache=CacheUsage(uncached=1_000), output_tokens=100)


def make_runner(
    store: CompactionStore,
    summarizer: Summarizer | None,
    options: CompactionOptions = OPTIONS,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> CompactionRunner:
    return CompactionRunner(
        store,
        summarizer,
        counter_for(MODEL),
        holder="this one",
        clock=lambda: 100.0,
        options=options,
        sleep=sleep,
        price=lambda _model, usage: Decimal(usage.cache.uncached) / 1_000_000,
    )


async def run_compaction(
    candidate: CompactionCandidate,
    summarizer: Summarizer | None,
    store: InMemoryCompactionStore,
    options: CompactionOptions = OPTIONS,
) -> CompactionResult:
    result = await make_runner(store, summarizer, options).compact(candidate)
    assert result is not None
    return result


def extend_conversation(body: Body, model_turns: int) -> Body:
    """Return the conversation after this many more responses of the model."""
    more: list[Body] = []
    for number in range(model_turns):
        more += [
            {"role": "assistant", "content": f"Answer {number}."},
            {"role": "user", "content": f"And then, {number}?"},
        ]
    return {**body, "messages": [*body["messages"], *more]}
