"""A text cut where a vocabulary's tokens end, to be looked at."""

from collections.abc import Iterable

from foveate.tokens.bpe import BpeVocabulary, replace_surrogates


def split_into_tokens(vocabulary: BpeVocabulary, text: str) -> tuple[bytes, ...] | None:
    """The bytes of each token of `text`; None where they cannot be told apart in it.

    A character may be several tokens, so what a token holds need not be text by itself.
    """
    data = replace_surrogates(text).encode()
    lengths = [vocabulary.token_bytes(token) for ids in vocabulary.encode(text) for token in ids]
    return _split_bytes(data, lengths) if sum(lengths) == len(data) else None


def _split_bytes(data: bytes, lengths: Iterable[int]) -> tuple[bytes, ...]:
    tokens, start = [], 0
    for length in lengths:
        tokens.append(data[start : start + length])
        start += length
    return tuple(tokens)
