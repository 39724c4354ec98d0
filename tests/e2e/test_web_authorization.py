"""Access to the gateway's pages: an agent's key shows that agent only, an admin key and loopback show all.

Every route of the application is in the table below. The test fails until a new page is added to it.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import cast
from urllib.parse import quote, unquote_plus, urlsplit

import httpx
import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from foveate.engine.sections.sources import SectionSources
from foveate.gateway.auth.callers import generate_key, hash_key
from foveate.gateway.build import build_web_ui
from foveate.gateway.observability.health import HealthStatus, build_health_pages, health_to_json
from foveate.gateway.server.serve import load_live_config
from foveate.store import Store, open_store
from foveate.web.app import WebApp, load_assets
from tests.support.scenarios.dashboard_traffic import (
    TURNS,
    read_store,
    send_review,
    session_id_by_name,
    wait_until_quiet,
    wait_until_stored,
)
from tests.support.servers.gateway_process import gateway_process, write_config
from tests.support.servers.sandbox import KEY, running_sandbox
from tests.support.stores.templates import ensure_store

pytestmark = pytest.mark.process


class Access(Enum):
    """Who may open a page."""

    EVERYBODY = auto()
    ANY_KEY = auto()
    OWN_AGENT = auto()
    ADMIN = auto()


ACCESS: Mapping[str, Access] = {
    "/health": Access.EVERYBODY,
    "/ready": Access.EVERYBODY,
    "/favicon.ico": Access.EVERYBODY,
    "/metrics": Access.ADMIN,
    "/": Access.OWN_AGENT,
    "/-/sessions": Access.OWN_AGENT,
    "/-/sessions/{id:path}": Access.OWN_AGENT,
    "/-/compactions/{id:path}": Access.OWN_AGENT,
    "/-/agents": Access.OWN_AGENT,
    "/-/agents/{name:path}": Access.OWN_AGENT,
    "/-/memory": Access.OWN_AGENT,
    "/-/configuration": Access.ADMIN,
    "/-/events": Access.OWN_AGENT,
    "/-/status": Access.OWN_AGENT,
    "/-/assets/{name}": Access.ANY_KEY,
    "/-/{rest:path}": Access.ANY_KEY,
}
WITHOUT_AGENT_DATA = frozenset(("/-/events",))
"""Pages that contain no data of an agent, except that something has changed."""


@dataclass
class AgentAccess:
    """An agent, its key, and everything that only it may see."""

    name: str
    text: str
    note: str
    folder: str
    limit: str
    key: str = field(default_factory=generate_key)
    session_id: str = ""
    compaction_ids: Sequence[str] = ()
    request_ids: Sequence[str] = ()

    @property
    def own_strings(self) -> Sequence[str]:
        """Strings that only this agent's data contains."""
        return (
            self.name,
            self.text,
            self.note,
            self.folder,
            f"work-of-{self.name}",
            self.limit,
            self.session_id,
            self.session_id[:12],
            *self.compaction_ids,
            *self.request_ids,
        )

    def addresses(self, route: str) -> list[str]:
        """Return the addresses of a page about this agent: its path alone, and with each query parameter."""
        session, agent = quote(self.session_id, safe=""), quote(self.name, safe="")
        path = route.replace("{id:path}", self.compaction_ids[-1] if "compactions" in route else session)
        path = path.replace("{name:path}", agent).replace("{name}", next(iter(load_assets())))
        path = path.replace("{rest:path}", "nothing")
        request = quote(self.request_ids[-1], safe="")
        queries = [
            f"agent={agent}",
            f"agent={agent}&by=agent&span=month",
            f"agent={agent}&query=water&tokens=2000",
            f"agent={agent}&focus={self.note}",
            f"session={session}",
            f"session={session}&since=0",
            f"id={session[:8]}",
            f"find={agent}",
            f"find={self.name[:3]}&which=configured",
            f"which=all&find={self.name[:3]}",
            f"before={request}",
            f"before=9999999999~{session}",
            f"after=9999999999~{session}",
            "order=dearest&since=all",
            "compactions=9999999999",
            "from=1",
        ]
        return [path, *(f"{path}?{query}" for query in queries)]


