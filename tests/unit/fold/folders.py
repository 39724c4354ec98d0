"""Folders for tests, and what they are told."""

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal

from foveate.fold.cuts import FoldOptions, Subject
from foveate.fold.folding import Folded, Folder
from foveate.fold.journal import Journal
from foveate.fold.summariser import Summariser
from foveate.tokens import counter_for
from foveate.values import CacheUsage, Usage
from tests.sessions_to_fold import MODEL, OPTIONS, RULE, Body
from tests.unit.fold.journals import InMemory

TOLD = f"The user looks for the slow parser in src/parsers. {RULE} Next was to say which one it was."
DROPPED = "The user looks for the slow parser, and has asked which one it was."
USAGE = Usage(cache=CacheUsage(uncached=1_000), output_tokens=100)


def folder(
    journal: Journal,
    summariser: Summariser | None,
    options: FoldOptions = OPTIONS,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Folder:
    return Folder(
        journal,
        summariser,
        counter_for(MODEL),
        holder="this one",
        clock=lambda: 100.0,
        options=options,
        sleep=sleep,
        price=lambda _model, usage: Decimal(usage.cache.uncached) / 1_000_000,
    )


async def fold(
    subject: Subject, summariser: Summariser | None, journal: InMemory, options: FoldOptions = OPTIONS
) -> Folded:
    folded = await folder(journal, summariser, options).fold(subject)
    assert folded is not None
    return folded


def longer(body: Body, answers: int) -> Body:
    """The conversation after the model has spoken so many times more."""
    more: list[Body] = []
    for number in range(answers):
        more += [
            {"role": "assistant", "content": f"Answer {number}."},
            {"role": "user", "content": f"And then, {number}?"},
        ]
    return {**body, "messages": [*body["messages"], *more]}
