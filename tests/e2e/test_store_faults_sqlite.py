"""An SQLite file that is locked, full, read-only, damaged or deleted: clear errors, and no partial writes."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import NoneType

import pytest

from foveate.errors import StoreUnavailable
from foveate.session.store import SessionUpdate
from foveate.store import Store, open_store
from foveate.store.database import Transaction
from foveate.store.sqlite import SQLiteDatabase
from tests.support.oracles.intact_store import (
    LARGE_MESSAGES,
    check_confirmed,
    check_intact,
    create_store,
    fill_disk,
)
from tests.support.processes.sqlite_lock import locked_by_another_process
from tests.support.stores.records import (
    AGENT,
    COMPACTION,
    make_session,
    make_turns,
    message_hashes,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "foveate.sqlite"


@pytest.mark.process
def test_a_file_that_stays_locked_is_reported_in_time_and_can_still_be_read(path: Path) -> None:
    async def use_store() -> None:
        async with await open_store(f"sqlite:///{path}", wait_seconds=0.3) as store:
            with locked_by_another_process(path):
                started = time.monotonic()
                writes = [
                    store.sessions.save(
                        [SessionUpdate(session=make_session(f"s{n}", 2), turns=make_turns(f"s{n}", 0, 2))]
                    )
                    for n in range(50)
                ]
                errors = await asyncio.gather(*writes, return_exceptions=True)

                assert {str(error) for error in errors} == {
                    f"{path}: is locked by another process (database is locked)"
                }
                assert all(isinstance(error, StoreUnavailable) for error in errors)
                assert time.monotonic() - started < 10  # concurrently, not one after the other
                assert await store.sessions.get_session("before")
            await check_intact(store)
            assert await store.sessions.get_session("s0") is None

    asyncio.run(create_store(path))
    asyncio.run(use_store())


def test_any_number_of_readers_of_a_locked_file_get_an_error_in_time(path: Path) -> None:
    async def use_store() -> None:
        async with await open_store(f"sqlite:///{path}", wait_seconds=1.0) as store:
            connection = sqlite3.connect(path, isolation_level=None)
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("BEGIN EXCLUSIVE")
            started = time.monotonic()
            reads = [store.sessions.get_session(f"s{number}") for number in range(60)]
            errors = await asyncio.gather(*reads, return_exceptions=True)
            seconds = time.monotonic() - started
            connection.close()

            assert {type(error) for error in errors} == {StoreUnavailable}
            assert seconds < 8  # in sequential groups it would be 15
            await check_intact(store)

    asyncio.run(create_store(path))
    asyncio.run(use_store())


@pytest.mark.process
def test_writers_wait_for_a_briefly_locked_file(path: Path) -> None:
    async def use_store() -> None:
        async with await open_store(f"sqlite:///{path}", wait_seconds=30.0) as store:
            with locked_by_another_process(path) as process:
                write = asyncio.ensure_future(
                    store.sessions.save(
                        [SessionUpdate(session=make_session("s", 2), turns=make_turns("s", 0, 2))]
                    )
                )
                await asyncio.sleep(0.2)
                assert not write.done()
                process.kill()
                await write

    asyncio.run(create_store(path))
    asyncio.run(use_store())


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A small disk, if this machine allows mounting one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "foveate-test", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here: only root can do that")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.process
def test_a_full_disk_loses_nothing_and_writes_continue_once_there_is_space(tmp_path: Path) -> None:
    async def use_store(disk: Path) -> None:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(3_000_000))
        await create_store(disk / "foveate.sqlite")
        async with await open_store(f"sqlite:///{disk / 'foveate.sqlite'}") as store:
            confirmed = await fill_disk(store)
            await check_confirmed(store, confirmed)
            ballast.unlink()
            await check_intact(store)
        async with await open_store(f"sqlite:///{disk / 'foveate.sqlite'}") as store:
            await check_confirmed(store, confirmed)

    with small_disk(tmp_path / "disk", 10) as disk:
        asyncio.run(use_store(disk))


SIZE_LIMIT_SCRIPT = """
import asyncio, resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.support.oracles.intact_store import check_confirmed, create_store, fill_disk
from foveate.store import open_store

async def use(path):
    await create_store(path)
    async with await open_store(f"sqlite:///{path}") as store:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, resource.RLIM_INFINITY))
        confirmed = await fill_disk(store)
        await check_confirmed(store, confirmed)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert await store.compactions.undo(confirmed[0], now=300.0)

