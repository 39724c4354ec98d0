"""A conversation without a terminal: messages from a pipe or the command line, answers plainly or as JSON."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from threading import Thread
from typing import TextIO

from foveate.chat.failures import Trouble
from foveate.chat.reading import Kind, Said
from foveate.chat.talk import Answer, Talk
from foveate.cli import screen
from foveate.cli.chat_commands import ENDS, Asked, Commands, read
from foveate.cli.chat_lines import answer_dollars
from foveate.cli.chat_words import shown
from foveate.cli.exits import BUDGET_EXCEEDED, OK, SOME_FAILED, UPSTREAM_FAILED, exit_code
from foveate.errors import FoveateError, UnreadableInput, UnwritableOutput

_AT_ONCE_BYTES = 64 * 1024
_CODES = {Trouble.CAP: BUDGET_EXCEEDED, Trouble.WINDOW: BUDGET_EXCEEDED, Trouble.INTERNAL: SOME_FAILED}


async def lines_of(stream: TextIO) -> AsyncIterator[str]:
    """The lines of a stream as they come; whoever waits for one can be interrupted.

    Raises:
        UnreadableInput: it cannot be read any further.
    """
    loop = asyncio.get_running_loop()
    came: asyncio.Queue[bytes | UnreadableInput | None] = asyncio.Queue()

    def read_on() -> None:
        """Not by the stream itself, whose lock nobody could have at the end of the process."""
        held, end = b"", None
        with suppress(RuntimeError):  # nobody waits any more
            try:
                while data := os.read(stream.fileno(), _AT_ONCE_BYTES):
                    *lines, held = (held + data).split(b"\n")
                    for line in lines:
                        loop.call_soon_threadsafe(came.put_nowait, line)
            except OSError as error:
                end = UnreadableInput("standard input", error.strerror or "cannot be read")
            loop.call_soon_threadsafe(came.put_nowait, held)
            loop.call_soon_threadsafe(came.put_nowait, end)

    Thread(target=read_on, daemon=True).start()
    while isinstance(line := await came.get(), bytes):
        yield line.decode("utf-8", "replace")
    if line is not None:
        raise line


async def one(text: str) -> AsyncIterator[str]:
    """One message."""
    yield text


async def answers(
    talk: Talk, commands: Commands, messages: AsyncIterator[str], *, as_json: bool, reads_commands: bool
) -> int:
    """The exit code of a conversation in which all messages were asked, one after the other.

    Where commands are not read, what begins with a colon is a message as any other. Once nobody reads the
    answers any more, nothing is asked: each would cost something.

    Raises:
        UnreadableInput: messages end before their end.
        UnwritableOutput: standard output is closed or full.
    """
    out, codes = _Out(), list[int]()
    async for line in messages:
        meant = read(line) if reads_commands else line.strip()
        if isinstance(meant, Asked) and meant.name in ENDS:
            break
        if isinstance(meant, Asked):
            codes.append(await _ordered(out, commands, meant, as_json=as_json))
        elif meant:
            codes.append(await _asked(out, talk, meant, as_json=as_json))
        if not out.is_read:
            break
    failed = [code for code in codes if code != OK]
    if not failed:
        return OK
    return failed[-1] if len(failed) == len(codes) else SOME_FAILED


class _Out:
    """Standard output, where a terminal obeys nothing; it `is_read` until whoever read it has gone."""

    def __init__(self) -> None:
        if sys.stdout is None:
            raise UnwritableOutput("is closed")
        self._stream = sys.stdout
        self._is_terminal = sys.stdout.isatty()
        self.is_read = True

    def line(self, text: str) -> None:
        """Write a line.

        Raises:
            UnwritableOutput: it is closed or full.
        """
        self._write(f"{text}\n")

    def object(self, told: dict[str, object]) -> None:
        """Write a JSON object, in a line.

        Raises:
            UnwritableOutput: it is closed or full.
        """
        self.line(json.dumps(told))

    def words(self, text: str) -> None:
        """Write what somebody else says.

        Raises:
            UnwritableOutput: it is closed or full.
        """
        self._write(shown(text) if self._is_terminal else text)

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        with screen.writable():
            try:
                self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
                self._stream.flush()
            except BrokenPipeError:
                self.is_read = False
                raise


async def _ordered(out: _Out, commands: Commands, asked: Asked, *, as_json: bool) -> int:
    try:
        told = await commands.run(asked)
    except FoveateError as error:
        screen.print_note(str(error))
        if as_json:
            out.object(screen.error_object(error))
        return exit_code(error)
    if as_json:
        out.object({"command": f"{asked.name} {asked.rest}".strip(), "lines": told})
    else:
        for line in told:
            out.line(line)
    return OK


async def _asked(out: _Out, talk: Talk, text: str, *, as_json: bool) -> int:
    words = _Plain(out, talk.stop)
    answer = await talk.ask(text, (lambda _: None) if as_json else words)
    words.end()
    for note in talk.notes():
        screen.print_note(note)
    if answer.is_cut_short:
        screen.print_note(f"the answer is cut: it has {talk.max_tokens():,} tokens at most (--max-tokens)")
    failure = answer.failure
    if failure is not None:
        screen.print_note(failure.text)
    if as_json:
        out.object(answer_object(answer, talk))
    return OK if failure is None else _CODES.get(failure.trouble, UPSTREAM_FAILED)


class _Plain:
    """Writes the words of an answer, and nothing but them; `stop` is called once nobody can read them."""

    def __init__(self, out: _Out, stop: Callable[[], None]) -> None:
        self._out = out
        self._stop = stop
        self._last = "\n"
        self._failed: UnwritableOutput | None = None

    def __call__(self, said: Said) -> None:
        if said.kind is not Kind.TEXT or self._failed or not self._out.is_read:
            return
        try:
            self._out.words(said.text)
        except UnwritableOutput as error:
            self._failed = error
        if self._failed or not self._out.is_read:
            self._stop()
        self._last = said.text[-1:]

    def end(self) -> None:
        """The end of the last line.

        Raises:
            UnwritableOutput: it could not be written.
        """
        if self._failed is not None:
            raise self._failed
        if self._last != "\n" and self._out.is_read:
            self._out.line("")


def answer_object(answer: Answer, talk: Talk) -> dict[str, object]:
    """An answer as JSON can say it: its words, its bill, and what went wrong, if anything."""
    usage = answer.usage
    cache = None if usage is None else usage.cache
    told: dict[str, object] = {
        "text": answer.text,
        "model": talk.speaking.model,
        "session": talk.session_id,
        "request": answer.request_id,
        "calls": list(answer.calls),
        "cut_short": answer.is_cut_short,
        "usage": None
        if usage is None or cache is None
        else {
            "prompt_tokens": cache.input_tokens,
            "read_tokens": cache.read,
            "written_tokens": cache.written_5m + cache.written_1h,
            "completion_tokens": usage.output_tokens,
        },
        "dollars": answer_dollars(answer.dollars),
    }
    if answer.failure is not None:
        told["error"] = {"code": answer.failure.trouble.value, "message": answer.failure.text}
    return told
