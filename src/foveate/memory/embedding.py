"""What a text is about as a vector: near ones are about the same."""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from foveate.errors import UnreadableInput

if TYPE_CHECKING:
    import tokenizers

_PACKAGE = "wordllama"
_MODEL = "l2_supercat"
# Enough to keep all cores busy, and few enough that their tokens need no room to speak of.
_BATCH_TEXTS = 512


class Embedder(Protocol):
    """Makes vectors of texts."""

    @property
    def name(self) -> str:
        """The model and its version: vectors of another name cannot be compared with these."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A row for each text, of length 1; zeros for a text without words."""


class WordVectorEmbedder:
    """The mean of the vectors of a text's tokens."""

    def __init__(self, name: str, tokenizer: "tokenizers.Tokenizer", vectors: NDArray[np.float32]) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._vectors = vectors

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A row for each text, of length 1; zeros for a text without words."""
        sums = np.zeros((len(texts), self._vectors.shape[1]), np.float32)
        encode: Any = self._tokenizer.encode_batch_fast
        for first in range(0, len(texts), _BATCH_TEXTS):
            batch = [_replace_unencodable(text) for text in texts[first : first + _BATCH_TEXTS]]
            for row, found in enumerate(encode(batch, add_special_tokens=False), first):
                if found.ids:
                    sums[row] = self._vectors.take(found.ids, axis=0).sum(axis=0)
        return normalize_rows(sums)


def normalize_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The rows at length 1; those without a direction are zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    found: NDArray[np.float32] = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 1e-9)
    return found


@cache
def default_embedder() -> Embedder:
    """The vectors that come with wordllama, one for all; read from its files, nothing is fetched.

    Its own code is left alone: importing it takes a second, and changes how the process logs.

    Raises:
        UnreadableInput: its files are not there or cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    found = find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise UnreadableInput(_PACKAGE, "not installed, so there is no embedder without an endpoint")
    folder = Path(found.origin).parent
    weights = folder / "weights" / f"{_MODEL}_256.safetensors"
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / f"{_MODEL}_tokenizer_config.json"))
        vectors = load_file(weights)["embedding.weight"].astype(np.float32)
    except (OSError, SafetensorError, KeyError) as error:
        raise UnreadableInput(str(weights), f"no word vectors ({error})") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    # To this tokenizer a text is one word, hardly ever seen again: to remember 10,000 of them would take 60 MB,
    # and a lock that its threads wait for.
    model: Any = tokenizer.model
    model._resize_cache(0)
    return WordVectorEmbedder(f"{_PACKAGE}/{_MODEL}_256/{version(_PACKAGE)}", tokenizer, vectors)


def _replace_unencodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
