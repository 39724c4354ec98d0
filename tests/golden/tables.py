"""Tables, columns and indexes of the store."""

import asyncio
import tempfile
from collections.abc import Iterator
from typing import Any

from sqlalchemy import create_engine, inspect
from sqlalchemy.dialects.postgresql.psycopg import dialect

from foveate.store import open_store
from foveate.store.schema import tables as schema

_POSTGRESQL: Any = dialect


def tables() -> dict[str, str]:
    """List tables, columns and indexes of a migrated SQLite store, with PostgreSQL's types."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/store.sqlite"

        async def migrate() -> None:
            async with await open_store(url):
                pass

        asyncio.run(migrate())
        engine = create_engine(url)
        try:
            return dict(_tables(inspect(engine)))
        finally:
            engine.dispose()


def _tables(inspector: Any) -> Iterator[tuple[str, str]]:
    for table in inspector.get_table_names():
        keys = inspector.get_pk_constraint(table)["constrained_columns"]
        yield table, f"table, primary key {', '.join(keys)}"
        declared: Any = schema.tables[table].columns if table in schema.tables else {}
        for column in inspector.get_columns(table):
            attributes = [str(column["type"])]
            if column["name"] in declared:
                attributes.append(f"PostgreSQL {declared[column['name']].type.compile(dialect=_POSTGRESQL())}")
            attributes.append("null" if column["nullable"] else "not null")
            if column["default"] is not None:
                attributes.append(f"default {column['default']}")
            yield f"{table}.{column['name']}", ", ".join(attributes)
        for index in inspector.get_indexes(table):
            condition = index["dialect_options"].get("sqlite_where")
            kind = "unique index" if index["unique"] else "index"
            suffix = "" if condition is None else f" where {condition}"
            yield f"{table} {index['name']}", f"{kind} on {', '.join(index['column_names'])}{suffix}"
