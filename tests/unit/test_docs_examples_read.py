"""How examples are read out of pages, and when what is printed is what a page shows."""

import pytest

from tests.page_examples import Block, Command, blocks_in, commands_of, matches

PAGE = """\
# A page

<!-- given: bash
echo one >notes.txt
-->
<!-- exits: 2 -->

    $ foveate count notes.txt \\
        --json
    …
    $ foveate count

Not an example:

    foveate count [OPTIONS]

<!-- not run: needs Docker -->
```bash
docker build .
```

<!-- of another day -->

Words between them part a comment from a block.

```yaml
server: {port: 80}
```
"""


@pytest.fixture
def blocks() -> list[Block]:
    return blocks_in(PAGE, "docs/page.md")


def test_blocks_are_read_with_what_stands_before_them(blocks: list[Block]) -> None:
    console, docker, yaml = blocks

    assert (console.language, console.line, console.exits) == ("console", 8, 2)
    assert console.given == (("bash", "echo one >notes.txt"),)
    assert (docker.language, docker.not_run) == ("bash", "needs Docker")
    assert (yaml.language, yaml.text, yaml.of_another_day) == ("yaml", "server: {port: 80}\n", False)


def test_commands_are_told_from_what_they_show(blocks: list[Block]) -> None:
    assert list(commands_of(blocks[0])) == [
        Command("foveate count notes.txt \\\n    --json\n", "…"),
        Command("foveate count\n", ""),
    ]
    assert list(commands_of(blocks[1])) == [Command("docker build .\n")]


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("one\ntwo", "one\ntwo\n"),
        ("fov-…", "fov-abc"),
        ("…", "anything\nat all"),
        ("first\n…", "first\nand more\nlines"),
        ("…\nlast", "some\nlines\nlast\n"),
        ("a  b", "a  b   "),
    ],
)
def test_what_is_shown_was_printed(shown: str, printed: str) -> None:
    assert matches(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("one", "two"),
        ("one", "one\ntwo"),
        ("fov-…", "fov-abc\nmore"),
        ("$0.10", "$0.11"),
        ("a.c", "abc"),
        ("…\nlast", "last but one"),
    ],
)
def test_what_is_shown_was_not_printed(shown: str, printed: str) -> None:
    assert not matches(shown, printed)
