"""Chat without a terminal: messages from a pipe or an argument, answers as plain text or JSON."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, suppress
from decimal import Decimal
from threading import Thread
from typing import TextIO

from foveate.chat.conversation import ChatAnswer, ChatConversation
from foveate.chat.responses import FailureKind, FragmentKind, ResponseFragment
from foveate.cli.chat.progress import show_progress
from foveate.cli.chat.slash_commands import CommandLine, CommandRunner, parse_line
from foveate.cli.shared import console
from foveate.cli.shared.errors import BUDGET_EXCEEDED, OK, SOME_FAILED, UPSTREAM_FAILED, exit_code
from foveate.errors import FoveateError, UnreadableInput, UnwritableOutput

_READ_BYTES = 64 * 1024
_EXIT_CODES = {
    FailureKind.CAP: BUDGET_EXCEEDED,
    FailureKind.WINDOW: BUDGET_EXCEEDED,
    FailureKind.INTERNAL: SOME_FAILED,
}


async def read_lines(stream: TextIO) -> AsyncIterator[str]:
    """Read lines of a stream as they arrive. Waiting for a line can be interrupted.

    Raises:
        UnreadableInput: the stream cannot be read further.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | UnreadableInput | None] = asyncio.Queue()

    def read_stream() -> None:
        """Read the file descriptor: the lock of the stream object could block the exit of the process."""
        partial_line, end = b"", None
        with suppress(RuntimeError):  # the event loop is closed
            try:
                while data := os.read(stream.fileno(), _READ_BYTES):
                    *lines, partial_line = (partial_line + data).split(b"\n")
                    for line in lines:
                        loop.call_soon_threadsafe(queue.put_nowait, line)
            except OSError as error:
                end = UnreadableInput("standard input", error.strerror or "cannot be read")
            loop.call_soon_threadsafe(queue.put_nowait, partial_line)
            loop.call_soon_threadsafe(queue.put_nowait, end)

    Thread(target=read_stream, daemon=True).start()
    while isinstance(line := await queue.get(), bytes):
        yield line.decode("utf-8", "replace")
    if line is not None:
        raise line


async def single_message(text: str) -> AsyncIterator[str]:
    yield text


async def run_non_interactive(
    conversation: ChatConversation,
    commands: CommandRunner,
    messages: AsyncIterator[str],
    *,
    as_json: bool,
    reads_commands: bool,
    raw: bool = False,
) -> int:
    """Send all messages in order and return the exit code.

    Without `reads_commands`, every line is a message. On a terminal, answers are rendered unless `raw` is set.
    Once nobody reads the output, stop sending: every call costs money.

    Raises:
        UnreadableInput: the input breaks off.
        UnwritableOutput: standard output is closed or full.
    """
    stdout, codes = _Stdout(), list[int]()
    async for line in messages:
        parsed = parse_line(line) if reads_commands else line.strip()
        if isinstance(parsed, CommandLine) and parsed.is_quit:
            break
        if isinstance(parsed, CommandLine):
            codes.append(await _run_command(stdout, commands, parsed, as_json=as_json))
        elif parsed:
            codes.append(await _ask(stdout, conversation, parsed, as_json=as_json, raw=raw))
        if not stdout.is_read:
            break
    failed = [code for code in codes if code != OK]
    if not failed:
        return OK
    return failed[-1] if len(failed) == len(codes) else SOME_FAILED


class _Stdout:
    """`is_read` turns false when the reader is gone."""

    def __init__(self) -> None:
        if sys.stdout is None:
            raise UnwritableOutput("is closed")
        self._stream = sys.stdout
        self.is_terminal = sys.stdout.isatty()
        self.is_read = True

    def write_line(self, text: str) -> None:
        self._write(f"{text}\n")

    def write_object(self, value: dict[str, object]) -> None:
        self.write_line(json.dumps(value))

    def write_answer(self, text: str) -> None:
        self._write(text)

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        with console.handle_write_errors():
            try:
                self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
                self._stream.flush()
            except BrokenPipeError:
                self.is_read = False
                raise


