"""Alembic environment: runs the migrations on the given connection, within its transaction."""

from alembic import context

from foveate.store.migrate import VERSION_TABLE
from foveate.store.schema import tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=tables,
    version_table=VERSION_TABLE,
    transactional_ddl=True,  # SQLite rolls back tables too
)
context.run_migrations()
