"""Parsing of examples in pages, and comparison of their output with what the page shows."""

import pytest

from tests.support.harness.doc_examples import (
    CodeBlock,
    ShellCommand,
    matches_output,
    parse_blocks,
    parse_commands,
)

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
def blocks() -> list[CodeBlock]:
    return parse_blocks(PAGE, "docs/page.md")


def test_blocks_are_parsed_with_the_comments_before_them(blocks: list[CodeBlock]) -> None:
    console, docker, yaml = blocks

    assert (console.language, console.line, console.exit_code) == ("console", 8, 2)
    assert console.setup == (("bash", "echo one >notes.txt"),)
    assert (docker.language, docker.skip_reason) == ("bash", "needs Docker")
    assert (yaml.language, yaml.text, yaml.is_output_outdated) == ("yaml", "server: {port: 80}\n", False)


def test_commands_are_separated_from_their_output(blocks: list[CodeBlock]) -> None:
    assert list(parse_commands(blocks[0])) == [
        ShellCommand("foveate count notes.txt \\\n    --json\n", "…"),
        ShellCommand("foveate count\n", ""),
    ]
    assert list(parse_commands(blocks[1])) == [ShellCommand("docker build .\n")]


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
def test_output_matches_what_a_page_shows(shown: str, printed: str) -> None:
    assert matches_output(shown, printed)


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
def test_different_output_does_not_match(shown: str, printed: str) -> None:
    assert not matches_output(shown, printed)
