"""A store with rows of every kind, with each field set at least once, and unset if possible."""

import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from msgspec import structs

from foveate.compaction.store import CompactionOutcome
from foveate.cost.caps import list_accounts
from foveate.cost.ledger import Category
from foveate.cost.savings import make_unchanged_savings
from foveate.formats.response.rate_limits import RateLimit
from foveate.model import Savings
from foveate.session.store import ObservedLimit, SessionUpdate
from foveate.session.traces import TracedEdit
from foveate.store import open_store
from tests.support.stores.ledger_records import CALL, CHARGE, settle_one
from tests.support.stores.records import (
    COMPACTED_MESSAGES,
    COMPACTION,
    FAILED_COMPACTION,
    STORED_REQUEST,
    TRACE,
    make_session,
    make_turns,
)

SESSION = COMPACTION.session_id
LATER = replace(
    COMPACTION, id="later", earlier_id=COMPACTION.id, boundary=b"3" * 16, messages=8, limit_tokens=150_000
)
UNDONE = replace(COMPACTION, id="undone", boundary=b"7" * 16, undone_at=500.0, cost=None, carried=())


async def fill_store(url: str, bodies: tuple[Path, Path]) -> None:
    """Fill a store; `bodies` are two archived requests, the second of which misses the cache."""
    now = time.time()
    calls = [structs.replace(CALL, id=id_, at=now) for id_ in ("call-1", "call-2", "call-3")]
    charges = [
        structs.replace(
            CHARGE,
            call=calls[0],
            savings=make_unchanged_savings(Decimal(1)),
        ),
        structs.replace(CHARGE, call=calls[1], dollars=None, estimated_dollars=None, savings=Savings()),
        structs.replace(CHARGE, call=structs.replace(calls[2], category=Category.COMPACTION)),
    ]
    reordering = TracedEdit(step="tools", does="reorder", place="tools", reason="the order of before")
    traces = [
        structs.replace(TRACE, at=now),
        structs.replace(
            TRACE,
            id="call-2",
            at=now,
            tokens=None,
            window_tokens=None,
            edits=(reordering,),
            compaction_id=None,
            cache_miss=None,
        ),
    ]
    async with await open_store(url) as store:
        await store.sessions.save(
            [SessionUpdate(session=make_session(SESSION, 9, seen_at=now), turns=make_turns(SESSION, 0, 9))]
        )
        for compaction in (COMPACTION, LATER, UNDONE, FAILED_COMPACTION):
            compacted = COMPACTED_MESSAGES if compaction.outcome is CompactionOutcome.OK else ()
            await store.compactions.record(replace(compaction, compacted_at=now), compacted, lease=None)
        await store.traces.save(traces)
        limits = (RateLimit(name="5h", used=0.4, resets_at=now + 60, status="allowed"), RateLimit(name="7d"))
        await store.rate_limits.save(
            [ObservedLimit(agent=CALL.agent, provider=CALL.provider, limit=limit, at=now) for limit in limits]
        )
        for charge in charges:
            await settle_one(store.ledger, charge, accounts=list_accounts(charge.call))
        for number, body in enumerate(bodies, 1):
            await store.request_archive.save(
                replace(
                    STORED_REQUEST,
                    id=f"call-{number}",
                    at=now + number,
                    request_body=body.read_bytes(),
                    usage=None,
                )
            )
