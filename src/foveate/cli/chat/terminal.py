"""Interactive chat at a terminal, based on prompt-toolkit."""

import asyncio
import json
import os
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
from rich.cells import cell_len, set_cell_size

from foveate.chat.conversation import CallTotals, ChatAnswer, ChatConversation, RequestPreview
from foveate.chat.models import ChatConfig
from foveate.cli.chat.answer_writer import AnswerWriter, wrap_styled
from foveate.cli.chat.progress import show_progress
from foveate.cli.chat.slash_commands import (
    CommandLine,
    CommandRunner,
    completions,
    describe_window_use,
    parse_line,
    summary_lines,
)
from foveate.cli.shared import console
from foveate.cli.shared.tables import format_dollar_column, wrap_text
from foveate.errors import FoveateError

_PROMPT, _CONTINUATION_PROMPT = "> ", "… "
_DIM, _RED, _YELLOW = "dim", "red", "yellow"
_HINT = "Type /help for commands, Ctrl-D to end"
_INTERRUPT_HINT = "Press Ctrl-C again or Ctrl-D to end the chat."
_CANCEL_HINT = " (Ctrl-C cancels)"
_COUNTING = "Counting tokens"
_ACTIVITIES = {
    ":model": "Switching models",
    ":cost": _COUNTING,
    ":budget": _COUNTING,
    ":context": _COUNTING,
    ":memory": "Reading the memory",
    ":compact": "Compacting the conversation",
    ":tokenize": _COUNTING,
}
HISTORY_FILE_NAME = "chat_history.jsonl"
# Only the end of the file is read, and longer messages are not recorded.
_MAX_HISTORY_BYTES = 1_000_000
_MAX_HISTORY_CHARS = 100_000


async def run_terminal_chat(
    conversation: ChatConversation,
    chat_config: ChatConfig,
    commands: CommandRunner,
    history: Path,
    *,
    renders_markdown: bool,
) -> None:
    terminal = _ChatTerminal(conversation, chat_config, history)
    terminal.print_notice(f"Chatting with {conversation.target.model} as agent {conversation.agent}. {_HINT}.")
    with terminal.catch_interrupts():
        await terminal.refresh_status()
        while not terminal.is_ended and (text := await terminal.read_line()) is not None:
            parsed = parse_line(text)
            if isinstance(parsed, CommandLine) and parsed.is_quit:
                break
            if isinstance(parsed, CommandLine):
                await _run_command(terminal, conversation, commands, parsed)
            elif parsed:
                await _ask(terminal, conversation, parsed, renders_markdown=renders_markdown)
    terminal.print_lines(summary_lines(conversation.message_count, conversation.chat_charges))


async def _run_command(
    terminal: "_ChatTerminal", conversation: ChatConversation, commands: CommandRunner, line: CommandLine
) -> None:
    try:
        with (
            terminal.interruptible(conversation.stop),
            show_progress(_ACTIVITIES.get(line.name, "Working"), hint=_CANCEL_HINT),
        ):
            output = await commands.run(line)
    except FoveateError as error:
        terminal.print_notice(str(error), _YELLOW)
    else:
        terminal.print_lines(output)
    await terminal.refresh_status()


async def _ask(
    terminal: "_ChatTerminal", conversation: ChatConversation, text: str, *, renders_markdown: bool
) -> None:
    with ExitStack() as progress:
        activity = f"Waiting for {conversation.target.model}"
        progress.enter_context(show_progress(activity, hint=_CANCEL_HINT))
        writer = AnswerWriter(
            sys.stdout, terminal.display, on_start=progress.close, renders_markdown=renders_markdown
        )
        with terminal.interruptible(conversation.stop):
            async with writer.keep_refreshed():
                answer = await conversation.ask(text, writer)
        writer.end()
    terminal.print_answer_notices(answer, conversation)
    await terminal.refresh_status()


