"""A conversation at a terminal, on prompt-toolkit."""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.styles import Style

from foveate.chat.looking import Look
from foveate.chat.setting import Setting
from foveate.chat.talk import Answer, Talk
from foveate.cli import screen
from foveate.cli.chat_commands import ENDS, Asked, Commands, completions, read
from foveate.cli.chat_history import add_to_history, read_history
from foveate.cli.chat_lines import painted, status
from foveate.cli.chat_words import Words, shown
from foveate.errors import FoveateError

_PROMPT, _CONTINUED = "> ", "… "
_DIM, _RED, _YELLOW = "2", "31", "33"
# What stands around a word on what takes so long, and the last column, where a terminal may begin a line.
_AROUND_PATIENCE = len("foveate:  …") + 1
_HINT = "Ctrl-D ends; :help lists the commands"


async def converse(talk: Talk, setting: Setting, commands: Commands, history: Path) -> None:
    """Talk until the user ends it."""
    terminal = _Terminal(talk, setting, history)
    terminal.tell(f"{talk.speaking.model}, as agent {talk.agent}. {_HINT}.")
    with terminal.unending():
        await terminal.look()
        while (text := await terminal.line()) is not None:
            meant = read(text)
            if isinstance(meant, Asked) and meant.name in ENDS:
                return
            if isinstance(meant, Asked):
                await _ordered(terminal, talk, commands, meant)
            elif meant:
                await _asked(terminal, talk, meant)


async def _ordered(terminal: "_Terminal", talk: Talk, commands: Commands, asked: Asked) -> None:
    try:
        with terminal.interruptible(talk.stop), terminal.patience("at it"):
            told = await commands.run(asked)
    except FoveateError as error:
        terminal.tell(str(error), _YELLOW)
    else:
        terminal.print(told)
    await terminal.look()


async def _asked(terminal: "_Terminal", talk: Talk, text: str) -> None:
    with ExitStack() as waiting:
        waiting.enter_context(terminal.patience("waiting for the answer; Ctrl-C stops it"))
        words = Words(sys.stdout, terminal.screen(), begun=waiting.close)
        with terminal.interruptible(talk.stop):
            answer = await talk.ask(text, words)
        words.end()
    terminal.tell_of(answer, talk)
    await terminal.look()


class _Terminal:
    """Reads lines and writes them. What is known of the window is shown below the prompt."""

    def __init__(self, talk: Talk, setting: Setting, history: Path) -> None:
        self._talk = talk
        self._look: Look | None = None
        self._stop: Callable[[], None] = _nothing
        colours = self.screen().colours
        self._session: PromptSession[str] = PromptSession(
            history=_TypedBefore(history),
            completer=_Completer(setting),
            complete_while_typing=True,
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation=_CONTINUED if self.screen().can_show(_CONTINUED) else ". ",
            bottom_toolbar=self._toolbar,
            color_depth=None if colours else ColorDepth.DEPTH_1_BIT,
            style=Style.from_dict({"bottom-toolbar": "noreverse" if not colours else "reverse"}),
            enable_suspend=True,
        )

    def screen(self) -> screen.Look:
        """What can be shown now; a terminal may have become another width."""
        return screen.look(sys.stdout)

    async def line(self) -> str | None:
        """The next message or command; None where the user ends it."""
        while True:
            try:
                return await self._session.prompt_async(_PROMPT)
            except KeyboardInterrupt:
                self.tell(_HINT)
            except EOFError:
                return None

    async def look(self) -> None:
        """Have the line below the prompt be right."""
        try:
            self._look = await self._talk.look()
        except FoveateError:  # a question is refused for the same reason, and says so
            self._look = None

    def _toolbar(self) -> str:
        columns = get_app().output.get_size().columns
        look = screen.Look(columns=columns, encoding=self.screen().encoding)
        talk = self._talk
        return status(self._look, talk.speaking.model, talk.spent, talk.answers_spent, look)

    def print(self, lines: Iterable[str]) -> None:
        """Lines as they are."""
        screen.print_lines(lines)

    def tell(self, text: str, colour: str = _DIM) -> None:
        """Something beside the conversation, on a line of its own."""
        screen.print_text(painted(shown(" ".join(text.split())), colour, self.screen()))

    def tell_of(self, answer: Answer, talk: Talk) -> None:
        """What there is to be said of an answer beside its words."""
        if answer.is_stopped:
            kept = "" if answer.has_words else "; nothing had come, so the question is not kept (up arrow)"
            self.tell(f"[stopped{kept}]", _YELLOW)
        if answer.is_cut_short:
            self.tell(f"[cut: an answer has {talk.max_tokens():,} tokens at most (--max-tokens); ask to go on]")
        for note in talk.notes():
            self.tell(f"[{note}]")
        if answer.failure is not None:
            kept = "" if answer.has_words else " (up arrow: the question)"
            self.tell(f"{answer.failure.text}{kept}", _RED)

    @contextmanager
    def patience(self, what: str) -> Iterator[None]:
        """A word on what takes so long, which goes away again."""
        if not self.screen().colours:  # a terminal that may not be able to take it back
            yield
            return
        # In one line, or its beginning would stay.
        with screen.patience(what[: max(0, self.screen().columns - _AROUND_PATIENCE)]):
            yield

    @contextmanager
    def unending(self) -> Iterator[None]:
        """Ctrl-C stops what is under way, if anything is, and never the program; other keys wait."""
        loop = asyncio.get_running_loop()
        before = signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(lambda: self._stop()))
        try:
            with _typed_ahead():
                yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def interruptible(self, stop: Callable[[], None]) -> Iterator[None]:
        """Ctrl-C means `stop` now."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = _nothing


def _nothing() -> None:
    """There is nothing to be stopped."""


@contextmanager
def _typed_ahead() -> Iterator[None]:
    """What is typed is kept for the next prompt, and does not stand in the middle of an answer.

    Key by key, as the prompt reads it: by lines a terminal keeps 4,095 characters and leaves out the rest.
    """
    try:
        import termios
    except ImportError:  # on Windows
        yield
        return
    try:
        before = termios.tcgetattr(sys.stdin)
    except (termios.error, OSError, ValueError):
        yield
        return
    keys: list[Any] = [*before]
    keys[0] &= ~termios.ICRNL
    keys[3] = keys[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
    try:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, keys)
        yield
    finally:
        with suppress(termios.error, OSError):  # the terminal is gone
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


class _TypedBefore(History):
    """For the up arrow."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """What was typed, the newest first."""
        return reversed(read_history(self._path))

    def store_string(self, string: str) -> None:
        """Keep a message for later conversations."""
        with suppress(OSError):  # a disk that is full, or cannot be written, is no reason to stop talking
            add_to_history(self._path, string)


class _Completer(Completer):
    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """What the line may become."""
        del complete_event
        for word, replaced, told in completions(document.text_before_cursor, self._setting.models()):
            yield Completion(word, start_position=-replaced, display_meta=told)


def _keys() -> KeyBindings:
    """Enter sends, Alt-Enter and a backslash before it begin a new line, Ctrl-C clears what is typed."""
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        elif buffer.text.strip():
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _newline(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-c")
    @keys.add("<sigint>")
    def _clear(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return keys
