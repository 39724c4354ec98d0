"""A text cut where a vocabulary's tokens end, to be looked at."""

from collections.abc import Iterable

from foveate.tokens.bpe import Bpe, without_surrogates


def cut_by(vocabulary: Bpe, text: str) -> tuple[bytes, ...] | None:
    """The bytes of each token of `text`; None where they cannot be told apart in it.

    A character may be several tokens, so what a token holds need not be text by itself.
    """
    data = without_surrogates(text).encode()
    lengths = [vocabulary.bytes_in(token) for ids in vocabulary.ids(text) for token in ids]
    return _cut(data, lengths) if sum(lengths) == len(data) else None


def _cut(data: bytes, lengths: Iterable[int]) -> tuple[bytes, ...]:
    found, at = [], 0
    for length in lengths:
        found.append(data[at : at + length])
        at += length
    return tuple(found)
