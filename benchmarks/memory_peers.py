"""Other ways to select context for a question: documents ranked by BM25, by embedding, or newest first."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.tiktoken_peer import o200k

Ranking = Callable[[str], Sequence[int]]
"""The numbers of the texts for a query, the best first."""

_SEPARATOR = "\n\n"
# Consecutive texts can have a few tokens fewer than separate ones.
_JOIN_TOKENS = 2


class TokenWindow:
    """A gpt-4o context window, filled by tiktoken's counts."""

    def __init__(self) -> None:
        self._encode = o200k()
        import tiktoken

        self._decode = tiktoken.get_encoding("o200k_base").decode

    def count(self, text: str) -> int:
        return len(self._encode(text))

    def pack(self, texts: Sequence[str], sizes: Sequence[int], order: Sequence[int], limit_tokens: int) -> str:
        """Return whole texts in ranked order while there is room, the last one cut to fit exactly."""
        packed: list[str] = []
        tokens = 0
        for number in order:
            packed.append(texts[number])
            tokens += max(sizes[number] - _JOIN_TOKENS, 0)
            if tokens > limit_tokens:
                break
        encoded = self._encode(_SEPARATOR.join(packed))
        return self._decode(encoded[:limit_tokens], errors="ignore")


def bm25_ranking(texts: Sequence[str], *, stemmed: bool) -> Ranking:
    """Rank by bm25s with defaults and English stop words; with or without stemming."""
    import bm25s
    import Stemmer

    stemmer: Any = Stemmer.Stemmer("english") if stemmed else None

    def tokenize(documents: Sequence[str]) -> list[list[str]]:
        tokens = bm25s.tokenize(
            list(documents), stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False
        )
        assert isinstance(tokens, list)
        return tokens

    index = bm25s.BM25()
    index.index(tokenize(texts), show_progress=False)

    def rank(query: str) -> Sequence[int]:
        (terms,) = tokenize([query])
        return _best_first(index.get_scores(terms)) if terms else range(len(texts))

    return rank


def embedding_ranking(texts: Sequence[str]) -> Ranking:
    """Rank by cosine similarity of the product's own embedder, whole texts to the whole query."""
    from foveate.memory.search.embeddings import default_embedder

    embedder = default_embedder()
    vectors = embedder.embed(texts)
    return lambda query: _best_first(vectors @ embedder.embed([query])[0])


def newest_ranking(modified: Sequence[float]) -> Ranking:
    """Rank newest first, whatever the query; equal ages in the given order."""
    order = _best_first(np.asarray(modified))
    return lambda _: order


def _best_first(scores: "np.ndarray[tuple[int, ...], np.dtype[np.floating]]") -> Sequence[int]:
    best: list[int] = np.argsort(-scores, kind="stable").tolist()
    return best
