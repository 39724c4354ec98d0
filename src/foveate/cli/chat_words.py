"""An answer on the screen as it comes: its words plain, thoughts dimmed, calls named, and nothing obeyed."""

from collections.abc import Callable
from typing import TextIO

from foveate.chat.reading import Kind, Said
from foveate.cli.screen import Look, plain

# What joins emoji and letters of some scripts into one; a terminal only shows it.
_JOINERS = frozenset("\u200c\u200d")
_KEPT = frozenset("\n\t")
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_TAB = "    "


def shown(text: str) -> str:
    """A text as a terminal may have it: lines stay lines, and what would be obeyed is escaped."""
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n")
    return "".join(
        char if char in _JOINERS or char.isprintable() else _TAB if char == "\t" else _kept(char)
        for char in text
    )


def _kept(char: str) -> str:
    return char if char in _KEPT else plain(char)


class Words:
    """Writes the pieces of one answer to a stream; `begun` is called before the first."""

    def __init__(self, stream: TextIO, look: Look, begun: Callable[[], None] = lambda: None) -> None:
        self._stream = stream
        self._look = look
        self._begun = begun
        self._kind: Kind | None = None
        self._last = "\n"
        self._held = ""
        """A carriage return, whose line feed may be in the next piece."""

    def __call__(self, said: Said) -> None:
        """Write a piece."""
        if self._kind is None:
            self._begun()
        if said.kind is Kind.CALL:
            self._change(Kind.CALL)
            self._write(f"[calls {plain(said.text)}]")
        else:
            if said.kind is not self._kind:
                self._change(said.kind)
            text = self._held + said.text
            self._held = "\r" if text.endswith("\r") else ""
            self._write(shown(text.removesuffix("\r")))
        self._stream.flush()

    def end(self) -> None:
        """Have what comes next begin on a line of its own."""
        if self._kind is None:
            self._begun()
        self._close()
        self._stream.flush()

    def _change(self, kind: Kind) -> None:
        self._close()
        self._kind = kind
        if kind is Kind.THOUGHT:
            self._stream.write(_DIM if self._look.colours else "(thinking) ")

    def _close(self) -> None:
        self._held = ""
        if self._kind is Kind.THOUGHT and self._look.colours:
            self._stream.write(_PLAIN)
        if self._last != "\n":
            self._stream.write("\n")
            self._last = "\n"

    def _write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self._last = text[-1:] or self._last
