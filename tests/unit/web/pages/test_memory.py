"""The memory page."""

import html
import json
import re
from pathlib import Path

from foveate.memory.memory import Memory
from tests.support.clients.dashboard import open_dashboard

PATH = "/-/memory"
NOTES = """\
* Beds
** Bed 1: tomatoes
Water every morning; the leaves stay dry.
** TODO Prune the <b>roses</b>
Before the frost.
*** Shears
In the shed.
* Diary :private:
Nobody reads this.
"""


def make_config(folder: Path, options: str = "", notes: str = NOTES) -> str:
    """A configuration in which the gardener has notes, and the intern has none."""
    (folder / "notes").mkdir(exist_ok=True)
    (folder / "notes" / "garden.org").write_text(notes, encoding="utf-8")
    paths = json.dumps([str(folder / "notes")])
    memory = f"{{paths: {paths}, limit_tokens: 300}}"
    return f"agents: [{{id: intern}}, {{id: gardener, sections: {{memory: {memory}{options}}}}}]\n"


def extract_text(page: str) -> str:
    """Return the text that a model would see."""
    match = re.search(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)
    assert match is not None, page
    return html.unescape(match[1])


async def test_the_text_is_the_same_as_in_requests_and_the_command(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    async with open_dashboard(tmp_path, config) as dashboard:
        page = await dashboard.page(f"{PATH}?focus=Bed+1:+tomatoes&tokens=60")
    view = Memory.load(tmp_path / "notes").render("Bed 1: tomatoes", limit_tokens=60)

    assert extract_text(page) == view.text
    assert f"<dd>{view.tokens} of 60</dd>" in page


async def test_the_outline_shows_and_links_each_node(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, make_config(tmp_path)) as dashboard:
        page = await dashboard.page(f"{PATH}?query=frost")
        text = await dashboard.text(f"{PATH}?query=frost")

        outline = page[page.index('<div class="outline">') : page.index("<h2>Text</h2>")]
        assert outline.count("<ul>") == outline.count("</ul>") == 4
        assert outline.count("<li>") == outline.count("</li>") == 5
        assert re.search(r"full TODO Prune the <b>roses</b> \d+ tokens, relevance 0\.\d\d", text)
        (link,) = re.findall(r'<a href="([^"]*)">Shears', outline)
        assert "full Shears (focus)" in await dashboard.text(f"{PATH}{link.replace('&amp;', '&')}")


async def test_node_counts_by_level_add_up(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, make_config(tmp_path)) as dashboard:
        text = await dashboard.text(f"{PATH}?tokens=25")

        counts = re.search(r"Full (\d+) .*Excerpt (\d+) .*Title (\d+) .*Hidden (\d+) nodes left out", text)
        assert counts is not None
        assert sum(map(int, counts.groups())) == 5
        assert int(counts[4]) > 0


async def test_private_notes_are_never_shown(tmp_path: Path) -> None:
    options = ", privacy_tags: [garden]"
    notes = f"{NOTES}* Keys :garden:\nUnder the pot.\n"
    async with open_dashboard(tmp_path, make_config(tmp_path, options, notes)) as dashboard:
        for query in ("", "?query=nobody+reads+diary", "?query=keys+pot", "?tokens=5000"):
            page = await dashboard.page(f"{PATH}{query}")
            assert "Nobody reads" not in page
            assert "Under the pot" not in page
            assert "tagged as private are left out" in page
        assert "the memory has no node 'Diary'" in await dashboard.text(f"{PATH}?focus=Diary", 400)
        assert "the memory has no node 'Keys'" in await dashboard.text(f"{PATH}?focus=Keys", 400)


async def test_invalid_input_is_reported_next_to_the_form(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, make_config(tmp_path)) as dashboard:
        page = await dashboard.page(f"{PATH}?focus=Bed&tokens=many", 400)
        assert "tokens must be a whole number from 1 to 50000, not &#39;many&#39;" in page
        assert 'value="many"' in page
        assert 'value="Bed"' in page

        assert "data-events" not in page
        assert "data-events" in await dashboard.page(PATH)

        assert "did you mean 'Beds'?" in await dashboard.text(f"{PATH}?focus=Bedss", 400)
        assert "raise the limit" in await dashboard.text(f"{PATH}?focus=Shears&tokens=1", 400)
        assert "tokens must be a whole number" in await dashboard.text(f"{PATH}?tokens=99999999", 400)


async def test_an_agent_without_a_memory_is_reported(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, make_config(tmp_path)) as dashboard:
        assert "The agent intern has no memory" in await dashboard.text(f"{PATH}?agent=intern")
        assert "The agent <b>x</b> has no memory" in await dashboard.text(f"{PATH}?agent=<b>x</b>")
        assert '<option value="gardener" selected>' in await dashboard.page(PATH)


async def test_without_any_memory_the_page_explains_how_to_configure_one(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path) as dashboard:
        text = await dashboard.text(PATH)

        assert "No agent has a memory yet" in text
        assert "paths: [~/notes]" in text


async def test_missing_notes_and_an_empty_memory_are_reported(tmp_path: Path) -> None:
    async with open_dashboard(
        tmp_path, make_config(tmp_path, notes="#+FILETAGS: :private:\n* A\n")
    ) as dashboard:
        assert "The memory is empty" in await dashboard.text(PATH)
    config = make_config(tmp_path).replace(str(tmp_path / "notes"), str(tmp_path / "gone"))
    async with open_dashboard(tmp_path, config) as dashboard:
        assert "No such file or directory" in await dashboard.text(PATH)


async def test_changed_notes_are_shown(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, make_config(tmp_path)) as dashboard:
        before = extract_text(await dashboard.page(PATH))
        assert extract_text(await dashboard.page(PATH)) == before
        (tmp_path / "notes" / "shed.md").write_text("# Ladder\n\nBehind the door.\n")
        dashboard.clock.seconds += 2

        assert "Ladder" in extract_text(await dashboard.page(PATH))


async def test_a_smaller_budget_of_the_sections_is_shown(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, make_config(tmp_path, ", limits: {total_tokens: 200}")) as dashboard:
        assert "allows its memory at most 200 tokens" in await dashboard.text(PATH)
    disabled = ", limits: {sections: {context: {enabled: false}}}"
    async with open_dashboard(tmp_path, make_config(tmp_path, disabled)) as dashboard:
        assert "disable its memory" in await dashboard.text(PATH)


async def test_a_long_view_is_truncated(tmp_path: Path) -> None:
    notes = "".join(f"* Heading {number}\n{'words ' * 40}\n" for number in range(700))
    async with open_dashboard(tmp_path, make_config(tmp_path, notes=notes)) as dashboard:
        page = await dashboard.page(f"{PATH}?tokens=50000")

        assert page.count("<li><span") == 300
        assert re.search(r"\d+ more are in the text", page)
        assert re.search(r"… and [\d,]+ more characters", page)
        assert len(page) < 200_000


async def test_deeply_nested_titles_stay_within_the_outline(tmp_path: Path) -> None:
    notes = "".join(f"{'*' * depth} Depth {depth}\n" for depth in range(1, 60))
    async with open_dashboard(tmp_path, make_config(tmp_path, notes=notes)) as dashboard:
        page = await dashboard.page(f"{PATH}?tokens=5000")

        outline = page[page.index('<div class="outline">') : page.index("<h2>Text</h2>")]
        assert outline.count("<ul>") == outline.count("</ul>") < 30
        assert outline.count("<li>") == outline.count("</li>") == 60