@dataclass(frozen=True)
class Gateways:
    """Two gateways on one store: one on loopback, and one that other machines reach."""

    local: str
    public: str
    folder: Path
    agents: tuple[AgentAccess, AgentAccess]
    admin_key: str


def _configuration(agents: Sequence[AgentAccess], admin_key: str, *, with_keys: bool) -> str:
    lines = ["context_optimization:"]
    lines += ["  compaction: {enabled: true, extractive: true, tail_keep_tokens: 800, min_turns_between: 1}"]
    if with_keys:
        lines += [f"server: {{admin_keys: ['{hash_key(admin_key)}']}}"]
    lines += ["agents:"]
    for agent in agents:
        sections = {
            "memory": {"paths": [f"{agent.folder}/notes"]},
            "workspace": {"root": f"{agent.folder}/work-of-{agent.name}"},
        }
        keys = f"keys: ['{hash_key(agent.key)}'], " if with_keys else ""
        lines += [f"  - {{id: {agent.name}, {keys}window_tokens: 9000, sections: {json.dumps(sections)}}}"]
    lines += ["cost:", "  caps:"]
    lines += [f"    - {{scope: agent, agent: {agent.name}, dollars: {agent.limit}}}" for agent in agents]
    lines += ["    - {scope: day, dollars: 5000}"]
    return "\n".join(lines) + "\n"


def _make_agent(folder: Path, name: str, limit: str) -> AgentAccess:
    agent_folder = folder / f"files-of-{name}"
    (agent_folder / "notes").mkdir(parents=True)
    workspace = agent_folder / f"work-of-{name}-agent"
    workspace.mkdir()
    agent = AgentAccess(
        name=f"{name}-agent",
        text=f"words-of-{name}",
        note=f"note-of-{name}",
        folder=str(agent_folder),
        limit=limit,
    )
    (agent_folder / "notes" / "garden.md").write_text(f"# {agent.note}\nWater the beds of {agent.name}.\n")
    (workspace / "AGENTS.md").write_text(f"Rules of {agent.name}.\n")
    return agent


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateways]:
    folder = tmp_path_factory.mktemp("viewers")
    agents = (_make_agent(folder, "ana", "4817.31"), _make_agent(folder, "ben", "3926.57"))
    admin_key = generate_key()
    with running_sandbox() as sandbox:
        config = folder / "foveate.yaml"
        write_config(config, sandbox.url, _configuration(agents, admin_key, with_keys=False))
        with gateway_process(folder) as local, gateway_process(folder, "--host", "0.0.0.0") as public:
            for agent in agents:
                send_review(local.url, folder, agent=agent.name, name="work", extra_text=agent.text)
                agent.session_id = session_id_by_name(agent.name, "work")
            wait_until_stored(folder, _are_written(agents))
            wait_until_quiet(folder)
            for agent in agents:
                agent.compaction_ids = read_store(folder, _read_compaction_ids(agent.session_id))
                agent.request_ids = read_store(folder, _read_request_ids(agent.session_id))
                assert agent.compaction_ids
            # From now on, agents are identified only by their keys.
            write_config(config, sandbox.url, _configuration(agents, admin_key, with_keys=True))
            public_url = f"http://127.0.0.1:{urlsplit(public.url).port}"
            yield Gateways(local.url, public_url, folder, agents, admin_key)


def _are_written(agents: Sequence[AgentAccess]) -> Callable[[Store], Awaitable[bool]]:
    async def are_written(store: Store) -> bool:
        found = [await store.totals.get_session(agent.session_id) for agent in agents]
        return all(agent is not None and agent.totals.requests == TURNS for agent in found)

    return are_written


