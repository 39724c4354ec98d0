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
# What the dark changes is colours.
DARK: dict[str, Any] = {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}}
# Pages whose colours others have too.
ALIKE = ("/-/sessions", "/-/agents", "/-/nothing")
# What can be focused and is seen, in the order in which it stands.
FOCUSABLE = """
() => [...document.querySelectorAll(
  "a[href], button, input:not([type=hidden]), select, summary, [tabindex='0']"
)].filter((one) => one.checkVisibility()).length
"""
FOCUSED = """
() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const style = getComputedStyle(one);
  const all = [...document.querySelectorAll("*")];
  const box = one.getBoundingClientRect();
  return {
    place: all.indexOf(one),
    said: one.tagName + " " + (one.textContent || one.getAttribute("name") || "").trim().slice(0, 60),
    outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    seen: box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight,
  };
}
"""


def places(shown: DashboardGateway) -> list[str]:
    """Every page, with something to show."""
    (compaction, *_) = read_store(
        shown.folder,
        lambda store: store.compactions.list_compactions(session_id=session_id_by_name(REVIEWER, REVIEW)),
    )
    names = {
        "/-/sessions/{id:path}": f"/-/sessions/{session_id_by_name(REVIEWER, REVIEW)}",
        "/-/folds/{id:path}": f"/-/folds/{compaction.id}",
        "/-/agents/{name:path}": f"/-/agents/{INTERN}",
        "/-/memory": f"/-/memory?agent={GARDENER}&query=water",
    }
    found = [names.get(path, path) for path in PAGES]
    assert not [path for path in found if "{" in path], "a page that no test looks at"
    return [*found, "/-/nothing"]


def open_and_expand(page: Page, path: str) -> None:
    page.goto(path)
    page.locator("main").evaluate(
        "main => main.querySelectorAll('details').forEach(one => { one.open = true; })"
    )


@pytest.mark.parametrize(("look", "rules"), [(PHONE, ()), (DARK, ("color-contrast",))], ids=["phone", "dark"])
def test_axe_finds_nothing_serious_on_any_page(
    look: dict[str, Any], rules: tuple[str, ...], browser: Browser, shown: DashboardGateway
) -> None:
    found: list[str] = []
    with open_page(browser, shown.url, allowed_console_errors="404", bypass_csp=True, **look) as page:
        for path in places(shown):
            if rules and path in ALIKE:
                continue
            open_and_expand(page, path)
            found += [f"{path}: {problem}" for problem in find_accessibility_violations(page, *rules)]

    assert not found, "\n".join(found)


def test_no_page_is_wider_than_a_small_phone(browser: Browser, shown: DashboardGateway) -> None:
    with open_page(
        browser, shown.url, allowed_console_errors="404", viewport={"width": 320, "height": 640}
    ) as page:
        for path in places(shown):
            open_and_expand(page, path)
            assert page.evaluate("document.documentElement.scrollWidth") <= 320, path


def test_the_tab_key_visits_every_page_element_in_order(browser: Browser, shown: DashboardGateway) -> None:
    with open_page(
        browser, shown.url, allowed_console_errors="404", viewport={"width": 1280, "height": 900}
    ) as page:
        for path in places(shown):
            page.goto(path)
            before = -1
            walked: list[str] = []
            for _ in range(page.evaluate(FOCUSABLE)):
                page.keyboard.press("Tab")
                focused = page.evaluate(FOCUSED)
                assert focused is not None, f"{path}: nothing has the focus after {walked[-3:]}"
                assert focused["place"] > before, f"{path}: {focused['said']} comes after {walked[-1:]}"
                assert focused["outlined"], f"{path}: {focused['said']} is focused, and one does not see it"
                assert focused["seen"], f"{path}: {focused['said']} is focused out of sight"
                before = focused["place"]
                walked.append(focused["said"])
            page.keyboard.press("Tab")
            after = page.evaluate(FOCUSED)
            assert after is None or after["place"] < before, f"{path}: {after['said']} keeps the focus"


def test_the_keyboard_alone_can_skip_to_content_open_details_and_search(
    browser: Browser, shown: DashboardGateway
) -> None:
    with open_page(browser, shown.url) as page:
        page.goto(f"/-/sessions/{session_id_by_name(REVIEWER, REVIEW)}")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()

        compaction = page.locator("details[data-name^=fold-]").first
        for _ in range(50):
            page.keyboard.press("Tab")
            if compaction.locator("summary").evaluate("one => one === document.activeElement"):
                break
        page.keyboard.press("Enter")
        expect(compaction.locator("pre").first).to_be_visible()
        page.keyboard.press("Enter")
        expect(compaction.locator("pre").first).to_be_hidden()

        page.goto("/-/configuration")
        page.get_by_label("Find").focus()
        page.keyboard.type("tail_keep")
        page.keyboard.press("Enter")
        expect(page.locator("[data-part=settings] tbody > tr")).to_have_count(1)


def test_screen_readers_read_pages_in_order(browser: Browser, shown: DashboardGateway) -> None:
    """One title, headings that leave out no level, names for all that can be entered, and where one is."""
    with open_page(browser, shown.url, allowed_console_errors="404") as page:
        titles = set()
        for path in places(shown):
            open_and_expand(page, path)
            titles.add(page.title())
            levels = page.evaluate(
                "[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(one => +one.tagName[1])"
            )
            assert levels[0] == 1
            assert levels.count(1) == 1, path
            assert all(after <= before + 1 for before, after in pairwise(levels)), f"{path}: {levels}"
            current = page.locator("nav[aria-label=Pages] [aria-current=page]")
            expect(current).to_have_count(0 if path == "/-/nothing" else 1)
            for field in page.locator("main :is(input:not([type=hidden]), select, textarea)").all():
                assert field.evaluate("one => one.labels.length > 0 || one.ariaLabel !== null"), path
            for table in page.locator("main table").all():
                assert table.locator("th:not([scope])").count() == 0, path
        assert len(titles) == len(places(shown))
