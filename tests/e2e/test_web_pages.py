"""Each page in a real browser shows the stored data of real clients of a gateway."""

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from foveate.session.rollups import TotalsGroup
from foveate.web.formatting import format_money, format_number, format_percent
from tests.support.clients.browser import open_page
from tests.support.scenarios.dashboard_traffic import (
    CROWD,
    CROWD_SESSIONS,
    GARDENER,
    HOSTILE,
    INTERN,
    REVIEW,
    REVIEWER,
    SUPPORT,
    DashboardGateway,
    read_store,
    session_id_by_name,
)

PAGE_ROWS = 50


def tile(page: Page, name: str) -> Locator:
    """Return the text of a tile by its name."""
    return (
        page.locator(".tiles > div")
        .filter(has=page.locator("dt", has_text=re.compile(f"^{name}$")))
        .locator("dd")
    )


def table_row(page: Page, part: str, heading: str) -> Locator:
    """Return the row of a table with this heading."""
    rows = page.locator(f"[data-part={part}] tbody > tr")
    return rows.filter(has=page.locator("th", has_text=heading))


def test_the_overview_shows_the_totals_of_the_store(
    browser: Browser, dashboard_gateway: DashboardGateway
) -> None:
    totals = dashboard_gateway.totals()
    category_totals = dict(
        read_store(dashboard_gateway.folder, lambda store: store.totals.sum_totals([TotalsGroup.CATEGORY]))
    )
    with open_page(browser, dashboard_gateway.url) as page:
        page.goto("/")

        expect(tile(page, "Last 7 days").first).to_have_text(format_money(totals.dollars))
        expect(tile(page, "Requests").first).to_have_text(format_number(totals.requests))
        expect(tile(page, "Requests").nth(1)).to_contain_text("1 failed")
        expect(tile(page, "Cache hit ratio").first).to_have_text(
            format_percent(category_totals[("main",)].hit_ratio)
        )
        expect(tile(page, "Lost to cache misses").first).to_have_text(format_money(totals.lost_dollars))
        expect(page.locator("figure.chart canvas[data-drawn]")).to_have_count(
            page.locator("figure.chart").count()
        )
        crowd = table_row(page, "agents", CROWD)
        expect(crowd.locator("td").first).to_have_text(format_number(CROWD_SESSIONS))
        expect(page.locator("[data-part=misses]")).to_contain_text("time")
        expect(table_row(page, "caps", INTERN)).to_contain_text("$0.01")

        page.locator("select[name=agent]").select_option(SUPPORT)
        page.get_by_role("button", name="Show").click()
        expect(tile(page, "Requests").first).to_have_text("4")
        expect(table_row(page, "agents", CROWD)).to_have_count(0)


def test_sessions_are_listed_filtered_and_paged_by_the_database(
    browser: Browser, dashboard_gateway: DashboardGateway
) -> None:
    rows = "[data-part=sessions] tbody > tr"
    with open_page(browser, dashboard_gateway.url) as page:
        page.goto("/-/sessions")
        expect(page.locator(rows)).to_have_count(PAGE_ROWS)
        links = page.locator(f"{rows} th a")
        first = links.evaluate_all("links => links.map(link => link.href)")
        reviewed_row = page.locator(rows).filter(
            has=page.locator(f'a[href$="{session_id_by_name(REVIEWER, REVIEW)}"]')
        )
        expect(reviewed_row).to_contain_text(
            format_money(dashboard_gateway.session(REVIEWER, REVIEW).totals.dollars)
        )

        page.get_by_role("link", name="Next").click()
        expect(page.locator(rows)).to_have_count(CROWD_SESSIONS + 5 - PAGE_ROWS)
        assert not set(first) & set(links.evaluate_all("links => links.map(link => link.href)"))
        page.get_by_role("link", name="Previous").click()
        expect(page.locator(rows)).to_have_count(PAGE_ROWS)
        assert links.evaluate_all("links => links.map(link => link.href)") == first

        page.get_by_label("Agent").fill(SUPPORT)
        page.keyboard.press("Enter")
        expect(page.locator(rows)).to_have_count(1)
        expect(page.locator(rows)).to_contain_text("1 failed")
        assert f"agent={SUPPORT}" in page.url

        page.goto(f"/-/sessions?id={session_id_by_name(INTERN, 'first-day')[:9]}")
        expect(page.locator(f"{rows} td").first).to_have_text(INTERN)

        page.goto("/-/sessions?order=dearest")
        expect(page.locator(f"{rows} td").first).to_have_text(re.compile(f"^({REVIEWER}|<script>.*)$"))

        page.goto("/-/sessions?agent=nobody")
        expect(page.locator("main")).to_contain_text("No sessions match")


