"""Offline tokenizers: byte-pair encodings whose vocabularies are on this machine.

The tokens of a long text that no pattern splits, found a step at a time.

Byte-pair encoding without a pattern may merge anywhere, so no place is known beforehand where such a text can
be cut. But tokens in a row are the encoding of their text if every two neighbours are the encoding of theirs:
take the first merge that would run over a border between two. Until then each token has come about by itself,
in the order in which it does beside that neighbour alone, so there the same merge would have been next, and the
two would not be the encoding of theirs.

So the last tokens of a step are given up, and the next step begins where they did. Where it begins with the
same token, that one and the last that was kept are neighbours in an encoding, as are all others.

For the same reason a beginning of such a text that ends where one of its tokens does has just the tokens up to
there: `token_steps` says where that is, and how many they are.

A text cut where a vocabulary's tokens end, to be looked at.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from foveate.caching import register
from foveate.tokens.tokenizers.safe_boundaries import AFTER_WORDS, SafeBoundary, split_inside_words, split_text

DEFAULT_STEP_CHARS = 8 * 1024
# What follows may change so many tokens at the end of a step, or more, in which case it is noticed.
_UNSTABLE_TOKENS = 8
_MAX_BORDERS_TRIED = 8


class TokenVocabulary(Protocol):
    """The part of a vocabulary that is used here."""

    def encode(self, text: str) -> Iterable[Sequence[int]]:
        """The token ids of a text, some thousands at a time."""

    def token_bytes(self, token_id: int) -> int:
        """How many bytes of a text a token stands for."""


class TextEncoder(Protocol):
    """The part of an engine that is used here."""

    def encode_ordinary(self, text: str) -> list[int]:
        """Token ids; holds the interpreter's lock."""

    def decode_token_bytes(self, token_id: int) -> bytes:
        """The text of one token, which may be a part of a character."""


def encode_in_steps(
    engine: TextEncoder, text: str, *, lead_text: str = "", step_chars: int = DEFAULT_STEP_CHARS
) -> Iterator[Sequence[int]]:
    """The token ids of `text`, as `encode_ordinary` gives them for the whole.

    `lead`: for an engine that puts a blank before a text, something that merges with nothing.
    """
    start, size = 0, step_chars
    ids = engine.encode_ordinary(text[:size])
    lead_tokens = len(engine.encode_ordinary(lead_text))
    while start + size < len(text):
        for kept_tokens, chars in _iter_step_borders(engine, text[start : start + size], ids):
            next_start = start + chars
            following = engine.encode_ordinary(lead_text + text[next_start : next_start + step_chars])[
                lead_tokens:
            ]
            if following[:1] == ids[kept_tokens : kept_tokens + 1]:
                yield ids[:kept_tokens]
                start, size, ids = next_start, step_chars, following
                break
        else:  # nothing to rely on: a longer step is as right, and only takes longer
            size *= 2
            first = 0 if start == 0 else lead_tokens
            ids = engine.encode_ordinary((lead_text if start else "") + text[start : start + size])[first:]
    yield ids


