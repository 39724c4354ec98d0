"""Write a streamed answer to a terminal: thinking dimmed, tool calls named, control characters escaped."""

from collections.abc import Callable
from typing import TextIO

from foveate.chat.responses import FragmentKind, ResponseFragment
from foveate.cli.console import Display, escape_control_chars

# Zero-width joiners are not printable by `isprintable`, but harmless to terminals.
_JOINERS = frozenset("\u200c\u200d")
_ALLOWED_CONTROLS = frozenset("\n\t")
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_TAB = "    "


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


class AnswerWriter:
    """Writes the pieces of one answer to a stream. Calls `on_start` before the first."""

    def __init__(self, stream: TextIO, display: Display, on_start: Callable[[], None] = lambda: None) -> None:
        self._stream = stream
        self._display = display
        self._on_start = on_start
        self._kind: FragmentKind | None = None
        self._last = "\n"
        self._pending_return = ""
        """A carriage return whose line feed may be in the next piece."""

    def __call__(self, piece: ResponseFragment) -> None:
        if self._kind is None:
            self._on_start()
        if piece.kind is FragmentKind.TOOL_CALL:
            self._change(FragmentKind.TOOL_CALL)
            self._write(f"[calls {escape_control_chars(piece.text)}]")
        else:
            if piece.kind is not self._kind:
                self._change(piece.kind)
            text = self._pending_return + piece.text
            self._pending_return = "\r" if text.endswith("\r") else ""
            self._write(escape_for_terminal(text.removesuffix("\r")))
        self._stream.flush()

    def end(self) -> None:
        """Finish the current line, so that the next output starts on a new one."""
        if self._kind is None:
            self._on_start()
        self._close()
        self._stream.flush()

    def _change(self, kind: FragmentKind) -> None:
        self._close()
        self._kind = kind
        if kind is FragmentKind.THINKING:
            self._stream.write(_DIM if self._display.colours else "(thinking) ")

    def _close(self) -> None:
        self._pending_return = ""
        if self._kind is FragmentKind.THINKING and self._display.colours:
            self._stream.write(_PLAIN)
        if self._last != "\n":
            self._stream.write("\n")
            self._last = "\n"

    def _write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self._last = text[-1:] or self._last
