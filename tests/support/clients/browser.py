"""The Chromium of this machine, with pages that may reach only the gateway."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
# Tests may run as root in containers with little shared memory, and offline.
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Only failing tests wait this long. Live updates arrive after about ten page loads.
_TIMEOUT_MS = 30_000


class BrowserUnavailable(Exception):
    """No browser is installed; the message says what to install."""


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Start a headless browser until the end of the block.

    While it runs, this thread has a running event loop: `asyncio.run` needs another thread.

    Raises:
        BrowserUnavailable: there is none on this machine.
    """
    executable = next(filter(None, map(shutil.which, _NAMES)), None)
    if executable is None:
        raise BrowserUnavailable("Chromium is not installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        expect.set_options(timeout=_TIMEOUT_MS)
        browser = playwright.chromium.launch(executable_path=executable, args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(
    browser: Browser, url: str, *, allowed_console_errors: str = r"(?!)", **options: Any
) -> Iterator[Page]:
    """Open a page with `url` as its base, until the end of the block.

    Fails if the page requested another host, if a script failed, or if the console has an error that does not
    match `allowed_console_errors`.
    """
    with open_context(browser, url, allowed_console_errors=allowed_console_errors, **options) as context:
        yield context.new_page()


@contextmanager
def open_context(
    browser: Browser, url: str, *, allowed_console_errors: str = r"(?!)", **options: Any
) -> Iterator[BrowserContext]:
    """Like `open_page`, for several pages of one user."""
    problems: list[str] = []
    own_host = urlsplit(url).netloc

    def check_request(request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob", "about") and parts.netloc != own_host:
            problems.append(f"requested {request.url[:200]}")

    def check_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not re.search(allowed_console_errors, message.text):
            problems.append(f"console: {message.text[:500]}")

    context = browser.new_context(base_url=url, **options)
    context.set_default_timeout(_TIMEOUT_MS)
    context.on("request", check_request)
    context.on("console", check_console)
    context.on("weberror", lambda error: problems.append(f"script: {error.error}"))
    try:
        yield context
    finally:
        context.close()
    assert problems == []


def find_accessibility_violations(page: Page, *rules: str) -> list[str]:
    """Return serious violations that axe-core finds, by all rules or by some.

    Only the first rows of long tables are checked. The page's context must bypass its content security policy.
    """
    run_only = list(rules) or ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    page.add_script_tag(content=resources.files("axe_playwright_python").joinpath("axe.min.js").read_text())
    page.evaluate("document.querySelectorAll('tbody tr:nth-child(n+6)').forEach(row => row.remove())")
    report = page.evaluate(
        "rules => axe.run(document, {resultTypes: ['violations'], runOnly: rules})", run_only
    )
    return [
        f"{violation['id']} ({violation['impact']}): {violation['help']}: "
        f"{node['html'][:200]} {node['failureSummary'][:300]}"
        for violation in report["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
