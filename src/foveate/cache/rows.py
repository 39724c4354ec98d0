"""The pieces of a session's request and their ends, made from those of the request before it."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import overload

from msgspec.structs import replace

from foveate.cache.prompts import PromptPiece
from foveate.wire.begun import PrefixList, TupleLike


class OffsetPieces(TupleLike[PromptPiece]):
    """Pieces of which the first has `rest` tokens more than its own."""

    __slots__ = ("_first", "_own", "_size")

    def __init__(self, own: PrefixList[PromptPiece], extra_tokens: int) -> None:
        self._own, self._size = own.items, len(own)
        self._first = [replace(own[0], tokens=own[0].tokens + extra_tokens)] if own else []

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, at: int) -> PromptPiece: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[PromptPiece, ...]: ...
    def __getitem__(self, at: int | slice) -> PromptPiece | tuple[PromptPiece, ...]:
        if isinstance(at, slice):
            return tuple([self[each] for each in range(*at.indices(self._size))])
        if at < 0:
            at += self._size
        if 0 < at < self._size:
            return self._own[at]
        if at:
            raise IndexError(at)
        return self._first[0]

    def __iter__(self) -> Iterator[PromptPiece]:
        return chain(self._first, islice(self._own, 1, self._size))

    def __reversed__(self) -> Iterator[PromptPiece]:
        return chain(map(self._own.__getitem__, range(self._size - 1, 0, -1)), self._first)


class OffsetEnds(TupleLike[int]):
    """Where pieces end, in tokens; all of them stand behind `rest` more."""

    __slots__ = ("_extra_tokens", "_own", "_size")

    def __init__(self, own: PrefixList[int], extra_tokens: int) -> None:
        self._own, self._size = own.items, len(own)
        self._extra_tokens = extra_tokens

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[int, ...]: ...
    def __getitem__(self, at: int | slice) -> int | tuple[int, ...]:
        if isinstance(at, slice):
            return tuple([self[each] for each in range(*at.indices(self._size))])
        if at < 0:
            at += self._size
        if not 0 <= at < self._size:
            raise IndexError(at)
        return self._own[at] + self._extra_tokens

    def __iter__(self) -> Iterator[int]:
        return (end + self._extra_tokens for end in islice(self._own, self._size))
