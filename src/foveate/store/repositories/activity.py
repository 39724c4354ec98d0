"""Derives how agents work from their sessions and charges (`foveate.compaction.forecast`)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from foveate.compaction.forecast import NO_AGENT_ACTIVITY, AgentActivity
from foveate.store.database import Reader, Transaction

_MAX_SESSIONS = 2_000
_MAX_CALLS = 5_000
_FIND_ENDED_SESSIONS = f"""
SELECT agent, requests - failed FROM session_totals_v1
WHERE last_at < ? ORDER BY last_at DESC LIMIT {_MAX_SESSIONS}
"""
_FIND_LATEST_CALLS = f"""
SELECT agent, session_id, at, tokens FROM (
    SELECT agent, session_id, at, category, uncached + read + written_5m + written_1h AS tokens
    FROM ledger_v1 ORDER BY at DESC, call_id DESC LIMIT {_MAX_CALLS}
) AS latest WHERE category = 'main' ORDER BY at
"""
# A request that is twice as long as the one before it, or half as long, does not continue it: it is a side
# request, or the history was compacted.
_MAX_GROWTH_FACTOR = 2


class SqlActivityStore:
    """`foveate.compaction.forecast.ActivityStore` on a database."""

    def __init__(self, database: Reader) -> None:
        self._database = database

    async def load(self, *, ended_before: float) -> Mapping[str, AgentActivity]:
        def read(transaction: Transaction) -> Mapping[str, AgentActivity]:
            return _add_up(
                transaction.fetch_all(_FIND_ENDED_SESSIONS, (ended_before,)),
                transaction.fetch_all(_FIND_LATEST_CALLS),
            )

        return await self._database.read(read)


def _add_up(
    sessions: Iterable[tuple[str, int]], calls: Iterable[tuple[str, str, float, int]]
) -> Mapping[str, AgentActivity]:
    activities: dict[str, AgentActivity] = defaultdict(lambda: NO_AGENT_ACTIVITY)
    for agent, requests in sessions:
        if requests > 0:
            activity = activities[agent]
            activities[agent] = replace(
                activity, sessions=activity.sessions + 1, requests=activity.requests + requests
            )
    last_calls: dict[str, tuple[float, int]] = {}
    for agent, session_id, at, tokens in calls:
        last_at, last_tokens = last_calls.get(session_id, (None, 0))
        last_calls[session_id] = at, tokens
        if last_at is None:
            continue
        activity = activities[agent]
        activity = replace(activity, gaps=activity.gaps.with_gap(at - last_at))
        if last_tokens < _MAX_GROWTH_FACTOR * tokens and tokens < _MAX_GROWTH_FACTOR * last_tokens:
            activity = replace(
                activity,
                grown_tokens=activity.grown_tokens + max(tokens - last_tokens, 0),
                grown_requests=activity.grown_requests + 1,
            )
        activities[agent] = activity
    return dict(activities)
