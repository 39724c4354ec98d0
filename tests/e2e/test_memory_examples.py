"""The commands on memories that the documentation shows give what it shows."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/cli.md", "docs/memory.md")


def examples() -> Iterator[tuple[str, str, str]]:
    """The page, the command, and what stands below it, which can be nothing."""
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for found in re.finditer(
            r"^    \$ (?:foveate|\./run) (memory .+)\n((?:    (?!\$ ).+\n)*)", text, re.MULTILINE
        ):
            yield page, found[1], re.sub(r"^    ", "", found[2], flags=re.MULTILINE)


EXAMPLES = list(examples())


@pytest.mark.parametrize(
    ("page", "command", "shown"), EXAMPLES, ids=[f"{page} {asked}" for page, asked, _ in EXAMPLES]
)
def test_a_command_in_the_documentation_gives_what_it_shows(
    run: Any, monkeypatch: pytest.MonkeyPatch, page: str, command: str, shown: str
) -> None:
    monkeypatch.chdir(ROOT)
    outcome = run(*shlex.split(command))

    assert outcome.code == 0, page
    assert outcome.out
    assert not shown or outcome.out == shown


def test_there_are_such_commands() -> None:
    assert {page for page, _, _ in EXAMPLES} >= {"README.md", "docs/cli.md"}
    assert sum(bool(shown) for _, _, shown in EXAMPLES) >= 3
