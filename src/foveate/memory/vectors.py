"""Vectors by the hash of what they were made of, kept in a file from one process to the next.

Only what has come through the gate gets here, and of a text only its hash stays. The file is a convenience:
without it everything is embedded anew, and nothing else changes.
"""

import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from foveate.memory.embedding import Embedder
from foveate.memory.paths import data_folder

Floats = NDArray[np.float32]
# Half as long as they are, vectors still point the same way; they are rounded also where they are not kept, so
# that it makes no difference whether they were.
_STORED_DTYPE = np.dtype("<f2")
_KEY_BYTES = 16
# At a time, so that what is embedded is kept also where somebody stops it on the way.
_BATCH_TEXTS = 2_048
_BATCH_KEYS = 500
_MAX_VECTORS = 400_000
"""About 250 MB of the default embedder's."""
_BUSY_TIMEOUT_SECONDS = 2.0
_CORRUPT_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_LOG = logging.getLogger(__name__)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS vectors (number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, vector BLOB NOT NULL)
"""


class VectorCache(Protocol):
    """Where vectors are kept. What cannot be kept is not, and nobody is kept waiting for it."""

    def get(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Those of the vectors that are there."""

    def put(self, vectors: Iterable[tuple[bytes, bytes]]) -> None:
        """Keep vectors, each under its key."""


class SqliteVectorCache:
    """Vectors in SQLite. Any number of processes may share the file; the oldest ones make room for new ones."""

    def __init__(
        self,
        path: Path,
        *,
        max_vectors: int = _MAX_VECTORS,
        busy_timeout_seconds: float = _BUSY_TIMEOUT_SECONDS,
    ) -> None:
        self.path = path
        self._busy_timeout_seconds = busy_timeout_seconds
        self._max_vectors = max_vectors
        self.failure: str | None = None
        """Why nothing is kept, in words; None while all is well."""

    def get(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Those of the vectors that are there."""
        found: dict[bytes, bytes] = {}

        def read(database: sqlite3.Connection) -> None:
            for first in range(0, len(keys), _BATCH_KEYS):
                batch = keys[first : first + _BATCH_KEYS]
                placeholders = ",".join("?" * len(batch))
                found.update(
                    database.execute(f"SELECT key, vector FROM vectors WHERE key IN ({placeholders})", batch)
                )

        if keys:
            self._run(read)
        return found

    def put(self, vectors: Iterable[tuple[bytes, bytes]]) -> None:
        """Keep vectors, each under its key."""
        rows = list(vectors)

        def write(database: sqlite3.Connection) -> None:
            database.executemany("INSERT OR REPLACE INTO vectors (key, vector) VALUES (?, ?)", rows)
            database.execute(
                "DELETE FROM vectors WHERE number <= (SELECT max(number) FROM vectors) - ?",
                (self._max_vectors,),
            )

        self._run(write)

    def _run(self, operation: Callable[[sqlite3.Connection], None]) -> None:
        """Do some work on the file, and give it up for good where it cannot be used."""
        if self.failure is not None:
            return
        try:
            try:
                self._run_once(operation)
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode not in _CORRUPT_CODES:
                    raise
                self.path.replace(self.path.with_suffix(".broken"))
                self._run_once(operation)
        except (sqlite3.Error, OSError) as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                return  # somebody else is writing: this once it is done without
            self.failure = f"{self.path}: vectors are not kept ({error})"
            _LOG.warning("%s", self.failure)

    def _run_once(self, operation: Callable[[sqlite3.Connection], None]) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Opened each time: a connection may go neither to another thread nor through a fork.
        with closing(sqlite3.connect(self.path, timeout=self._busy_timeout_seconds)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            with database:
                database.execute(_SCHEMA)
                operation(database)


def default_vector_cache() -> VectorCache:
    """The file in Foveate's data folder, which `FOVEATE_HOME` can name."""
    return SqliteVectorCache(data_folder(os.environ, sys.platform) / "vectors.sqlite")


def embed_with_cache(embedder: Embedder, cache: VectorCache | None, texts: Sequence[str]) -> Floats:
    """A row for each text; those that are kept are not made again, and those that are made are kept."""
    rows = np.zeros((len(texts), 0), np.float32)
    for first in range(0, len(texts), _BATCH_TEXTS):
        batch = _embed_batch(embedder, cache, texts[first : first + _BATCH_TEXTS])
        if not first:
            rows = np.zeros((len(texts), batch.shape[1]), np.float32)
        if batch.shape[1] != rows.shape[1]:  # some were kept when the model of that name was another
            return embed_with_cache(embedder, None, texts)
        rows[first : first + _BATCH_TEXTS] = batch
    return rows


def _embed_batch(embedder: Embedder, cache: VectorCache | None, texts: Sequence[str]) -> Floats:
    keys = [_cache_key(embedder.name, text) for text in texts]
    found = {key: row for key, row in (cache.get(keys) if cache else {}).items() if _is_valid_vector(row)}
    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
    if missing:
        embedded = embedder.embed(list(missing.values())).astype(_STORED_DTYPE)
        new = {key: row.tobytes() for key, row in zip(missing, embedded, strict=True)}
        if cache:
            cache.put(new.items())
        found |= new
    if len(set(map(len, found.values()))) > 1:
        return _embed_batch(embedder, None, texts)
    whole = np.frombuffer(b"".join([found[key] for key in keys]), _STORED_DTYPE).reshape(len(texts), -1)
    if cache and not np.isfinite(whole).all():
        return _embed_batch(embedder, None, texts)
    return whole.astype(np.float32)


def _is_valid_vector(row: object) -> bool:
    """Whether it can be a vector; whatever else got into the file is made anew."""
    return isinstance(row, bytes) and bool(row) and len(row) % _STORED_DTYPE.itemsize == 0


def _cache_key(name: str, text: str) -> bytes:
    return blake3(f"{name}\0{text}".encode("utf-8", "surrogatepass")).digest(length=_KEY_BYTES)
