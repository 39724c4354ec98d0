"""Stores what gateways learn from traffic, so that it outlives them and others know it too.

These are calibrations of token counters, and which prompt prefixes each agent requests again
(`foveate.prompt_cache.placement.prefix_reuse`). How agents work (`foveate.compaction.forecast`) is derived from
their sessions and charges.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import TypeVar

import msgspec

from foveate.compaction.forecast import NO_AGENT_ACTIVITY, AgentActivity
from foveate.prompt_cache.placement.prefix_reuse import AgentReuse
from foveate.store.database import Database, Reader, Transaction, check_storable_names
from foveate.tokens.calibration import Calibration, CalibrationKey

LearntT = TypeVar("LearntT")

# PostgreSQL cannot index longer keys.
_MAX_KEY_CHARS = 500
_FIND_CALIBRATIONS = "SELECT upstream, counter, learnt FROM lessons_v1 ORDER BY at DESC LIMIT ?"
# Of two processes that calibrate at the same time, the one with more responses wins.
_SAVE_CALIBRATION = """
INSERT INTO lessons_v1 (upstream, counter, responses, learnt, at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (upstream, counter) DO UPDATE
SET responses = excluded.responses, learnt = excluded.learnt, at = excluded.at
WHERE excluded.responses >= lessons_v1.responses
"""
_LOAD_REUSE = "SELECT agent, learnt FROM prefix_reuse_v1 WHERE at >= ? ORDER BY at DESC LIMIT ?"
# Of two gateways that learn about the same agent, the one with more requests wins.
_SAVE_REUSE = """
INSERT INTO prefix_reuse_v1 (agent, requests, learnt, at) VALUES (?, ?, ?, ?)
ON CONFLICT (agent) DO UPDATE
SET requests = excluded.requests, learnt = excluded.learnt, at = excluded.at
WHERE excluded.requests >= prefix_reuse_v1.requests
"""
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


class SqlCalibrationStore:
    """`foveate.tokens.calibration.CalibrationStore` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load_latest(self, *, limit: int) -> Mapping[CalibrationKey, Calibration]:
        rows = await self._database.read(
            lambda transaction: transaction.fetch_all(_FIND_CALIBRATIONS, (limit,))
        )
        return {
            (upstream, counter): calibration
            for upstream, counter, learnt in reversed(rows)
            if (calibration := _decode(learnt, Calibration)) is not None
        }

    async def save(self, calibrations: Mapping[CalibrationKey, Calibration], *, now: float) -> None:
        rows = []
        for (upstream, counter), learnt in sorted(calibrations.items(), key=itemgetter(0)):
            check_storable_names(upstream=upstream, counter=counter)
            if len(upstream) + len(counter) <= _MAX_KEY_CHARS:
                rows.append((upstream, counter, learnt.responses, msgspec.json.encode(learnt), now))
        if rows:
            await self._database.write(
                lambda transaction: transaction.execute_many(_SAVE_CALIBRATION, rows), is_idempotent=True
            )


class SqlReuseStore:
    """`foveate.prompt_cache.placement.prefix_reuse.ReuseStore` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, *, since: float, limit: int) -> Mapping[str, AgentReuse]:
        rows = await self._database.read(lambda transaction: transaction.fetch_all(_LOAD_REUSE, (since, limit)))
        return {
            agent: reuse
            for agent, learnt in reversed(rows)
            if (reuse := _decode(learnt, AgentReuse)) is not None
        }

    async def save(self, learnt: Mapping[str, AgentReuse], *, now: float) -> None:
        rows = []
        for agent, reuse in sorted(learnt.items(), key=itemgetter(0)):
            check_storable_names(agent=agent)
            if len(agent) <= _MAX_KEY_CHARS:
                rows.append((agent, reuse.requests, msgspec.json.encode(reuse), now))
        if rows:
            await self._database.write(
                lambda transaction: transaction.execute_many(_SAVE_REUSE, rows), is_idempotent=True
            )


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


def _decode(learnt: bytes, expected: type[LearntT]) -> LearntT | None:
    """Decode a value; None if another version wrote it in a format that this one cannot read."""
    try:
        return msgspec.json.decode(learnt, type=expected)
    except msgspec.MsgspecError:
        return None


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
