"""Safe text for a terminal: control characters escaped, and lines broken between words."""

import io

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from foveate.cli.shared.console import escape_control_chars

# Zero-width joiners are not printable by `isprintable`, but harmless to terminals.
_JOINERS = frozenset("\u200c\u200d")
_JOINER = "\u200d"
_ALLOWED_CONTROLS = frozenset("\n")
_TAB = "    "
_WIDE_CELLS = 2


def escape_for_terminal(text: str) -> str:
    """Escape control characters, but keep line breaks and expand tabs."""
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n")
    return "".join(
        char if char in _JOINERS or char.isprintable() else _TAB if char == "\t" else _escape_char(char)
        for char in text
    )


def _escape_char(char: str) -> str:
    return char if char in _ALLOWED_CONTROLS else escape_control_chars(char)


def wrap_text(text: str, columns: int) -> list[str]:
    """Break escaped text into lines that fit."""
    wrapper = WordWrapper(columns)
    return (wrapper.feed(text) + wrapper.flush()).splitlines()


def wrap_styled(line: str, columns: int) -> list[str]:
    """Break a line that may contain styles. Continuation lines have the same indentation."""
    text = Text.from_ansi(line)
    if text.cell_len <= columns:
        return [line]
    indent = len(text.plain) - len(text.plain.lstrip())
    console = Console(
        file=io.StringIO(), width=columns, height=25, force_terminal=True, color_system="standard"
    )
    has_styles = bool(text.spans)
    lines = []
    for number, part in enumerate(text.wrap(console, max(1, columns - indent))):
        part.rstrip()
        with console.capture() as capture:
            console.print(part, end="", soft_wrap=True, highlight=False)
        rendered = capture.get() if has_styles else part.plain
        lines.append(" " * indent * bool(number) + rendered)
    return lines


class WordWrapper:
    """Breaks lines between words while text arrives. Returns the last word once it is complete.

    Lines can also be broken before and after wide characters, such as Chinese ones. A word that is longer than
    a line starts on a new one, and the terminal breaks it.
    """

    def __init__(self, columns: int) -> None:
        self.columns = max(1, columns)
        self._column = 0
        self._blanks = ""
        self._word = ""
        self._is_joined = False
        """The last character was a joiner: the next belongs to the same symbol."""

    def feed(self, text: str) -> str:
        output = ""
        for char in text:
            if char == "\n":
                output += self._end_word() + char
                self._column, self._blanks = 0, ""
            elif char == " ":
                output += self._end_word()
                self._blanks += char
            elif self._can_break_before(char):
                output += self._end_word()
                self._word = char
            else:
                self._word += char
            self._is_joined = char == _JOINER
        return output

    def _can_break_before(self, char: str) -> bool:
        if cell_len(char) == _WIDE_CELLS:
            return not self._is_joined
        return bool(self._word) and cell_len(self._word[0]) == _WIDE_CELLS and char.isalnum()

    def flush(self) -> str:
        """Return the last word; blanks at the end of a line are dropped."""
        return self._end_word()

    def _end_word(self) -> str:
        if not self._word:
            return ""
        word, blanks, cells = self._word, self._blanks, cell_len(self._word)
        self._word = self._blanks = ""
        if self._column and self._column + len(blanks) + cells > self.columns:
            self._column, blanks, lead = 0, "", "\n"
        else:
            if not self._column:  # a word that fits without its indentation is not broken
                blanks = blanks[: max(0, self.columns - cells)]
            lead = blanks
        self._column += len(blanks) + cells
        if self._column > self.columns:  # the terminal has broken the word
            self._column %= self.columns
        return lead + word
