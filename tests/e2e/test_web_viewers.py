"""Access to the gateway's pages: an agent's key shows that agent only, an admin key and loopback show all.

Every route of the application is in the table below. A new page fails here until it is decided who sees it.
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
from foveate.gateway.auth.keys import generate_key, hash_key
from foveate.gateway.observability.health import HealthStatus, build_health_pages, health_to_json
from foveate.gateway.server.serve import load_live_config
from foveate.gateway.web_ui import build_web_ui
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
    "/-/folds/{id:path}": Access.OWN_AGENT,
    "/-/agents": Access.OWN_AGENT,
    "/-/agents/{name:path}": Access.OWN_AGENT,
    "/-/memory": Access.OWN_AGENT,
    "/-/configuration": Access.ADMIN,
    "/-/events": Access.OWN_AGENT,
    "/-/assets/{name}": Access.ANY_KEY,
    "/-/{rest:path}": Access.ANY_KEY,
}
_QUIET = frozenset(("/-/events",))
"""Pages that show nothing of an agent but that something has changed."""


@dataclass
class Watched:
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
            self.limit,
            self.session_id,
            self.session_id[:12],
            *self.compaction_ids,
            *self.request_ids,
        )

    def addresses(self, route: str) -> list[str]:
        """The addresses of a page that are about this agent: by its path, and by all parameters of queries."""
        session, agent = quote(self.session_id, safe=""), quote(self.name, safe="")
        path = route.replace("{id:path}", self.compaction_ids[-1] if "folds" in route else session)
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
            "folds=9999999999",
            "from=1",
        ]
        return [path, *(f"{path}?{query}" for query in queries)]


@dataclass(frozen=True)
class Watching:
    """Two gateways on one store: one on loopback, and one that other machines reach."""

    local: str
    public: str
    folder: Path
    agents: tuple[Watched, Watched]
    admin_key: str


def _configuration(agents: Sequence[Watched], admin_key: str, *, with_keys: bool) -> str:
    lines = ["context_optimization:"]
    lines += ["  compaction: {enabled: true, extractive: true, tail_keep_tokens: 800, min_turns_between: 1}"]
    if with_keys:
        lines += [f"server: {{admin_keys: ['{hash_key(admin_key)}']}}"]
    lines += ["agents:"]
    for one in agents:
        sections = {"memory": {"paths": [f"{one.folder}/notes"]}, "workspace": {"root": f"{one.folder}/work"}}
        keys = f"keys: ['{hash_key(one.key)}'], " if with_keys else ""
        lines += [f"  - {{id: {one.name}, {keys}window_tokens: 9000, sections: {json.dumps(sections)}}}"]
    lines += ["cost:", "  caps:"]
    lines += [f"    - {{scope: agent, agent: {one.name}, dollars: {one.limit}}}" for one in agents]
    lines += ["    - {scope: day, dollars: 5000}"]
    return "\n".join(lines) + "\n"


def _agent(folder: Path, name: str, limit: str) -> Watched:
    place = folder / f"files-of-{name}"
    (place / "notes").mkdir(parents=True)
    (place / "work").mkdir()
    found = Watched(
        name=f"{name}-agent", text=f"words-of-{name}", note=f"note-of-{name}", folder=str(place), limit=limit
    )
    (place / "notes" / "garden.md").write_text(f"# {found.note}\nWater the beds of {found.name}.\n")
    (place / "work" / "AGENTS.md").write_text(f"Rules of {found.name}.\n")
    return found


@pytest.fixture(scope="module")
def watching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watching]:
    folder = tmp_path_factory.mktemp("viewers")
    agents = (_agent(folder, "ana", "4817.31"), _agent(folder, "ben", "3926.57"))
    admin_key = generate_key()
    with running_sandbox() as sandbox:
        config = folder / "foveate.yaml"
        write_config(config, sandbox.url, _configuration(agents, admin_key, with_keys=False))
        with gateway_process(folder) as local, gateway_process(folder, "--host", "0.0.0.0") as public:
            for one in agents:
                send_review(local.url, folder, agent=one.name, name="work", extra_text=one.text)
                one.session_id = session_id_by_name(one.name, "work")
            wait_until_stored(folder, _are_written(agents))
            wait_until_quiet(folder)
            for one in agents:
                one.compaction_ids = read_store(folder, _compaction_ids(one.session_id))
                one.request_ids = read_store(folder, _request_ids(one.session_id))
                assert one.compaction_ids
            # From now on only its keys name an agent.
            write_config(config, sandbox.url, _configuration(agents, admin_key, with_keys=True))
            reached = f"http://127.0.0.1:{urlsplit(public.url).port}"
            yield Watching(local.url, reached, folder, agents, admin_key)


def _are_written(agents: Sequence[Watched]) -> Callable[[Store], Awaitable[bool]]:
    async def are_written(store: Store) -> bool:
        found = [await store.totals.get_session(one.session_id) for one in agents]
        return all(one is not None and one.totals.requests == TURNS for one in found)

    return are_written


def _compaction_ids(session_id: str) -> Callable[[Store], Awaitable[list[str]]]:
    async def compaction_ids(store: Store) -> list[str]:
        return [compaction.id for compaction in await store.compactions.list_compactions(session_id=session_id)]

    return compaction_ids


def _request_ids(session_id: str) -> Callable[[Store], Awaitable[list[str]]]:
    async def request_ids(store: Store) -> list[str]:
        return [one.trace.id for one in await store.traces.list_traces(limit=50, session_id=session_id)]

    return request_ids


def look(url: str, address: str, key: str | None) -> tuple[int, str]:
    """The status and the body of a page; of a stream, its beginning."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    with httpx.stream("GET", f"{url}{address}", headers=headers, timeout=20) as answer:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return answer.status_code, next(answer.iter_text())
        answer.read()
        return answer.status_code, answer.text


