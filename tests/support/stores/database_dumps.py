"""Databases of released versions as SQL, and statements run directly on a database."""

import sqlite3
from pathlib import Path

import psycopg

DUMPS = Path(__file__).parents[2] / "contract" / "stores"


def sqlite_path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def load_dump(version: str, url: str) -> str:
    """Return the statements that create a database of a version."""
    kind = "sqlite" if url.startswith("sqlite") else "postgres"
    return (DUMPS / f"{version}.{kind}.sql").read_text(encoding="utf-8")


def run_statements(url: str, statements: str) -> None:
    """Run statements directly on a database."""
    if url.startswith("sqlite"):
        sqlite_path(url).parent.mkdir(exist_ok=True)
        connection = sqlite3.connect(sqlite_path(url))
        connection.executescript(statements)
        connection.close()
    else:
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(statements.encode())
