"""Sessions with their titles, and what the sessions that they started or forked have cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from foveate.cost.money import to_dollars
from foveate.session.titles import make_session_title
from foveate.store.aside import Reader
from foveate.store.database import Transaction, check_storable_names, group_placeholders

_FIND_LABELS = "SELECT id, agent, created_at, folder, opening, parent_id FROM sessions_v1 WHERE id IN ({})"
# Of a session whose only request was refused nothing can be shown.
_FIND_CHILDREN = """
SELECT child.id FROM sessions_v1 AS child JOIN session_totals_v1 AS own ON own.session_id = child.id
WHERE child.parent_id = ? ORDER BY own.first_at, child.id LIMIT ?
"""
# A client can name two sessions as parents of each other: each pair is met once.
_MAX_DESCENDANTS = 10_000
_FIND_DESCENDANTS = f"""
WITH RECURSIVE tree(root, id) AS (
    SELECT parent_id, id FROM sessions_v1 WHERE parent_id IN ({{}})
    UNION SELECT tree.root, child.id FROM sessions_v1 AS child JOIN tree ON child.parent_id = tree.id
)
SELECT tree.root, own.picodollars, own.calls, own.unpriced
FROM tree JOIN session_totals_v1 AS own ON own.session_id = tree.id
WHERE tree.id <> tree.root LIMIT {_MAX_DESCENDANTS}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLabel:
    """What a session is shown as."""

    title: str
    folder: str | None = None
    opening: str | None = None
    parent_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescendantTotals:
    """All sessions that a session started or that forked from it, and theirs: how many, and what they cost."""

    sessions: int = 0
    calls: int = 0
    unpriced: int = 0
    dollars: Decimal = Decimal(0)


class SessionTree:
    """Reads them from a database."""

    def __init__(self, database: Reader) -> None:
        self._database = database

    async def labels(self, session_ids: Sequence[str]) -> Mapping[str, SessionLabel]:
        """Return the labels of those sessions that are stored."""

        def find(transaction: Transaction) -> dict[str, SessionLabel]:
            return {
                id_: _to_label(agent, started_at, folder, opening, parent_id)
                for placeholders, group in group_placeholders(session_ids)
                for id_, agent, started_at, folder, opening, parent_id in transaction.fetch_all(
                    _FIND_LABELS.format(placeholders), group
                )
            }

        return await self._database.read(find) if session_ids else {}

    async def children(self, session_id: str, *, limit: int) -> Sequence[str]:
        """Return the sessions that a session started or that forked from it, the first ones first."""
        check_storable_names(session_id=session_id)
        found = await self._database.read(
            lambda transaction: transaction.fetch_all(_FIND_CHILDREN, (session_id, limit))
        )
        return [id_ for (id_,) in found]

    async def descendants(self, session_ids: Sequence[str]) -> Mapping[str, DescendantTotals]:
        """Return what all descendants of each session come to; nothing of those that have none."""

        def find(transaction: Transaction) -> dict[str, DescendantTotals]:
            sums: dict[str, list[int]] = {}
            for placeholders, group in group_placeholders(session_ids):
                for root, *numbers in transaction.fetch_all(_FIND_DESCENDANTS.format(placeholders), group):
                    known = sums.setdefault(root, [0, 0, 0, 0])
                    sums[root] = [total + added for total, added in zip(known, (*numbers, 1), strict=True)]
            return {
                root: DescendantTotals(
                    dollars=to_dollars(spent), calls=calls, unpriced=unpriced, sessions=sessions
                )
                for root, (spent, calls, unpriced, sessions) in sums.items()
            }

        return await self._database.read(find) if session_ids else {}


def _to_label(
    agent: str, started_at: float, folder: bytes | None, opening: bytes | None, parent_id: str | None
) -> SessionLabel:
    folder_text, opening_text = (
        None if value is None else value.decode("utf-8", "replace") for value in (folder, opening)
    )
    return SessionLabel(
        title=make_session_title(agent, started_at, folder_text, opening_text),
        folder=folder_text,
        opening=opening_text,
        parent_id=parent_id,
    )
