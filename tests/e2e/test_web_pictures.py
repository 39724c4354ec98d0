"""Screenshots in the documentation: taken from real traffic, and still up to date.

Pictures are not compared, since fonts differ from machine to machine. A text file beside each holds the
visible text of that page, each line once and without its numbers. If the text of a page changes, take a new
screenshot:

    FOVEATE_SCREENSHOTS=1 ./test tests/e2e/test_web_pictures.py
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
MAX_BYTES = 150_000
WIDTH = 1280
IS_DUE = bool(os.environ.get("FOVEATE_SCREENSHOTS"))
# What is another each time, and what differs from day to day; the words around it stay.
MASKS = (
    (r"\b[0-9a-f]{8,}\b…?", "ID"),
    (r"/url: .*", "/url"),
    (r"\b(just now|\d+ (s|min|h|days) ago)\b", "AGO"),
    (r"[-−+~]?\$?\d[\d,.:–-]*\s?(µs|ms|min|[kMs%](?!\w))?", "N"),
    (r"N(, N)+", "N"),
)


@dataclass(frozen=True)
class Picture:
    """A page, and how much of it is seen."""

    path: str
    height: int


PICTURES = {
    "overview": Picture("/", 1180),
    "sessions": Picture("/-/sessions", 860),
    "session": Picture(f"/-/sessions/{REVIEW}", 1240),
    "agents": Picture("/-/agents", 620),
    "memory": Picture("/-/memory?agent=gardener&query=beans", 900),
    "configuration": Picture("/-/configuration", 860),
}


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeekGateway]:
    with gateway_after_week(tmp_path_factory.mktemp("week")) as found:
        yield found


def visible_text(page: Page) -> str:
    """Return the visible text of a page, without parts that change each time."""
    # The slowest step comes first, and is another each time.
    page.locator("[data-part=latency] tbody").evaluate_all("found => found.forEach(one => one.remove())")
    text = page.locator("body").aria_snapshot()
    for pattern, word in MASKS:
        text = re.sub(pattern, word, text)
    return "".join(f"{line}\n" for line in dict.fromkeys(text.splitlines()))


def take_screenshot(page: Page) -> bytes:
    """Take a screenshot of a page, in few colours."""
    image = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    file = io.BytesIO()
    # Those that are rare are signs: they stay what they are.
    few = image.quantize(192, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(file, "png", optimize=True)
    return file.getvalue()


def test_screenshots_in_the_documentation_match_the_pages(browser: Browser, week: WeekGateway) -> None:
    different: list[str] = []
    for name, picture in PICTURES.items():
        size = {"width": WIDTH, "height": picture.height}
        with open_page(browser, week.url, viewport=size, color_scheme="light", reduced_motion="reduce") as page:
            page.goto(picture.path)
            page.wait_for_selector("#live[data-state=live]")
            image, text = take_screenshot(page), visible_text(page)
        picture_file, text_file = FOLDER / f"web-{name}.png", FOLDER / f"web-{name}.txt"
        if IS_DUE:
            picture_file.write_bytes(image)
            text_file.write_text(text, encoding="utf-8")

        before = text_file.read_text(encoding="utf-8").splitlines()
        different += unified_diff(before, text.splitlines(), picture_file.name, "the page", lineterm="", n=1)
        with Image.open(picture_file) as opened:
            assert opened.size == (WIDTH, picture.height)
        for one in (picture_file.read_bytes(), image):
            assert 10_000 < len(one) < MAX_BYTES

    assert not different, "\n".join([*different, __doc__])
