"""Select compactions by id prefix, agent, session, time and outcome."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from math import inf, nextafter
from typing import TYPE_CHECKING

from foveate.cli.shared.options import MAX_LISTED_IDS, resolve_prefix
from foveate.compaction.store import Compaction, CompactionOutcome, CompactionStore
from foveate.errors import BadOption

if TYPE_CHECKING:
    from foveate.store import Store

_PAGE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFilter:
    """None matches all. Times are Unix seconds, both ends included."""

    agent: str | None = None
    session_id: str | None = None
    outcome: CompactionOutcome | None = None
    since: float | None = None
    until: float | None = None


async def iterate_compactions(store: CompactionStore, selection: CompactionFilter) -> AsyncIterator[Compaction]:
    """Yield matching compactions, newest first, reading a page at a time."""
    before = None if selection.until is None else nextafter(selection.until, inf)
    seen: set[str] = set()
    size = _PAGE
    while True:
        page = await store.list_compactions(
            agent=selection.agent, session_id=selection.session_id, limit=size, before=before
        )
        new = [compaction for compaction in page if compaction.id not in seen]
        for compaction in new:
            if selection.since is not None and compaction.compacted_at < selection.since:
                return
            if selection.outcome is None or compaction.outcome is selection.outcome:
                yield compaction
        if len(page) < size:
            return
        # Compactions with the same time may be split across pages, so they are read again.
        last = page[-1].compacted_at
        before = nextafter(last, inf)
        seen = {compaction.id for compaction in page if compaction.compacted_at == last}
        size = size if new else 2 * size


async def list_compactions(
    store: "Store", selection: CompactionFilter, *, limit: int
) -> tuple[list[Compaction], bool]:
    """Return the newest `limit` matches, and whether there are more."""
    found: list[Compaction] = []
    async for compaction in iterate_compactions(store.compactions, selection):
        if len(found) == limit:
            return found, True
        found.append(compaction)
    return found, False


async def find_compaction(store: "Store", prefix: str) -> Compaction:
    """Return the compaction whose id starts with `prefix`.

    Raises:
        BadOption: there is none, or more than one.
    """
    if not prefix:
        raise BadOption(
            "the id of a compaction is missing: give it or its first characters; `foveate compactions list` "
            "lists ids"
        )
    ids = await store.find_compaction_ids(prefix, limit=MAX_LISTED_IDS + 1)
    id_ = resolve_prefix(ids, prefix, "compaction")
    found = await store.compactions.get_compaction(id_) if id_ is not None else None
    if found is None:
        raise BadOption(
            f"no compaction has an id that starts with {prefix!r:.80}: `foveate compactions list` lists them"
        )
    return found


async def find_session_id(store: "Store", prefix: str) -> str | None:
    """Return the id of the compacted session that starts with `prefix`; None if there is none.

    Raises:
        BadOption: there is more than one.
    """
    if not prefix:
        raise BadOption("--session takes the id of a session or its first characters")
    return resolve_prefix(
        await store.find_compacted_session_ids(prefix, limit=MAX_LISTED_IDS + 1), prefix, "session"
    )
