"""Compactions in a real store: recorded samples, and compacted sessions."""

import asyncio
from typing import Any

from foveate.compaction.compact import CompactionRunner
from foveate.compaction.store import Compaction, CompactionOutcome
from foveate.model import Format
from foveate.store import Store
from foveate.tokens import counter_for
from tests.support.scenarios.compaction_sessions import MODEL, OPTIONS, make_subject, require_fit
from tests.support.stores.records import COMPACTED_MESSAGES


async def record_all(store: Store, *compactions: Compaction) -> None:
    await asyncio.gather(
        *(store.compactions.record(compaction, COMPACTED_MESSAGES, lease=None) for compaction in compactions)
    )


async def compact_session(
    store: Store, body: Any, earlier: Compaction | None = None, *, api_format: Format | None = None
) -> Compaction:
    """Compact a session by rules, on top of an earlier compaction if there is one."""
    clock = iter(range(1_000)).__next__
    runner = CompactionRunner(
        store.compactions, None, counter_for(MODEL), holder="me", clock=clock, options=OPTIONS
    )
    subject = make_subject(body, [earlier] if earlier is not None else (), api_format=api_format)
    result = await runner.compact(require_fit(subject))
    assert result is not None
    assert result.compaction is not None
    assert result.outcome is CompactionOutcome.OK
    return result.compaction
