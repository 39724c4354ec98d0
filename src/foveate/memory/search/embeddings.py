"""Embeddings of texts: built-in word vectors, a remote endpoint, and a cache of vectors in a file.

The cache is keyed by the hash of a text. Only public texts are embedded, and only their hashes are stored.
Without the file everything is embedded again, with the same results.
"""

import asyncio
import logging
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from foveate.errors import BadOption, UnreadableInput, UpstreamGarbled
from foveate.extras import install_command
from foveate.http import JsonClient
from foveate.http.proxies import ProxyRules
from foveate.paths import data_folder

if TYPE_CHECKING:
    import tokenizers

_PACKAGE = "wordllama"
_MODEL = "l2_supercat"
# Enough to keep all cores busy with little memory.
_BATCH_TEXTS = 512


class Embedder(Protocol):
    @property
    def name(self) -> str:
        """The model and its version. Vectors with different names cannot be compared."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A row of length 1 for each text; zeros for a text without words."""


class WordVectorEmbedder:
    """Embeds a text as the mean of its tokens' vectors."""

    def __init__(self, name: str, tokenizer: "tokenizers.Tokenizer", vectors: NDArray[np.float32]) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._vectors = vectors

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        sums = np.zeros((len(texts), self._vectors.shape[1]), np.float32)
        encode: Any = self._tokenizer.encode_batch_fast
        for first in range(0, len(texts), _BATCH_TEXTS):
            batch = [_replace_unencodable(text) for text in texts[first : first + _BATCH_TEXTS]]
            for row, encoding in enumerate(encode(batch, add_special_tokens=False), first):
                if encoding.ids:
                    sums[row] = self._vectors.take(encoding.ids, axis=0).sum(axis=0)
        return normalize_rows(sums)


def normalize_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale rows to length 1; zero rows stay zero."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    normalized: NDArray[np.float32] = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 1e-9)
    return normalized


