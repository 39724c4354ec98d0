"""Folds as a user asks for them: by how an id begins, whose they are, when they were made, how they ended."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from math import inf, nextafter
from typing import TYPE_CHECKING

from foveate.cli.ids import MOST_NAMED, the_one
from foveate.errors import BadOption
from foveate.fold.journal import Fold, Journal, Outcome

if TYPE_CHECKING:
    from foveate.store import Store

_PAGE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which folds are asked for; what is None is not. Times are seconds since 1970, both included."""

    agent: str | None = None
    session_id: str | None = None
    outcome: Outcome | None = None
    since: float | None = None
    until: float | None = None


async def folds(journal: Journal, asked: Asked) -> AsyncIterator[Fold]:
    """Every fold that is asked for, the newest first; read a page at a time."""
    before = None if asked.until is None else nextafter(asked.until, inf)
    seen: set[str] = set()
    size = _PAGE
    while True:
        page = await journal.listed(agent=asked.agent, session_id=asked.session_id, limit=size, before=before)
        new = [fold for fold in page if fold.id not in seen]
        for fold in new:
            if asked.since is not None and fold.compacted_at < asked.since:
                return
            if asked.outcome is None or fold.outcome is asked.outcome:
                yield fold
        if len(page) < size:
            return
        # Of several that were made at the same time, some may be on the next page: they are asked for again.
        last = page[-1].compacted_at
        before = nextafter(last, inf)
        seen = {fold.id for fold in page if fold.compacted_at == last}
        size = size if new else 2 * size


async def listed(store: "Store", asked: Asked, *, limit: int) -> tuple[list[Fold], bool]:
    """The newest `limit` of those that are asked for, and whether there are more."""
    found: list[Fold] = []
    async for fold in folds(store.journal, asked):
        if len(found) == limit:
            return found, True
        found.append(fold)
    return found, False


async def fold_named(store: "Store", beginning: str) -> Fold:
    """The fold whose id begins so.

    Raises:
        BadOption: there is none, or more than one.
    """
    if not beginning:
        raise BadOption("the id of a fold is expected, or how it begins; foveate compactions list shows them")
    ids = await store.fold_ids(beginning, limit=MOST_NAMED + 1)
    id_ = the_one(ids, beginning, "fold")
    found = await store.journal.fold(id_) if id_ is not None else None
    if found is None:
        raise BadOption(f"there is no fold whose id begins with {beginning!r:.80}")
    return found


async def session_named(store: "Store", beginning: str) -> str | None:
    """The id of the session that begins so and has been folded, or was to be; None where there is none.

    Raises:
        BadOption: there are more than one.
    """
    if not beginning:
        raise BadOption("--session needs the id of a session, or how it begins")
    return the_one(await store.folded_sessions(beginning, limit=MOST_NAMED + 1), beginning, "session")
