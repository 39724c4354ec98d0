"""Pages that stay open follow what happens: of this process, of others, and after it was started anew."""

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

LOST = "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE|ERR_ABORTED"


@dataclass(frozen=True)
class Watched:
    """A gateway, and the folder with its store and its configuration."""

    url: str
    folder: Path
    sandbox_url: str


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    with running_sandbox() as running:
        yield running


@pytest.fixture(scope="module")
def watched(sandbox: RunningSandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("live")
    write_config(folder / "foveate.yaml", sandbox.url, configuration(folder))
    with gateway_process(folder) as served:
        send_review(served.url, folder)
        yield Watched(served.url, folder, sandbox.url)


def opened(page: Page, path: str) -> None:
    """Open a page, wait until it follows, and mark it, so that one that is loaded anew is told from it."""
    page.goto(path)
    expect(page.locator("#live")).to_have_text("Live")
    page.evaluate("window.isTheSame = true")


def is_the_same(page: Page) -> bool:
    return page.evaluate("window.isTheSame === true") is True


def row_of(page: Page, agent: str, name: str) -> Locator:
    """The row of a session in the list."""
    return page.locator(f'main a[href="/-/sessions/{session_id_by_name(agent, name)}"]')


def test_a_session_appears_in_the_list_when_it_is_asked(browser: Browser, watched: Watched) -> None:
    with open_page(browser, watched.url) as page:
        opened(page, "/-/sessions")
        expect(row_of(page, "ana", "fresh")).to_have_count(0)

        send_request(watched.url, "ana", "fresh")

        expect(row_of(page, "ana", "fresh")).to_be_visible()
        assert is_the_same(page)


def test_what_a_second_gateway_on_the_same_store_does_is_seen_too(browser: Browser, watched: Watched) -> None:
    with gateway_process(watched.folder) as other, open_page(browser, watched.url) as page:
        opened(page, "/-/sessions")

        send_request(other.url, "ben", "elsewhere")

        expect(row_of(page, "ben", "elsewhere")).to_be_visible()
        assert is_the_same(page)


def test_a_page_finds_its_gateway_again_after_that_was_started_anew(
    browser: Browser, sandbox: RunningSandbox, tmp_path: Path
) -> None:
    write_config(tmp_path / "foveate.yaml", sandbox.url)
    with gateway_process(tmp_path) as first:
        port = str(urlsplit(first.url).port)
        with open_page(browser, first.url, allowed_console_errors=LOST) as page:
            opened(page, "/-/sessions")

            first.process.kill()
            first.process.communicate()
            expect(page.locator("#live")).to_have_text("Not connected: trying again")

            with gateway_process(tmp_path, "--port", port) as second:
                assert second.url == first.url
                send_request(second.url, "ana", "after the restart")
                expect(page.locator("#live")).to_have_text("Live")
                expect(row_of(page, "ana", "after the restart")).to_be_visible()
                assert is_the_same(page)


def test_what_is_open_focused_and_scrolled_stays_so_while_a_session_goes_on(
    browser: Browser, watched: Watched
) -> None:
    with open_page(browser, watched.url, viewport={"width": 390, "height": 800}) as page:
        opened(page, f"/-/sessions/{session_id_by_name(REVIEWER, REVIEW)}")
        chart = page.locator("figure.chart canvas").first
        drawn = int(chart.get_attribute("data-drawn") or 0)
        fold = page.locator("details[data-name^=fold-]").first
        fold.locator("summary").focus()
        page.keyboard.press("Enter")
        expect(fold.locator("pre").first).to_be_visible()
        scrolls = page.locator("[data-part=requests] .scrolls")
        scrolls.evaluate("element => element.scrollTo(60, 0)")
        rows = page.locator("[data-part=requests] tbody > tr").count()

        send_request(watched.url, REVIEWER, REVIEW)

        expect(page.locator("[data-part=requests] tbody > tr")).not_to_have_count(rows)
        expect(chart).to_have_attribute("data-drawn", str(drawn + 1))
        assert is_the_same(page)
        expect(fold.locator("pre").first).to_be_visible()
        assert fold.locator("summary").evaluate("element => element === document.activeElement")
        assert scrolls.evaluate("element => element.scrollLeft") == 60


def test_what_somebody_types_and_marks_is_left_alone(browser: Browser, watched: Watched) -> None:
    with open_page(browser, watched.url) as page:
        opened(page, "/-/sessions")
        field = page.get_by_label("Agent")
        field.fill("somebo")

        send_request(watched.url, "ana", "while it is typed")

        expect(row_of(page, "ana", "while it is typed")).to_be_visible()
        expect(field).to_have_value("somebo")
        expect(field).to_be_focused()

        page.get_by_role("heading", level=1).click()
        marked = row_of(page, "ana", "while it is typed")
        marked.evaluate("element => getSelection().selectAllChildren(element)")
        send_request(watched.url, "ana", "while it is marked")
        page.wait_for_timeout(2_500)
        assert re.fullmatch("ana, .*", page.evaluate("String(getSelection())"))
        page.evaluate("getSelection().removeAllRanges()")
        expect(row_of(page, "ana", "while it is marked")).to_be_visible()


def test_a_changed_configuration_is_shown_with_what_is_wrong_with_it(
    browser: Browser, watched: Watched
) -> None:
    config = watched.folder / "foveate.yaml"
    with open_page(browser, watched.url) as page:
        opened(page, "/-/configuration")

        write_config(config, watched.sandbox_url, "server: {log: sideways}\n")
        expect(page.locator("main")).to_contain_text("log is one of")

        write_config(config, watched.sandbox_url, configuration(watched.folder))
        expect(page.locator("main")).not_to_contain_text("log is one of")


def test_an_answer_of_something_between_is_not_taken_for_the_page(browser: Browser, watched: Watched) -> None:
    def bad_gateway(route: Route) -> None:
        route.fulfill(status=502, content_type="text/html", body="<html><body>Bad Gateway</body></html>")

    with open_page(browser, watched.url, allowed_console_errors="502") as page:
        opened(page, "/-/sessions")
        page.route("**/-/sessions", bad_gateway)

        send_request(watched.url, "ana", "behind a proxy")

        expect(page.locator("#live")).to_have_text("Not connected: trying again")
        page.unroute("**/-/sessions")
        expect(row_of(page, "ana", "behind a proxy")).to_be_visible()
        expect(page.locator("#live")).to_have_text("Live")
        assert is_the_same(page)


def test_a_page_that_nobody_sees_asks_for_nothing_until_it_is_seen(browser: Browser, watched: Watched) -> None:
    hide = """seen => {
        Object.defineProperty(document, "visibilityState", {value: seen, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with open_page(browser, watched.url) as page:
        opened(page, "/-/sessions")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))

        page.evaluate(hide, "hidden")
        send_request(watched.url, "ana", "unseen")
        time.sleep(2.5)
        page.evaluate("1")  # what the browser has told meanwhile is heard
        assert asked == []

        page.evaluate(hide, "visible")
        expect(row_of(page, "ana", "unseen")).to_be_visible()
        assert is_the_same(page)