@cache
def default_embedder() -> Embedder:
    """The word vectors of wordllama, read from its files without a download.

    Its code is not imported: that takes a second and changes the process's logging.

    Raises:
        UnreadableInput: the files do not exist or cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise UnreadableInput(
            _PACKAGE,
            f"is not installed: {install_command()} 'foveate[search]', or configure an embedding endpoint",
        )
    folder = Path(spec.origin).parent
    weights = folder / "weights" / f"{_MODEL}_256.safetensors"
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / f"{_MODEL}_tokenizer_config.json"))
        vectors = load_file(weights)["embedding.weight"].astype(np.float32)
    except (OSError, SafetensorError, KeyError) as error:
        raise UnreadableInput(str(weights), f"contains no word vectors ({error})") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # To this tokenizer a text is one word that hardly ever recurs. A cache of 10,000 texts would take 60 MB and
    # a lock between its threads.
    model: Any = tokenizer.model
    model._resize_cache(0)
    return WordVectorEmbedder(f"{_PACKAGE}/{_MODEL}_256/{version(_PACKAGE)}", tokenizer, vectors)


def _replace_unencodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


DEFAULT_TIMEOUT_SECONDS = 60.0
# OpenAI accepts 2,048 texts and 300,000 tokens per request; small servers much less.
_REQUEST_BATCH_TEXTS = 64
_MAX_CONCURRENT_REQUESTS = 4


class _EmbeddingRow(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


_ROWS_DECODER = msgspec.json.Decoder(list[_EmbeddingRow])


class EndpointEmbedder:
    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str = "",
        dimensions: int | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        proxies: ProxyRules | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise BadOption(
                f"an embedder's url must start with http:// or https://, not {url!r}", path=("url",)
            )
        if not model:
            raise BadOption("an embedder needs the name of a model", path=("model",))
        if dimensions is not None and dimensions < 1:
            raise BadOption(f"vectors must have at least 1 dimension, not {dimensions}", path=("dimensions",))
        self.url = _embeddings_url(url)
        self.name = f"{self.url} {model} {dimensions or ''}".rstrip()
        self._body_fields = {"model": model} | ({"dimensions": dimensions} if dimensions else {})
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_seconds = timeout_seconds
        self._proxies = proxies

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A row of length 1 for each text; zeros for blank texts, which no server accepts.

        Raises:
            UpstreamError: the server does not respond with a vector for each text.
        """
        non_empty = [number for number, text in enumerate(texts) if text.strip()]
        batches = [
            non_empty[first : first + _REQUEST_BATCH_TEXTS]
            for first in range(0, len(non_empty), _REQUEST_BATCH_TEXTS)
        ]
        if not batches:
            return np.zeros((len(texts), 1), np.float32)
        # In its own thread, because the caller may be in an event loop.
        with ThreadPoolExecutor(1) as thread:
            responses = thread.submit(asyncio.run, self._request_batches(texts, batches)).result()
        widths = {len(row) for response in responses for row in response}
        if len(widths) > 1:
            raise UpstreamGarbled(self.url, f"vectors of different lengths: {sorted(widths)}")
        rows = np.zeros((len(texts), widths.pop()), np.float32)
        for numbers, response in zip(batches, responses, strict=True):
            rows[numbers] = response
        return normalize_rows(rows)

    async def _request_batches(
        self, texts: Sequence[str], batches: Sequence[Sequence[int]]
    ) -> list[list[list[float]]]:
        responses: list[list[list[float]]] = []
        async with JsonClient(timeout_seconds=self._timeout_seconds, proxies=self._proxies) as client:
            for first in range(0, len(batches), _MAX_CONCURRENT_REQUESTS):
                concurrent = batches[first : first + _MAX_CONCURRENT_REQUESTS]
                responses += await asyncio.gather(
                    *(
                        self._request_batch(client, [texts[number] for number in numbers])
                        for numbers in concurrent
                    )
                )
        return responses

    async def _request_batch(self, client: JsonClient, texts: Sequence[str]) -> list[list[float]]:
        encodable_texts = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        body = msgspec.json.encode({**self._body_fields, "input": encodable_texts, "encoding_format": "float"})
        reply = await client.post_json(self.url, body, self._headers)
        try:
            rows = _ROWS_DECODER.decode(reply.get("data", msgspec.Raw(b"null")))
        except msgspec.DecodeError:
            raise UpstreamGarbled(self.url, "the response has no list of vectors in `data`") from None
        if len(rows) != len(texts):
            raise UpstreamGarbled(self.url, f"{len(rows)} vectors for {len(texts)} texts")
        numbers = [number if row.index is None else row.index for number, row in enumerate(rows)]
        if sorted(numbers) != list(range(len(rows))):
            raise UpstreamGarbled(self.url, "the indexes of the vectors do not match the texts")
        in_order = [
            row.embedding for _, row in sorted(zip(numbers, rows, strict=True), key=lambda pair: pair[0])
        ]
        if not all(row and all(map(isfinite, row)) for row in in_order):
            raise UpstreamGarbled(self.url, "a vector without numbers")
        return in_order


def _embeddings_url(url: str) -> str:
    base = url.rstrip("/")
    if base.endswith("/embeddings"):
        return base
    return f"{base}/embeddings" if base.endswith("/v1") else f"{base}/v1/embeddings"


