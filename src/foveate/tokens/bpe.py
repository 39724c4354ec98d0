"""Offline tokenizers: byte-pair encodings whose vocabularies are on this machine."""

import os
from collections.abc import Iterator, Sequence
from typing import Protocol

from foveate.tokens.pieces import PIECE_CHARS, broken, cut

# Below this, one call that holds the interpreter's lock is over sooner than another thread would notice.
_SHORT_CHARS = 8 * 1024


class Engine(Protocol):
    """The part of splintr's tokenizers that is used here."""

    def encode_ordinary(self, text: str) -> list[int]:
        """Token ids; holds the interpreter's lock."""

    def encode_flat(self, text: str) -> bytes:
        """Token ids, four bytes each; matches special tokens; holds the lock."""

    def encode_batch_flat(self, texts: list[str]) -> tuple[bytes, bytes]:
        """Ids of all texts and where each begins; matches special tokens; releases the lock."""


class Bpe:
    """Counts the tokens of a text as one vocabulary cuts it.

    Special tokens that are spelled out in a text count as the text they are: a user who writes
    `<|endoftext|>` has written those characters.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        *,
        special_tokens: Sequence[str] = (),
        has_seams: bool = True,
    ) -> None:
        """`has_seams`: the vocabulary's pattern is one of those that `pieces` knows how to cut."""
        self.name = name
        self._engine = engine
        self._has_seams = has_seams
        self._special_tokens = tuple(special_tokens)
        self._special_marks = tuple(sorted({token[:2] for token in special_tokens}))
        self._frame = len(engine.encode_ordinary(""))
        _watch_forks()

    def count(self, text: str) -> int:
        """How many tokens `text` is."""
        if not text:
            return 0
        try:
            if self._spells_special(text):
                return self._count_spelled(text)
            if len(text) <= _SHORT_CHARS:
                return len(self._engine.encode_flat(text)) // 4 - self._frame
            return sum(self._count_batch(self._pieces(text)))
        except UnicodeEncodeError:
            return self.count(without_surrogates(text))

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each of `texts` is, counted side by side."""
        if len(texts) < 8 or any(len(text) > PIECE_CHARS or self._spells_special(text) for text in texts):
            return [self.count(text) for text in texts]
        try:
            counts = self._count_batch(list(texts))
        except UnicodeEncodeError:
            return [self.count(text) for text in texts]
        return [count if text else 0 for text, count in zip(texts, counts, strict=True)]

    def ids(self, text: str) -> Iterator[Sequence[int]]:
        """The token ids of `text`, a piece at a time."""
        try:
            if self._spells_special(text):
                yield from map(self._engine.encode_ordinary, self._pieces(text))
            elif len(text) <= _SHORT_CHARS:
                yield memoryview(self._engine.encode_flat(text)).cast("I")
            else:
                for piece in self._pieces(text):
                    yield memoryview(self._engine.encode_batch_flat([piece])[0]).cast("I")
        except UnicodeEncodeError:
            yield from self.ids(without_surrogates(text))

    def _spells_special(self, text: str) -> bool:
        for (
            mark
        ) in self._special_marks:  # a loop, as most texts are short and a generator costs more than these
            if mark in text:
                return any(token in text for token in self._special_tokens)
        return False

    def _pieces(self, text: str) -> list[str]:
        return cut(text) if self._has_seams else [text]

    def _count_spelled(self, text: str) -> int:
        """A special token that is cut at a seam of its own is text like any other."""
        if len(text) <= _SHORT_CHARS or not self._has_seams:
            return self._count_ordinary(text)
        pieces = broken(text, self._special_tokens)
        spelled = [piece for piece in pieces if self._spells_special(piece)]
        plain = [piece for piece in pieces if not self._spells_special(piece)]
        return sum(self._count_batch(plain)) + sum(map(self._count_ordinary, spelled))

    def _count_ordinary(self, text: str) -> int:
        return len(self._engine.encode_ordinary(text)) - self._frame

    def _count_batch(self, pieces: list[str]) -> list[int]:
        if _forked:  # the engine's thread pool did not come along into this process
            flat = [self._engine.encode_batch_flat([piece])[0] for piece in pieces]
            return [len(ids) // 4 - self._frame for ids in flat]
        offsets = memoryview(self._engine.encode_batch_flat(pieces)[1]).cast("Q")
        return [offsets[i + 1] - offsets[i] - self._frame for i in range(len(pieces))]


def without_surrogates(text: str) -> str:
    """`text` as it can be sent in UTF-8: what is not a character becomes the replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_forked = False
_watching = False


def _watch_forks() -> None:
    """Have a forked child told so: waiting for threads that only its parent has would never end."""
    global _watching
    if not _watching and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
        _watching = True


def _after_fork() -> None:
    global _forked
    _forked = True
