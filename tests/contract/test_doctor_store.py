"""The doctor's checks of a store, on both databases: its findings, and that it changes nothing."""

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
from tests.support.stores.database_dumps import load_dump, run_statements
from tests.support.stores.ledger_records import CALL, NOON, RESERVATION, make_charge, settle_one
from tests.support.stores.records import COMPACTION, FAILED_COMPACTION

Findings = list[tuple[Level, str]]


def list_findings(url: str, now: float = NOON, check: str = "") -> Findings:
    return [
        (finding.level, f"{finding.name} {finding.message}")
        for finding in check_store(url, now=now).findings
        if finding.check != check
    ]


def find_level(findings: Findings, text: str) -> Level:
    (level,) = [level for level, message in findings if text in message]
    return level


async def record_calls(
    url: str, agent: str, cache: CacheUsage, *, calls: int, estimated: int, id_: str = ""
) -> None:
    async with await open_store(url) as store:
        for number in range(calls):
            call = structs.replace(CALL, id=f"{agent}{id_}{number}", agent=agent, at=NOON - 60)
            charge = structs.replace(
                make_charge(call, Decimal("0.01")), usage=Usage(cache=cache), estimated_input_tokens=estimated
            )
            await settle_one(store.ledger, charge, accounts=list_accounts(call))


async def create_store(url: str) -> None:
    await (await open_store(url)).close()


async def test_a_current_store_is_healthy_and_lists_the_models_called(database_url: str) -> None:
    await record_calls(database_url, "ana", CacheUsage(uncached=100, read=900), calls=6, estimated=1_000)
    result = check_store(database_url, now=NOON)
    findings = list_findings(database_url)

    assert {finding.level for finding in result.findings} == {Level.OK}
    assert find_level(findings, "ana cache hit ratio 0.90 in the last hour (6 calls): healthy") is Level.OK
    assert find_level(findings, "counts are within 0.0% of reported usage") is Level.OK
    assert result.models == [(CALL.provider, CALL.model)]
    assert result.newest_at == NOON - 60


async def test_agents_without_cache_hits_inaccurate_counters_and_failed_compactions_are_flagged(
    database_url: str,
) -> None:
    await record_calls(database_url, "bo", CacheUsage(uncached=900, read=100), calls=6, estimated=700)
    await record_calls(database_url, "new", CacheUsage(uncached=900), calls=2, estimated=900, id_="x")
    async with await open_store(database_url) as store:
        for number in range(3):
            row = replace(
                FAILED_COMPACTION, id=f"f{number}", compacted_at=NOON - 5, outcome=CompactionOutcome.FAILED
            )
            assert await store.compactions.record(row, (), lease=None)
    findings = list_findings(database_url)

    assert find_level(findings, "bo cache hit ratio 0.10") is Level.WARNING
    assert not [message for _, message in findings if message.startswith("new cache hit")], (
        "two calls are too few"
    )
    assert find_level(findings, "counts are within 42.9% of reported usage") is Level.WARNING
    assert find_level(findings, "3 of 3 compactions failed in the last day") is Level.WARNING
    assert not [
        message for _, message in list_findings(database_url, now=NOON + 9 * 86_400) if "ratio" in message
    ]


async def test_long_expired_reservations_are_reported(database_url: str) -> None:
    async with await open_store(database_url) as store:
        await store.ledger.reserve(RESERVATION, now=NOON)

    assert find_level(list_findings(database_url), "cost reservations of running calls: 1;") is Level.OK
    findings_later = list_findings(database_url, now=RESERVATION.expires_at + 7_200)
    assert find_level(findings_later, "the oldest expired 120 minutes ago") is Level.WARNING


@pytest.mark.parametrize("version", ["0001", "0005"])
def test_an_older_store_is_reported_and_not_migrated(bare_database_url: str, version: str) -> None:
    run_statements(bare_database_url, load_dump(version, bare_database_url))

    for _ in ("once", "and again"):
        assert find_level(list_findings(bare_database_url), f"has version {version}") is Level.WARNING


async def test_a_store_of_a_newer_version_fails_the_check(database_url: str) -> None:
    await create_store(database_url)
    run_statements(database_url, "UPDATE foveate_version SET version_num = '9999'")

    assert find_level(list_findings(database_url), "has version 9999") is Level.FAILED


def test_an_empty_database_is_fine(bare_database_url: str) -> None:
    run_statements(bare_database_url, "CREATE TABLE somebody_elses (id INTEGER)")

    assert find_level(list_findings(bare_database_url), "is empty") is Level.OK


def test_a_missing_store_passes_if_it_can_be_created_and_is_not_created(tmp_path: Path) -> None:
    assert (
        find_level(list_findings(f"sqlite:///{tmp_path}/new/foveate.sqlite"), "there is no database yet")
        is Level.OK
    )
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    assert (
        find_level(list_findings(f"sqlite:///{tmp_path}/file/foveate.sqlite"), "is not writable")
        is Level.FAILED
    )


def test_files_that_others_can_open_or_that_are_not_databases_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "foveate.sqlite"
    asyncio.run(create_store(f"sqlite:///{path}"))
    before = sorted(file.name for file in tmp_path.iterdir())
    path.chmod(0o644)
    assert (
        find_level(list_findings(f"sqlite:///{path}"), "other users can open the database (mode 644)")
        is Level.WARNING
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == before
    path.write_bytes(b"nothing of the kind" * 99)
    assert find_level(list_findings(f"sqlite:///{path}"), "cannot be opened") is Level.FAILED


def test_a_journal_mode_other_than_wal_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "foveate.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(load_dump("0006", f"sqlite:///{path}"))
    connection.close()
    path.chmod(0o600)

    assert find_level(list_findings(f"sqlite:///{path}"), "has no write-ahead log") is Level.WARNING


@pytest.mark.parametrize(
    "url", ["mysql://me:secret@host/db", "sqlite:///", "postgresql://me:secret@127.0.0.1:1/n"]
)
def test_an_invalid_store_fails_the_check_without_showing_the_password(url: str) -> None:
    ((level, message),) = list_findings(url)

    assert level is Level.FAILED
    assert "secret" not in message


async def test_compactions_that_take_longer_than_before_are_reported(database_url: str) -> None:
    async with await open_store(database_url) as store:
        for number in range(12):
            days, seconds = (0.5, 30.0) if number % 2 else (3.0, 4.0)
            row = replace(
                COMPACTION, id=f"f{number}", compacted_at=NOON - days * 86_400, duration_seconds=seconds
            )
            assert await store.compactions.record(row, (), lease=None)
    findings = list_findings(database_url)

    assert find_level(findings, "compactions in the last day: 6 succeeded, 0 failed") is Level.OK
    assert find_level(findings, "compactions take up to 30 s today, and took up to 4 s") is Level.WARNING
