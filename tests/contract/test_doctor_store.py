"""The doctor's look at a store, the same of both databases: what it says, and that it changes nothing."""

import asyncio
import sqlite3
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec import structs

from foveate.compaction.store import CompactionOutcome
from foveate.cost.caps import list_accounts
from foveate.doctor.findings import Level
from foveate.doctor.store_checks import check_store
from foveate.model import CacheUsage, Usage
from foveate.store import open_store
from tests.contract.test_store_opening import load_dump, run_statements
from tests.support.stores.ledger_records import CALL, NOON, RESERVATION, make_charge, settle_one
from tests.support.stores.records import COMPACTION, FAILED_COMPACTION

Said = list[tuple[Level, str]]


def seen(url: str, now: float = NOON, check: str = "") -> Said:
    return [
        (one.level, f"{one.name} {one.message}")
        for one in check_store(url, now=now).findings
        if one.check != check
    ]


def one_of(found: Said, words: str) -> Level:
    (level,) = [level for level, said in found if words in said]
    return level


async def booked(url: str, agent: str, cache: CacheUsage, *, calls: int, estimated: int, id_: str = "") -> None:
    async with await open_store(url) as store:
        for number in range(calls):
            call = structs.replace(CALL, id=f"{agent}{id_}{number}", agent=agent, at=NOON - 60)
            bill = structs.replace(
                make_charge(call, Decimal("0.01")), usage=Usage(cache=cache), estimated_input_tokens=estimated
            )
            await settle_one(store.ledger, bill, accounts=list_accounts(call))


async def made(url: str) -> None:
    await (await open_store(url)).close()


async def test_a_current_store_is_healthy_and_lists_the_models_called(database_url: str) -> None:
    await booked(database_url, "ana", CacheUsage(uncached=100, read=900), calls=6, estimated=1_000)
    found = check_store(database_url, now=NOON)
    told = seen(database_url)

    assert {one.level for one in found.findings} == {Level.OK}
    assert one_of(told, "ana hit ratio 0.90 in the last hour, of 6 calls: healthy") is Level.OK
    assert one_of(told, "counts are within 0.0% of bills") is Level.OK
    assert found.models == [(CALL.provider, CALL.model)]
    assert found.newest_at == NOON - 60


async def test_agents_without_cache_hits_inaccurate_counters_and_failed_compactions_are_flagged(
    database_url: str,
) -> None:
    await booked(database_url, "bo", CacheUsage(uncached=900, read=100), calls=6, estimated=700)
    await booked(database_url, "new", CacheUsage(uncached=900), calls=2, estimated=900, id_="x")
    async with await open_store(database_url) as store:
        for number in range(3):
            row = replace(
                FAILED_COMPACTION, id=f"f{number}", compacted_at=NOON - 5, outcome=CompactionOutcome.FAILED
            )
            assert await store.compactions.record(row, (), lease=None)
    told = seen(database_url)

    assert one_of(told, "bo hit ratio 0.10") is Level.WARNING
    assert not [said for _, said in told if said.startswith("new hit")], "two calls say nothing"
    assert one_of(told, "counts are within 42.9% of bills") is Level.WARNING
    assert one_of(told, "of 3 folds of the last day 3 failed") is Level.WARNING
    assert not [said for _, said in seen(database_url, now=NOON + 9 * 86_400) if "ratio" in said]


async def test_long_expired_reservations_are_reported(database_url: str) -> None:
    async with await open_store(database_url) as store:
        await store.ledger.reserve(RESERVATION, now=NOON)

    assert one_of(seen(database_url), "1 calls have dollars reserved under caps") is Level.OK
    late = seen(database_url, now=RESERVATION.expires_at + 7_200)
    assert one_of(late, "the oldest ran out 120 minutes ago") is Level.WARNING


@pytest.mark.parametrize("version", ["0001", "0005"])
def test_an_older_store_is_reported_and_not_migrated(bare_database_url: str, version: str) -> None:
    run_statements(bare_database_url, load_dump(version, bare_database_url))

    for _ in ("once", "and again"):
        assert one_of(seen(bare_database_url), f"is of version {version}") is Level.WARNING


async def test_a_store_of_a_newer_version_fails_the_check(database_url: str) -> None:
    await made(database_url)
    run_statements(database_url, "UPDATE foveate_version SET version_num = '9999'")

    assert one_of(seen(database_url), "is of version 9999") is Level.FAILED


def test_an_empty_database_is_fine(bare_database_url: str) -> None:
    run_statements(bare_database_url, "CREATE TABLE somebody_elses (id INTEGER)")

    assert one_of(seen(bare_database_url), "is empty") is Level.OK


def test_a_missing_store_passes_if_it_can_be_created_and_is_not_created(tmp_path: Path) -> None:
    assert one_of(seen(f"sqlite:///{tmp_path}/new/foveate.sqlite"), "none yet") is Level.OK
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    assert one_of(seen(f"sqlite:///{tmp_path}/file/foveate.sqlite"), "cannot be written") is Level.FAILED


def test_files_that_others_can_open_or_that_are_not_databases_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "foveate.sqlite"
    asyncio.run(made(f"sqlite:///{path}"))
    before = sorted(one.name for one in tmp_path.iterdir())
    path.chmod(0o644)
    assert one_of(seen(f"sqlite:///{path}"), "others of this machine may open it (mode 644)") is Level.WARNING
    assert sorted(one.name for one in tmp_path.iterdir()) == before
    path.write_bytes(b"nothing of the kind" * 99)
    assert one_of(seen(f"sqlite:///{path}"), "cannot be opened") is Level.FAILED


def test_a_journal_mode_other_than_wal_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "foveate.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(load_dump("0006", f"sqlite:///{path}"))
    connection.close()
    path.chmod(0o600)

    assert one_of(seen(f"sqlite:///{path}"), "its journal is no WAL") is Level.WARNING


@pytest.mark.parametrize(
    "url", ["mysql://me:secret@host/db", "sqlite:///", "postgresql://me:secret@127.0.0.1:1/n"]
)
def test_an_invalid_store_fails_the_check_without_showing_the_password(url: str) -> None:
    ((level, said),) = seen(url)

    assert level is Level.FAILED
    assert "secret" not in said


async def test_compactions_that_take_longer_than_before_are_reported(database_url: str) -> None:
    async with await open_store(database_url) as store:
        for number in range(12):
            days, seconds = (0.5, 30.0) if number % 2 else (3.0, 4.0)
            row = replace(
                COMPACTION, id=f"f{number}", compacted_at=NOON - days * 86_400, duration_seconds=seconds
            )
            assert await store.compactions.record(row, (), lease=None)
    told = seen(database_url)

    assert one_of(told, "6 folds in the last day, 0 failed") is Level.OK
    assert one_of(told, "folds take up to 30 s today, and took up to 4 s") is Level.WARNING
