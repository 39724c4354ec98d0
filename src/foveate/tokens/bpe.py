"""Offline tokenizers: byte-pair encodings whose vocabularies are on this machine."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from foveate.tokens.caches import register
from foveate.tokens.pieces import AFTER_WORDS, Seam, broken, cut
from foveate.tokens.steps import stepped

# So many places are looked at one by one before the whole text is searched for each token.
_FEW_MARKS = 64
# Below this, one call that holds the interpreter's lock is over sooner than another thread would notice.
_SHORT_CHARS = 8 * 1024
# Several texts are counted side by side, each on one core, unless one is so long that the others wait for it.
_LONG_CHARS = 32 * 1024
# Whoever goes through ids goes through so many at a time, so that no loop in C keeps others waiting.
_IDS_AT_ONCE = 16 * 1024
_CHECKED_CHARS = 1024 * 1024
# The engine takes 70 bytes for each byte of a word, and keeps them. Longer words are encoded in steps.
_MAX_WORD_CHARS = 128 * 1024


LIKE_ATOMS = re.compile(r"<[^<>\[\]\s]{1,24}>|\[[^<>\[\]\s]{1,24}\]")
"""What can be one token wherever it stands: a tag, or a word in brackets."""


class Engine(Protocol):
    """The part of splintr's tokenizers that is used here."""

    def encode_ordinary(self, text: str) -> list[int]:
        """Token ids; holds the interpreter's lock."""

    def encode_flat(self, text: str) -> bytes:
        """Token ids, four bytes each; matches special tokens; holds the lock."""

    def encode_batch_flat(self, texts: list[str]) -> tuple[bytes, bytes]:
        """Ids of all texts and where each begins; matches special tokens; releases the lock."""

    def decode_token_bytes(self, token_id: int) -> bytes:
        """The text of one token, which may be a part of a character."""

    def clear_cache(self) -> None:
        """Forget the words that were encoded; raises ValueError where none are remembered."""


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
        seam: Seam | None = AFTER_WORDS,
        composes: bool = False,
        slow_on: re.Pattern[str] | None = None,
        lead: str | None = None,
        atoms: Sequence[str] = (),
    ) -> None:
        """`seam`: where texts can be cut, if anywhere; `composes`: the model reads an accent and its letter as
        one (NFC), which the engine leaves to us; `slow_on`: what takes the quick calls more than linear time;
        `lead`: that the engine knows no pattern, so that texts can be gone through in steps, and their lead;
        `atoms`: what is always one token of its own, which only the quick calls know.
        """
        self.name = name
        self._engine = engine
        self.seam = seam
        self._composes = composes
        self._slow_on = slow_on
        self._lead = lead
        self._atoms = frozenset(atoms)
        self._special_tokens = tuple(special_tokens)
        self._special_marks = tuple(sorted({token[:2] for token in special_tokens}))
        self._bytes_in: dict[int, int] = {}
        self._frame = len(engine.encode_ordinary(""))
        _watch_forks()
        register(self)

    def drop(self) -> None:
        """Have the engine forget the words that it remembers."""
        with suppress(ValueError):  # only those that split by a pattern remember any
            self._engine.clear_cache()

    def count(self, text: str) -> int:
        """How many tokens `text` is."""
        if not text:
            return 0
        text = self._composed(text)
        try:
            if self._wants_care(text):
                return self._count_carefully(text)
            if len(text) <= _SHORT_CHARS:
                return len(self._engine.encode_flat(text)) // 4 - self._frame
            return self._count_pieces(self._pieces(text))
        except UnicodeEncodeError:
            return self.count(without_surrogates(text))

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each of `texts` is, counted side by side."""
        texts = [self._composed(text) for text in texts] if self._composes else texts
        if len(texts) < 8:
            return [self.count(text) for text in texts]
        # Nearly always there is nothing to take care of, and looking once through all of them shows it.
        if max(map(len, texts)) > _LONG_CHARS or self._wants_care("\n".join(texts)):
            return self._count_apart(texts)
        try:
            counts = self._count_batch(list(texts))
        except UnicodeEncodeError:
            return [self.count(text) for text in texts]
        return [count if text else 0 for text, count in zip(texts, counts, strict=True)]

    def _count_apart(self, texts: Sequence[str]) -> list[int]:
        """Texts that are long or want care one by one, and the others side by side."""
        apart = {i for i, text in enumerate(texts) if len(text) > _LONG_CHARS or self._wants_care(text)}
        if not apart or len(texts) - len(apart) < 8:
            return [self.count(text) for text in texts]
        others = iter(self.count_many([text for i, text in enumerate(texts) if i not in apart]))
        return [self.count(text) if i in apart else next(others) for i, text in enumerate(texts)]

    def ids(self, text: str) -> Iterable[Sequence[int]]:
        """The token ids of `text`, some thousands at a time."""
        text = self._composed(text)
        if len(text) <= _SHORT_CHARS and not self._wants_care(text):
            try:
                return (memoryview(self._engine.encode_flat(text)).cast("I"),)
            except UnicodeEncodeError:
                text = without_surrogates(text)
        return self._ids(text)

    def _ids(self, text: str) -> Iterator[Sequence[int]]:
        try:
            for start in range(0, len(text), _CHECKED_CHARS):
                text[start : start + _CHECKED_CHARS].encode()
        except UnicodeEncodeError:
            text = without_surrogates(text)
        pieces = self._careful_pieces(text) if self._wants_care(text) else self._pieces(text)
        for piece in pieces:
            for ids in self._piece_ids(piece):
                for start in range(0, len(ids), _IDS_AT_ONCE):
                    yield ids[start : start + _IDS_AT_ONCE]

    def bytes_in(self, token_id: int) -> int:
        """How many bytes of a text a token stands for."""
        found = self._bytes_in.get(token_id)
        if found is None:
            found = self._bytes_in[token_id] = len(self._engine.decode_token_bytes(token_id))
        return found

    def _composed(self, text: str) -> str:
        if not self._composes:
            return text
        from foveate.tokens.composing import composed

        return composed(text)

    def _piece_ids(self, piece: str) -> Iterator[Sequence[int]]:
        if self._wants_care(piece):
            yield from self._ordinary(piece)
        elif len(piece) > _MAX_WORD_CHARS:
            yield from stepped(self._engine, piece, lead=self._lead or "")
        elif len(piece) <= _SHORT_CHARS:
            yield memoryview(self._engine.encode_flat(piece)).cast("I")
        else:
            yield memoryview(self._engine.encode_batch_flat([piece])[0]).cast("I")

    def _ordinary(self, text: str) -> Iterator[Sequence[int]]:
        """The ids of a text for which the quick calls will not do."""
        start = 0
        # One by one, since going through a long text in a single call would keep other threads waiting.
        for found in LIKE_ATOMS.finditer(text) if self._atoms else ():
            if found[0] in self._atoms:
                yield from self._spelled(text[start : found.start()])
                yield memoryview(self._engine.encode_flat(found[0])).cast("I")
                start = found.end()
        yield from self._spelled(text[start:])

    def _spelled(self, text: str) -> Iterator[Sequence[int]]:
        """The ids of a text in which nothing stands for itself: a step at a time, where that is exact."""
        if not text:
            return
        if len(text) <= (_MAX_WORD_CHARS if self._lead is None else _SHORT_CHARS):
            yield self._engine.encode_ordinary(text)
        else:
            yield from stepped(self._engine, text, lead=self._lead or "")

    def _wants_care(self, text: str) -> bool:
        """Whether the engine's quick calls would find a special token in `text`, or be slow on it."""
        # A loop, as most texts are short and a generator costs more than these.
        for mark in self._special_marks:
            # One character is found ten times as fast as two, and mostly is not there.
            if mark[0] in text and mark[-1] in text and mark in text and self._spells_special(text, mark):
                return True
        return self._slow_on is not None and self._slow_on.search(text) is not None

    def _spells_special(self, text: str, mark: str) -> bool:
        """Whether a special token stands in `text`: at its few marks, or, where they are many, anywhere."""
        at = -1
        for _ in range(_FEW_MARKS):
            at = text.find(mark, at + 1)
            if at < 0:
                return False
            if text.startswith(self._special_tokens, at):
                return True
        return any(token in text for token in self._special_tokens)

    def _pieces(self, text: str) -> list[str]:
        return cut(text, seam=self.seam) if self.seam else [text]

    def _careful_pieces(self, text: str) -> list[str]:
        """`text` cut inside its special tokens as well, where they have a seam: then no piece spells them."""
        if len(text) <= _SHORT_CHARS or self.seam is None:
            return [text]
        return broken(text, self._special_tokens, self.seam)

    def _count_carefully(self, text: str) -> int:
        plain: list[str] = []
        careful: list[str] = []
        for piece in self._careful_pieces(text):
            (careful if self._wants_care(piece) else plain).append(piece)
        return self._count_pieces(plain) + sum(map(self._count_ordinary, careful))

    def _count_ordinary(self, text: str) -> int:
        return sum(map(len, self._ordinary(text))) - self._frame

    def _count_pieces(self, pieces: list[str]) -> int:
        words = [piece for piece in pieces if len(piece) > _MAX_WORD_CHARS]
        if words:
            pieces = [piece for piece in pieces if len(piece) <= _MAX_WORD_CHARS]
        found = sum([len(ids) for word in words for ids in stepped(self._engine, word, lead=self._lead or "")])
        return found - self._frame * len(words) + sum(self._count_batch(pieces))

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
