"""Immutable lists that share memory with their longer successors."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar, overload

Item = TypeVar("Item")


class TupleLike(Sequence[Item], Generic[Item]):
    """A sequence that compares like a tuple."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, (TupleLike, tuple)) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class PrefixList(TupleLike[Item]):
    """The first items of a list that may have been extended since; its own length never changes.

    A tuple would be copied on every turn of a long session. `items` is the shared list, for fast access to
    single items.
    """

    __slots__ = ("_extend_token", "_size", "items")

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self.items = list(items)
        self._size = len(self.items)
        self._extend_token = [True]

    def with_more(self, new: Iterable[Item]) -> "PrefixList[Item]":
        items = self.items
        try:
            self._extend_token.pop()  # the first thread that extends this list takes it over
        except IndexError:
            items = items[: self._size]
        items.extend(new)
        longer: PrefixList[Item] = PrefixList()
        longer.items, longer._size = items, len(items)
        return longer

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Item, ...]: ...
    def __getitem__(self, at: int | slice) -> Item | tuple[Item, ...]:
        if isinstance(at, slice):
            start, stop, step = at.indices(self._size)
            if step > 0:
                return tuple(self.items[start:stop:step])
            return tuple([self.items[index] for index in range(start, stop, step)])
        if at < 0:
            at += self._size
        if not 0 <= at < self._size:
            raise IndexError(at)
        return self.items[at]

    def __iter__(self) -> Iterator[Item]:
        return islice(self.items, self._size)
