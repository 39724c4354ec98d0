"""Live updates of open pages: from this process, from others, and after a restart."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.support.clients.browser import open_page
from tests.support.scenarios.dashboard_traffic import (
    REVIEW,
    REVIEWER,
    configuration,
    send_request,
    send_review,
    session_id_by_name,
)
from tests.support.servers.gateway_process import gateway_process, write_config
from tests.support.servers.sandbox import RunningSandbox, running_sandbox

pytestmark = pytest.mark.process

LOST_CONNECTION = (
    "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE|ERR_ABORTED"
)


@dataclass(frozen=True)
class LiveDashboard:
    """A gateway, and the folder with its store and its configuration."""

    url: str
    folder: Path
    sandbox_url: str


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    with running_sandbox() as running:
        yield running


@pytest.fixture(scope="module")
def dashboard(sandbox: RunningSandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDashboard]:
    folder = tmp_path_factory.mktemp("live")
    write_config(folder / "foveate.yaml", sandbox.url, configuration(folder))
    with gateway_process(folder) as gateway:
        send_review(gateway.url, folder)
        yield LiveDashboard(gateway.url, folder, sandbox.url)


def open_and_tag(page: Page, path: str) -> None:
    """Open a page, wait until it gets updates, and tag it, so that a reload can be detected."""
    page.goto(path)
    expect(page.locator("#live")).to_have_text("Live")
    page.evaluate("window.isTheSame = true")


def is_not_reloaded(page: Page) -> bool:
    return page.evaluate("window.isTheSame === true") is True


def session_link(page: Page, agent: str, name: str) -> Locator:
    """Return the link to a session in the list."""
    return page.locator(f'main a[href="/-/sessions/{session_id_by_name(agent, name)}"]')


def test_a_session_appears_in_the_list_after_its_first_request(
    browser: Browser, dashboard: LiveDashboard
) -> None:
    with open_page(browser, dashboard.url) as page:
        open_and_tag(page, "/-/sessions")
        expect(session_link(page, "ana", "fresh")).to_have_count(0)

        send_request(dashboard.url, "ana", "fresh")

        expect(session_link(page, "ana", "fresh")).to_be_visible()
        assert is_not_reloaded(page)


def test_changes_by_a_second_gateway_on_the_same_store_are_shown(
    browser: Browser, dashboard: LiveDashboard
) -> None:
    with gateway_process(dashboard.folder) as other, open_page(browser, dashboard.url) as page:
        open_and_tag(page, "/-/sessions")

        send_request(other.url, "ben", "elsewhere")

        expect(session_link(page, "ben", "elsewhere")).to_be_visible()
        assert is_not_reloaded(page)


def test_a_page_reconnects_after_its_gateway_restarts(
    browser: Browser, sandbox: RunningSandbox, tmp_path: Path
) -> None:
    write_config(tmp_path / "foveate.yaml", sandbox.url)
    with gateway_process(tmp_path) as first:
        port = str(urlsplit(first.url).port)
        with open_page(browser, first.url, allowed_console_errors=LOST_CONNECTION) as page:
            open_and_tag(page, "/-/sessions")

            first.process.kill()
            first.process.communicate()
            expect(page.locator("#live")).to_have_text("Disconnected, reconnecting…")

            with gateway_process(tmp_path, "--port", port) as second:
                assert second.url == first.url
                send_request(second.url, "ana", "after the restart")
                expect(page.locator("#live")).to_have_text("Live")
                expect(session_link(page, "ana", "after the restart")).to_be_visible()
                assert is_not_reloaded(page)


def test_open_details_focus_and_scroll_position_survive_updates(
    browser: Browser, dashboard: LiveDashboard
) -> None:
    with open_page(browser, dashboard.url, viewport={"width": 390, "height": 800}) as page:
        open_and_tag(page, f"/-/sessions/{session_id_by_name(REVIEWER, REVIEW)}")
        chart = page.locator("figure.chart canvas").first
        drawn_before = int(chart.get_attribute("data-drawn") or 0)
        compaction = page.locator("details[data-name^=compaction-]").first
        compaction.locator("summary").focus()
        page.keyboard.press("Enter")
        expect(compaction.locator("pre").first).to_be_visible()
        scroll_area = page.locator("[data-part=requests] .scrolls")
        scroll_area.evaluate("element => element.scrollTo(60, 0)")
        rows = page.locator("[data-part=requests] tbody > tr").count()

        send_request(dashboard.url, REVIEWER, REVIEW)

        expect(page.locator("[data-part=requests] tbody > tr")).not_to_have_count(rows)
        expect(chart).to_have_attribute("data-drawn", str(drawn_before + 1))
        assert is_not_reloaded(page)
        expect(compaction.locator("pre").first).to_be_visible()
        assert compaction.locator("summary").evaluate("element => element === document.activeElement")
        assert scroll_area.evaluate("element => element.scrollLeft") == 60


def test_updates_keep_typed_and_selected_text(browser: Browser, dashboard: LiveDashboard) -> None:
    with open_page(browser, dashboard.url) as page:
        open_and_tag(page, "/-/sessions")
        field = page.get_by_label("Agent")
        field.fill("somebo")

        send_request(dashboard.url, "ana", "while it is typed")

        expect(session_link(page, "ana", "while it is typed")).to_be_visible()
        expect(field).to_have_value("somebo")
        expect(field).to_be_focused()

        page.get_by_role("heading", level=1).click()
        selected_row = session_link(page, "ana", "while it is typed")
        selected_row.evaluate("element => getSelection().selectAllChildren(element)")
        send_request(dashboard.url, "ana", "while it is marked")
        page.wait_for_timeout(2_500)
        assert re.fullmatch("ana, .*", page.evaluate("String(getSelection())"))
        page.evaluate("getSelection().removeAllRanges()")
        expect(session_link(page, "ana", "while it is marked")).to_be_visible()


def test_a_changed_configuration_is_shown_with_its_errors(browser: Browser, dashboard: LiveDashboard) -> None:
    config = dashboard.folder / "foveate.yaml"
    with open_page(browser, dashboard.url) as page:
        open_and_tag(page, "/-/configuration")

        write_config(config, dashboard.sandbox_url, "server: {log: sideways}\n")
        expect(page.locator("main")).to_contain_text("log must be one of")

        write_config(config, dashboard.sandbox_url, configuration(dashboard.folder))
        expect(page.locator("main")).not_to_contain_text("log must be one of")


def test_an_error_response_of_a_proxy_does_not_replace_the_page(
    browser: Browser, dashboard: LiveDashboard
) -> None:
    def bad_gateway(route: Route) -> None:
        route.fulfill(status=502, content_type="text/html", body="<html><body>Bad Gateway</body></html>")

    with open_page(browser, dashboard.url, allowed_console_errors="502") as page:
        open_and_tag(page, "/-/sessions")
        page.route("**/-/sessions", bad_gateway)

        send_request(dashboard.url, "ana", "behind a proxy")

        expect(page.locator("#live")).to_have_text("Disconnected, reconnecting…")
        page.unroute("**/-/sessions")
        expect(session_link(page, "ana", "behind a proxy")).to_be_visible()
        expect(page.locator("#live")).to_have_text("Live")
        assert is_not_reloaded(page)


def test_a_hidden_page_sends_no_requests_until_it_is_visible(
    browser: Browser, dashboard: LiveDashboard
) -> None:
    set_visibility = """state => {
        Object.defineProperty(document, "visibilityState", {value: state, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with open_page(browser, dashboard.url) as page:
        open_and_tag(page, "/-/sessions")
        requested_urls: list[str] = []
        page.on("request", lambda request: requested_urls.append(request.url))

        page.evaluate(set_visibility, "hidden")
        send_request(dashboard.url, "ana", "unseen")
        time.sleep(2.5)
        page.evaluate("1")  # process the events that the browser sent meanwhile
        assert requested_urls == []

        page.evaluate(set_visibility, "visible")
        expect(session_link(page, "ana", "unseen")).to_be_visible()
        assert is_not_reloaded(page)