def test_a_session_shows_its_window_requests_compactions_and_cache_misses(
    browser: Browser, dashboard_gateway: DashboardGateway
) -> None:
    session_id = session_id_by_name(REVIEWER, REVIEW)

    traces = read_store(
        dashboard_gateway.folder, lambda store: store.traces.list_traces(session_id=session_id, limit=1)
    )
    totals = dashboard_gateway.session(REVIEWER, REVIEW).totals
    with open_page(browser, dashboard_gateway.url) as page:
        page.goto(f"/-/sessions/{session_id}")

        expect(tile(page, "Cost").first).to_have_text(format_money(totals.dollars))
        expect(tile(page, "Cache misses").first).to_have_text("1")
        expect(tile(page, "Requests").first).to_have_text("11")
        expect(page.locator("figure.chart canvas")).to_have_attribute("data-drawn", "11")

        # The chart is also a table, whose sections add up to the token count.
        page.get_by_text("as a table").first.click()
        chart_rows = page.locator("figure.chart tbody > tr")
        expect(chart_rows).to_have_count(11)
        names = page.locator("figure.chart thead th").all_inner_texts()
        assert {"tools", "system", "summary", "tool results"} <= {name.strip().lower() for name in names}
        is_section = [
            name.strip().lower() in {section.name for section in traces[0].trace.sections} for name in names[1:]
        ]
        cells = chart_rows.last.locator("td").all_inner_texts()
        tokens = [
            int(cell.replace(",", "") or 0)
            for cell, is_counted in zip(cells, is_section, strict=False)
            if is_counted
        ]
        assert sum(tokens) == traces[0].trace.tokens

        misses = page.locator("[data-part=requests] details").filter(has_text="cache miss")
        expect(misses).not_to_have_count(0)
        edits = page.locator("[data-part=requests] details").first
        edits.locator("summary").click()
        expect(edits.locator("table")).to_be_visible()
        expect(edits).to_contain_text("breakpoint")

        compaction = page.locator("details[data-name^=compaction-]").last  # the oldest
        compaction.locator("summary").click()
        expect(compaction.get_by_role("heading", name="Compacted messages")).to_be_visible()
        expect(compaction.locator("pre").first).to_contain_text("parser")
        compaction.get_by_role("link", name="show all messages").click()
        expect(page.locator("main")).to_contain_text("Find the slow parser and make it fast.")