Floats = NDArray[np.float32]
# Half precision keeps the direction. Vectors are rounded even if they are not cached, so that results do not
# depend on the cache.
_STORED_DTYPE = np.dtype("<f2")
_KEY_BYTES = 16
# Stored batch by batch, so that an interrupted run keeps what it has.
_CACHE_BATCH_TEXTS = 2_048
_BATCH_KEYS = 500
_MAX_VECTORS = 400_000
"""About 250 MB with the default embedder."""
_BUSY_TIMEOUT_SECONDS = 2.0
_CORRUPT_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_LOG = logging.getLogger(__name__)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS vectors (number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, vector BLOB NOT NULL)
"""


class VectorCache(Protocol):
    """Stores vectors if possible, without making callers wait."""

    def get(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]: ...

    def put(self, vectors: Iterable[tuple[bytes, bytes]]) -> None: ...


class SqliteVectorCache:
    """Vectors in SQLite, which any number of processes may share. The oldest make room for new ones."""

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
        """Reason why nothing is cached; None if the cache works."""

    def get(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        vectors: dict[bytes, bytes] = {}

        def read(database: sqlite3.Connection) -> None:
            for first in range(0, len(keys), _BATCH_KEYS):
                batch = keys[first : first + _BATCH_KEYS]
                placeholders = ",".join("?" * len(batch))
                vectors.update(
                    database.execute(f"SELECT key, vector FROM vectors WHERE key IN ({placeholders})", batch)
                )

        if keys:
            self._run(read)
        return vectors

    def put(self, vectors: Iterable[tuple[bytes, bytes]]) -> None:
        rows = list(vectors)

        def write(database: sqlite3.Connection) -> None:
            database.executemany("INSERT OR REPLACE INTO vectors (key, vector) VALUES (?, ?)", rows)
            database.execute(
                "DELETE FROM vectors WHERE number <= (SELECT max(number) FROM vectors) - ?",
                (self._max_vectors,),
            )

        self._run(write)

    def _run(self, operation: Callable[[sqlite3.Connection], None]) -> None:
        """Run an operation on the file; stop using it after a failure."""
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
                return  # another process is writing: do without the cache this time
            self.failure = f"{self.path}: vectors are not cached ({error})"
            _LOG.warning("%s", self.failure)

    def _run_once(self, operation: Callable[[sqlite3.Connection], None]) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Opened each time: connections must not be shared between threads or across a fork.
        with closing(sqlite3.connect(self.path, timeout=self._busy_timeout_seconds)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            with database:
                database.execute(_SCHEMA)
                operation(database)


def default_vector_cache() -> VectorCache:
    """The file in the data folder, which `FOVEATE_HOME` can set."""
    return SqliteVectorCache(data_folder(os.environ, sys.platform) / "vectors.sqlite")


def embed_with_cache(embedder: Embedder, cache: VectorCache | None, texts: Sequence[str]) -> Floats:
    rows = np.zeros((len(texts), 0), np.float32)
    for first in range(0, len(texts), _CACHE_BATCH_TEXTS):
        batch = _embed_batch(embedder, cache, texts[first : first + _CACHE_BATCH_TEXTS])
        if not first:
            rows = np.zeros((len(texts), batch.shape[1]), np.float32)
        if batch.shape[1] != rows.shape[1]:  # some were cached when that name meant another model
            return embed_with_cache(embedder, None, texts)
        rows[first : first + _CACHE_BATCH_TEXTS] = batch
    return rows


def _embed_batch(embedder: Embedder, cache: VectorCache | None, texts: Sequence[str]) -> Floats:
    keys = [_cache_key(embedder.name, text) for text in texts]
    vectors = {key: row for key, row in (cache.get(keys) if cache else {}).items() if _is_valid_vector(row)}
    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in vectors}
    if missing:
        embedded = embedder.embed(list(missing.values())).astype(_STORED_DTYPE)
        new = {key: row.tobytes() for key, row in zip(missing, embedded, strict=True)}
        if cache:
            cache.put(new.items())
        vectors |= new
    if len(set(map(len, vectors.values()))) > 1:
        return _embed_batch(embedder, None, texts)
    matrix = np.frombuffer(b"".join([vectors[key] for key in keys]), _STORED_DTYPE).reshape(len(texts), -1)
    if cache and not np.isfinite(matrix).all():
        return _embed_batch(embedder, None, texts)
    return matrix.astype(np.float32)


def _is_valid_vector(row: object) -> bool:
    return isinstance(row, bytes) and bool(row) and len(row) % _STORED_DTYPE.itemsize == 0


def _cache_key(name: str, text: str) -> bytes:
    return blake3(f"{name}\0{text}".encode("utf-8", "surrogatepass")).digest(length=_KEY_BYTES)
