"""What others do beside a transaction on a PostgreSQL server, at the worst moment: nothing in use is lost."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from foveate.session.turns import Move
from foveate.store import Store, open_store
from foveate.store.database import Rows, T, Work
from foveate.store.postgres import PostgresDatabase
from foveate.store.retention import forget
from tests.databases import PostgresServer
from tests.kept import AGENT, FOLDED, fold, hashes, ids, session, turns

DAY = 86_400.0
PARENT = session("parent", 2, seen_at=1 * DAY)
CHILD = session("child", 4, seen_at=1 * DAY, parent=PARENT)
GRANDCHILD = session("grandchild", 6, seen_at=10 * DAY, parent=CHILD)

Deed = Callable[[Store], Awaitable[bool]]


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database()


@dataclass
class Meddled:
    """A `Database` on which somebody else does something right after the first rows were found."""

    database: PostgresDatabase
    url: str
    deed: Deed
    came: bool | None = None

    @property
    def where(self) -> str:
        return self.database.where

    async def read(self, work: Work[T]) -> T:
        return await self.database.read(work)

    async def write(self, work: Work[T], *, again: bool) -> T:
        return await self.database.write(lambda rows: work(MeddledRows(rows, self)), again=again)

    async def size_bytes(self) -> int:
        return await self.database.size_bytes()

    async def vacuum(self) -> None:
        await self.database.vacuum()

    async def close(self) -> None:
        await self.database.close()

    def meddle(self) -> None:
        async def done() -> bool:
            async with await open_store(self.url) as other:
                return await self.deed(other)

        if self.came is None:
            self.came = asyncio.run(done())


@dataclass
class MeddledRows:
    rows: Rows
    meddled: Meddled

    def all(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        found = self.rows.all(statement, values)
        if found:
            self.meddled.meddle()
        return found

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        return self.rows.change(statement, values)

    def change_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        return self.rows.change_many(statement, rows)


async def sees_the_child(other: Store) -> bool:
    await other.turns.keep([Move(session=replace(CHILD, seen_at=10 * DAY))])
    return True


async def forks_the_child(other: Store) -> bool:
    await other.turns.keep([Move(session=GRANDCHILD, turns=turns("grandchild", 4, 6))])
    return True


async def comes_to_stand_on_the_child(other: Store) -> bool:
    moved = replace(session("named", 4, seen_at=10 * DAY, parent=CHILD), tip=CHILD.tip)
    await other.turns.keep([Move(session=moved)])
    return True


@pytest.mark.parametrize("deed", [sees_the_child, forks_the_child, comes_to_stand_on_the_child])
async def test_who_is_seen_while_its_parents_are_being_forgotten_keeps_them(url: str, deed: Deed) -> None:
    async with await open_store(url) as store:
        await store.turns.keep([Move(session=PARENT, turns=turns("parent", 0, 2))])
        await store.turns.keep([Move(session=CHILD, turns=turns("child", 2, 4))])
        await store.turns.keep([Move(session=session("named", 2, seen_at=9 * DAY), turns=turns("named", 0, 2))])
        row = fold("of the parent", session_id="parent", boundary=PARENT.tip, at=1 * DAY)
        await store.journal.record(row, FOLDED, lease=None)
        await forget_beside(url, deed)

        for kept in (PARENT, CHILD):
            assert await store.turns.session(kept.id)
        assert len(await store.turns.known(AGENT, [*hashes("parent", 0, 2), *hashes("child", 2, 4)])) == 4
        assert ids(await store.journal.folds(AGENT, [PARENT.tip])) == ["of the parent"]


async def forget_beside(url: str, deed: Deed) -> None:
    database = PostgresDatabase.open(url, wait_seconds=10.0)
    meddled = Meddled(database, url, deed)
    try:
        await forget(meddled, keep_days=5, now=10 * DAY)
    finally:
        await database.close()
    assert meddled.came, "it was kept"
