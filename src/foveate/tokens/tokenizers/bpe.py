"""Byte-pair encoding with vocabularies on this machine."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import repeat
from typing import Protocol

from foveate.caching import register
from foveate.model import TokenCount
from foveate.tokens.tokenizers.tokenizer import (
    AFTER_WORDS,
    AdditiveCounts,
    SafeBoundary,
    TextLength,
    length_to_count,
    split_inside_words,
    split_text,
)

# So many occurrences of a prefix are checked one by one before the whole text is searched for each special
# token.
_MAX_MARKER_CHECKS = 64
# A call for a shorter text holds the GIL, but not long enough to delay other threads.
_MAX_LOCKED_CHARS = 8 * 1024
# Texts are counted in parallel, each on one core, unless one is so long that the others would wait for it.
_MAX_BATCHED_CHARS = 32 * 1024
# Ids are returned in chunks, so that no loop in C delays other threads.
_IDS_PER_CHUNK = 16 * 1024
_CHECK_CHUNK_CHARS = 1024 * 1024
# The engine needs 70 bytes of memory for each byte of a word, and does not free them. Longer words are encoded
# in steps.
_MAX_WORD_CHARS = 128 * 1024
DEFAULT_STEP_CHARS = 8 * 1024
# The text after a step can change about this many of its last tokens. If it changes more, that is detected.
_UNSTABLE_TOKENS = 8
_MAX_BORDERS_TRIED = 8
# Smaller vocabularies encode other scripts almost byte by byte, which the bound must allow for.
_NON_ASCII_TOKENS_PER_BYTE = 0.7
_MAX_CACHED_COUNTS = 4096
ATOMIC_TOKEN = re.compile(r"<[^<>\[\]\s]{1,24}>|\[[^<>\[\]\s]{1,24}\]")
"""Texts that can be one token in any context: a tag, or a word in brackets."""


class BpeEngine(Protocol):
    """The part of splintr's tokenizers that is used here."""

    def encode_ordinary(self, text: str) -> list[int]:
        """Return token ids. Holds the GIL."""

    def encode_flat(self, text: str) -> bytes:
        """Return token ids, four bytes each. Matches special tokens; holds the GIL."""

    def encode_batch_flat(self, texts: list[str]) -> tuple[bytes, bytes]:
        """Return the ids of all texts and the offset of each. Matches special tokens; releases the GIL."""

    def decode_token_bytes(self, token_id: int, /) -> bytes:
        """Return the bytes of one token, which may be part of a character."""

    def clear_cache(self) -> None:
        """Empty the cache of encoded words. Raises ValueError if the engine has none."""