def _read_compaction_ids(session_id: str) -> Callable[[Store], Awaitable[list[str]]]:
    async def read(store: Store) -> list[str]:
        return [compaction.id for compaction in await store.compactions.list_compactions(session_id=session_id)]

    return read


def _read_request_ids(session_id: str) -> Callable[[Store], Awaitable[list[str]]]:
    async def read(store: Store) -> list[str]:
        return [row.trace.id for row in await store.traces.list_traces(limit=50, session_id=session_id)]

    return read


def open_address(url: str, address: str, key: str | None) -> tuple[int, str]:
    """Return the status and the body of a page; of a stream, its beginning."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    with httpx.stream("GET", f"{url}{address}", headers=headers, timeout=20) as response:
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            return response.status_code, next(response.iter_text())
        response.read()
        return response.status_code, response.text


def find_own_strings(body: str, address: str, agent: AgentAccess) -> list[str]:
    """Return the agent's own strings in a page, except those that its address contains."""
    address_text = unquote_plus(address)
    return [
        own_string for own_string in agent.own_strings if own_string in body and own_string not in address_text
    ]


async def _routes(folder: Path) -> set[str]:
    config = folder / "foveate.yaml"
    config.write_text("# all by default\n")

    async def read_health() -> HealthStatus:
        return HealthStatus(version="1")

    async def health_json() -> dict[str, object]:
        return health_to_json(await read_health())

    sources = SectionSources()
    try:
        async with await open_store(ensure_store(folder / "store.sqlite")) as store:
            site = build_web_ui(
                load_live_config(config, {}),
                {},
                store,
                sources,
                version="1",
                samples=list,
                health=health_json,
                is_shutting_down=lambda: False,
                clock=lambda: 0.0,
            )
    finally:
        sources.close()
    app = cast("ProxyHeadersMiddleware", site["/-/"]).app
    assert isinstance(app, WebApp)
    assert set(site) == {"/", "/-/"}
    return set(build_health_pages(read_health, list)) | {route.path for route in app.routes}


