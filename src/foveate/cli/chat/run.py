"""Run a chat from start to end: a gateway in this process, and the terminal or pipe that uses it."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from foveate.chat.conversation import ChatConversation
from foveate.chat.costs import ChatObserver
from foveate.chat.models import ChatConfig
from foveate.chat.requests import ModelTarget
from foveate.cli.chat.piped import read_lines, run_piped, single_message
from foveate.cli.chat.slash_commands import CommandRunner
from foveate.cli.chat.terminal import HISTORY_FILE_NAME
from foveate.cli.shared import console
from foveate.cli.shared.exit_codes import OK
from foveate.errors import UnreadableInput
from foveate.gateway.build import open_gateway
from foveate.gateway.request import DEFAULT_AGENT

# Warnings of these loggers are shown with the answer that they concern.
_SHOWN_WITH_ANSWERS = frozenset(("foveate.engine.engine", "foveate.engine.spending.admission"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Options of the command line. Without a question, the chat runs until the user ends it."""

    question: str | None
    agent: str
    max_tokens: int | None
    as_json: bool
    raw: bool


async def run_chat(
    options: ChatOptions,
    chat_config: ChatConfig,
    connection: ModelTarget,
    *,
    environment: Mapping[str, str],
    home: Path,
    start_local: Callable[[], None],
) -> int:
    """Run a chat and return the exit code.

    Raises:
        StoreUnavailable: the charges cannot be stored.
        UnreadableInput: standard input is closed.
    """
    observer = ChatObserver()
    agent_ids = [agent.id for agent in chat_config.current_config().settings.agents]
    if agent_ids and options.agent not in (*agent_ids, DEFAULT_AGENT):
        console.print_note(
            f"no agent {options.agent} is configured, using the defaults of all agents; configured agents: "
            f"{', '.join(agent_ids)}"
        )
    with _collect_warnings(observer):
        async with open_gateway(
            chat_config.current_config, environment=environment, observer=observer, outbox_folder=home / "spool"
        ) as gateway:
            conversation = ChatConversation(
                gateway, chat_config, observer, connection, agent=options.agent, max_tokens=options.max_tokens
            )
            commands = CommandRunner(
                conversation, chat_config, lambda: _display_for_chat(as_json=options.as_json), start_local
            )
            if options.question is not None:
                messages = single_message(options.question)
                return await run_piped(
                    conversation,
                    commands,
                    messages,
                    as_json=options.as_json,
                    reads_commands=False,
                    raw=options.raw,
                )
            if sys.stdin is None:
                raise UnreadableInput("standard input", "is closed")
            if options.as_json or not (sys.stdin.isatty() and sys.stdout is not None and sys.stdout.isatty()):
                messages = read_lines(sys.stdin)
                return await run_piped(
                    conversation,
                    commands,
                    messages,
                    as_json=options.as_json,
                    reads_commands=True,
                    raw=options.raw,
                )
            from foveate.cli.chat.markdown import can_render_markdown
            from foveate.cli.chat.terminal import run_terminal_chat

            await run_terminal_chat(
                conversation,
                chat_config,
                commands,
                home / HISTORY_FILE_NAME,
                renders_markdown=not options.raw and can_render_markdown(console.display_for(sys.stdout)),
            )
            return OK


def _display_for_chat(*, as_json: bool) -> console.Display:
    """Describe standard output; never use colours inside JSON."""
    display = console.display_for(sys.stdout)
    return replace(display, colours=False) if as_json else display


@contextmanager
def _collect_warnings(observer: ChatObserver) -> Iterator[None]:
    """Show warnings that are logged meanwhile with the next answer or at the end, not in the middle of one."""

    class NoteHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno > logging.WARNING or record.name not in _SHOWN_WITH_ANSWERS:
                observer.add_note(record.getMessage())

    handler, root = NoteHandler(logging.WARNING), logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        for note in observer.take_notes():
            console.print_note(note)