class _ChatTerminal:
    def __init__(self, conversation: ChatConversation, chat_config: ChatConfig, history: Path) -> None:
        self._conversation = conversation
        self._preview: RequestPreview | None = None
        self._stop: Callable[[], None] = _do_nothing
        self._interrupts = 0
        """How often Ctrl-C was pressed since the last input."""
        colours = self.display().colours
        self._session: PromptSession[str] = PromptSession(
            history=_InputHistory(history),
            completer=_CommandCompleter(chat_config),
            complete_while_typing=True,
            key_bindings=_key_bindings(on_clear=self._reset_interrupts),
            multiline=True,
            prompt_continuation=_CONTINUATION_PROMPT if self.display().can_show(_CONTINUATION_PROMPT) else ". ",
            bottom_toolbar=self._toolbar,
            color_depth=None if colours else ColorDepth.DEPTH_1_BIT,
            style=Style.from_dict({"bottom-toolbar": "noreverse" if not colours else "reverse"}),
            enable_suspend=True,
        )

    def display(self) -> console.Display:
        """The terminal may have been resized."""
        return console.display_for(sys.stdout)

    async def read_line(self) -> str | None:
        """Read the next message or command; None if the user ends the chat."""
        while True:
            try:
                text = await self._session.prompt_async(_PROMPT)
            except KeyboardInterrupt:
                self._interrupts += 1
                if self.is_ended:
                    return None
                self.print_notice(_INTERRUPT_HINT)
            except EOFError:
                return None
            else:
                self._reset_interrupts()
                return text

    @property
    def is_ended(self) -> bool:
        """Ctrl-C was pressed twice."""
        return self._interrupts > 1

    def _reset_interrupts(self) -> None:
        self._interrupts = 0

    def _interrupt(self) -> None:
        self._interrupts += 1
        self._stop()

    async def refresh_status(self) -> None:
        try:
            with show_progress(_COUNTING):
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
        """Print lines, and break those that are too long between words."""
        columns = self.display().columns
        console.print_lines(part for line in lines for part in wrap_styled(line, columns))

    def print_notice(self, text: str, style: str = _DIM) -> None:
        console.print_lines(wrap_text(text, self.display(), style=style))

    def print_answer_notices(self, answer: ChatAnswer, conversation: ChatConversation) -> None:
        if answer.is_stopped:
            hint = (
                "" if answer.has_content else ": your message is not in the conversation; press Up to edit it"
            )
            self.print_notice(f"[cancelled{hint}]", _YELLOW)
        if answer.is_truncated:
            self.print_notice(
                f"[the answer reached the limit of {conversation.max_tokens():,} tokens (--max-tokens); "
                "ask the model to continue]"
            )
        for note in conversation.take_notes():
            self.print_notice(f"[{note}]")
        if answer.failure is not None:
            hint = "" if answer.has_content else " (press Up to edit your message)"
            self.print_notice(f"{answer.failure.text}{hint}", _RED)

    @contextmanager
    def catch_interrupts(self) -> Iterator[None]:
        """Let Ctrl-C cancel the current action instead of the program. Keep other keys for the next prompt."""
        loop = asyncio.get_running_loop()
        previous_handler = signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(self._interrupt))
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


def status_line(
    preview: RequestPreview | None,
    model: str,
    totals: CallTotals,
    answer_totals: CallTotals,
    display: console.Display,
) -> str:
    """Format the line below the prompt: model, window use, hit ratio, dollars. Drop parts that do not fit."""
    dot = " · " if display.can_show("·") else " | "
    ratio = answer_totals.hit_ratio
    ends = ("cache -" if ratio is None else f"cache {ratio:.0%}", _short_dollars(totals))
    window_texts = (
        []
        if preview is None or preview.count is None
        else [describe_window_use(preview), _short_window_use(preview), ""]
    )
    texts = [
        f" {dot.join(filter(None, (display.escape(model), window, *ends)))} " for window in window_texts or [""]
    ]
    return next(
        (text for text in texts if cell_len(text) <= display.columns), set_cell_size(texts[-1], display.columns)
    )


def _short_window_use(preview: RequestPreview) -> str:
    return f"{preview.tokens / preview.window_tokens:.0%}" if preview.window_tokens else f"{preview.tokens:,}"


def _short_dollars(totals: CallTotals) -> str:
    return format_dollar_column([totals.dollars])[0] + (" + ?" if totals.unknown_calls else "")


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


def _key_bindings(on_clear: Callable[[], None]) -> KeyBindings:
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
            on_clear()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return keys


def read_history(path: Path) -> list[str]:
    """Read messages, oldest first. Skip lines that are invalid; return nothing if the file cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_HISTORY_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    return [text for line in lines if (text := _parse_history_line(line))]


def _parse_history_line(line: bytes) -> str:
    try:
        value = json.loads(line)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""


def add_to_history(path: Path, text: str) -> None:
    """Append a message as a line of JSON in one write, so that lines of other processes stay intact.

    Raises:
        OSError: the file cannot be written.
    """
    if len(text) > _MAX_HISTORY_CHARS:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(text).encode() + b"\n")
    finally:
        os.close(descriptor)
