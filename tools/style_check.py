"""Find words of the old vocabulary in documentation and user-visible strings.

    .venv/bin/python tools/style_check.py [FILE …]

Code in pages (blocks, `names`, comments, link targets) is not checked: commands, keys and columns keep their
spelling. Neither are SQL, past entries of the changelog and migrations.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

# A word that must not come back, and what to say instead.
VOCABULARY = {
    r"(?<!adaptive, )(?<!client's\), )folds?|(?<!case-)folded|folding|unfold(?:ed)?": "compaction, compact",
    r"(?<!combining )marks?(?= (?:of|for|in|at|on|are|that|go|placed)\b)|cache marks?": "cache breakpoint",
    r"thoughts": "thinking, thinking block",
    r"bookings?|booked|books (?:calls?|what|it)": "charge, record",
    r"bills? (?:of|is|are|was|were|that|says?|comes?)": "usage, charge, cost",
    r"anew": "again",
    r"(?<!there )is no(?= (?!longer|more|such|need|way|limit|other|one|cap|\d))": "is not a",
    r"(?<!there )are no(?= (?!longer|more|such))": "are not",
    r"(?<!schema )beside": "next to, compared with, in addition to",
    r"whence|whereof|therein|thereof|hereof|herein": "plain words",
    r"whoever|whomever": "the actor",
    r"dearer|dearest": "more expensive",
    r"nobody knows|no one knows": "is unknown",
    r"all else": "everything else",
    r"is told (?:apart|as|by|of|so|that|in)|are told (?:apart|as|by|of|in)": "is reported, is shown",
}
_VOCABULARY = [(re.compile(rf"\b(?:{word})\b", re.IGNORECASE), advice) for word, advice in VOCABULARY.items()]

_MARKDOWN_CODE = re.compile(
    r"^    .*$|^(?P<fence>```+|~~~+).*?^(?P=fence)\s*$|<!--.*?-->|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)|(?<=\])\([^)\s]*\)|<[^>\n]+>|https?://\S+",
    re.MULTILINE | re.DOTALL,
)
# The glossary names the words to avoid.
_GLOSSARY = re.compile(r"^\| concept \| say \| not \|\n(?:\|.*\n)+", re.MULTILINE)
_TEMPLATE_CODE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}|<[^>]*>", re.DOTALL)
_SQL = re.compile(
    r"[^a-z]*\b(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|WITH|WHERE|PRAGMA|CHECK|ON CONFLICT)\b"
)
_INLINE_CODE = re.compile(r"`[^`\n]+`|https?://\S+|\S*[_/=]\S*")
_COMMENT = re.compile(r"#+ ?(.*)$")


@dataclass(frozen=True, slots=True)
class Finding:
    path: Path
    line: int
    word: str
    advice: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.word!r}: say {self.advice} | {self.text}"


def check(path: Path) -> Iterator[Finding]:
    """Yield every word of the old vocabulary in the texts of a file."""
    for line, text in visible_texts(path):
        for pattern, advice in _VOCABULARY:
            for found in pattern.finditer(text):
                number = line + text.count("\n", 0, found.start())
                context = text[max(0, found.start() - 40) : found.end() + 40].replace("\n", " ")
                yield Finding(path, number, found[0], advice, context)


def visible_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what a user can read of a file, each text with its line."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _python_texts(content)
    elif path.suffix == ".md":
        text = _current_entries(content) if path.name == "CHANGELOG.md" else content
        yield 1, _blank(_MARKDOWN_CODE, _blank(_GLOSSARY, text))
    elif path.suffix == ".html":
        yield 1, _blank(_TEMPLATE_CODE, content)
    else:
        for number, line in enumerate(content.splitlines(), 1):
            if comment := _COMMENT.search(line):
                yield number, _blank(_INLINE_CODE, comment[1])


def _python_texts(content: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(content)):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " in node.value.strip()
            and not _SQL.search(node.value)
        ):
            yield node.lineno, _blank(_INLINE_CODE, node.value)


def _current_entries(changelog: str) -> str:
    return re.split(r"^### Before|^## \[?\d", changelog, maxsplit=1, flags=re.MULTILINE)[0]


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """Replace matches by blanks; lines keep their numbers."""
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def checked_files() -> list[Path]:
    return sorted(
        {
            *ROOT.glob("*.md"),
            *ROOT.glob("docs/**/*.md"),
            *(file for file in ROOT.glob("src/foveate/**/*.py") if "migrations" not in file.parts),
            *ROOT.glob("src/foveate/web/templates/*.html"),
            ROOT / "src/foveate/config/example.yaml",
            ROOT / "dashboards/alerts.yaml",
            ROOT / ".env.example",
            *(ROOT / name for name in ("run", "test", "bench")),
        }
    )


def main(arguments: list[str]) -> int:
    files = [Path(argument).resolve() for argument in arguments] or checked_files()
    findings = [finding for file in files for finding in check(file)]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
