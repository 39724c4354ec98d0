"""The pictures of pages in the documentation: made anew from real work, and still of what the pages show.

Pictures are not compared, since fonts differ from machine to machine. Beside each stands what a reader is told
of that page, each line once and without its numbers. Where a page tells something else by now, a new picture is
due:

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
MOST_BYTES = 150_000
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


def told(page: Page) -> str:
    """What a reader is told of a page, without what is another each time."""
    # The slowest step comes first, and is another each time.
    page.locator("[data-part=latency] tbody").evaluate_all("found => found.forEach(one => one.remove())")
    text = page.locator("body").aria_snapshot()
    for pattern, word in MASKS:
        text = re.sub(pattern, word, text)
    return "".join(f"{line}\n" for line in dict.fromkeys(text.splitlines()))


def taken(page: Page) -> bytes:
    """A picture of a page, in few colours."""
    image = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    file = io.BytesIO()
    # Those that are rare are signs: they stay what they are.
    few = image.quantize(192, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(file, "png", optimize=True)
    return file.getvalue()


def test_pictures_in_the_documentation_are_of_what_the_pages_show(browser: Browser, week: WeekGateway) -> None:
    different: list[str] = []
    for name, picture in PICTURES.items():
        size = {"width": WIDTH, "height": picture.height}
        with open_page(browser, week.url, viewport=size, color_scheme="light", reduced_motion="reduce") as page:
            page.goto(picture.path)
            page.wait_for_selector("#live[data-state=live]")
            image, text = taken(page), told(page)
        kept, kept_text = FOLDER / f"web-{name}.png", FOLDER / f"web-{name}.txt"
        if IS_DUE:
            kept.write_bytes(image)
            kept_text.write_text(text, encoding="utf-8")

        before = kept_text.read_text(encoding="utf-8").splitlines()
        different += unified_diff(before, text.splitlines(), kept.name, "the page", lineterm="", n=1)
        with Image.open(kept) as opened:
            assert opened.size == (WIDTH, picture.height)
        for one in (kept.read_bytes(), image):
            assert 10_000 < len(one) < MOST_BYTES

    assert not different, "\n".join([*different, __doc__])
