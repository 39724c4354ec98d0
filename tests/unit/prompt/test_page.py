"""The examples of the page on prompts do what it says."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "prompt.md"


def test_every_example_of_the_page_gives_what_it_shows() -> None:
    page = PAGE.read_text(encoding="utf-8")
    examples = doctest.DocTestParser().get_doctest(page, {}, PAGE.name, str(PAGE), 0)
    said: list[str] = []

    outcome = doctest.DocTestRunner().run(examples, out=said.append)

    assert not said, "".join(said)
    assert outcome.attempted == page.count("\n>>> ") > 10
