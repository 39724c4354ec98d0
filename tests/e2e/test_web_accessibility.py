"""Accessibility of pages: keyboard, screen reader, light and dark, phone."""

from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from foveate.web.app import PAGES
from tests.support.clients.browser import find_accessibility_violations, open_page
from tests.support.scenarios.dashboard_traffic import (
    GARDENER,
    INTERN,
    REVIEW,
    REVIEWER,
    DashboardGateway,
    read_store,
    session_id_by_name,
)

PHONE: dict[str, Any] = {"color_scheme": "light", "viewport": {"width": 390, "height": 844}}
# Dark mode changes only colours.
DARK: dict[str, Any] = {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}}
# Pages with the same colours as others.
SAME_COLOURS = ("/-/sessions", "/-/agents", "/-/nothing")
# Number of visible elements that can be focused.
FOCUSABLE = """
() => [...document.querySelectorAll(
  "a[href], button, input:not([type=hidden]), select, summary, [tabindex='0']"
)].filter((element) => element.checkVisibility()).length
"""
FOCUSED = """
() => {
  const element = document.activeElement;
  if (!element || element === document.body) return null;
  const style = getComputedStyle(element);
  const all = [...document.querySelectorAll("*")];
  const box = element.getBoundingClientRect();
  const text = element.textContent || element.getAttribute("name") || "";
  return {
    place: all.indexOf(element),
    label: element.tagName + " " + text.trim().slice(0, 60),
    outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    seen: box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight,
  };
}
"""


def page_paths(dashboard_gateway: DashboardGateway) -> list[str]:
    """Return a path of every page, with data to show."""
    (compaction, *_) = read_store(
        dashboard_gateway.folder,
        lambda store: store.compactions.list_compactions(session_id=session_id_by_name(REVIEWER, REVIEW)),
    )
    names = {
        "/-/sessions/{id:path}": f"/-/sessions/{session_id_by_name(REVIEWER, REVIEW)}",
        "/-/compactions/{id:path}": f"/-/compactions/{compaction.id}",
        "/-/agents/{name:path}": f"/-/agents/{INTERN}",
        "/-/memory": f"/-/memory?agent={GARDENER}&query=water",
    }
    paths = [names.get(path, path) for path in PAGES]
    assert not [path for path in paths if "{" in path], "add a path for each new page"
    return [*paths, "/-/nothing"]


def open_and_expand(page: Page, path: str) -> None:
    page.goto(path)
    page.locator("main").evaluate(
        "main => main.querySelectorAll('details').forEach(element => { element.open = true; })"
    )


@pytest.mark.parametrize(
    ("context_options", "rules"), [(PHONE, ()), (DARK, ("color-contrast",))], ids=["phone", "dark"]
)
def test_axe_finds_nothing_serious_on_any_page(
    context_options: dict[str, Any],
    rules: tuple[str, ...],
    browser: Browser,
    dashboard_gateway: DashboardGateway,
) -> None:
    violations: list[str] = []
    with open_page(
        browser, dashboard_gateway.url, allowed_console_errors="404", bypass_csp=True, **context_options
    ) as page:
        for path in page_paths(dashboard_gateway):
            if rules and path in SAME_COLOURS:
                continue
            open_and_expand(page, path)
            violations += [f"{path}: {violation}" for violation in find_accessibility_violations(page, *rules)]

    assert not violations, "\n".join(violations)


def test_no_page_is_wider_than_a_small_phone(browser: Browser, dashboard_gateway: DashboardGateway) -> None:
    with open_page(
        browser, dashboard_gateway.url, allowed_console_errors="404", viewport={"width": 320, "height": 640}
    ) as page:
        for path in page_paths(dashboard_gateway):
            open_and_expand(page, path)
            assert page.evaluate("document.documentElement.scrollWidth") <= 320, path


def test_the_tab_key_visits_every_page_element_in_order(
    browser: Browser, dashboard_gateway: DashboardGateway
) -> None:
    with open_page(
        browser, dashboard_gateway.url, allowed_console_errors="404", viewport={"width": 1280, "height": 900}
    ) as page:
        for path in page_paths(dashboard_gateway):
            page.goto(path)
            before = -1
            visited: list[str] = []
            for _ in range(page.evaluate(FOCUSABLE)):
                page.keyboard.press("Tab")
                focused = page.evaluate(FOCUSED)
                assert focused is not None, f"{path}: nothing has the focus after {visited[-3:]}"
                assert focused["place"] > before, f"{path}: {focused['label']} comes after {visited[-1:]}"
                assert focused["outlined"], f"{path}: {focused['label']} has the focus, but no visible outline"
                assert focused["seen"], f"{path}: {focused['label']} is focused out of sight"
                before = focused["place"]
                visited.append(focused["label"])
            page.keyboard.press("Tab")
            after = page.evaluate(FOCUSED)
            assert after is None or after["place"] < before, f"{path}: {after['label']} keeps the focus"


def test_the_keyboard_alone_can_skip_to_content_open_details_and_search(
    browser: Browser, dashboard_gateway: DashboardGateway
) -> None:
    with open_page(browser, dashboard_gateway.url) as page:
        page.goto(f"/-/sessions/{session_id_by_name(REVIEWER, REVIEW)}")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        expect(page.get_by_role("link", name="Skip to content")).to_be_in_viewport()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()

        compaction = page.locator("details[data-name^=compaction-]").first
        for _ in range(50):
            page.keyboard.press("Tab")
            if compaction.locator("summary").evaluate("element => element === document.activeElement"):
                break
        page.keyboard.press("Enter")
        expect(compaction.locator("pre").first).to_be_visible()
        page.keyboard.press("Enter")
        expect(compaction.locator("pre").first).to_be_hidden()

        page.goto("/-/configuration")
        page.get_by_label("Search").focus()
        page.keyboard.type("tail_keep")
        page.keyboard.press("Enter")
        expect(page.locator("[data-part=settings] tbody > tr")).to_have_count(1)


def test_screen_readers_read_pages_in_order(browser: Browser, dashboard_gateway: DashboardGateway) -> None:
    """Check for one title, no skipped heading level, names of all fields, and the current page."""
    with open_page(browser, dashboard_gateway.url, allowed_console_errors="404") as page:
        titles = set()
        for path in page_paths(dashboard_gateway):
            open_and_expand(page, path)
            titles.add(page.title())
            levels = page.evaluate(
                "[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(element => +element.tagName[1])"
            )
            assert levels[0] == 1
            assert levels.count(1) == 1, path
            assert all(after <= before + 1 for before, after in pairwise(levels)), f"{path}: {levels}"
            current = page.locator("nav[aria-label=Pages] [aria-current=page]")
            expect(current).to_have_count(0 if path == "/-/nothing" else 1)
            for field in page.locator("main :is(input:not([type=hidden]), select, textarea)").all():
                assert field.evaluate("element => element.labels.length > 0 || element.ariaLabel !== null"), (
                    path
                )
            for table in page.locator("main table").all():
                assert table.locator("th:not([scope])").count() == 0, path
        assert len(titles) == len(page_paths(dashboard_gateway))
