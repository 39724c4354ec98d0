"""Folds written out whole, one at a time, so that however many there are take no room."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

from foveate.cli.compactions_found import Asked, fold_named, folds, session_named
from foveate.cli.compactions_lines import fold_object, turn_text
from foveate.errors import BadOption
from foveate.fold.journal import Fold

if TYPE_CHECKING:
    from foveate.store import Store


async def chosen(store: "Store", ids: Sequence[str], session: str | None) -> AsyncIterator[Fold]:
    """The folds that are named, or all of a session, or all.

    Raises:
        BadOption: one of them is not there.
    """
    if ids:
        named = [await fold_named(store, beginning) for beginning in ids]
        return _each(list({fold.id: fold for fold in named}.values()))
    session_id = None
    if session is not None:
        session_id = await session_named(store, session)
        if session_id is None:
            raise BadOption(f"there is no fold of a session whose id begins with {session!r:.80}")
    return folds(store.journal, Asked(session_id=session_id))


async def _each(some: Sequence[Fold]) -> AsyncIterator[Fold]:
    for fold in some:
        yield fold


async def written(store: "Store", some: AsyncIterator[Fold], file: BinaryIO, *, as_list: bool) -> int:
    """How many folds were written to `file`: as JSON, one a line, or as one list."""
    number = 0
    if as_list:
        file.write(b"[")
    async for fold in some:
        turns = await store.journal.folded(fold.id)
        row = json.dumps(fold_object(fold) | {"turns": [turn_text(turn) for turn in turns]})
        if as_list:
            file.write(b",\n" if number else b"\n")
        file.write(row.encode("ascii"))
        file.write(b"" if as_list else b"\n")
        number += 1
    if as_list:
        file.write(b"\n]\n")
    return number
