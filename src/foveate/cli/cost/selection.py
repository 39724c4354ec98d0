"""Select calls by agent, session and time. Days are UTC days, as for caps."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from foveate.cli.shared.options import resolve_prefix
from foveate.cost.ledger import GroupBy, Ledger
from foveate.cost.savings import CostReport
from foveate.errors import BadOption
from foveate.memory.queries import Query
from foveate.store import Store
from foveate.store.repositories.sessions import DescendantTotals

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSelection:
    """Conditions on calls; None matches all. `since` is included, `until` is not."""

    agent: str | None = None
    session: str | None = None
    since: float | None = None
    until: float | None = None

    @classmethod
    def from_options(
        cls, *, agent: str | None, session: str | None, since: str | None, until: str | None, now: float
    ) -> Self:
        """Parse the options; here `since` and `until` are both included.

        Raises:
            BadOption: a time cannot be parsed, or a name is empty.
        """
        for option, value in (("--agent", agent), ("--session", session)):
            if value == "":
                raise BadOption(f"{option} needs a name")
        # Times are parsed as in all other commands.
        moments = Query.parse(since=since, until=until, now=datetime.fromtimestamp(now, UTC))
        return cls(
            agent=agent,
            session=session,
            since=None if moments.since is None else (moments.since - _EPOCH).total_seconds(),
            # Parsed times have microseconds, and the last microsecond is included.
            until=None if moments.until is None else (moments.until - _EPOCH + _MICROSECOND).total_seconds(),
        )


def parse_group_by(text: str) -> tuple[GroupBy, ...]:
    """Parse what to group sums by.

    Raises:
        BadOption: a word is unknown, or repeated.
    """
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if word not in list(GroupBy):
            raise BadOption(f"--by takes {', '.join(GroupBy)}, separated by commas, not {word!r:.40}")
        if words.count(word) > 1:
            raise BadOption(f"--by names {word} twice")
    return tuple(map(GroupBy, words))


@dataclass(frozen=True, slots=True)
class SessionFamily:
    title: str
    descendants: DescendantTotals


async def session_families(
    store: Store, report: CostReport, session_id: str | None
) -> Mapping[str, SessionFamily]:
    ids = [] if session_id is None else [session_id]
    if GroupBy.SESSION in report.group_by:
        column = report.group_by.index(GroupBy.SESSION)
        ids += [row.group[column] for row in report.rows if row.group[column] != session_id]
    labels, descendants = await store.session_tree.labels(ids), await store.session_tree.descendants(ids)
    return {
        id_: SessionFamily(labels[id_].title if id_ in labels else "", descendants.get(id_, DescendantTotals()))
        for id_ in ids
        if id_ in labels or id_ in descendants
    }


async def resolve_session_id(ledger: Ledger, selection: CallSelection) -> str | None:
    """Return the id of the selected session; None if none is selected.

    Raises:
        BadOption: the prefix matches several sessions, or none.
    """
    if selection.session is None:
        return None
    if any(row.calls for row in await ledger.sum_charges([], session_id=selection.session)):
        return selection.session
    session_ids = sorted(row.group[0] for row in await ledger.sum_charges([GroupBy.SESSION]))
    found = resolve_prefix(
        [id_ for id_ in session_ids if id_.startswith(selection.session)], selection.session, "session"
    )
    if found is None:
        raise BadOption(f"there are no calls of a session whose id starts with {selection.session!r:.80}")
    return found
