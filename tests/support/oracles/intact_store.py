"""Stores with some data, and checks that faults lose none of it."""

from pathlib import Path

from foveate.errors import StoreUnavailable
from foveate.session.store import SessionUpdate
from foveate.store import Store, open_store
from tests.support.stores.records import (
    AGENT,
    COMPACTED_MESSAGES,
    COMPACTION,
    compaction_ids,
    make_compaction,
    make_session,
    make_turns,
    message_hashes,
)

LARGE_MESSAGES = [bytes(100_000)] * 10


async def create_store(path: Path) -> None:
    async with await open_store(f"sqlite:///{path}") as store:
        await store.sessions.save(
            [SessionUpdate(session=make_session("before", 2), turns=make_turns("before", 0, 2))]
        )
        await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=None)


async def check_intact(store: Store) -> None:
    """Check that data from before a fault is intact, and that writes work."""
    assert await store.sessions.get_session("before") == make_session("before", 2)
    assert await store.compactions.load_messages(COMPACTION.id) == list(COMPACTED_MESSAGES)
    await store.sessions.save(
        [SessionUpdate(session=make_session("after", 2), turns=make_turns("after", 0, 2))]
    )
    assert len(await store.sessions.find_turns(AGENT, message_hashes("after", 0, 2))) == 2


async def fill_disk(store: Store) -> list[str]:
    """Record compactions until there is no space left, and return their ids."""
    confirmed: list[str] = []
    reason = ""
    while len(confirmed) < 100:
        try:
            await store.compactions.record(make_compaction(f"f{len(confirmed)}"), LARGE_MESSAGES, lease=None)
        except StoreUnavailable as error:
            reason = error.reason
            break
        confirmed.append(f"f{len(confirmed)}")
    assert "disk is full" in reason
    return confirmed


async def check_confirmed(store: Store, confirmed: list[str]) -> None:
    """Check that every confirmed compaction is complete, and that nothing of the others is stored."""
    assert 0 < len(confirmed) < 100
    assert sorted(compaction_ids(await store.compactions.list_compactions(limit=1000))) == sorted(
        [COMPACTION.id, *confirmed]
    )
    for id_ in confirmed:
        assert await store.compactions.load_messages(id_) == LARGE_MESSAGES
    assert await store.compactions.load_messages(f"f{len(confirmed)}") == []