def test_every_route_has_an_access_rule(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as thread:
        routes = thread.submit(lambda: asyncio.run(_routes(tmp_path))).result()

    assert routes == set(ACCESS)


@pytest.mark.parametrize("route", ACCESS)
@pytest.mark.parametrize(("own", "other"), [(0, 1), (1, 0)])
def test_a_key_never_sees_anything_of_another_agent(
    route: str, own: int, other: int, gateways: Gateways
) -> None:
    own_key, other_agent = gateways.agents[own].key, gateways.agents[other]
    for url in (gateways.local, gateways.public):
        for address in [*other_agent.addresses(route), *gateways.agents[own].addresses(route)]:
            status, body = open_address(url, address, own_key)

            assert find_own_strings(body, address, other_agent) == [], address
            assert status < 500, address


@pytest.mark.parametrize("route", [route for route, access in ACCESS.items() if access is Access.OWN_AGENT])
def test_a_key_sees_its_own_agent(route: str, gateways: Gateways) -> None:
    for agent in gateways.agents:
        address = agent.addresses(route)[0]
        status, body = open_address(gateways.public, address, agent.key)

        assert status == 200
        assert route in WITHOUT_AGENT_DATA or find_own_strings(body, address, agent)
        assert agent.folder not in body


@pytest.mark.parametrize("route", ACCESS)
def test_an_admin_key_and_loopback_see_all_agents(route: str, gateways: Gateways) -> None:
    for url, key in (
        (gateways.local, None),
        (gateways.local, gateways.admin_key),
        (gateways.public, gateways.admin_key),
    ):
        for agent in gateways.agents:
            address = agent.addresses(route)[0]
            status, body = open_address(url, address, key)

            assert status == (404 if route in ("/favicon.ico", "/-/{rest:path}") else 200)
            shows_agents = ACCESS[route] in (Access.OWN_AGENT, Access.ADMIN) and route not in WITHOUT_AGENT_DATA
            assert not shows_agents or find_own_strings(body, address, agent)


@pytest.mark.parametrize("route", ACCESS)
def test_beyond_loopback_nobody_without_a_key_sees_anything(route: str, gateways: Gateways) -> None:
    for agent in gateways.agents:
        for address in agent.addresses(route):
            status, body = open_address(gateways.public, address, None)

            assert find_own_strings(body, address, agent) == []
            assert (status == 401) == (ACCESS[route] is not Access.EVERYBODY)


@pytest.mark.parametrize("route", [route for route, access in ACCESS.items() if access is Access.ADMIN])
def test_pages_of_the_whole_gateway_need_an_admin_key_and_say_so(route: str, gateways: Gateways) -> None:
    for url in (gateways.local, gateways.public):
        status, body = open_address(url, route, gateways.agents[0].key)

        assert status == 403
        assert "foveate config key --admin" in body


@pytest.mark.parametrize("route", ["/", "/-/sessions", "/-/agents/{name:path}", "/-/memory"])
def test_a_request_for_another_agent_is_rejected_with_the_reason(route: str, gateways: Gateways) -> None:
    own, other = gateways.agents
    address = other.addresses(route)["{" not in route]

    status, body = open_address(gateways.public, address, own.key)

    assert status == 403
    assert f"This gateway key may only see the agent &#39;{own.name}&#39;" in body


@pytest.mark.parametrize("route", ["/-/sessions/{id:path}", "/-/compactions/{id:path}"])
def test_ids_of_another_agent_are_answered_like_unknown_ids(route: str, gateways: Gateways) -> None:
    own, other = gateways.agents
    address = other.addresses(route)[0]
    unknown = f"{address[:-8]}00000000"
    status, body = open_address(gateways.public, address, own.key)

    assert status == 404
    assert body.replace(address[-8:], "00000000") == open_address(gateways.public, unknown, own.key)[1]


def test_the_stream_of_another_agents_session_is_not_found(gateways: Gateways) -> None:
    own, other = gateways.agents

    assert open_address(gateways.public, f"/-/events?session={other.session_id}", own.key)[0] == 404
    assert open_address(gateways.public, f"/-/events?session={own.session_id}", own.key)[0] == 200


def test_a_page_gets_no_updates_about_another_agents_changes(gateways: Gateways) -> None:
    own, other = gateways.agents

    def change_token() -> str:
        match = re.search(r"since=([0-9a-f]{16})", open_address(gateways.public, "/-/sessions", own.key)[1])
        assert match
        return match[1]

    before = change_token()
    _send_request(gateways, other)
    assert change_token() == before
    _send_request(gateways, own)
    assert change_token() != before


def _send_request(gateways: Gateways, agent: AgentAccess) -> None:
    """Send a request with an agent's key, and wait until it is in the store."""
    token_before = read_store(gateways.folder, lambda store: store.totals.get_change_token(agent=agent.name))
    headers = {"x-foveate-key": agent.key, "x-api-key": KEY, "anthropic-version": "2023-06-01"}
    body = {"model": "claude-opus-4-5", "max_tokens": 20, "messages": [{"role": "user", "content": "Next?"}]}
    httpx.post(f"{gateways.local}/v1/messages", headers=headers, json=body, timeout=60).raise_for_status()

    async def is_recorded(store: Store) -> bool:
        return await store.totals.get_change_token(agent=agent.name) != token_before

    wait_until_stored(gateways.folder, is_recorded)
    wait_until_quiet(gateways.folder)


def test_an_admin_key_sends_no_requests(gateways: Gateways) -> None:
    headers = {"x-api-key": gateways.admin_key, "anthropic-version": "2023-06-01"}
    body = {"model": "claude-opus-4-5", "max_tokens": 20, "messages": [{"role": "user", "content": "Next?"}]}
    response = httpx.post(f"{gateways.local}/v1/messages", headers=headers, json=body, timeout=60)

    assert response.status_code == 401
    assert "an admin key only opens the gateway's pages" in response.text
