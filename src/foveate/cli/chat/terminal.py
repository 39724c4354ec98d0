"""Interactive chat at a terminal, based on prompt-toolkit."""

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

from foveate.chat.conversation import ChatAnswer, ChatConversation
from foveate.chat.models import ChatConfig
from foveate.chat.preview import RequestPreview
from foveate.cli import console
from foveate.cli.chat.commands import QUIT_COMMANDS, CommandLine, CommandRunner, completions, parse_line
from foveate.cli.chat.history import add_to_history, read_history
from foveate.cli.chat.output import paint, status_line
from foveate.cli.chat.streaming import AnswerWriter, escape_for_terminal
from foveate.errors import FoveateError

_PROMPT, _CONTINUATION_PROMPT = "> ", "… "
_DIM, _RED, _YELLOW = "2", "31", "33"
# Text around the activity in a progress line, and the last column, where terminals may wrap.
_PROGRESS_OVERHEAD_CELLS = len("foveate:  …") + 1
_HINT = "Ctrl-D ends; :help lists the commands"


async def run_terminal_chat(
    conversation: ChatConversation, chat_config: ChatConfig, commands: CommandRunner, history: Path
) -> None:
    terminal = _ChatTerminal(conversation, chat_config, history)
    terminal.print_notice(f"{conversation.target.model}, as agent {conversation.agent}. {_HINT}.")
    with terminal.catch_interrupts():
        await terminal.refresh_status()
        while (text := await terminal.read_line()) is not None:
            parsed = parse_line(text)
            if isinstance(parsed, CommandLine) and parsed.name in QUIT_COMMANDS:
                return
            if isinstance(parsed, CommandLine):
                await _run_command(terminal, conversation, commands, parsed)
            elif parsed:
                await _ask(terminal, conversation, parsed)


async def _run_command(
    terminal: "_ChatTerminal", conversation: ChatConversation, commands: CommandRunner, line: CommandLine
) -> None:
    try:
        with terminal.interruptible(conversation.stop), terminal.show_progress("at it"):
            output = await commands.run(line)
    except FoveateError as error:
        terminal.print_notice(str(error), _YELLOW)
    else:
        terminal.print_lines(output)
    await terminal.refresh_status()


async def _ask(terminal: "_ChatTerminal", conversation: ChatConversation, text: str) -> None:
    with ExitStack() as progress:
        progress.enter_context(terminal.show_progress("waiting for the answer; Ctrl-C stops it"))
        writer = AnswerWriter(sys.stdout, terminal.display(), on_start=progress.close)
        with terminal.interruptible(conversation.stop):
            answer = await conversation.ask(text, writer)
        writer.end()
    terminal.print_answer_notices(answer, conversation)
    await terminal.refresh_status()


