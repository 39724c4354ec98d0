"""Code examples in README.md and docs/, and directives for tests in HTML comments before them.

<!-- given: python        code to run before the block, up to the end of the comment
body = {"model": "gpt-4o", "messages": []}
-->
<!-- not run: needs Docker -->
<!-- exits: 2 -->
<!-- of another day -->   the output shown is not compared
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]

_COMMENT = re.compile(
    r"<!-- (?:given: (?P<language>\w+)\n(?P<code>.*?)\n"
    r"|(?P<word>not run|exits|of another day)(?:: (?P<value>[^\n]*?))? )-->",
    re.DOTALL,
)
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)    \$ .*\n(?:    .*\n|\n(?=    ))*")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBlock:
    """A code block: its position, language and text, and the directives before it."""

    page: str
    line: int
    language: str
    text: str
    setup: tuple[tuple[str, str], ...] = ()
    skip_reason: str | None = None
    exit_code: int = 0
    is_output_outdated: bool = False

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command and the output shown for it."""

    command: str
    output: str = ""


def read_blocks(path: Path) -> list[CodeBlock]:
    """Return all runnable blocks of a page, in order."""
    return parse_blocks(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))


def parse_blocks(text: str, page: str) -> list[CodeBlock]:
    """Like `read_blocks`, for the text of a page."""
    fences = list(_FENCE.finditer(text))
    blocks = [(fence.start(), fence[1], fence[2]) for fence in fences]
    blocks += [
        (block.start(), "console", re.sub(r"^    ", "", block[0], flags=re.MULTILINE))
        for block in _INDENTED.finditer(text)
        if not any(fence.start() < block.start() < fence.end() for fence in fences)
    ]
    return [_make_block(text, page, start, language, code) for start, language, code in sorted(blocks)]


def _make_block(text: str, page: str, start: int, language: str, code: str) -> CodeBlock:
    comments = _comments_before(text, start)
    directives = {comment["word"]: comment["value"] for comment in comments if comment["word"]}
    return CodeBlock(
        page=page,
        line=text.count("\n", 0, start) + 1,
        language=language,
        text=code,
        setup=tuple((comment["language"], comment["code"]) for comment in comments if comment["language"]),
        skip_reason=directives.get("not run"),
        exit_code=int(directives.get("exits", 0)),
        is_output_outdated="of another day" in directives,
    )


def _comments_before(text: str, start: int) -> list[re.Match[str]]:
    """Return the comments directly before a position."""
    comments: list[re.Match[str]] = []
    for comment in reversed(list(_COMMENT.finditer(text, 0, start))):
        if text[comment.end() : start].strip():
            break
        comments.insert(0, comment)
        start = comment.start()
    return comments


def parse_commands(block: CodeBlock) -> Iterator[ShellCommand]:
    """Split a terminal session into commands with their output; any other block is one command."""
    if block.language == "bash":
        yield ShellCommand(block.text)
        return
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        end = next(number for number, line in enumerate(lines) if not line.rstrip("\n").endswith("\\"))
        yield ShellCommand("".join(lines[: end + 1]), "".join(lines[end + 1 :]).strip("\n"))


def matches_output(expected: str, printed: str) -> bool:
    """Check printed output: `…` matches anything in a line, a line of `…` any lines."""
    pattern = "\n".join(
        r"(?:.*\n?)*?" if line.strip() == "…" else ".*".join(map(re.escape, line.rstrip().split("…")))
        for line in expected.splitlines()
    ).replace("(?:.*\\n?)*?\n", "(?:.*\\n)*?")
    plain = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
    return re.fullmatch(pattern, plain) is not None
