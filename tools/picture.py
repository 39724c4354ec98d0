"""Draw the output of a command as an SVG for the documentation.

`tools/picture.py TITLE FILE` reads the output from standard input. Colours are kept: `script -qec COMMAND
/dev/null` produces them. Fonts are those of the reader; nothing is fetched.
"""

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text


def draw_svg(output: str, title: str) -> str:
    lines = Text.from_ansi(output.replace("\r\n", "\n").rstrip())
    width = max(line.cell_len for line in lines.split("\n"))
    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(lines, soft_wrap=True)
    svg = console.export_svg(title=title, theme=MONOKAI, unique_id="foveate")
    svg = re.sub(r"\s*@font-face \{.*?\}\n", "\n", svg, flags=re.DOTALL)
    return re.sub(r"font-family: Fira Code", "font-family: ui-monospace, Menlo, Consolas", svg)


if __name__ == "__main__":
    title, file = sys.argv[1:]
    Path(file).write_text(draw_svg(sys.stdin.read(), title), encoding="utf-8")
