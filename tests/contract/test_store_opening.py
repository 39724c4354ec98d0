"""Opening a store: tables are created and migrated, and unusable databases are rejected."""

import hashlib
import json
import stat
import subprocess
import sys
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec import structs

import foveate.store.migrate
from foveate.cost.caps import list_accounts
from foveate.cost.ledger import AccountOverLimit, Correction
from foveate.errors import BadOption, StoreTooNew, StoreUnavailable
from foveate.formats.response.rate_limits import RateLimit
from foveate.model import ComparisonOutcome, Savings
from foveate.session.rollups import SessionTotals, Totals, TotalsGroup
from foveate.session.store import AnswerRecord, AnswerUpdate, ObservedLimit, SessionUpdate
from foveate.store import PruneResult, Store, default_url, open_store, store_name
from foveate.store.migrate import VERSION_TABLE, VERSIONS
from foveate.store.schema import tables
from tests.support.stores.database_dumps import load_dump, run_statements
from tests.support.stores.ledger_records import CALL, CHARGE, RESERVATION, make_standing, settle_one
from tests.support.stores.postgres import PostgresServer
from tests.support.stores.records import (
    AGENT,
    CALIBRATIONS,
    CLEARED_COMPACTION,
    COMPACTED_MESSAGES,
    COMPACTION,
    COMPACTION_USE,
    FAILED_COMPACTION,
    REUSE,
    STORED_REQUEST,
    TRACE,
    make_session,
    make_turns,
    message_hashes,
)


def test_every_store_has_its_own_name(tmp_path: Path) -> None:
    file, server = f"sqlite:///{tmp_path}/a.sqlite", "postgresql://me:secret@host/name"

    assert store_name(file) == store_name(f"sqlite:///{tmp_path}/../{tmp_path.name}/a.sqlite")
    assert store_name(server) == store_name(server.replace("secret", "another"))
    others = (file.replace("a.", "b."), server, server.replace("host", "host:5433"), f"{server}2")
    assert len({store_name(file), *map(store_name, others)}) == 5
    with pytest.raises(BadOption):
        store_name("postgresql://[host/name")


NOT_COMPARED = Savings(comparison=ComparisonOutcome.EARLIER)
"""Savings of calls that were recorded before calls were compared."""


OPEN_SESSION = structs.replace(
    make_session("begun", 1),
    caller="caller",
    prompt_digest=b"\x00 setting",
    first_messages=1,
    folder="/home/ana/garden",
    opening="Plant the beans",
)
LIMIT = ObservedLimit(
    agent=AGENT,
    provider="anthropic",
    limit=RateLimit(name="5h", used=0.42, resets_at=9_000.5, status="allowed"),
    at=430.0,
)
CORRECTION = Correction(
    id="",
    at=440.0,
    account="agent ana",
    before=CHARGE.dollars,
    after=CHARGE.dollars or Decimal(0),
    reason="\x00 why",
)
ANSWER = AnswerRecord(digest=b"\x00 mark", session_id="begun", tip=OPEN_SESSION.tip, at=420.0)


async def fill_store(store: Store) -> None:
    """Store one row of each kind, as in the dumps of released versions."""
    await store.sessions.save([SessionUpdate(session=make_session("s", 4), turns=make_turns("s", 0, 4))])
    await store.sessions.save(
        [
            SessionUpdate(
                session=make_session("fork", 6, parent=make_session("s", 4)), turns=make_turns("fork", 4, 6)
            )
        ]
    )
    await store.sessions.save_counts(AGENT, {message_hashes("s", 0, 1)[0]: b"\x00 7"}, "o200k")
    lease = await store.compactions.acquire_lease("s", "me", ttl_seconds=300, now=1000.0)
    assert await store.compactions.record(COMPACTION, COMPACTED_MESSAGES, lease=lease)
    assert await settle_one(store.ledger, CHARGE, accounts=list_accounts(CALL))
    assert not isinstance(await store.ledger.reserve(RESERVATION, now=CALL.at), AccountOverLimit)
    assert await store.compactions.record(FAILED_COMPACTION, (), lease=None)
    assert await store.compactions.record(CLEARED_COMPACTION, (), lease=None)
    await store.compactions.record_application_changes([COMPACTION_USE])
    assert await store.request_archive.save(STORED_REQUEST)
    await store.traces.save([TRACE])
    await store.calibrations.save(CALIBRATIONS, now=400.0)
    await store.prefix_reuse.save(REUSE, now=410.0)
    await store.sessions.save([SessionUpdate(session=OPEN_SESSION), AnswerUpdate(rows=[ANSWER])])
    await store.rate_limits.save([LIMIT])
    await store.corrections.correct_account(
        CORRECTION.account, CORRECTION.after, reason=CORRECTION.reason, at=CORRECTION.at
    )


