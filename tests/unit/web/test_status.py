"""The status of a gateway: what it has spent, and one session, as far as the viewer may see them."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from foveate.cost.caps import list_accounts
from foveate.formats.response.rate_limits import RateLimit
from foveate.model import CacheUsage, Usage
from foveate.session.client_names import derive_client_session_id
from foveate.session.store import ObservedLimit
from foveate.store import Store
from foveate.web.page import Viewer
from tests.support.clients.dashboard import NOW, Dashboard, open_dashboard
from tests.support.stores.ledger_records import make_call, make_charge, settle_one

UUID = "5e55a0de-0000-4000-8000-0000000f0ea7"
SESSION = derive_client_session_id("ana", "claude-code", (UUID,))
CAPS = "cost: {caps: [{scope: day, dollars: 4}]}\n"


async def add_call(
    store: Store,
    name: str,
    *,
    agent: str = "ana",
    session_id: str = SESSION,
    at: float = NOW,
    dollars: str | None = "1",
    cache: CacheUsage = CacheUsage(uncached=10),  # noqa: B008 - frozen
) -> None:
    charge = make_charge(make_call(name, agent=agent, session_id=session_id, at=at), dollars)
    charge = replace(charge, usage=Usage(cache=cache, output_tokens=1))
    await settle_one(store.ledger, charge, accounts=list_accounts(charge.call))


async def load(dashboard: Dashboard, session: str = "") -> dict[str, Any]:
    response = await dashboard.client.get("/-/status", params={"session": session})
    assert response.status_code == 200, response.text
    status: dict[str, Any] = response.json()
    return status


async def test_an_empty_gateway_has_a_status(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        status = await load(dashboard)
    assert status == {
        "version": "1",
        "health": "ok",
        "today": {"calls": 0, "unpriced": 0, "dollars": "0.000000000000"},
        "caps": [],
        "limits": [],
        "session": None,
    }


async def test_a_session_is_found_by_the_id_that_claude_code_gives_it(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, CAPS) as dashboard:
        await add_call(dashboard.store, "a", dollars="1.25", at=NOW - 90)
        await add_call(dashboard.store, "b", session_id="newer", at=NOW)
        status = await load(dashboard, UUID)
        assert status["session"]["session_id"] == SESSION
        assert (status["session"]["dollars"], status["session"]["calls"]) == ("1.250000000000", 1)
        assert status["today"] == {"calls": 2, "unpriced": 0, "dollars": "2.250000000000"}
        assert [(cap["dollars"], cap["used"]) for cap in status["caps"]] == [("4", 0.5625)]
        assert (await load(dashboard, SESSION))["session"]["session_id"] == SESSION
        assert (await load(dashboard))["session"]["session_id"] == "newer"
        assert (await load(dashboard, "unknown"))["session"] is None


async def test_the_cache_expires_after_the_ttl_since_the_last_use(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        store = dashboard.store
        await add_call(store, "none", session_id="none")
        await add_call(store, "w", session_id="short", at=NOW - 400, cache=CacheUsage(written_5m=900))
        await add_call(store, "r", session_id="short", at=NOW - 200, cache=CacheUsage(read=900))
        await add_call(store, "x", session_id="long", at=NOW - 900, cache=CacheUsage(written_1h=900))
        await add_call(store, "y", session_id="long", at=NOW - 100, cache=CacheUsage(read=900, written_5m=5))
        expiry = [
            (await load(dashboard, session))["session"]["cache_expires_at"]
            for session in ("none", "short", "long")
        ]
    assert expiry == [None, NOW + 100, NOW + 3_500]


async def test_limits_of_subscriptions_are_shown(tmp_path: Path) -> None:
    limit = RateLimit(name="5h", used=0.25, resets_at=NOW + 60, status="allowed")
    async with open_dashboard(tmp_path) as dashboard:
        await dashboard.store.rate_limits.save(
            [ObservedLimit(agent="ana", provider="anthropic", limit=limit, at=NOW)]
        )
        (shown,) = (await load(dashboard))["limits"]
    assert shown == {
        "agent": "ana",
        "provider": "anthropic",
        "limit": "5h",
        "used": 0.25,
        "resets_at": NOW + 60,
    }


async def test_the_key_of_an_agent_sees_only_that_agent(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, CAPS, viewer=Viewer("bob")) as dashboard:
        await add_call(dashboard.store, "a")
        status = await load(dashboard, SESSION)
        assert status["session"] is None
        assert status["today"]["calls"] == 0
        assert (await load(dashboard, UUID))["session"] is None


async def test_the_line_is_a_document_of_its_own_media_type(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, CAPS) as dashboard:
        await add_call(dashboard.store, "a", cache=CacheUsage(written_5m=100))
        response = await dashboard.client.get("/-/status", params={"session": UUID, "format": "line"})
    assert response.headers["content-type"] == "text/vnd.foveate.status; charset=utf-8"
    assert response.text == "$1.00 | cache 5:00 | today $1.00 | cap 25% of $4.00"


async def test_an_unavailable_store_is_reported(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        await dashboard.store.close()
        response = await dashboard.client.get("/-/status")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "store_unavailable"