def own_strings_in(body: str, address: str, agent: Watched) -> list[str]:
    """Return the agent's own strings in a page, except those that its address contains."""
    requested = unquote_plus(address)
    return [
        own_string for own_string in agent.own_strings if own_string in body and own_string not in requested
    ]


async def _routes(folder: Path) -> set[str]:
    file = folder / "foveate.yaml"
    file.write_text("# all by default\n")

    async def vitals() -> HealthStatus:
        return HealthStatus(version="1")

    async def health() -> dict[str, object]:
        return health_to_json(await vitals())

    sources = SectionSources()
    try:
        async with await open_store(ensure_store(folder / "store.sqlite")) as store:
            site = build_web_ui(
                load_live_config(file, {}),
                {},
                store,
                sources,
                version="1",
                samples=list,
                health=health,
                is_shutting_down=lambda: False,
                clock=lambda: 0.0,
            )
    finally:
        sources.close()
    below = cast("ProxyHeadersMiddleware", site["/-/"]).app
    assert isinstance(below, WebApp)
    assert set(site) == {"/", "/-/"}
    return set(build_health_pages(vitals, list)) | {route.path for route in below.routes}


def test_every_route_has_an_access_rule(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as thread:
        routes = thread.submit(lambda: asyncio.run(_routes(tmp_path))).result()

    assert routes == set(ACCESS)


@pytest.mark.parametrize("route", ACCESS)
@pytest.mark.parametrize(("own", "other"), [(0, 1), (1, 0)])
def test_a_key_never_sees_anything_of_another_agent(
    route: str, own: int, other: int, watching: Watching
) -> None:
    key, another = watching.agents[own].key, watching.agents[other]
    for url in (watching.local, watching.public):
        for address in [*another.addresses(route), *watching.agents[own].addresses(route)]:
            status, body = look(url, address, key)

            assert own_strings_in(body, address, another) == [], address
            assert status < 500, address


@pytest.mark.parametrize("route", [route for route, access in ACCESS.items() if access is Access.OWN_AGENT])
def test_a_key_sees_its_own_agent(route: str, watching: Watching) -> None:
    for one in watching.agents:
        address = one.addresses(route)[0]
        status, body = look(watching.public, address, one.key)

        assert status == 200
        assert route in _QUIET or own_strings_in(body, address, one)


@pytest.mark.parametrize("route", ACCESS)
def test_an_admin_key_and_loopback_see_all_agents(route: str, watching: Watching) -> None:
    for url, key in (
        (watching.local, None),
        (watching.local, watching.admin_key),
        (watching.public, watching.admin_key),
    ):
        for one in watching.agents:
            address = one.addresses(route)[0]
            status, body = look(url, address, key)

            assert status == (404 if route in ("/favicon.ico", "/-/{rest:path}") else 200)
            shows_agents = ACCESS[route] in (Access.OWN_AGENT, Access.ADMIN) and route not in _QUIET
            assert not shows_agents or own_strings_in(body, address, one)


@pytest.mark.parametrize("route", ACCESS)
def test_beyond_loopback_nobody_without_a_key_sees_anything(route: str, watching: Watching) -> None:
    for one in watching.agents:
        for address in one.addresses(route):
            status, body = look(watching.public, address, None)

            assert own_strings_in(body, address, one) == []
            assert (status == 401) == (ACCESS[route] is not Access.EVERYBODY)


@pytest.mark.parametrize("route", [route for route, access in ACCESS.items() if access is Access.ADMIN])
def test_pages_of_the_whole_gateway_need_an_admin_key_and_say_so(route: str, watching: Watching) -> None:
    for url in (watching.local, watching.public):
        status, body = look(url, route, watching.agents[0].key)

        assert status == 403
        assert "foveate config key --admin" in body


@pytest.mark.parametrize("route", ["/", "/-/sessions", "/-/agents/{name:path}", "/-/memory"])
def test_a_request_for_another_agent_is_rejected_with_the_reason(route: str, watching: Watching) -> None:
    own, other = watching.agents
    address = other.addresses(route)["{" not in route]

    status, body = look(watching.public, address, own.key)

    assert status == 403
    assert f"this gateway key sees the agent &#39;{own.name}&#39; and no other" in body


@pytest.mark.parametrize("route", ["/-/sessions/{id:path}", "/-/folds/{id:path}"])
def test_ids_of_another_agent_are_answered_like_unknown_ids(route: str, watching: Watching) -> None:
    own, other = watching.agents
    address = other.addresses(route)[0]
    unknown = f"{address[:-8]}00000000"
    status, body = look(watching.public, address, own.key)

    assert status == 404
    assert body.replace(address[-8:], "00000000") == look(watching.public, unknown, own.key)[1]


def test_the_stream_of_another_agents_session_is_not_found(watching: Watching) -> None:
    own, other = watching.agents

    assert look(watching.public, f"/-/events?session={other.session_id}", own.key)[0] == 404
    assert look(watching.public, f"/-/events?session={own.session_id}", own.key)[0] == 200


def test_a_page_gets_no_updates_about_another_agents_changes(watching: Watching) -> None:
    own, other = watching.agents

    def pulse() -> str:
        found = re.search(r"since=([0-9a-f]{16})", look(watching.public, "/-/sessions", own.key)[1])
        assert found
        return found[1]

    before = pulse()
    _ask(watching, other)
    assert pulse() == before
    _ask(watching, own)
    assert pulse() != before


def _ask(watching: Watching, agent: Watched) -> None:
    """Send a request with an agent's key, and wait until it is in the store."""
    whole = read_store(watching.folder, lambda store: store.totals.get_change_token(agent=agent.name))
    headers = {"x-foveate-key": agent.key, "x-api-key": KEY, "anthropic-version": "2023-06-01"}
    body = {"model": "claude-opus-4-5", "max_tokens": 20, "messages": [{"role": "user", "content": "Next?"}]}
    httpx.post(f"{watching.local}/v1/messages", headers=headers, json=body).raise_for_status()

    async def has_come(store: Store) -> bool:
        return await store.totals.get_change_token(agent=agent.name) != whole

    wait_until_stored(watching.folder, has_come)
    wait_until_quiet(watching.folder)


def test_an_admin_key_sends_no_requests(watching: Watching) -> None:
    headers = {"x-api-key": watching.admin_key, "anthropic-version": "2023-06-01"}
    body = {"model": "claude-opus-4-5", "max_tokens": 20, "messages": [{"role": "user", "content": "Next?"}]}
    answer = httpx.post(f"{watching.local}/v1/messages", headers=headers, json=body)

    assert answer.status_code == 401
    assert "an admin key sees the gateway's pages and sends no requests" in answer.text