def _iter_step_borders(engine: TextEncoder, step: str, ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where to cut a step, last first: how many of its tokens come before, and how many characters."""
    step = step.replace("▁", " ")  # as engines without a pattern write a blank
    tail = b""
    for kept_tokens in range(len(ids) - 1, max(0, len(ids) - _UNSTABLE_TOKENS - _MAX_BORDERS_TRIED), -1):
        tail = engine.decode_token_bytes(ids[kept_tokens]) + tail
        if len(ids) - kept_tokens < _UNSTABLE_TOKENS:
            continue
        with suppress(UnicodeDecodeError):  # in the middle of a character
            tail_text = tail.decode()
            if step.endswith(tail_text) and len(tail_text) < len(step):
                yield kept_tokens, len(step) - len(tail_text)


def token_steps(
    vocabulary: TokenVocabulary, text: str, step_chars: int
) -> list[tuple[int, int, list[int]]] | None:
    """Where each step through `text` starts and ends, and its tokens; all of them are those of the whole.

    None where tokens do not spell the text as it is, since it was composed or a blank put before it.
    """
    data = text.encode("utf-8", "replace")
    steps: list[tuple[int, int, list[int]]] = []
    start = start_byte = end_byte = 0
    step_ids: list[int] = []
    for ids in vocabulary.encode(text):
        for token_id in ids:
            step_ids.append(token_id)
            end_byte += vocabulary.token_bytes(token_id)
            if end_byte - start_byte >= step_chars and end_byte < len(data) and data[end_byte] & 0xC0 != 0x80:
                end = start + len(data[start_byte:end_byte].decode("utf-8", "replace"))
                steps.append((start, end, step_ids))
                start, start_byte, step_ids = end, end_byte, []
    return [*steps, (start, len(text), step_ids)] if end_byte == len(data) else None


# So many places are looked at one by one before the whole text is searched for each token.
_MAX_MARKER_CHECKS = 64
# Below this, one call that holds the interpreter's lock is over sooner than another thread would notice.
_MAX_LOCKED_CHARS = 8 * 1024
# Several texts are counted side by side, each on one core, unless one is so long that the others wait for it.
_MAX_BATCHED_CHARS = 32 * 1024
# Whoever goes through ids goes through so many at a time, so that no loop in C keeps others waiting.
_IDS_PER_CHUNK = 16 * 1024
_CHECK_CHUNK_CHARS = 1024 * 1024
# The engine takes 70 bytes for each byte of a word, and keeps them. Longer words are encoded in steps.
_MAX_WORD_CHARS = 128 * 1024


ATOMIC_TOKEN = re.compile(r"<[^<>\[\]\s]{1,24}>|\[[^<>\[\]\s]{1,24}\]")
"""What can be one token wherever it stands: a tag, or a word in brackets."""


class BpeEngine(Protocol):
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


class BpeVocabulary:
    """Counts the tokens of a text as one vocabulary cuts it.

    Special tokens that are spelled out in a text count as the text they are: a user who writes
    `<|endoftext|>` has written those characters.
    """

    def __init__(
        self,
        name: str,
        engine: BpeEngine,
        *,
        special_tokens: Sequence[str] = (),
        safe_boundary: SafeBoundary | None = AFTER_WORDS,
        normalizes: bool = False,
        slow_pattern: re.Pattern[str] | None = None,
        lead_text: str | None = None,
        atomic_tokens: Sequence[str] = (),
    ) -> None:
        """`seam`: where texts can be cut, if anywhere; `composes`: the model reads an accent and its letter as
        one (NFC), which the engine leaves to us; `slow_on`: what takes the quick calls more than linear time;
        `lead`: that the engine knows no pattern, so that texts can be gone through in steps, and their lead;
        `atoms`: what is always one token of its own, which only the quick calls know.
        """
        self.name = name
        self._engine = engine
        self.safe_boundary = safe_boundary
        self._normalizes = normalizes
        self._slow_pattern = slow_pattern
        self._lead_text = lead_text
        self._atomic_tokens = frozenset(atomic_tokens)
        self._special_tokens = tuple(special_tokens)
        self._special_prefixes = tuple(sorted({token[:2] for token in special_tokens}))
        self._token_bytes: dict[int, int] = {}
        self._frame_tokens = len(engine.encode_ordinary(""))
        _register_fork_hook()
        register(self)

    def clear(self) -> None:
        """Have the engine forget the words that it remembers."""
        with suppress(ValueError):  # only those that split by a pattern remember any
            self._engine.clear_cache()

    def count(self, text: str) -> int:
        """How many tokens `text` is."""
        if not text:
            return 0
        text = self._normalize(text)
        try:
            if self._needs_careful_encoding(text):
                return self._count_carefully(text)
            if len(text) <= _MAX_LOCKED_CHARS:
                return len(self._engine.encode_flat(text)) // 4 - self._frame_tokens
            return self._count_pieces(self._split(text))
        except UnicodeEncodeError:
            return self.count(replace_surrogates(text))

    def count_many(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each of `texts` is, counted side by side."""
        texts = [self._normalize(text) for text in texts] if self._normalizes else texts
        if len(texts) < 8:
            return [self.count(text) for text in texts]
        # Nearly always there is nothing to take care of, and looking once through all of them shows it.
        if max(map(len, texts)) > _MAX_BATCHED_CHARS or self._needs_careful_encoding("\n".join(texts)):
            return self._count_mixed(texts)
        try:
            counts = self._count_batch(list(texts))
        except UnicodeEncodeError:
            return [self.count(text) for text in texts]
        return [count if text else 0 for text, count in zip(texts, counts, strict=True)]

    def _count_mixed(self, texts: Sequence[str]) -> list[int]:
        """Texts that are long or want care one by one, and the others side by side."""
        separate = {
            i
            for i, text in enumerate(texts)
            if len(text) > _MAX_BATCHED_CHARS or self._needs_careful_encoding(text)
        }
        if not separate or len(texts) - len(separate) < 8:
            return [self.count(text) for text in texts]
        others = iter(self.count_many([text for i, text in enumerate(texts) if i not in separate]))
        return [self.count(text) if i in separate else next(others) for i, text in enumerate(texts)]

    def encode(self, text: str) -> Iterable[Sequence[int]]:
        """The token ids of `text`, some thousands at a time."""
        text = self._normalize(text)
        if len(text) <= _MAX_LOCKED_CHARS and not self._needs_careful_encoding(text):
            try:
                return (memoryview(self._engine.encode_flat(text)).cast("I"),)
            except UnicodeEncodeError:
                text = replace_surrogates(text)
        return self._encode_long(text)

    def _encode_long(self, text: str) -> Iterator[Sequence[int]]:
        try:
            for start in range(0, len(text), _CHECK_CHUNK_CHARS):
                text[start : start + _CHECK_CHUNK_CHARS].encode()
        except UnicodeEncodeError:
            text = replace_surrogates(text)
        pieces = self._split_carefully(text) if self._needs_careful_encoding(text) else self._split(text)
        for piece in pieces:
            for ids in self._encode_piece(piece):
                for start in range(0, len(ids), _IDS_PER_CHUNK):
                    yield ids[start : start + _IDS_PER_CHUNK]

    def token_bytes(self, token_id: int) -> int:
        """How many bytes of a text a token stands for."""
        size_bytes = self._token_bytes.get(token_id)
        if size_bytes is None:
            size_bytes = self._token_bytes[token_id] = len(self._engine.decode_token_bytes(token_id))
        return size_bytes

    def _normalize(self, text: str) -> str:
        if not self._normalizes:
            return text
        from foveate.tokens.unicode_normalization import normalize_unicode

        return normalize_unicode(text)

    def _encode_piece(self, piece: str) -> Iterator[Sequence[int]]:
        if self._needs_careful_encoding(piece):
            yield from self._encode_ordinary(piece)
        elif len(piece) > _MAX_WORD_CHARS:
            yield from encode_in_steps(self._engine, piece, lead_text=self._lead_text or "")
        elif len(piece) <= _MAX_LOCKED_CHARS:
            yield memoryview(self._engine.encode_flat(piece)).cast("I")
        else:
            yield memoryview(self._engine.encode_batch_flat([piece])[0]).cast("I")

    def _encode_ordinary(self, text: str) -> Iterator[Sequence[int]]:
        """The ids of a text for which the quick calls will not do."""
        start = 0
        # One by one, since going through a long text in a single call would keep other threads waiting.
        for match in ATOMIC_TOKEN.finditer(text) if self._atomic_tokens else ():
            if match[0] in self._atomic_tokens:
                yield from self._encode_without_atoms(text[start : match.start()])
                yield memoryview(self._engine.encode_flat(match[0])).cast("I")
                start = match.end()
        yield from self._encode_without_atoms(text[start:])

    def _encode_without_atoms(self, text: str) -> Iterator[Sequence[int]]:
        """The ids of a text in which nothing stands for itself: a step at a time, where that is exact."""
        if not text:
            return
        if len(text) <= (_MAX_WORD_CHARS if self._lead_text is None else _MAX_LOCKED_CHARS):
            yield self._engine.encode_ordinary(text)
        else:
            yield from encode_in_steps(self._engine, text, lead_text=self._lead_text or "")

    def _needs_careful_encoding(self, text: str) -> bool:
        """Whether the engine's quick calls would find a special token in `text`, or be slow on it."""
        # A loop, as most texts are short and a generator costs more than these.
        for prefix in self._special_prefixes:
            # One character is found ten times as fast as two, and mostly is not there.
            if (
                prefix[0] in text
                and prefix[-1] in text
                and prefix in text
                and self._contains_special_token(text, prefix)
            ):
                return True
        return self._slow_pattern is not None and self._slow_pattern.search(text) is not None

    def _contains_special_token(self, text: str, prefix: str) -> bool:
        """Whether a special token stands in `text`: at its few marks, or, where they are many, anywhere."""
        position = -1
        for _ in range(_MAX_MARKER_CHECKS):
            position = text.find(prefix, position + 1)
            if position < 0:
                return False
            if text.startswith(self._special_tokens, position):
                return True
        return any(token in text for token in self._special_tokens)

    def _split(self, text: str) -> list[str]:
        return split_text(text, safe_boundary=self.safe_boundary) if self.safe_boundary else [text]

    def _split_carefully(self, text: str) -> list[str]:
        """`text` cut inside its special tokens as well, where they have a seam: then no piece spells them."""
        if len(text) <= _MAX_LOCKED_CHARS or self.safe_boundary is None:
            return [text]
        return split_inside_words(text, self._special_tokens, self.safe_boundary)

    def _count_carefully(self, text: str) -> int:
        plain: list[str] = []
        special: list[str] = []
        for piece in self._split_carefully(text):
            (special if self._needs_careful_encoding(piece) else plain).append(piece)
        return self._count_pieces(plain) + sum(map(self._count_ordinary, special))

    def _count_ordinary(self, text: str) -> int:
        return sum(map(len, self._encode_ordinary(text))) - self._frame_tokens

    def _count_pieces(self, pieces: list[str]) -> int:
        words = [piece for piece in pieces if len(piece) > _MAX_WORD_CHARS]
        if words:
            pieces = [piece for piece in pieces if len(piece) <= _MAX_WORD_CHARS]
        word_tokens = sum(
            [
                len(ids)
                for word in words
                for ids in encode_in_steps(self._engine, word, lead_text=self._lead_text or "")
            ]
        )
        return word_tokens - self._frame_tokens * len(words) + sum(self._count_batch(pieces))

    def _count_batch(self, pieces: list[str]) -> list[int]:
        if _forked:  # the engine's thread pool did not come along into this process
            flat = [self._engine.encode_batch_flat([piece])[0] for piece in pieces]
            return [len(ids) // 4 - self._frame_tokens for ids in flat]
        offsets = memoryview(self._engine.encode_batch_flat(pieces)[1]).cast("Q")
        return [offsets[i + 1] - offsets[i] - self._frame_tokens for i in range(len(pieces))]


def replace_surrogates(text: str) -> str:
    """`text` as it can be sent in UTF-8: what is not a character becomes the replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_forked = False
_watching = False


def _register_fork_hook() -> None:
    """Have a forked child told so: waiting for threads that only its parent has would never end."""
    global _watching
    if not _watching and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
        _watching = True


def _after_fork() -> None:
    global _forked
    _forked = True


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
