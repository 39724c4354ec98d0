"""Empty stores with current tables, copied from a template: migrating each one takes most of a second."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from foveate.store import open_store
from tests.support.processes.make_once import make_once


def ensure_store(path: Path) -> str:
    """Return the URL of the store in a SQLite file, which is created if it does not exist."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(_template())
    return f"sqlite:///{path}"


@cache
def _template() -> bytes:
    folder = make_once("sqlite", lambda folder: create_tables(f"sqlite:///{folder}/foveate.sqlite"))
    return (folder / "foveate.sqlite").read_bytes()


def create_tables(url: str) -> None:
    """Migrate a new database, in a thread since the caller may have a running event loop."""

    async def open_and_close() -> None:
        await (await open_store(url)).close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(open_and_close())).result()
