"""What Alembic runs: the migrations, on the connection and inside the transaction that it was handed."""

from alembic import context

from foveate.store.migrate import VERSION_TABLE
from foveate.store.schema import tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=tables,
    version_table=VERSION_TABLE,
    transactional_ddl=True,  # on SQLite too: its tables come and go with the transaction
)
context.run_migrations()
