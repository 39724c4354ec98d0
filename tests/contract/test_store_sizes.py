"""Opening without creating, sizes, and previews of pruning, on both databases."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as with_changes

from foveate.errors import BadOption, NothingKept, StoreUnavailable
from foveate.session.store import Session, SessionUpdate
from foveate.store import PrunePreview, Store, StoreSizes, default_url, open_store
from foveate.store.database import TABLES
from foveate.store.migrate import VERSIONS
from foveate.store.schema import tables
from tests.support.harness.example_limits import limit_examples
from tests.support.stores.database_dumps import sqlite_path
from tests.support.stores.records import (
    COMPACTED_MESSAGES,
    make_compaction,
    make_session,
    make_turns,
    message_hashes,
)

DAY = 86_400.0


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        yield opened


def table_names(url: str) -> list[str]:
    """Return the tables, read directly from the database."""
    if url.startswith("sqlite"):
        if not sqlite_path(url).exists():
            return []
        connection = sqlite3.connect(sqlite_path(url))
        rows = connection.execute("SELECT name FROM sqlite_schema").fetchall()
        connection.close()
    else:
        with psycopg.connect(url) as server:
            rows = server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    return [name for (name,) in rows]


async def test_opening_without_create_creates_nothing(bare_database_url: str) -> None:
    with pytest.raises(NothingKept, match="no data has been stored here yet"):
        await open_store(bare_database_url, create=False)

    assert table_names(bare_database_url) == []
    if bare_database_url.startswith("sqlite"):
        assert not sqlite_path(bare_database_url).parent.exists()


async def test_opening_without_create_finds_an_existing_store(database_url: str) -> None:
    async with await open_store(database_url) as store:
        await store.compactions.record(make_compaction("f"), COMPACTED_MESSAGES, lease=None)

    async with await open_store(database_url, create=False) as store:
        assert await store.compactions.load_messages("f") == list(COMPACTED_MESSAGES)


@pytest.mark.parametrize("statement", ["", "CREATE TABLE notes (text)"], ids=["empty", "somebody else's"])
async def test_a_file_without_foveate_tables_is_unchanged(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "notes.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(statement)
    connection.close()
    path.touch()
    before = path.read_bytes()

    with pytest.raises(NothingKept):
        await open_store(f"sqlite:///{path}", create=False)

    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["notes.sqlite"]  # noqa: PTH208


async def test_opening_a_file_that_is_not_a_database_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but a text that is long enough to be read as one")

    with pytest.raises(StoreUnavailable, match="not an SQLite database") as error:
        await open_store(f"sqlite:///{tmp_path / 'notes.txt'}", create=False)
    assert not isinstance(error.value, NothingKept)
    with pytest.raises(StoreUnavailable, match="directory"):
        await open_store(f"sqlite:///{tmp_path}", create=False)


async def test_the_environment_variable_sets_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEATE_STORE", f"sqlite:///{tmp_path}/mine.sqlite")

    assert default_url() == f"sqlite:///{tmp_path}/mine.sqlite"
    async with await open_store() as store:
        assert store.location == f"{tmp_path}/mine.sqlite"


def test_the_table_names_match_the_schema() -> None:
    assert list(TABLES) == list(tables.tables)


async def test_the_location_of_a_store_omits_the_password(store: Store, database_url: str) -> None:
    if database_url.startswith("sqlite"):
        assert store.location == str(sqlite_path(database_url))
    else:
        assert store.location.startswith("postgresql://")
        assert "@" not in store.location


async def test_sizes_count_what_is_stored(store: Store) -> None:
    empty = await store.sizes()
    await store.sessions.save([SessionUpdate(session=make_session("s", 4), turns=make_turns("s", 0, 4))])
    await store.compactions.record(make_compaction("f"), [bytes(100_000)] * 5, lease=None)

    full = await store.sizes()

    assert empty == StoreSizes(
        where=store.location,
        version=VERSIONS[-1],
        sessions=0,
        turns=0,
        folds=0,
        folded=0,
        size_bytes=empty.size_bytes,
    )
    assert (full.sessions, full.turns, full.folds, full.folded) == (1, 4, 1, 5)
    if store.location.startswith("postgresql"):  # which compresses its pages
        assert full.size_bytes > empty.size_bytes > 0
    else:
        assert full.size_bytes > empty.size_bytes + 500_000


async def test_ids_are_found_by_prefix(store: Store) -> None:
    for number, id_ in enumerate(("abc1", "abc2", "abd", "a%", "a_", "Äb", "ab")):
        await store.compactions.record(make_compaction(id_, session_id=f"s{number % 2}{id_}"), (), lease=None)

    assert await store.find_compaction_ids("ab", limit=9) == ["ab", "abc1", "abc2", "abd"]
    assert await store.find_compaction_ids("abc", limit=1) == ["abc1"]
    assert await store.find_compaction_ids("a%", limit=9) == ["a%"]
    assert await store.find_compaction_ids("a_", limit=9) == ["a_"]
    assert await store.find_compaction_ids("Ä", limit=9) == ["Äb"]
    assert await store.find_compaction_ids("' OR 1=1 --", limit=9) == []
    assert await store.find_compacted_session_ids("s1a", limit=9) == ["s1a%", "s1abc2"]
    with pytest.raises(BadOption, match="NUL"):
        await store.find_compaction_ids("\0", limit=9)


async def test_a_session_with_several_compactions_is_found_once(store: Store) -> None:
    for id_ in ("one", "two"):
        await store.compactions.record(make_compaction(id_, session_id="same"), (), lease=None)

    assert await store.find_compacted_session_ids("", limit=9) == ["same"]


@pytest.mark.slow
@settings(max_examples=limit_examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    family=st.lists(st.tuples(st.none() | st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=8),
    orphans=st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=4),
    boundaries=st.lists(st.integers(0, 9), min_size=12, max_size=12),
    undone_days=st.lists(st.integers(0, 9), max_size=6),
)
@example(family=[(None, 0, False)], orphans=[(0, False)], boundaries=[0] * 12, undone_days=[])
def test_the_preview_always_matches_what_pruning_deletes(
    database_url: str,
    family: list[tuple[int | None, int, bool]],
    orphans: list[tuple[int, bool]],
    boundaries: list[int],
    undone_days: list[int],
) -> None:
    """Sessions have a parent or none, the day of their last request, and whether they are being compacted.

    Each has a compaction that ends with a turn of any session, or of none. There are also orphaned compactions
    and chains of compactions, each undone on some day.
    """
    ends = [message_hashes(f"s{number}", 1, 2)[0] for number in boundaries]

    async def check() -> None:
        async with await open_store(database_url) as store:
            sessions: list[Session] = []
            for number, (parent, _, is_leased) in enumerate(family):
                parent_session = sessions[parent % len(sessions)] if parent is not None and sessions else None
                sessions.append(make_session(f"s{number}", 2, seen_at=0.0, parent=parent_session))
                await store.sessions.save(
                    [SessionUpdate(session=sessions[-1], turns=make_turns(f"s{number}", 0, 2))]
                )
                compaction = make_compaction(f"f{number}", session_id=f"s{number}", boundary=ends[number])
                await store.compactions.record(compaction, COMPACTED_MESSAGES, lease=None)
                if is_leased:
                    await store.compactions.acquire_lease(f"s{number}", "me", ttl_seconds=300, now=10 * DAY)
            for session, (_, day, _) in zip(sessions, family, strict=True):
                await store.sessions.save(
                    [SessionUpdate(session=with_changes(session, seen_at=day * DAY), turns=[])]
                )
            for number, (day, is_leased) in enumerate(orphans):
                orphan = make_compaction(
                    f"stray{number}", session_id=f"x{number}", boundary=ends[-1 - number], at=day * DAY
                )
                await store.compactions.record(orphan, COMPACTED_MESSAGES, lease=None)
                if is_leased:
                    await store.compactions.acquire_lease(f"x{number}", "me", ttl_seconds=300, now=10 * DAY)
            for number, day in enumerate(undone_days):
                earlier = f"u{number - 1}" if number else None
                undone = replace(
                    make_compaction(f"u{number}", session_id="s0"), messages=number + 1, earlier_id=earlier
                )
                await store.compactions.record(undone, (b"m",), lease=None)
                if day:
                    await store.compactions.undo(undone.id, now=day * DAY)
            before = await store.sizes()

            preview = await store.preview_prune(keep_days=5, now=10 * DAY)

            # PostgreSQL's own vacuum may grow the files of a table.
            now = replace(await store.sizes(), size_bytes=before.size_bytes)
            assert now == before, "a preview changes nothing"
            pruned = await store.prune(keep_days=5, now=10 * DAY)
            deleted_messages = before.folded - (await store.sizes()).folded
            assert PrunePreview(folded=deleted_messages, **asdict(pruned)) == preview
            assert await store.preview_prune(keep_days=5, now=10 * DAY) == PrunePreview()
            await store.prune(keep_days=1, now=20 * DAY)  # for the next example
            assert (await store.sizes()).folds == 0

    asyncio.run(check())
