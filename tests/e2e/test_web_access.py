"""Access to the pages: open on loopback, by key elsewhere, and not found when they are disabled."""

import http.client
import signal
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from foveate.gateway.auth.callers import generate_key, hash_key
from foveate.web.app import PAGES, load_assets
from tests.support.clients.browser import open_page
from tests.support.servers.gateway_process import GatewayProcess, gateway_process, write_config
from tests.support.servers.sandbox import RunningSandbox, running_sandbox

pytestmark = pytest.mark.process

GATEWAY_KEY = generate_key()
PAGE_PATHS = [path for path in PAGES if "{" not in path]
UNKNOWN_PATHS = [
    "/-/",
    "/-/nothing",
    "/-/sessions/nobody%27s",
    "/-/assets/nothing.js",
    "/-/sessions?order=sideways",
]
ASSET_PATHS = [f"/-/assets/{name}" for name in load_assets()]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    with running_sandbox() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(sandbox: RunningSandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("access")
    write_config(folder / "foveate.yaml", sandbox.url)
    with gateway_process(folder) as running:
        yield running


@pytest.fixture(scope="module")
def public_gateway(sandbox: RunningSandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway that other machines can reach."""
    folder = tmp_path_factory.mktemp("open")
    write_config(
        folder / "foveate.yaml", sandbox.url, f"agents: [{{id: ana, keys: ['{hash_key(GATEWAY_KEY)}']}}]\n"
    )
    with gateway_process(folder, "--host", "0.0.0.0") as running:
        yield f"http://127.0.0.1:{urlsplit(running.url).port}"


def fetch(
    url: str, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, Mapping[str, str], str]:
    """Return the status, headers and body of a response; of a stream, its beginning."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        response = connection.getresponse()
        is_stream = response.getheader("content-type", "").startswith("text/event-stream")
        body = response.read1() if is_stream else response.read()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, body.decode()
    finally:
        connection.close()


@pytest.mark.parametrize("path", [*PAGE_PATHS, *UNKNOWN_PATHS, *ASSET_PATHS, "/-/events"])
def test_every_response_forbids_foreign_scripts_and_framing(path: str, gateway: GatewayProcess) -> None:
    _, headers, _ = fetch(gateway.url, path)

    policy = headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} <= {
        *policy
    }
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    if path not in ASSET_PATHS:
        assert headers.get("cache-control", "no-store") == "no-store"


@pytest.mark.parametrize("path", PAGE_PATHS)
def test_a_page_is_shown_on_loopback_without_a_key(path: str, gateway: GatewayProcess) -> None:
    status, headers, body = fetch(gateway.url, path)

    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<h1" in body


@pytest.mark.parametrize("path", UNKNOWN_PATHS)
def test_unknown_pages_are_not_found_and_not_forwarded(
    path: str, gateway: GatewayProcess, sandbox: RunningSandbox
) -> None:
    count_before = len(sandbox.requests)

    status, _, body = fetch(gateway.url, path)

    assert status == (400 if "?" in path else 404)
    assert body
    assert len(sandbox.requests) == count_before


@pytest.mark.parametrize("path", [*PAGE_PATHS, "/-/events", ASSET_PATHS[0]])
def test_nothing_can_be_posted(path: str, gateway: GatewayProcess, sandbox: RunningSandbox) -> None:
    count_before = len(sandbox.requests)

    status, headers, _ = fetch(gateway.url, path, method="POST")

    assert status == 405
    assert "content-security-policy" in headers
    assert len(sandbox.requests) == count_before


def test_another_host_name_that_resolves_to_loopback_is_rejected(gateway: GatewayProcess) -> None:
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
        status, _, body = fetch(gateway.url, "/", headers=headers)

        assert status == 403
        assert "<h1" not in body


@pytest.mark.parametrize("path", [*PAGE_PATHS, "/-/events", ASSET_PATHS[0], "/-/nothing"])
def test_beyond_loopback_nothing_is_shown_without_a_key(path: str, public_gateway: str) -> None:
    credentials = b64encode(b"me:fov-this-is-none").decode()

    for headers in (
        {},
        {"authorization": f"Basic {credentials}"},
        {"authorization": "Bearer sk-of-a-provider"},
    ):
        status, response_headers, body = fetch(public_gateway, path, headers=headers)
        assert status == 401
        assert response_headers["www-authenticate"].startswith("Basic ")
        assert "default-src 'none'" in response_headers["content-security-policy"]
        assert "<h1" not in body


def test_a_browser_can_send_the_key_as_a_password_and_gets_live_updates(
    browser: Browser, public_gateway: str
) -> None:
    with open_page(browser, public_gateway, http_credentials={"username": "", "password": GATEWAY_KEY}) as page:
        page.goto("/")
        expect(page.locator("#live")).to_have_text("Live")
        page.get_by_role("link", name="Sessions").first.click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Sessions")

    with open_page(
        browser,
        public_gateway,
        allowed_console_errors="401",
        http_credentials={"username": "", "password": "fov-wrong"},
    ) as page:
        response = page.goto("/")
        assert response is not None
        assert response.status == 401


def test_the_page_can_be_disabled_and_enabled_while_the_gateway_runs(
    browser: Browser, sandbox: RunningSandbox, tmp_path: Path
) -> None:
    config = tmp_path / "foveate.yaml"
    write_config(config, sandbox.url)
    with (
        gateway_process(tmp_path) as gateway,
        open_page(browser, gateway.url, allowed_console_errors="404") as page,
    ):
        page.goto("/")
        expect(page.locator("#live")).to_have_text("Live")

        write_config(config, sandbox.url, "server: {page: false}\n")

        expect(page.locator("#live")).to_contain_text("Disconnected")  # open pages get no more updates
        count_before = len(sandbox.requests)
        for path in ("/", "/-/sessions", ASSET_PATHS[0], "/-/events"):
            status, _, body = fetch(gateway.url, path)
            assert status == 404
            assert "server.page is false" in body
        assert len(sandbox.requests) == count_before
        assert fetch(gateway.url, "/health")[0] == 200

        write_config(config, sandbox.url)
        assert fetch(gateway.url, "/")[0] == 200
        expect(page.locator("#live")).to_have_text("Live")


def test_a_gateway_exits_within_seconds_while_pages_are_open(
    browser: Browser, sandbox: RunningSandbox, tmp_path: Path
) -> None:
    write_config(tmp_path / "foveate.yaml", sandbox.url)
    lost_connection = "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE"
    with (
        gateway_process(tmp_path, "--workers", "2") as gateway,
        open_page(browser, gateway.url, allowed_console_errors=lost_connection) as page,
    ):
        pages = [page, *(page.context.new_page() for _ in range(2))]
        for open_page_, path in zip(pages, PAGE_PATHS, strict=False):
            open_page_.goto(path)
            expect(open_page_.locator("#live")).to_have_text("Live")

        started = time.monotonic()
        gateway.process.send_signal(signal.SIGTERM)
        code, errors = gateway.wait_for_exit(within_seconds=20)
        seconds = time.monotonic() - started

        assert code == 0
        assert "broken off" not in errors
        assert seconds < 10
        expect(page.locator("#live")).to_contain_text("Disconnected")


def test_the_page_shows_the_public_address_behind_a_proxy(
    public_gateway: str,
) -> None:
    headers = {"host": "localhost", "authorization": f"Bearer {GATEWAY_KEY}"}

    assert (
        "https://localhost" in fetch(public_gateway, "/", headers={**headers, "x-forwarded-proto": "https"})[2]
    )
    assert "https://localhost" not in fetch(public_gateway, "/", headers=headers)[2]


def test_requests_through_a_local_proxy_are_not_treated_as_local(gateway: GatewayProcess) -> None:
    for headers in ({"x-forwarded-for": "127.0.0.1"}, {"forwarded": "for=127.0.0.1"}, {"via": "1.1 proxy"}):
        assert fetch(gateway.url, "/", headers={"host": "localhost", **headers})[0] == 401
