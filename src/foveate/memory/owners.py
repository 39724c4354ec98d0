"""Ids that several nodes give themselves: which of them goes by it."""

from collections.abc import Iterable
from typing import Self


class IdOwners:
    """For every `ID` the key of the document whose node goes by it: the first of those that claim it."""

    def __init__(self) -> None:
        self.by_id: dict[str, str] = {}
        self._claimants: dict[str, frozenset[str]] = {}

    def copy(self) -> Self:
        """Another one that knows the same."""
        other = type(self)()
        other.by_id = self.by_id.copy()
        other._claimants = self._claimants.copy()
        return other

    def claim(self, key: str, ids: Iterable[str]) -> None:
        """A document has nodes with these ids."""
        for each in ids:
            owner = self.by_id.setdefault(each, key)
            if owner != key:
                self._set_claimants(each, self._claimants.get(each, frozenset({owner})) | {key})

    def release(self, key: str, ids: Iterable[str]) -> None:
        """A document has them no longer."""
        for each in set(ids):  # one document can have an id twice
            if each in self._claimants:
                self._set_claimants(each, self._claimants[each] - {key})
            else:
                self.by_id.pop(each, None)

    def _set_claimants(self, id_: str, keys: frozenset[str]) -> None:
        self.by_id[id_] = min(keys)
        if len(keys) > 1:
            self._claimants[id_] = keys
        else:
            self._claimants.pop(id_, None)
