"""Vectors from a server that speaks OpenAI's `POST /v1/embeddings` (November 2026)."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import isfinite

import msgspec
import numpy as np
from numpy.typing import NDArray

from foveate.errors import BadOption, UpstreamGarbled
from foveate.memory.embedding import normalize_rows
from foveate.upstream import JsonClient

DEFAULT_TIMEOUT_SECONDS = 60.0
# OpenAI takes 2,048 texts and 300,000 tokens at a time; small servers much less.
_BATCH_TEXTS = 64
_MAX_CONCURRENT_REQUESTS = 4


class _EmbeddingRow(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


_ROWS_DECODER = msgspec.json.Decoder(list[_EmbeddingRow])


class EndpointEmbedder:
    """Makes vectors by asking a server."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str = "",
        dimensions: int | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise BadOption(f"an embedder's url begins with http:// or https://, not {url!r}", path=("url",))
        if not model:
            raise BadOption("an embedder needs the name of a model", path=("model",))
        if dimensions is not None and dimensions < 1:
            raise BadOption(f"vectors have at least 1 dimension, not {dimensions}", path=("dimensions",))
        self.url = _embeddings_url(url)
        self.name = f"{self.url} {model} {dimensions or ''}".rstrip()
        self._body_fields = {"model": model} | ({"dimensions": dimensions} if dimensions else {})
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_seconds = timeout_seconds

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A row for each text, of length 1; zeros for a text without words, which no server takes.

        Raises:
            UpstreamError: the server does not answer, or not with a vector for each text.
        """
        non_empty = [number for number, text in enumerate(texts) if text.strip()]
        batches = [non_empty[first : first + _BATCH_TEXTS] for first in range(0, len(non_empty), _BATCH_TEXTS)]
        if not batches:
            return np.zeros((len(texts), 1), np.float32)
        # In a thread of its own: whoever calls may be in an event loop already.
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
        async with JsonClient(timeout_seconds=self._timeout_seconds) as client:
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
        sent = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        body = msgspec.json.encode({**self._body_fields, "input": sent, "encoding_format": "float"})
        reply = await client.post_json(self.url, body, self._headers)
        try:
            rows = _ROWS_DECODER.decode(reply.get("data", msgspec.Raw(b"null")))
        except msgspec.DecodeError:
            raise UpstreamGarbled(self.url, "no list of vectors as `data` in the answer") from None
        if len(rows) != len(texts):
            raise UpstreamGarbled(self.url, f"{len(rows)} vectors for {len(texts)} texts")
        places = [number if row.index is None else row.index for number, row in enumerate(rows)]
        if sorted(places) != list(range(len(rows))):
            raise UpstreamGarbled(self.url, "the numbers of the vectors are not those of the texts")
        in_order = [
            row.embedding for _, row in sorted(zip(places, rows, strict=True), key=lambda pair: pair[0])
        ]
        if not all(row and all(map(isfinite, row)) for row in in_order):
            raise UpstreamGarbled(self.url, "a vector without numbers")
        return in_order


def _embeddings_url(url: str) -> str:
    base = url.rstrip("/")
    if base.endswith("/embeddings"):
        return base
    return f"{base}/embeddings" if base.endswith("/v1") else f"{base}/v1/embeddings"
