"""The tokens of a long text that no pattern splits, found a step at a time.

Byte-pair encoding without a pattern may merge anywhere, so no place is known beforehand where such a text can
be cut. But tokens in a row are the encoding of their text if every two neighbours are the encoding of theirs:
take the first merge that would run over a border between two. Until then each token has come about by itself,
in the order in which it does beside that neighbour alone, so there the same merge would have been next, and the
two would not be the encoding of theirs.

So the last tokens of a step are given up, and the next step begins where they did. Where it begins with the
same token, that one and the last that was kept are neighbours in an encoding, as are all others.

For the same reason a beginning of such a text that ends where one of its tokens does has just the tokens up to
there: `token_steps` says where that is, and how many they are.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

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