async def _run_command(stdout: _Stdout, commands: CommandRunner, line: CommandLine, *, as_json: bool) -> int:
    try:
        output = await commands.run(line)
    except FoveateError as error:
        console.print_note(str(error))
        if as_json:
            stdout.write_object(console.error_object(error))
        return exit_code(error)
    if as_json:
        stdout.write_object({"command": f"{line.name} {line.argument}".strip(), "lines": output})
    else:
        for output_line in output:
            stdout.write_line(output_line)
    return OK


async def _ask(stdout: _Stdout, conversation: ChatConversation, text: str, *, as_json: bool, raw: bool) -> int:
    answer = await _show_answer(stdout, conversation, text, as_json=as_json, raw=raw)
    for note in conversation.take_notes():
        console.print_note(note)
    if answer.is_truncated:
        console.print_note(
            f"the answer reached the limit of {conversation.max_tokens():,} tokens (--max-tokens)"
        )
    failure = answer.failure
    if failure is not None:
        console.print_note(failure.text)
    if as_json:
        stdout.write_object(answer_object(answer, conversation))
    return OK if failure is None else _EXIT_CODES.get(failure.kind, UPSTREAM_FAILED)


async def _show_answer(
    stdout: _Stdout, conversation: ChatConversation, text: str, *, as_json: bool, raw: bool
) -> ChatAnswer:
    with ExitStack() as progress:
        progress.enter_context(show_progress(f"Waiting for {conversation.target.model}"))
        if as_json:
            return await conversation.ask(text)
        if stdout.is_terminal:
            return await _show_on_terminal(conversation, text, on_start=progress.close, raw=raw)
        writer = _PlainAnswerWriter(stdout, conversation.stop, on_start=progress.close)
        answer = await conversation.ask(text, writer)
        writer.end()
        return answer


async def _show_on_terminal(
    conversation: ChatConversation, text: str, *, on_start: Callable[[], None], raw: bool
) -> ChatAnswer:
    from foveate.cli.chat.answer_writer import AnswerWriter, can_render_markdown

    def write_text(fragment: ResponseFragment) -> None:
        if fragment.kind is FragmentKind.TEXT:
            writer(fragment)

    renders_markdown = not raw and can_render_markdown(console.display_for(sys.stdout))
    writer = AnswerWriter(
        sys.stdout,
        lambda: console.display_for(sys.stdout),
        on_start=on_start,
        renders_markdown=renders_markdown,
    )
    async with writer.keep_refreshed():
        answer = await conversation.ask(text, write_text)
    writer.end()
    return answer


class _PlainAnswerWriter:
    """Calls `stop` once nobody can read the answer."""

    def __init__(self, stdout: _Stdout, stop: Callable[[], None], on_start: Callable[[], None]) -> None:
        self._on_start = on_start
        self._stdout = stdout
        self._stop = stop
        self._last = "\n"
        self._error: UnwritableOutput | None = None

    def __call__(self, piece: ResponseFragment) -> None:
        if piece.kind is not FragmentKind.TEXT or self._error or not self._stdout.is_read:
            return
        self._on_start()
        try:
            self._stdout.write_answer(piece.text)
        except UnwritableOutput as error:
            self._error = error
        if self._error or not self._stdout.is_read:
            self._stop()
        self._last = piece.text[-1:]

    def end(self) -> None:
        """Finish the last line.

        Raises:
            UnwritableOutput: a piece could not be written.
        """
        if self._error is not None:
            raise self._error
        if self._last != "\n" and self._stdout.is_read:
            self._stdout.write_line("")


def answer_object(answer: ChatAnswer, conversation: ChatConversation) -> dict[str, object]:
    usage = answer.usage
    cache = None if usage is None else usage.cache
    fields: dict[str, object] = {
        "text": answer.text,
        "model": conversation.target.model,
        "session": conversation.session_id,
        "request": answer.request_id,
        "calls": list(answer.tool_calls),
        "cut_short": answer.is_truncated,
        "usage": None
        if usage is None or cache is None
        else {
            "prompt_tokens": cache.input_tokens,
            "read_tokens": cache.read,
            "written_tokens": cache.written_5m + cache.written_1h,
            "completion_tokens": usage.output_tokens,
        },
        "dollars": _to_json(answer.dollars),
    }
    if answer.failure is not None:
        fields["error"] = {"code": answer.failure.kind.value, "message": answer.failure.text}
    return fields


def _to_json(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:f}"
