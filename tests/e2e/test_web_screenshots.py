"""Screenshots in the documentation: taken from real traffic, and still up to date.

Pictures are not compared, since fonts differ from machine to machine. A text file beside each holds the
visible text of that page, each line once and without its numbers. If the text of a page changes, take a new
screenshot:

    FOVEATE_SCREENSHOTS=1 ./test tests/e2e/test_web_screenshots.py
"""

import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page

from tests.support.clients.browser import open_page
from tests.support.scenarios.week_of_traffic import REVIEW, WeekGateway, gateway_after_week

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
MAX_BYTES = 400_000
# GitHub shows pictures about 830 pixels wide: text must still be legible at that size.
WIDTH = 1000
SCALE = 2
IS_UPDATE = bool(os.environ.get("FOVEATE_SCREENSHOTS"))
# Text that changes each time or from day to day.
MASKS = (
    (r"\b[0-9a-f]{8,}\b…?", "ID"),
    (r"/url: .*", "/url"),
    (r"\b(just now|\d+ (s|min|h|days) ago)\b", "AGO"),
    (r"[-−+~]?\$?\d[\d,.:–-]*\s?(µs|ms|min|[kMs%](?!\w))?", "N"),
    (r"N(, N)+", "N"),
)


@dataclass(frozen=True)
class Screenshot:
    """A page, and the visible height in pixels."""

    path: str
    height: int


SCREENSHOTS = {
    "overview": Screenshot("/", 1210),
    "sessions": Screenshot("/-/sessions", 860),
    "session": Screenshot(f"/-/sessions/{REVIEW}", 1140),
    "agents": Screenshot("/-/agents", 980),
    "memory": Screenshot("/-/memory?agent=gardener&query=beans", 900),
    "configuration": Screenshot("/-/configuration", 860),
}


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeekGateway]:
    with gateway_after_week(tmp_path_factory.mktemp("week")) as running:
        yield running


def visible_text(page: Page) -> str:
    """Return the visible text of a page, without parts that change each time."""
    # The slowest step comes first, and changes each time.
    page.locator("[data-part=latency] tbody").evaluate_all(
        "elements => elements.forEach(element => element.remove())"
    )
    text = page.locator("body").aria_snapshot()
    for pattern, word in MASKS:
        text = re.sub(pattern, word, text)
    return "".join(f"{line}\n" for line in dict.fromkeys(text.splitlines()))


def take_screenshot(page: Page) -> bytes:
    """Take a screenshot of a page, in few colours."""
    image = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    file = io.BytesIO()
    # This method preserves rare colours, which have a meaning.
    reduced = image.quantize(192, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    reduced.save(file, "png", optimize=True)
    return file.getvalue()


def test_screenshots_in_the_documentation_match_the_pages(browser: Browser, week: WeekGateway) -> None:
    differences: list[str] = []
    for name, screenshot in SCREENSHOTS.items():
        size = {"width": WIDTH, "height": screenshot.height}
        with open_page(
            browser,
            week.url,
            viewport=size,
            device_scale_factor=SCALE,
            color_scheme="light",
            reduced_motion="reduce",
        ) as page:
            page.goto(screenshot.path)
            page.wait_for_selector("#live[data-state=live]")
            image, text = take_screenshot(page), visible_text(page)
        picture_file, text_file = FOLDER / f"web-{name}.png", FOLDER / f"web-{name}.txt"
        if IS_UPDATE:
            picture_file.write_bytes(image)
            text_file.write_text(text, encoding="utf-8")

        expected = text_file.read_text(encoding="utf-8").splitlines()
        differences += unified_diff(
            expected, text.splitlines(), picture_file.name, "the page", lineterm="", n=1
        )
        with Image.open(picture_file) as opened:
            assert opened.size == (SCALE * WIDTH, SCALE * screenshot.height)
        for data in (picture_file.read_bytes(), image):
            assert 10_000 < len(data) < MAX_BYTES

    assert not differences, "\n".join([*differences, __doc__])
