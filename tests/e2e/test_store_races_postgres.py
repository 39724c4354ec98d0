"""Concurrent transactions on a PostgreSQL server at the worst moment: nothing in use is lost."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from foveate.session.store import SessionUpdate
from foveate.store import Store, open_store
from foveate.store.database import T, Transaction, TransactionCallback
from foveate.store.postgres import PostgresDatabase
from foveate.store.repositories.sessions import SqlSessionStore
from foveate.store.retention import prune
from tests.support.stores.postgres import PostgresServer
from tests.support.stores.records import (
    AGENT,
    COMPACTED_MESSAGES,
    compaction_ids,
    make_compaction,
    make_session,
    make_turns,
    message_hashes,
)

DAY = 86_400.0
PARENT = make_session("parent", 2, seen_at=1 * DAY)
CHILD = make_session("child", 4, seen_at=1 * DAY, parent=PARENT)
GRANDCHILD = make_session("grandchild", 6, seen_at=10 * DAY, parent=CHILD)

Interference = Callable[[Store], Awaitable[bool]]


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database()


@dataclass
class InterferingDatabase:
    """A `Database` on which another transaction runs right after the first rows were found."""

    database: PostgresDatabase
    url: str
    interference: Interference
    has_run: bool | None = None

    @property
    def location(self) -> str:
        return self.database.location

    async def read(self, callback: TransactionCallback[T]) -> T:
        return await self.database.read(callback)

    async def look_up(self, statement: str, values: Sequence[str | bytes]) -> list[tuple[Any, ...]]:
        return await self.database.look_up(statement, values)

    async def write(self, callback: TransactionCallback[T], *, is_idempotent: bool) -> T:
        return await self.database.write(
            lambda rows: callback(InterferingRows(rows, self)), is_idempotent=is_idempotent
        )

    async def has_other_gateways(self) -> bool:
        return await self.database.has_other_gateways()

    async def size_bytes(self) -> int:
        return await self.database.size_bytes()

    async def vacuum(self) -> None:
        await self.database.vacuum()

    async def close(self) -> None:
        await self.database.close()

    def interfere(self) -> None:
        async def run() -> bool:
            async with await open_store(self.url) as other:
                return await self.interference(other)

        if self.has_run is None:
            self.has_run = asyncio.run(run())


@dataclass
class InterferingRows:
    rows: Transaction
    interfering: InterferingDatabase

    def fetch_all(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        matches = self.rows.fetch_all(statement, values)
        if matches:
            self.interfering.interfere()
        return matches

    def enqueue(self, statement: str, values: Sequence[Any] = ()) -> None:
        self.rows.enqueue(statement, values)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        return self.rows.execute(statement, values)

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        return self.rows.execute_many(statement, rows)


async def use_child(other: Store) -> bool:
    await other.sessions.save([SessionUpdate(session=replace(CHILD, seen_at=10 * DAY))])
    return True


async def fork_child(other: Store) -> bool:
    await other.sessions.save([SessionUpdate(session=GRANDCHILD, turns=make_turns("grandchild", 4, 6))])
    return True


async def continue_child(other: Store) -> bool:
    session = replace(make_session("named", 4, seen_at=10 * DAY, parent=CHILD), tip=CHILD.tip)
    await other.sessions.save([SessionUpdate(session=session)])
    return True


@pytest.mark.parametrize("interference", [use_child, fork_child, continue_child])
async def test_a_session_that_is_seen_while_its_parents_are_pruned_keeps_them(
    url: str, interference: Interference
) -> None:
    async with await open_store(url) as store:
        await store.sessions.save([SessionUpdate(session=PARENT, turns=make_turns("parent", 0, 2))])
        await store.sessions.save([SessionUpdate(session=CHILD, turns=make_turns("child", 2, 4))])
        await store.sessions.save(
            [SessionUpdate(session=make_session("named", 2, seen_at=9 * DAY), turns=make_turns("named", 0, 2))]
        )
        compaction = make_compaction("of the parent", session_id="parent", boundary=PARENT.tip, at=1 * DAY)
        await store.compactions.record(compaction, COMPACTED_MESSAGES, lease=None)
        await prune_concurrently(url, interference)

        for session in (PARENT, CHILD):
            assert await store.sessions.get_session(session.id)
        assert (
            len(
                await store.sessions.find_turns(
                    AGENT, [*message_hashes("parent", 0, 2), *message_hashes("child", 2, 4)]
                )
            )
            == 4
        )
        assert compaction_ids(await store.compactions.find_compactions(AGENT, [PARENT.tip])) == [
            "of the parent"
        ]


async def prune_concurrently(url: str, interference: Interference) -> None:
    database = PostgresDatabase.open(url, wait_seconds=10.0)
    interfering = InterferingDatabase(database, url, interference)
    try:
        await prune(interfering, keep_days=5, now=10 * DAY)
    finally:
        await database.close()
    assert interfering.has_run, "the other transaction did not run"


async def test_a_session_keeps_turns_whose_owner_is_pruned_while_it_is_stored(url: str) -> None:
    """Regression: the turns were found before the owner was deleted, and nobody stored them again."""
    turns = [replace(turn, session_id="fork") for turn in make_turns("parent", 0, 2)]
    fork = replace(make_session("fork", 2, seen_at=10 * DAY), tip=PARENT.tip)
    async with await open_store(url) as store:
        await store.sessions.save([SessionUpdate(session=PARENT, turns=make_turns("parent", 0, 2))])

        async def prune_parent(other: Store) -> bool:
            assert (await other.prune(keep_days=5, now=10 * DAY)).sessions == 1
            return True

        database = PostgresDatabase.open(url, wait_seconds=10.0)
        try:
            interfering = InterferingDatabase(database, url, prune_parent)
            await SqlSessionStore(interfering).save([SessionUpdate(session=fork, turns=turns)])
        finally:
            await database.close()

        assert interfering.has_run
        found = await store.sessions.find_turns(AGENT, message_hashes("parent", 0, 2))
        assert {turn.session_id for turn in found.values()} == {"fork"}
        assert len(found) == 2
