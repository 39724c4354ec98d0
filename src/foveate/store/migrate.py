"""Brings a database's tables to what this Foveate works with.

The libraries for it take a second to load. They are loaded only where there is something to do: which version
the tables have is one statement.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from foveate.errors import StoreTooNew

if TYPE_CHECKING:
    from sqlalchemy import Connection

VERSION_TABLE = "foveate_version"
"""Not Alembic's own name, which another program in the same database may use."""
FIND_VERSION = f"SELECT version_num FROM {VERSION_TABLE}"
VERSIONS = (
    *("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011"),
    *("0012", "0013", "0014"),
)
"""Every version that tables ever had, the oldest first; each is a file in `migrations/versions`."""

_MIGRATIONS = Path(__file__).parent / "migrations"


def needs_migration(version: str | None, *, location: str) -> bool:
    """Whether tables of `version` (None: there are none) have to be migrated.

    Raises:
        StoreTooNew: this Foveate does not know the version.
    """
    if version is not None and version not in VERSIONS:
        raise StoreTooNew(location, version=version, known=VERSIONS[-1])
    return version != VERSIONS[-1]


def migrate(connection: "Connection", *, location: str) -> None:
    """Bring the tables up to date, inside the transaction that `connection` is in.

    It has to hold a lock that keeps others from the same: whoever comes second then finds nothing left to do.

    Raises:
        StoreTooNew: the tables are of a version that this Foveate does not know.
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