async def check_filled(store: Store, *, version: str = VERSIONS[-1]) -> None:
    """Check that everything a version could store is there."""
    assert await store.sessions.get_session("s") == make_session("s", 4)
    assert await store.sessions.get_session("fork") == make_session("fork", 6, parent=make_session("s", 4))
    assert (
        len(await store.sessions.find_turns(AGENT, [*message_hashes("s", 0, 4), *message_hashes("fork", 4, 6)]))
        == 6
    )
    assert await store.sessions.get_counts(AGENT, message_hashes("s", 0, 4), "o200k") == {
        message_hashes("s", 0, 1)[0]: b"\x00 7"
    }
    assert await store.compactions.find_compactions(AGENT, [COMPACTION.boundary]) == [COMPACTION]
    assert await store.compactions.load_messages(COMPACTION.id) == list(COMPACTED_MESSAGES)
    assert await store.compactions.acquire_lease("s", "other", ttl_seconds=300, now=1000.0) is None
    if version >= "0003":
        expected = CHARGE if version >= "0011" else structs.replace(CHARGE, savings=NOT_COMPARED)
        assert [charge async for charge in store.ledger.list_charges()] == [expected]
        assert CHARGE.dollars
        balance = make_standing(CHARGE.dollars, RESERVATION.dollars)
        assert await store.ledger.get_balances(["total", "agent ana"], now=CALL.at) == {
            "total": balance,
            "agent ana": balance,
        }
        await check_totals(store, is_traced=version >= "0006", is_compared=version >= "0011")
    if version >= "0005":
        assert await store.compactions.get_compaction(FAILED_COMPACTION.id) == FAILED_COMPACTION
        assert await store.compactions.list_application_changes([COMPACTION.id]) == [COMPACTION_USE]
        assert await store.request_archive.get(STORED_REQUEST.id) == STORED_REQUEST
    if version >= "0006":
        traced = await store.traces.get(TRACE.id)
        assert traced is not None
        assert traced.trace == TRACE
        assert traced.charge is not None
        assert traced.charge.dollars == CHARGE.dollars
    assert await store.calibrations.load_latest(limit=9) == (CALIBRATIONS if version >= "0009" else {})
    assert await store.prefix_reuse.load(since=0.0, limit=9) == (REUSE if version >= "0010" else {})
    assert await store.sessions.get_session("begun") == (OPEN_SESSION if version >= "0012" else None)
    assert await store.sessions.find_answers([ANSWER.digest]) == (
        [(ANSWER, OPEN_SESSION)] if version >= "0012" else []
    )
    assert await store.rate_limits.find_recent(since=0.0) == ([LIMIT] if version >= "0013" else [])
    corrections = await store.corrections.find()
    assert [replace(correction, id="") for correction in corrections] == (
        [CORRECTION] if version >= "0014" else []
    )
    assert await store.compactions.get_compaction(CLEARED_COMPACTION.id) == (
        CLEARED_COMPACTION if version >= "0015" else None
    )


async def check_totals(store: Store, *, is_traced: bool, is_compared: bool) -> None:
    """Check that the totals match the stored rows, including those from before totals existed."""
    totals = Totals(
        requests=int(is_traced),
        added_seconds=0.0021 if is_traced else 0.0,
        cache_misses=int(is_traced),
        lost_tokens=3_000 if is_traced else 0,
        lost_dollars=Decimal("0.0123") if is_traced else Decimal(0),
        calls=1,
        cache=CHARGE.usage.cache,
        output_tokens=CHARGE.usage.output_tokens,
        dollars=CHARGE.dollars or Decimal(0),
    )
    if is_compared:
        totals = replace(
            totals,
            compared=1,
            without=Decimal("0.214"),
            saved_by_breakpoints=Decimal("0.153"),
            saved_by_compaction=Decimal("-0.000000000001"),
            simulation_error=Decimal("0.00023456789"),
        )
    assert await store.totals.sum_totals() == [((), totals)]
    hours = [hour for (hour,), _ in await store.totals.sum_totals([TotalsGroup.HOUR])]
    assert hours == ["1970-01-01T00"] * is_traced + ["2026-11-15T12"]
    assert [day for (day,), _ in await store.totals.sum_totals([TotalsGroup.DAY])] == [
        hour[:10] for hour in hours
    ]
    assert await store.totals.list_sessions(limit=9) == [
        SessionTotals(
            session_id="s",
            agent=AGENT,
            model=CALL.model,
            first_at=TRACE.at if is_traced else CALL.at,
            last_at=CALL.at,
            tokens=TRACE.tokens if is_traced else None,
            window_tokens=TRACE.window_tokens if is_traced else None,
            totals=totals,
        )
    ]


