"""The documentation as a site: it needs no other server and contains everything that pages link to."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `./test` builds it."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_the_site_fetches_nothing_from_other_servers(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    remote_resource = re.compile(
        r"<(?:script|img|iframe|source)[^>]* src=\"?https?:|<link[^>]* href=\"?https?:[^>]*>"
    )
    remote_style = re.compile(r"(?:url\(|@import )[\"']?https?:")

    assert len(pages) > 20
    for page in pages:
        links = [
            link
            for link in remote_resource.findall(page.read_text(encoding="utf-8"))
            if "canonical" not in link
        ]
        assert not links, page
    for style in site.rglob("*.css"):
        assert not remote_style.search(style.read_text(encoding="utf-8")), style


def test_every_page_can_be_searched(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    pages = {entry["location"].partition("#")[0] for entry in index["docs"]}

    assert {
        "",
        "get-started/quickstart/",
        "guides/claude-code/",
        "reference/cli/",
        "background/design/",
        "changelog/",
    } <= pages


def test_linked_files_of_the_project_are_part_of_the_site(site: Path) -> None:
    assert (site / "project" / "examples" / "agent.py").read_bytes() == (
        ROOT / "examples/agent.py"
    ).read_bytes()
    assert (site / "project" / "env.example").exists()
    tutorial = (site / "get-started" / "quickstart" / "index.html").read_text(encoding="utf-8")
    assert 'href="../../project/examples/agent.py"' in tutorial


def test_the_site_contains_the_help_of_commands(site: Path) -> None:
    page = (site / "reference" / "cli" / "index.html").read_text(encoding="utf-8")

    assert 'id="foveate-cost-export"' in page
    assert "<code>--keep-ledger-days" in page


def test_comments_for_tests_and_tools_are_not_in_the_site(site: Path) -> None:
    for page in ("get-started/quickstart", "guides/cost", "reference/metrics"):
        text = (site / page / "index.html").read_text(encoding="utf-8")
        assert not re.search(r"of another day|given: python|made from the code|until here", text), page


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda page: page.name)
def test_no_heading_of_a_page_is_lost(site: Path, page: Path) -> None:
    """Defect: text between two comments was taken for part of the first one and dropped."""
    name = "" if page.name == "README.md" else page.relative_to(ROOT / "docs").with_suffix("")
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    built = (site / name / "index.html").read_text(encoding="utf-8")

    expected = len(re.findall(r"^#{2,3} ", text, re.MULTILINE))
    actual = len(re.findall(r"<h[23] id=", built))
    assert actual == expected