def test_agents_show_their_settings_budgets_and_injected_sections(
    browser: Browser, dashboard_gateway: DashboardGateway
) -> None:
    with open_page(browser, dashboard_gateway.url) as page:
        page.goto("/-/agents")
        expect(table_row(page, "agents", GARDENER)).to_contain_text("memory")
        expect(table_row(page, "agents", INTERN).locator("td").first).to_contain_text("off")
        expect(table_row(page, "agents", REVIEWER).locator("td").first).to_contain_text("on")
        expect(table_row(page, "agents", REVIEWER)).to_contain_text("9k")
        expect(table_row(page, "agents", CROWD)).to_contain_text("not in the configuration")

        page.get_by_role("link", name=INTERN, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(INTERN)
        expect(page.locator("main")).to_contain_text("$0.01")


def test_the_memory_page_shows_the_view_for_a_focus_and_a_limit(
    browser: Browser, dashboard_gateway: DashboardGateway
) -> None:
    with open_page(browser, dashboard_gateway.url) as page:
        page.goto("/-/memory")
        expect(page.locator(".outline")).to_contain_text("Bed 1: tomatoes")
        expect(page.locator("main")).not_to_contain_text("Nobody reads this")

        page.get_by_role("link", name="Bed 2: beans").click()
        expect(page.locator(".outline li", has_text="(focus)").last).to_contain_text("Bed 2: beans")
        page.get_by_role("textbox", name="Tokens").fill("120")
        page.keyboard.press("Enter")
        expect(tile(page, "Tokens").first).to_have_text(re.compile(r"^\d+ of 120$"))
        expect(page.get_by_role("region", name="Text as the model sees it")).to_contain_text("Monday")


def test_the_configuration_page_shows_effective_settings_and_their_sources(
    browser: Browser, dashboard_gateway: DashboardGateway
) -> None:
    with open_page(browser, dashboard_gateway.url) as page:
        page.goto("/-/configuration")
        expect(page.locator("[data-part=file]")).to_contain_text("foveate.yaml")
        page.get_by_label("Search").fill("tail_keep_tokens")
        page.keyboard.press("Enter")
        row = page.locator("[data-part=settings] tbody > tr")
        expect(row).to_have_count(1)
        expect(row).to_contain_text("800")
        expect(row).to_contain_text(re.compile(r"line \d+|foveate\.yaml"))


def hostile_pages() -> list[str]:
    agent = quote(HOSTILE, safe="")
    return [
        "/",
        f"/?agent={agent}",
        "/-/sessions",
        f"/-/sessions?agent={agent}&id={agent}",
        f"/-/sessions/{session_id_by_name(HOSTILE, HOSTILE)}",
        f"/-/sessions/{agent}",
        "/-/agents",
        f"/-/agents/{agent}",
        f"/-/memory?agent={agent}&focus={agent}&query={agent}",
        f"/-/configuration?find={agent}",
    ]


def test_text_of_users_and_models_is_never_markup(
    browser: Browser, dashboard_gateway: DashboardGateway
) -> None:
    compactions = read_store(
        dashboard_gateway.folder,
        lambda store: store.compactions.list_compactions(session_id=session_id_by_name(HOSTILE, HOSTILE)),
    )
    with open_page(browser, dashboard_gateway.url, allowed_console_errors="400|404") as page:
        page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
        for path in [*hostile_pages(), *(f"/-/compactions/{compaction.id}" for compaction in compactions)]:
            page.goto(path)
            for details in page.locator("main details").all()[:30]:
                details.evaluate("element => { element.open = true; }")
            assert page.evaluate("window.harmed === undefined"), path
            assert (
                page.locator("main img, main script:not([type='application/json']), main iframe").count() == 0
            )
            assert str(7919 * 10000019) not in page.content()
            typed = [field.input_value() for field in page.locator("main input").all()]
            assert any("<script>" in text for text in [page.locator("body").inner_text(), *typed]), path


def test_every_page_is_readable_without_scripts(browser: Browser, dashboard_gateway: DashboardGateway) -> None:
    with open_page(browser, dashboard_gateway.url, java_script_enabled=False) as page:
        page.goto(f"/-/sessions/{session_id_by_name(REVIEWER, REVIEW)}")
        page.locator("figure.chart summary").first.click()
        expect(page.locator("figure.chart tbody > tr")).to_have_count(11)
        page.locator("details[data-name^=compaction-] summary").first.click()
        expect(page.locator("details[data-name^=compaction-] pre").first).to_be_visible()
        page.goto("/-/sessions")
        expect(page.locator("[data-part=sessions] tbody > tr")).to_have_count(PAGE_ROWS)