async def test_a_current_database_returns_what_was_stored(bare_database_url: str) -> None:
    async with await open_store(bare_database_url) as store:
        await fill_store(store)
        await check_filled(store)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_database_of_any_released_version_is_migrated_with_all_its_data(
    bare_database_url: str, version: str
) -> None:
    run_statements(bare_database_url, load_dump(version, bare_database_url))

    async with await open_store(bare_database_url) as store:
        await check_filled(store, version=version)
        fork = make_session("fork", 6, parent=make_session("s", 4), seen_at=1e9)
        await store.sessions.save(
            [SessionUpdate(session=fork), SessionUpdate(session=structs.replace(OPEN_SESSION, seen_at=1e9))]
        )
        assert await store.prune(keep_days=1, now=1e9) == PruneResult(), "the fork depends on the other session"


@pytest.mark.parametrize("version", [None, *VERSIONS])
async def test_migrations_from_any_version_produce_the_tables_of_the_schema(
    bare_database_url: str, version: str | None
) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from sqlalchemy import create_engine, inspect

    if version is not None:
        run_statements(bare_database_url, load_dump(version, bare_database_url))
    await (await open_store(bare_database_url)).close()

    engine = create_engine(bare_database_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "version_table": VERSION_TABLE}
        )
        assert compare_metadata(context, tables) == []
        assert context.get_current_revision() == VERSIONS[-1]
        # Alembic does not compare primary keys and SQLite's table layout.
        for name, table in tables.tables.items():
            keys = inspect(connection).get_pk_constraint(name)["constrained_columns"]
            assert keys == [column.name for column in table.primary_key], name
            if bare_database_url.startswith("sqlite"):
                created = connection.exec_driver_sql("SELECT sql FROM sqlite_schema WHERE name = ?", (name,))
                has_rowid = "WITHOUT ROWID" not in created.scalar_one()
                assert has_rowid == table.dialect_options["sqlite"]["with_rowid"], name
    engine.dispose()


MIGRATIONS = {
    "v0001_sessions_and_compactions.py": "6c446517839ce4ca",
    "v0002_compaction_chains.py": "11abb947dbcabcdc",
    "v0003_ledger.py": "d2c79f64f23534ef",
    "v0004_session_parents.py": "29b25729658eeba1",
    "v0005_request_archive.py": "86f19e542afdceb4",
    "v0006_traces.py": "25d605cbf5ce744c",
    "v0007_totals.py": "98a2c1aad5e7a809",
    "v0008_cache_miss_index.py": "8a6ef38b5971006a",
    "v0009_calibration.py": "7ce7eabd9a384a9b",
    "v0010_prefix_reuse.py": "0bfa0bc0161b7e40",
    "v0011_savings.py": "5177a1798db177bd",
    "v0012_session_callers.py": "6429d52b99b1d236",
    "v0013_subscriptions.py": "f6d194b5bf0b0744",
    "v0014_possible_charges.py": "e3727e23a59e0983",
    "v0015_edit_decisions.py": "5b2a92279134a41e",
}


def test_released_migrations_never_change() -> None:
    """Databases have already run them; a change needs another migration.

    The hashes were renewed once, when names and docstrings in the files were rewritten; the SQL did not change.
    """
    folder = Path(foveate.store.migrate.__file__).parent / "migrations" / "versions"
    hashes = {file.name: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in folder.glob("v*.py")}

    assert hashes == MIGRATIONS


def test_every_version_has_a_migration_in_order() -> None:
    from alembic.script import ScriptDirectory

    folder = Path(foveate.store.migrate.__file__).parent / "migrations"
    revisions = [script.revision for script in ScriptDirectory(str(folder)).walk_revisions()]

    assert revisions[::-1] == list(VERSIONS)


