"""Folds written out whole, one at a time, so that however many there are take no room."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

from foveate.cli.compactions_found import (
    CompactionFilter,
    find_compaction,
    find_session_id,
    iterate_compactions,
)
from foveate.cli.compactions_lines import compaction_object, message_text
from foveate.errors import BadOption
from foveate.fold.journal import Compaction

if TYPE_CHECKING:
    from foveate.store import Store


async def select_for_export(
    store: "Store", ids: Sequence[str], session: str | None
) -> AsyncIterator[Compaction]:
    """The folds that are named, or all of a session, or all.

    Raises:
        BadOption: one of them is not there.
    """
    if ids:
        selected = [await find_compaction(store, prefix) for prefix in ids]
        return _iterate(list({compaction.id: compaction for compaction in selected}.values()))
    session_id = None
    if session is not None:
        session_id = await find_session_id(store, session)
        if session_id is None:
            raise BadOption(f"there is no fold of a session whose id begins with {session!r:.80}")
    return iterate_compactions(store.compactions, CompactionFilter(session_id=session_id))


async def _iterate(compactions: Sequence[Compaction]) -> AsyncIterator[Compaction]:
    for compaction in compactions:
        yield compaction


async def write_compactions(
    store: "Store", compactions: AsyncIterator[Compaction], file: BinaryIO, *, as_list: bool
) -> int:
    """How many folds were written to `file`: as JSON, one a line, or as one list."""
    count = 0
    if as_list:
        file.write(b"[")
    async for compaction in compactions:
        turns = await store.compactions.load_messages(compaction.id)
        row = json.dumps(compaction_object(compaction) | {"turns": [message_text(turn) for turn in turns]})
        if as_list:
            file.write(b",\n" if count else b"\n")
        file.write(row.encode("ascii"))
        file.write(b"" if as_list else b"\n")
        count += 1
    if as_list:
        file.write(b"\n]\n")
    return count
