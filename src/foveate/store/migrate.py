"""Migrates the tables of a database to the current version.

Alembic and SQLAlchemy take a second to import, so they are only imported if there is something to migrate. One
statement reads the version.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from foveate.errors import StoreTooNew

if TYPE_CHECKING:
    from sqlalchemy import Connection

VERSION_TABLE = "foveate_version"
"""Not Alembic's default, which another program in the same database may use."""
FIND_VERSION = f"SELECT version_num FROM {VERSION_TABLE}"
VERSIONS = (
    *("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011"),
    *("0012", "0013", "0014", "0015"),
)
"""All versions, oldest first; each is a file in `migrations/versions`."""

_MIGRATIONS = Path(__file__).parent / "migrations"


def needs_migration(version: str | None, *, location: str) -> bool:
    """Return whether tables of `version` must be migrated; None means that there are no tables.

    Raises:
        StoreTooNew: this version of Foveate does not know the version.
    """
    if version is not None and version not in VERSIONS:
        raise StoreTooNew(location, version=version, known=VERSIONS[-1])
    return version != VERSIONS[-1]


def migrate(connection: "Connection", *, location: str) -> None:
    """Migrate the tables within the transaction of `connection`.

    The caller must hold a lock that keeps other processes from migrating; the second one then finds nothing to
    do.

    Raises:
        StoreTooNew: this version of Foveate does not know the version of the tables.
    """
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import inspect

    has_version_table = inspect(connection).has_table(VERSION_TABLE)
    if needs_migration(
        connection.exec_driver_sql(FIND_VERSION).scalar() if has_version_table else None, location=location
    ):
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