async def test_a_database_of_a_newer_version_is_rejected_and_unchanged(bare_database_url: str) -> None:
    async with await open_store(bare_database_url) as store:
        await fill_store(store)
    run_statements(bare_database_url, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")

    with pytest.raises(StoreTooNew, match="newer Foveate") as raised:
        await open_store(bare_database_url)

    assert (raised.value.version, raised.value.known) == ("9999", VERSIONS[-1])
    run_statements(bare_database_url, f"UPDATE {VERSION_TABLE} SET version_num = '{VERSIONS[-1]}'")
    async with await open_store(bare_database_url) as store:
        await check_filled(store)


async def test_an_interrupted_migration_is_rolled_back(bare_database_url: str) -> None:
    # The last table of the migration already exists and belongs to another program.
    run_statements(bare_database_url, "CREATE TABLE compaction_locks_v1 (whose TEXT)")

    with pytest.raises(StoreUnavailable, match="compaction_locks_v1"):
        await open_store(bare_database_url)

    run_statements(bare_database_url, "DROP TABLE compaction_locks_v1")
    async with await open_store(bare_database_url) as store:
        await fill_store(store)


async def test_a_closed_store_raises_an_error(bare_database_url: str) -> None:
    store = await open_store(bare_database_url)
    await store.close()

    with pytest.raises(StoreUnavailable, match="is closed"):
        await store.sessions.get_session("s")
    with pytest.raises(StoreUnavailable, match="is closed"):
        await store.compactions.acquire_lease("s", "me", ttl_seconds=1, now=1)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "foveate.sqlite",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "mysql://me:secret@host/db",
        "postgresql:",
    ],
)
async def test_an_invalid_url_is_rejected_without_showing_the_password(url: str) -> None:
    with pytest.raises(BadOption, match="sqlite:///path") as raised:
        await open_store(url or "x")

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@[::1/db",
        "postgresql://h/db?nope=secret",
    ],
)
async def test_a_malformed_server_url_is_rejected_without_showing_the_password(url: str) -> None:
    with pytest.raises(BadOption, match="PostgreSQL") as raised:
        await open_store(url)

    assert "secret" not in str(raised.value)


async def test_the_error_for_an_unreachable_server_omits_the_password() -> None:
    with pytest.raises(StoreUnavailable, match="refused") as raised:
        await open_store("postgresql://me:secret@127.0.0.1:1/notes", wait_seconds=0.3)

    assert raised.value.where == "postgresql://127.0.0.1:1/notes"
    assert "secret" not in str(raised.value)


async def test_the_error_for_a_missing_database_names_it(postgres: PostgresServer) -> None:
    started = time.monotonic()

    with pytest.raises(StoreUnavailable, match='"nowhere" does not exist'):
        await open_store(postgres.server.get_uri("nowhere"), wait_seconds=60.0)

    assert time.monotonic() - started < 30  # immediately: it would not appear later


async def test_a_user_without_permission_to_create_tables_gets_an_error(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    run_statements(
        url,
        "DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN; REVOKE ALL ON SCHEMA public FROM PUBLIC, guest",
    )

    with pytest.raises(StoreUnavailable, match=r"permission denied|no schema has been selected"):
        await open_store(url.replace("//postgres:@", "//guest@"))


def test_the_default_store_is_a_file_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOVEATE_HOME", str(tmp_path))

    assert default_url() == f"sqlite:///{tmp_path}/foveate.sqlite"


async def test_a_new_file_is_private_to_its_owner_and_its_folders_are_created(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder with ? & # 100% ü" / "foveate.sqlite"
    async with await open_store(f"sqlite:///{path}") as store:
        await fill_store(store)
        modes = [stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()]

        assert len(modes) == 5  # with SQLite's two files, and two lock files of the writer queue
        assert set(modes) == {0o600}


OPEN_AND_LIST_MODULES = """
import asyncio, json, sys
from foveate.store import open_store
async def main():
    async with await open_store(sys.argv[1]) as store:
        await store.compactions.list_compactions()
asyncio.run(main())
print(json.dumps([name for name in ("numpy", "sqlalchemy", "alembic", "psycopg") if name in sys.modules]))
"""


@pytest.mark.process
def test_opening_a_current_database_imports_only_the_driver(bare_database_url: str) -> None:
    loaded = [
        subprocess.run(
            [sys.executable, "-c", OPEN_AND_LIST_MODULES, bare_database_url],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in ("made", "up to date")
    ]

    assert "alembic" in loaded[0]
    assert json.loads(loaded[1]) == ([] if bare_database_url.startswith("sqlite") else ["psycopg"])
