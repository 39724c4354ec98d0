"""A conversation without a terminal: messages from a pipe or the command line, answers plainly or as JSON."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from threading import Thread
from typing import TextIO

from foveate.chat.failures import Trouble
from foveate.chat.reading import Kind, Said
from foveate.chat.talk import Answer, Talk
from foveate.cli import screen
from foveate.cli.chat_commands import Asked, Commands, read
from foveate.cli.chat_lines import answer_dollars
from foveate.cli.exits import BUDGET_EXCEEDED, OK, SOME_FAILED, UPSTREAM_FAILED, exit_code
from foveate.errors import FoveateError

_AT_ONCE_BYTES = 64 * 1024
_CODES = {Trouble.CAP: BUDGET_EXCEEDED, Trouble.WINDOW: BUDGET_EXCEEDED, Trouble.INTERNAL: SOME_FAILED}


async def lines_of(stream: TextIO) -> AsyncIterator[str]:
    """The lines of a stream as they come; whoever waits for one can be interrupted."""
    loop = asyncio.get_running_loop()
    came: asyncio.Queue[bytes | None] = asyncio.Queue()

    def read_on() -> None:
        """Not by the stream itself, whose lock nobody could have at the end of the process."""
        held = b""
        with suppress(OSError, RuntimeError):  # it is closed, or nobody waits any more
            while data := os.read(stream.fileno(), _AT_ONCE_BYTES):
                *lines, held = (held + data).split(b"\n")
                for line in lines:
                    loop.call_soon_threadsafe(came.put_nowait, line)
            loop.call_soon_threadsafe(came.put_nowait, held)
            loop.call_soon_threadsafe(came.put_nowait, None)

    Thread(target=read_on, daemon=True).start()
    while (line := await came.get()) is not None:
        yield line.decode("utf-8", "replace")


async def one(text: str) -> AsyncIterator[str]:
    """One message."""
    yield text


async def answers(
    talk: Talk, commands: Commands, messages: AsyncIterator[str], *, as_json: bool, reads_commands: bool
) -> int:
    """The exit code of a conversation in which all messages were asked, one after the other.

    Where commands are not read, what begins with a colon is a message as any other.
    """
    codes: list[int] = []
    async for line in messages:
        meant = read(line) if reads_commands else line.strip()
        if isinstance(meant, Asked):
            codes.append(await _ordered(commands, meant, as_json=as_json))
        elif meant:
            codes.append(await _asked(talk, meant, as_json=as_json))
    failed = [code for code in codes if code != OK]
    if not failed:
        return OK
    return failed[-1] if len(failed) == len(codes) else SOME_FAILED


async def _ordered(commands: Commands, asked: Asked, *, as_json: bool) -> int:
    try:
        told = await commands.run(asked)
    except FoveateError as error:
        screen.print_note(str(error))
        if as_json:
            screen.print_error(error)
        return exit_code(error)
    if as_json:
        screen.print_object({"command": f"{asked.name} {asked.rest}".strip(), "lines": told})
    else:
        screen.print_lines(told)
    return OK


async def _asked(talk: Talk, text: str, *, as_json: bool) -> int:
    words = _Plain()
    answer = await talk.ask(text, (lambda _: None) if as_json else words)
    if not as_json:
        words.end()
    for note in talk.notes():
        screen.print_note(note)
    if answer.is_cut_short:
        screen.print_note(f"the answer is cut: it has {talk.max_tokens():,} tokens at most (--max-tokens)")
    failure = answer.failure
    if failure is not None:
        screen.print_note(failure.text)
    if as_json:
        screen.print_object(answer_object(answer, talk))
    return OK if failure is None else _CODES.get(failure.trouble, UPSTREAM_FAILED)


class _Plain:
    """Writes the words of an answer, and nothing but them, as they come."""

    def __init__(self) -> None:
        self._last = "\n"

    def __call__(self, said: Said) -> None:
        if said.kind is Kind.TEXT and sys.stdout is not None:
            with screen.writable():
                encoding = sys.stdout.encoding or "utf-8"
                sys.stdout.write(said.text.encode(encoding, "backslashreplace").decode(encoding))
                sys.stdout.flush()
            self._last = said.text[-1:]

    def end(self) -> None:
        """The end of the last line."""
        if self._last != "\n":
            screen.print_text("")


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