class BpeVocabulary:
    """Counts and encodes texts with one vocabulary.

    Special tokens that are spelled out in a text count as ordinary characters: a user who writes
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
        """Wrap an engine.

        `safe_boundary`: where texts can be split, if anywhere. `normalizes`: the model reads NFC, which the
        engine does not produce. `slow_pattern`: what the fast calls take more than linear time for.
        `lead_text`: given if the engine uses no pattern, so that texts can be encoded in steps.
        `atomic_tokens`: texts that are always one token, which only the fast calls know.
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
        with suppress(ValueError):  # engines without a pattern have no cache
            self._engine.clear_cache()

    def count(self, text: str) -> int:
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
        texts = [self._normalize(text) for text in texts] if self._normalizes else texts
        if len(texts) < 8:
            return [self.count(text) for text in texts]
        # Careful encoding is rarely needed, and one search through all texts shows it.
        if max(map(len, texts)) > _MAX_BATCHED_CHARS or self._needs_careful_encoding("\n".join(texts)):
            return self._count_mixed(texts)
        try:
            counts = self._count_batch(list(texts))
        except UnicodeEncodeError:
            return [self.count(text) for text in texts]
        return [count if text else 0 for text, count in zip(texts, counts, strict=True)]

    def _count_mixed(self, texts: Sequence[str]) -> list[int]:
        """Count long texts, and those that need careful encoding, one by one, and the others in parallel."""
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
        """Return the token ids of `text`, some thousands at a time."""
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
        """Return the length of a token in bytes of text."""
        size_bytes = self._token_bytes.get(token_id)
        if size_bytes is None:
            size_bytes = self._token_bytes[token_id] = len(self._engine.decode_token_bytes(token_id))
        return size_bytes

    def _normalize(self, text: str) -> str:
        if not self._normalizes:
            return text
        from foveate.unicode_normalization import normalize_unicode

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
        """Encode a text that the fast calls cannot encode correctly or quickly."""
        start = 0
        # One match at a time, since a single call for a long text would delay other threads.
        for match in ATOMIC_TOKEN.finditer(text) if self._atomic_tokens else ():
            if match[0] in self._atomic_tokens:
                yield from self._encode_without_atoms(text[start : match.start()])
                yield memoryview(self._engine.encode_flat(match[0])).cast("I")
                start = match.end()
        yield from self._encode_without_atoms(text[start:])

    def _encode_without_atoms(self, text: str) -> Iterator[Sequence[int]]:
        if not text:
            return
        if len(text) <= (_MAX_WORD_CHARS if self._lead_text is None else _MAX_LOCKED_CHARS):
            yield self._engine.encode_ordinary(text)
        else:
            yield from encode_in_steps(self._engine, text, lead_text=self._lead_text or "")

    def _needs_careful_encoding(self, text: str) -> bool:
        # A loop, since most texts are short and a generator would cost more than the searches.
        for prefix in self._special_prefixes:
            # Searching for one character is ten times as fast as for two, and usually fails.
            if (
                prefix[0] in text
                and prefix[-1] in text
                and prefix in text
                and self._contains_special_token(text, prefix)
            ):
                return True
        return self._slow_pattern is not None and self._slow_pattern.search(text) is not None

    def _contains_special_token(self, text: str, prefix: str) -> bool:
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
        """Split `text` inside its special tokens too, if they have a safe boundary, so that no piece spells
        one.
        """
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
        if _is_forked:  # the engine's threads do not exist in a forked process
            flat = [self._engine.encode_batch_flat([piece])[0] for piece in pieces]
            return [len(ids) // 4 - self._frame_tokens for ids in flat]
        offsets = memoryview(self._engine.encode_batch_flat(pieces)[1]).cast("Q")
        return [offsets[i + 1] - offsets[i] - self._frame_tokens for i in range(len(pieces))]


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, so that the text can be encoded as UTF-8."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def split_into_tokens(vocabulary: BpeVocabulary, text: str) -> tuple[bytes, ...] | None:
    """Return the bytes of each token of `text`. None if the tokens do not spell the text.

    A character can be several tokens, so a token need not be valid text.
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


_is_forked = False
_fork_hook_registered = False


def _register_fork_hook() -> None:
    """Note forks: in the child, waiting for the engine's threads would never end."""
    global _fork_hook_registered
    if not _fork_hook_registered and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
        _fork_hook_registered = True


def _after_fork() -> None:
    global _is_forked
    _is_forked = True


class BpeTokenizer:
    """Tokenizer with a vocabulary. Exact if the vocabulary is the model's own."""

    def __init__(self, vocabulary: BpeVocabulary, *, exact: bool = True, spread: float = 0.0) -> None:
        """`spread`: how much longer, relatively, texts can be for the model if the vocabulary is
        not its own.
        """
        self.name = vocabulary.name
        self.exact = exact
        self.safe_boundary = vocabulary.safe_boundary
        self._vocabulary = vocabulary
        self._spread = spread

    def measure(self, text: str) -> TextLength:
        tokens = self._vocabulary.count(text)
        return TextLength(tokens, 0.0) if self.exact and not self._spread else self._make_length(text, tokens)

    def measure_many(self, texts: Sequence[str]) -> list[TextLength]:
        return list(map(self._make_length, texts, self._vocabulary.count_many(texts)))

    def additive_counts(self, texts: Sequence[str]) -> list[AdditiveCounts]:
        """Tokens, and bytes that another vocabulary might encode one by one."""
        tokens = self._vocabulary.count_many(texts)
        if self.exact:
            return list(zip(tokens, repeat(0)))
        return list(zip(tokens, map(_count_extra_utf8_bytes, texts), strict=True))

    def weigh(self, counts: AdditiveCounts) -> TextLength:
        tokens, extra_bytes = counts
        return TextLength(tokens, tokens * self._spread + _NON_ASCII_TOKENS_PER_BYTE * extra_bytes)

    def to_token_count(self, counts: AdditiveCounts) -> TokenCount:
        return _exact_count(counts[0]) if self.exact else length_to_count(self.weigh(counts), exact=False)

    def count_steps(self, text: str, step_chars: int) -> list[tuple[int, AdditiveCounts]] | None:
        steps = token_steps(self._vocabulary, text, step_chars)
        if steps is None:
            return None
        return [
            (end, (len(ids), 0 if self.exact else _count_extra_utf8_bytes(text[start:end])))
            for start, end, ids in steps
        ]

    def _make_length(self, text: str, tokens: int) -> TextLength:
        return self.weigh((tokens, 0 if self.exact else _count_extra_utf8_bytes(text)))


@lru_cache(_MAX_CACHED_COUNTS)
def _exact_count(tokens: int) -> TokenCount:
    """Return an exact count. Cached, since prompts of many sections need thousands, mostly of small numbers."""
    return TokenCount(max(tokens, 1), True, max(tokens, 1))


def _count_extra_utf8_bytes(text: str) -> int:
    return 0 if text.isascii() else len(text.encode("utf-8", "replace")) - len(text)


class TextEncoder(Protocol):
    """The part of an engine that `encode_in_steps` uses."""

    def encode_ordinary(self, text: str) -> list[int]: ...

    def decode_token_bytes(self, token_id: int, /) -> bytes: ...


def encode_in_steps(
    engine: TextEncoder, text: str, *, lead_text: str = "", step_chars: int = DEFAULT_STEP_CHARS
) -> Iterator[Sequence[int]]:
    """Encode a long text that no pattern splits, step by step, with the same result as `encode_ordinary`.

    Without a pattern, merges can happen anywhere, so no position is known to be safe to cut at. But a sequence
    of tokens is the encoding of its text if every two neighbours are the encoding of theirs. To see why, take
    the first merge that would cross a border between two tokens. Until then each of them was merged on its own,
    in the same order as next to that neighbour alone, so the merge would have happened there too, and the two
    would not be the encoding of their text.

    So the last tokens of a step are discarded, and the next step begins where they did. If it begins with the
    same token as before, then this token and the last one kept are neighbours in an encoding, like all others.

    `lead_text` is for engines that put a space before a text: a text that merges with nothing.
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
        else:  # no stable border: a longer step is also right, only slower
            size *= 2
            first = 0 if start == 0 else lead_tokens
            ids = engine.encode_ordinary((lead_text if start else "") + text[start : start + size])[first:]
    yield ids


def _iter_step_borders(engine: TextEncoder, step: str, ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield where a step can be cut, last first: the number of tokens and of characters before the cut."""
    step = step.replace("▁", " ")  # how engines without a pattern write a space
    tail = b""
    for kept_tokens in range(len(ids) - 1, max(0, len(ids) - _UNSTABLE_TOKENS - _MAX_BORDERS_TRIED), -1):
        tail = engine.decode_token_bytes(ids[kept_tokens]) + tail
        if len(ids) - kept_tokens < _UNSTABLE_TOKENS:
            continue
        with suppress(UnicodeDecodeError):  # not between characters
            tail_text = tail.decode()
            if step.endswith(tail_text) and len(tail_text) < len(step):
                yield kept_tokens, len(step) - len(tail_text)


class TokenVocabulary(Protocol):
    """The part of a vocabulary that `token_steps` uses."""

    def encode(self, text: str) -> Iterable[Sequence[int]]: ...

    def token_bytes(self, token_id: int) -> int: ...


def token_steps(
    vocabulary: TokenVocabulary, text: str, step_chars: int
) -> list[tuple[int, int, list[int]]] | None:
    """Return start, end and tokens of each step through `text`. The tokens of all steps are those of the whole.

    A prefix of the text that ends with a token has exactly the tokens up to there, see `encode_in_steps`. None
    if the tokens do not spell the text exactly, because it was normalized or a space was put before it.
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
