"""What `foveate status` shows, as JSON: spending today, caps, limits of subscriptions, and one session."""

import asyncio
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from foveate.session.client_names import NAME_SOURCES, derive_client_session_id, derive_named_session_id
from foveate.session.rollups import SessionTotals
from foveate.session.store import RECENT_SECONDS
from foveate.store import Store
from foveate.web.page import GatewayData, Viewer
from foveate.web.spending import TODAY, CapUsageRow, list_agent_cap_usage, list_cap_usage, resolve_time_range

# A session is looked up under the name of each agent; with more, only ids of Foveate itself are found.
_MAX_AGENTS = 200
_SHORT_TTL_SECONDS, _LONG_TTL_SECONDS = 300.0, 3600.0


async def load_status(data: GatewayData, viewer: Viewer, session: str) -> dict[str, Any]:
    """Load the status that `viewer` may see.

    `session` is the id of a session, or the name that its client gives it; empty means the newest session.

    Raises:
        StoreUnavailable: the store cannot be read.
    """
    now, store, agent = data.clock(), data.store, viewer.agent
    caps = data.current_config().caps
    health, totals, cap_rows, limits, found = await asyncio.gather(
        data.health(),
        store.totals.sum_totals(since=resolve_time_range(TODAY, now).since, agent=agent),
        list_cap_usage(store, caps, now=now)
        if agent is None
        else list_agent_cap_usage(store, caps, agent, now=now, shows_shared=False),
        store.rate_limits.find_recent(since=now - RECENT_SECONDS),
        _find_session(store, session, agent),
    )
    today = totals[0][1]
    if found is not None and not viewer.can_see(found.agent):
        found = None
    return {
        "version": data.version,
        "health": health["status"],
        "today": {"calls": today.calls, "unpriced": today.unpriced, "dollars": _to_json(today.paid)},
        "caps": [_cap_object(row) for row in cap_rows if row.use is not None],
        "limits": [
            {
                "agent": limit.agent,
                "provider": limit.provider,
                "limit": limit.limit.name,
                "used": limit.used_at(now),
                "resets_at": limit.limit.resets_at,
            }
            for limit in limits
            if viewer.can_see(limit.agent)
        ],
        "session": None if found is None else await _session_object(store, found, now),
    }


async def _find_session(store: Store, name: str, agent: str | None) -> SessionTotals | None:
    if not name:
        newest = await store.totals.list_sessions(limit=1, agent=agent)
        return newest[0] if newest else None
    agents = [agent] if agent is not None else await store.totals.list_agents()
    ids = [name]
    for owner in agents[:_MAX_AGENTS]:
        ids += (derive_client_session_id(owner, source, (name,)) for source in NAME_SOURCES)
        ids.append(derive_named_session_id(owner, name))
    for session_id in ids:
        if (found := await store.totals.get_session(session_id)) is not None:
            return found
    return None


async def _session_object(store: Store, session: SessionTotals, now: float) -> Mapping[str, Any]:
    totals = session.totals
    return {
        "session_id": session.session_id,
        "agent": session.agent,
        "model": session.model,
        "calls": totals.calls,
        "unpriced": totals.unpriced,
        "dollars": _to_json(totals.paid),
        "tokens": session.tokens,
        "window_tokens": session.window_tokens,
        "last_at": session.last_at,
        "cache_expires_at": await _find_cache_expiry(store, session.session_id, now),
    }


async def _find_cache_expiry(store: Store, session_id: str, now: float) -> float | None:
    """When the prompt cache of a session expires; None if it wrote none in the last hour.

    Each call that reads or writes an entry renews it, for the TTL with which it was written.
    """
    last_at, ttl_seconds = 0.0, 0.0
    async for charge in store.ledger.list_charges(session_id=session_id, since=now - _LONG_TTL_SECONDS):
        cache = charge.usage.cache
        if cache.written_1h:
            ttl_seconds = _LONG_TTL_SECONDS
        elif cache.written_5m:
            ttl_seconds = max(ttl_seconds, _SHORT_TTL_SECONDS)
        if cache.written_1h or cache.written_5m or cache.read:
            last_at = charge.call.at
    return last_at + ttl_seconds if last_at and ttl_seconds else None


def _cap_object(row: CapUsageRow) -> Mapping[str, Any]:
    return {
        "cap": row.about,
        "dollars": _to_json(row.limit),
        "used": row.share,
        "left": _to_json(row.remaining),
    }


def _to_json(dollars: Decimal | None) -> str | None:
    return None if dollars is None else f"{dollars:f}"