class _ChatTerminal:
    def __init__(self, conversation: ChatConversation, chat_config: ChatConfig, history: Path) -> None:
        self._conversation = conversation
        self._preview: RequestPreview | None = None
        self._stop: Callable[[], None] = _do_nothing
        colours = self.display().colours
        self._session: PromptSession[str] = PromptSession(
            history=_InputHistory(history),
            completer=_CommandCompleter(chat_config),
            complete_while_typing=True,
            key_bindings=_key_bindings(),
            multiline=True,
            prompt_continuation=_CONTINUATION_PROMPT if self.display().can_show(_CONTINUATION_PROMPT) else ". ",
            bottom_toolbar=self._toolbar,
            color_depth=None if colours else ColorDepth.DEPTH_1_BIT,
            style=Style.from_dict({"bottom-toolbar": "noreverse" if not colours else "reverse"}),
            enable_suspend=True,
        )

    def display(self) -> console.Display:
        """Describe the terminal as it is now; it may have been resized."""
        return console.display_for(sys.stdout)

    async def read_line(self) -> str | None:
        """Read the next message or command; None if the user ends the chat."""
        while True:
            try:
                return await self._session.prompt_async(_PROMPT)
            except KeyboardInterrupt:
                self.print_notice(_HINT)
            except EOFError:
                return None

    async def refresh_status(self) -> None:
        try:
            self._preview = await self._conversation.preview()
        except FoveateError:  # the next question reports the same error
            self._preview = None

    def _toolbar(self) -> str:
        columns = get_app().output.get_size().columns
        display = console.Display(columns=columns, encoding=self.display().encoding)
        conversation = self._conversation
        return status_line(
            self._preview,
            conversation.target.model,
            conversation.total_charges,
            conversation.main_charges,
            display,
        )

    def print_lines(self, lines: Iterable[str]) -> None:
        console.print_lines(lines)

    def print_notice(self, text: str, colour: str = _DIM) -> None:
        console.print_text(paint(escape_for_terminal(" ".join(text.split())), colour, self.display()))

    def print_answer_notices(self, answer: ChatAnswer, conversation: ChatConversation) -> None:
        if answer.is_stopped:
            hint = "" if answer.has_content else "; nothing had come, so the question is not kept (up arrow)"
            self.print_notice(f"[stopped{hint}]", _YELLOW)
        if answer.is_truncated:
            self.print_notice(
                f"[cut: an answer has {conversation.max_tokens():,} tokens at most (--max-tokens); "
                "ask to go on]"
            )
        for note in conversation.take_notes():
            self.print_notice(f"[{note}]")
        if answer.failure is not None:
            hint = "" if answer.has_content else " (up arrow: the question)"
            self.print_notice(f"{answer.failure.text}{hint}", _RED)

    @contextmanager
    def show_progress(self, activity: str) -> Iterator[None]:
        if not self.display().colours:  # it may not be able to erase the line
            yield
            return
        # It must fit in one line: only the last line is erased.
        with console.show_progress(activity[: max(0, self.display().columns - _PROGRESS_OVERHEAD_CELLS)]):
            yield

    @contextmanager
    def catch_interrupts(self) -> Iterator[None]:
        """Let Ctrl-C stop the current action, but never the program. Keep other keys for the next prompt."""
        loop = asyncio.get_running_loop()
        previous_handler = signal.signal(
            signal.SIGINT, lambda *_: loop.call_soon_threadsafe(lambda: self._stop())
        )
        try:
            with _keep_typed_ahead():
                yield
        finally:
            signal.signal(signal.SIGINT, previous_handler)

    @contextmanager
    def interruptible(self, stop: Callable[[], None]) -> Iterator[None]:
        self._stop = stop
        try:
            yield
        finally:
            self._stop = _do_nothing


def _do_nothing() -> None:
    """Default for Ctrl-C while nothing can be stopped."""


@contextmanager
def _keep_typed_ahead() -> Iterator[None]:
    """Keep what is typed for the next prompt, without echo in the middle of an answer.

    Reads key by key as the prompt does: in line mode a terminal keeps only 4,095 characters.
    """
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    try:
        saved = termios.tcgetattr(sys.stdin)
    except (termios.error, OSError, ValueError):
        yield
        return
    keys: list[Any] = [*saved]
    keys[0] &= ~termios.ICRNL
    keys[3] = keys[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
    try:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, keys)
        yield
    finally:
        with suppress(termios.error, OSError):  # the terminal was closed
            termios.tcsetattr(sys.stdin, termios.TCSANOW, saved)


class _InputHistory(History):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        return reversed(read_history(self._path))

    def store_string(self, string: str) -> None:
        with suppress(OSError):  # a disk that cannot be written must not end the chat
            add_to_history(self._path, string)


class _CommandCompleter(Completer):
    def __init__(self, chat_config: ChatConfig) -> None:
        self._chat_config = chat_config

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        del complete_event
        for word, replaced_chars, description in completions(
            document.text_before_cursor, self._chat_config.list_models()
        ):
            yield Completion(word, start_position=-replaced_chars, display_meta=description)


def _key_bindings() -> KeyBindings:
    """Bind Enter to send, Alt-Enter and a trailing backslash to a new line, Ctrl-C to clear the input."""
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
