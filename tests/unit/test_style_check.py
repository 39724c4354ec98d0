"""Documentation and user-visible strings use the vocabulary of the field, and are spelled correctly."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.style_check import ROOT, check, checked_files

SPELLED_FILES = ("src", "docs", "tools", "benchmarks", "examples", "dashboards", "run", "test", "bench")


def test_no_text_uses_the_old_vocabulary() -> None:
    findings = [str(finding) for file in checked_files() for finding in check(file)]

    assert not findings, "\n".join(findings)


def test_all_pages_and_sources_are_checked() -> None:
    names = {str(file.relative_to(ROOT)) for file in checked_files()}

    assert {"README.md", "docs/guides/compaction.md", "src/foveate/cli/serve.py", "run"} <= names
    assert "src/foveate/web/templates/overview.html" in names
    assert "src/foveate/config/example.yaml" in names


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("page.md", "The history is\nfolded."),
        ("CHANGELOG.md", "## Unreleased\n\nThe history is folded.\n"),
        ("module.py", 'raise ValueError("the history is folded")\n'),
        ("module.py", 'message = f"{number} messages were folded"\n'),
        ("page.html", "<p>The history is folded.</p>"),
        ("settings.yaml", "compaction: true  # the history is folded\n"),
    ],
)
def test_an_old_word_is_found_in_every_kind_of_file(tmp_path: Path, name: str, content: str) -> None:
    file = tmp_path / name
    file.write_text(content)

    assert [finding.word for finding in check(file)] == ["folded"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("page.md", '`folds` is a key.\n\n```json\n{"folds": "is folded"}\n```\n\n<!-- is folded -->\n'),
        ("page.md", "See [compaction](folded.md)."),
        ("CHANGELOG.md", "## Unreleased\n\n## 0.1.0\n\nThe history is folded.\n"),
        ("module.py", 'query = "SELECT folded FROM folds"\nkey = "folds"\n'),
        ("module.py", 'text = "`folds` is a key of foveate_folds_total"\n'),
        ("page.html", '<p class="is folded">{{ folds }} compactions</p>'),
        ("settings.yaml", "folds: [is folded]\n"),
    ],
)
def test_code_keys_and_past_releases_are_not_checked(tmp_path: Path, name: str, content: str) -> None:
    file = tmp_path / name
    file.write_text(content)

    assert not list(check(file))


@pytest.mark.process
def test_words_are_spelled_correctly() -> None:
    pages = [str(page.relative_to(ROOT)) for page in ROOT.glob("*.md")]
    spelling = subprocess.run(
        [sys.executable, "-m", "codespell_lib", *pages, *SPELLED_FILES],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert spelling.returncode == 0, spelling.stdout + spelling.stderr