asyncio.run(use(Path(sys.argv[1])))
"""


@pytest.mark.process
def test_a_file_at_its_size_limit_loses_nothing(path: Path, root: Path) -> None:
    """Like a full disk, but without mounting one."""
    result = subprocess.run(
        [sys.executable, "-c", SIZE_LIMIT_SCRIPT, str(path), str(root)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr[-3000:]


def test_a_failed_job_does_not_affect_others_in_its_transaction(path: Path) -> None:
    class JobError(Exception):
        pass

    def fail(rows: Transaction) -> None:
        rows.execute("DELETE FROM sessions_v1")
        raise JobError

    async def use_store() -> None:
        database = SQLiteDatabase.open(path, wait_seconds=5.0)
        store = Store(database)
        valid_jobs = [
            store.sessions.save(
                [SessionUpdate(session=make_session(f"s{n}", 2), turns=make_turns(f"s{n}", 0, 2))]
            )
            for n in range(40)
        ]
        failing_jobs = [database.write(fail, is_idempotent=True) for _ in range(10)]
        jobs = [job for pair in zip(valid_jobs[:10], failing_jobs, strict=True) for job in pair] + valid_jobs[
            10:
        ]

        results = await asyncio.gather(*jobs, return_exceptions=True)

        assert [type(result) for result in results] == [NoneType, JobError] * 10 + [NoneType] * 30
        for number in range(40):
            assert await store.sessions.get_session(f"s{number}")
        await store.close()

    asyncio.run(create_store(path))
    asyncio.run(use_store())


def test_cancelled_callers_do_not_affect_others(path: Path) -> None:
    async def use_store() -> None:
        async with await open_store(f"sqlite:///{path}") as store:
            jobs = [
                asyncio.ensure_future(
                    store.sessions.save(
                        [SessionUpdate(session=make_session(f"s{n}", 2), turns=make_turns(f"s{n}", 0, 2))]
                    )
                )
                for n in range(40)
            ]
            await asyncio.sleep(0)
            for job in jobs[::2]:
                job.cancel()
            async with asyncio.timeout(60):
                results = await asyncio.gather(*jobs, return_exceptions=True)
            assert results[1::2] == [None] * 20
            await check_intact(store)

    asyncio.run(create_store(path))
    asyncio.run(use_store())


def test_a_deleted_file_is_reported_and_not_recreated(path: Path) -> None:
    async def use_store() -> None:
        async with await open_store(f"sqlite:///{path}") as store:
            for file in path.parent.iterdir():
                file.unlink()
            with pytest.raises(StoreUnavailable, match="was deleted or replaced"):
                await store.sessions.get_session("before")
            with pytest.raises(StoreUnavailable, match="was deleted or replaced"):
                await store.sessions.save(
                    [SessionUpdate(session=make_session("s", 2), turns=make_turns("s", 0, 2))]
                )

    asyncio.run(create_store(path))
    asyncio.run(use_store())
    assert not path.exists()


def test_a_store_can_be_used_from_several_event_loops(path: Path) -> None:
    store = asyncio.run(open_store(f"sqlite:///{path}"))

    for number in range(3):
        name = f"s{number}"
        asyncio.run(
            store.sessions.save([SessionUpdate(session=make_session(name, 2), turns=make_turns(name, 0, 2))])
        )

    asyncio.run(store.close())


@pytest.mark.parametrize(
    "content",
    [b"this is no database at all, but a long enough text" * 100, b"SQLite format 3\0" + b"\xff" * 5000],
)
def test_a_file_that_is_not_a_database_is_reported_and_unchanged(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    with pytest.raises(StoreUnavailable, match="not an SQLite database, or is damaged") as raised:
        asyncio.run(open_store(f"sqlite:///{path}"))

    assert raised.value.where == str(path)
    assert path.read_bytes() == content


def test_a_damaged_file_is_reported_when_the_damaged_part_is_read(path: Path) -> None:
    async def fill_store() -> None:
        async with await open_store(f"sqlite:///{path}") as store:
            await store.compactions.record(COMPACTION, LARGE_MESSAGES, lease=None)
            await store.vacuum()

    asyncio.run(fill_store())
    with path.open("r+b") as file:  # all but the schema pages
        size = path.stat().st_size
        file.seek(size // 2)
        file.write(b"\xaa" * (size - size // 2))

    async def use_store() -> None:
        async with await open_store(f"sqlite:///{path}") as store:
            with pytest.raises(StoreUnavailable, match="damaged"):
                await store.compactions.load_messages(COMPACTION.id)

    asyncio.run(use_store())


@pytest.mark.process
def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        asyncio.run(create_store(disk / "foveate.sqlite"))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)

        with pytest.raises(StoreUnavailable, match="Read-only file system"):
            asyncio.run(open_store(f"sqlite:///{disk / 'foveate.sqlite'}"))
        with pytest.raises(StoreUnavailable, match="Read-only file system"):
            asyncio.run(open_store(f"sqlite:///{disk / 'new' / 'foveate.sqlite'}"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_a_file_of_another_user_is_reported(path: Path) -> None:
    asyncio.run(create_store(path))
    path.chmod(0o400)

    with pytest.raises(StoreUnavailable, match="Permission denied"):
        asyncio.run(open_store(f"sqlite:///{path}"))


def test_a_path_that_is_a_folder_or_below_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StoreUnavailable, match="Is a directory"):
        asyncio.run(open_store(f"sqlite:///{tmp_path}"))
    with pytest.raises(StoreUnavailable, match=r"Not a directory|File exists"):
        asyncio.run(open_store(f"sqlite:///{tmp_path / 'file' / 'foveate.sqlite'}"))


def test_a_file_changed_by_another_program_is_reported(path: Path) -> None:
    asyncio.run(create_store(path))
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE turns_v1")
    connection.close()

    async def use_store() -> None:
        async with await open_store(f"sqlite:///{path}") as store:
            with pytest.raises(StoreUnavailable, match="no such table: turns_v1"):
                await store.sessions.find_turns(AGENT, message_hashes("before", 0, 2))
            assert await store.sessions.get_session("before")

    asyncio.run(use_store())


@pytest.mark.parametrize("count", [1, 3])
async def test_a_disk_error_is_reported_as_one_even_with_concurrent_writes(path: Path, count: int) -> None:
    """Regression: charges that were written together were taken for invalid ones, and lost."""
    database = SQLiteDatabase.open(path, wait_seconds=5)

    def fail(_: Transaction) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    try:
        earlier_write = asyncio.ensure_future(database.write(lambda _: time.sleep(0.1), is_idempotent=True))
        await asyncio.sleep(0.02)
        writes = (database.write(fail, is_idempotent=True) for _ in range(count))
        results = await asyncio.gather(*writes, return_exceptions=True)
        await earlier_write
        assert await database.write(lambda _: "kept", is_idempotent=True) == "kept"
    finally:
        await database.close()

    assert [type(error) for error in results] == [StoreUnavailable] * count
