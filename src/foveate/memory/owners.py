"""Ids that several nodes give themselves: which of them goes by it."""

from collections.abc import Iterable
from typing import Self


class Owners:
    """For every `ID` the key of the document whose node goes by it: the first of those that claim it."""

    def __init__(self) -> None:
        self.by_id: dict[str, str] = {}
        self._rivals: dict[str, frozenset[str]] = {}

    def copy(self) -> Self:
        """Another one that knows the same."""
        other = type(self)()
        other.by_id = self.by_id.copy()
        other._rivals = self._rivals.copy()
        return other

    def claim(self, key: str, ids: Iterable[str]) -> None:
        """A document has nodes with these ids."""
        for each in ids:
            owner = self.by_id.setdefault(each, key)
            if owner != key:
                self._share(each, self._rivals.get(each, frozenset({owner})) | {key})

    def release(self, key: str, ids: Iterable[str]) -> None:
        """A document has them no longer."""
        for each in set(ids):  # one document can have an id twice
            if each in self._rivals:
                self._share(each, self._rivals[each] - {key})
            else:
                self.by_id.pop(each, None)

    def _share(self, id_: str, keys: frozenset[str]) -> None:
        self.by_id[id_] = min(keys)
        if len(keys) > 1:
            self._rivals[id_] = keys
        else:
            self._rivals.pop(id_, None)
