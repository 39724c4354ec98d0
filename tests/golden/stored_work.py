"""A store in which every kind of row has every field filled in at least once, and left out if it can be."""

import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from msgspec import structs

from foveate.cost.caps import accounts_of
from foveate.cost.ledger import Category
from foveate.cost.savings import unchanged
from foveate.fold.journal import Outcome
from foveate.session.rate_limits import SeenLimit
from foveate.session.traces import TracedEdit
from foveate.session.turns import Move
from foveate.store import open_store
from foveate.values import Savings
from foveate.wire.rate_limits import RateLimit
from tests.billed import CALL, ENTRY, settle_one
from tests.kept import FAILED, FOLD, FOLDED, REQUEST, TRACE, session, turns

SESSION = FOLD.session_id
LATER = replace(FOLD, id="later", earlier_id=FOLD.id, boundary=b"3" * 16, messages=8, limit_tokens=150_000)
UNDONE = replace(FOLD, id="undone", boundary=b"7" * 16, undone_at=500.0, cost=None, carried=())


async def fill(url: str, bodies: tuple[Path, Path]) -> None:
    """Fill a store; `bodies` are two requests that were kept, the second of which broke the cache."""
    now = time.time()
    calls = [structs.replace(CALL, id=id_, at=now) for id_ in ("call-1", "call-2", "call-3")]
    entries = [
        structs.replace(
            ENTRY,
            call=calls[0],
            savings=unchanged(Decimal(1)),
        ),
        structs.replace(ENTRY, call=calls[1], dollars=None, estimated_dollars=None, savings=Savings()),
        structs.replace(ENTRY, call=structs.replace(calls[2], category=Category.COMPACTION)),
    ]
    other = TracedEdit(step="tools", does="reorder", place="tools", reason="the order of before")
    traces = [
        structs.replace(TRACE, at=now),
        structs.replace(
            TRACE,
            id="call-2",
            at=now,
            tokens=None,
            window_tokens=None,
            edits=(other,),
            fold_id=None,
            broke=None,
        ),
    ]
    async with await open_store(url) as store:
        await store.turns.keep([Move(session=session(SESSION, 9, seen_at=now), turns=turns(SESSION, 0, 9))])
        for fold in (FOLD, LATER, UNDONE, FAILED):
            folded = FOLDED if fold.outcome is Outcome.OK else ()
            await store.journal.record(replace(fold, compacted_at=now), folded, lease=None)
        await store.traces.keep(traces)
        limits = (RateLimit(name="5h", used=0.4, resets_at=now + 60, status="allowed"), RateLimit(name="7d"))
        await store.rate_limits.keep(
            [SeenLimit(agent=CALL.agent, provider=CALL.provider, limit=limit, at=now) for limit in limits]
        )
        for entry in entries:
            await settle_one(store.ledger, entry, accounts=accounts_of(entry.call))
        for number, body in enumerate(bodies, 1):
            await store.requests.keep(
                replace(REQUEST, id=f"call-{number}", at=now + number, sent=body.read_bytes(), usage=None)
            )
