"""A conversation from its beginning to its end: the gateway in this process, and who talks to it."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from foveate.chat.bills import Bills
from foveate.chat.bodies import Speaking
from foveate.chat.setting import Setting
from foveate.chat.talk import Talk
from foveate.cli import screen
from foveate.cli.chat_commands import Commands
from foveate.cli.chat_history import NAME
from foveate.cli.chat_plain import answers, lines_of, one
from foveate.cli.exits import OK
from foveate.errors import UnreadableInput
from foveate.gateway.asks import USUAL_AGENT
from foveate.gateway.assembly import assembled

# What these warn of is told with the answer that it is about.
_TOLD_ELSEWHERE = frozenset(("foveate.engine.engine", "foveate.engine.billing"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the command line asks for; without a question, it is talked until somebody ends it."""

    question: str | None
    agent: str
    max_tokens: int | None
    as_json: bool


async def talk(
    wanted: Wanted,
    setting: Setting,
    speaking: Speaking,
    *,
    environment: Mapping[str, str],
    home: Path,
    start_local: Callable[[], None],
) -> int:
    """The exit code of a conversation.

    Raises:
        StoreUnavailable: what it costs cannot be kept.
        UnreadableInput: standard input is closed.
    """
    bills = Bills()
    named = [agent.id for agent in setting.now().settings.agents]
    if named and wanted.agent not in (*named, USUAL_AGENT):
        screen.print_note(
            f"no agent {wanted.agent} is configured, so it has what all have; there are {', '.join(named)}"
        )
    with _noting(bills):
        async with assembled(
            setting.now, environment=environment, watch=bills, spool_folder=home / "spool"
        ) as way:
            own = Talk(way, setting, bills, speaking, agent=wanted.agent, max_tokens=wanted.max_tokens)
            commands = Commands(own, setting, lambda: _look(as_json=wanted.as_json), start_local)
            if wanted.question is not None:
                asked = one(wanted.question)
                return await answers(own, commands, asked, as_json=wanted.as_json, reads_commands=False)
            if sys.stdin is None:
                raise UnreadableInput("standard input", "is closed")
            if wanted.as_json or not (sys.stdin.isatty() and sys.stdout is not None and sys.stdout.isatty()):
                came = lines_of(sys.stdin)
                return await answers(own, commands, came, as_json=wanted.as_json, reads_commands=True)
            from foveate.cli.chat_terminal import converse

            await converse(own, setting, commands, home / NAME)
            return OK


def _look(*, as_json: bool) -> screen.Look:
    """What can be shown; nobody wants colours in an object."""
    look = screen.look(sys.stdout)
    return replace(look, colours=False) if as_json else look


@contextmanager
def _noting(bills: Bills) -> Iterator[None]:
    """What is logged as a warning meanwhile is told with the next answer, or at the end, and not within one."""

    class Noted(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno > logging.WARNING or record.name not in _TOLD_ELSEWHERE:
                bills.note(record.getMessage())

    noted, root = Noted(logging.WARNING), logging.getLogger()
    root.addHandler(noted)
    try:
        yield
    finally:
        root.removeHandler(noted)
        for note in bills.notes():
            screen.print_note(note)
