"""`foveate chat`: chat with a model in the terminal, through the same engine as the gateway."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli.shared import console
from foveate.cli.shared.errors import OK, report_errors
from foveate.cli.shared.options import MODEL_METAVAR, ConfigFile
from foveate.errors import BadOption, UnreadableInput

if TYPE_CHECKING:
    from foveate.chat.conversation import ChatObserver
    from foveate.chat.models import ChatConfig
    from foveate.chat.requests import ModelTarget

_STANDARD_INPUT = "-"
_DEFAULT_AGENT = "default"
# Warnings of these loggers are shown with the answer that they concern.
_SHOWN_WITH_ANSWERS = frozenset(("foveate.engine.engine", "foveate.engine.spending.observed_admission"))


def command(
    question: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUESTION]",
            help="Message to send. Foveate prints the response and exits; - reads the message from standard "
            "input. Default: start a conversation.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar=MODEL_METAVAR,
            help="Model to chat with: MODEL, or UPSTREAM/MODEL. Default: the first model under `routes` in the "
            "configuration, else the default model of the first provider whose API key is set "
            "(claude-sonnet-5-5, gpt-5.4, deepseek-chat or gemini-2.5-flash), else the local model (local).",
        ),
    ] = None,
    agent: Annotated[
        str,
        typer.Option(
            "--agent",
            "-a",
            metavar="NAME",
            help="Use the injected context, compaction and caps of this agent. Default: the agent "
            "named default.",
            show_default=False,
        ),
    ] = _DEFAULT_AGENT,
    config: ConfigFile = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            metavar="N",
            help="Maximum length of a response in tokens. Default: 4096, or a quarter of the context "
            "window if that is less.",
            min=1,
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per response, with text, usage and dollars.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print responses as the model wrote them, without rendering Markdown.")
    ] = False,
) -> None:
    """Chat with a model in the terminal, using an agent's injected context, compaction and spending caps.

    If standard input or output is not a terminal, each line of input is a message, and responses are
    printed as plain text.

    Example: foveate chat --model claude-sonnet-5-5 --agent ana
    """
    with report_errors(as_json=json), ExitStack() as stack:
        if not agent.isprintable() or not agent.strip():
            raise BadOption("--agent needs a name of printable characters")
        if question is not None and not question.strip():
            raise BadOption("the message is empty: omit it to start a chat, or write something")
        with console.show_progress("starting"):
            chat_environment = stack.enter_context(_ChatEnvironment.open(config))
            connection = chat_environment.connect(model)
            if question == _STANDARD_INPUT:
                question = console.read_standard_input().decode("utf-8", "replace")
                if not question.strip():
                    raise BadOption("standard input is empty: it must contain the message")
        code = _run_chat(
            chat_environment, connection, question, agent=agent, max_tokens=max_tokens, as_json=json, raw=raw
        )
        if code:
            raise typer.Exit(code)


class _ChatEnvironment:
    def __init__(self, config: Path | None, stack: ExitStack) -> None:
        from foveate.chat.models import ChatConfig
        from foveate.config.load import ServeFlags
        from foveate.gateway.server.serve import load_live_config
        from foveate.paths import data_folder, default_config_paths

        self.environment = dict(os.environ)
        self.home = data_folder(self.environment, sys.platform)
        self._config = config
        self._default_paths = () if config else default_config_paths(Path(), self.home)
        self._stack = stack
        # The gateway of a chat listens on loopback only, whatever is configured.
        self._flags = ServeFlags(host="127.0.0.1")
        self._live = load_live_config(config, self.environment, self._flags, default_paths=self._default_paths)
        self.chat_config = ChatConfig(lambda: self._live.current().value)

    @classmethod
    @contextmanager
    def open(cls, config: Path | None) -> "Iterator[_ChatEnvironment]":
        """Stop the local model that it started at the end of the block."""
        with ExitStack() as stack:
            yield cls(config, stack)

    def connect(self, model: str | None) -> "ModelTarget":
        """Return the connection to the named model, or to the default one.

        Raises:
            BadOption: the model cannot be reached.
        """
        from foveate.config.load import LOCAL_UPSTREAM

        model_name = self.chat_config.default_model() if model is None else model
        if model_name == LOCAL_UPSTREAM and not self.chat_config.has_local:
            try:
                self.start_local()
            except BadOption as error:
                raise BadOption(_no_local_model_message(error, is_default=model is None)) from None
        return self.chat_config.select_model(model_name)

    def start_local(self) -> None:
        """Start the local model and use it from now on.

        Raises:
            BadOption: it is not installed.
            UpstreamUnreachable: it did not start.
        """
        from dataclasses import replace

        from foveate.gateway.local_model import run_local_model
        from foveate.gateway.server.serve import load_live_config

        local_model = self._stack.enter_context(run_local_model())
        self._flags = replace(self._flags, local=local_model)
        self._live = load_live_config(
            self._config, self.environment, self._flags, default_paths=self._default_paths
        )


def _no_local_model_message(error: BadOption, *, is_default: bool) -> str:
    reason = str(error).removeprefix("--local: ")
    if not is_default:
        return f"the local model is not available: {reason}"
    return f"no API key is set (such as ANTHROPIC_API_KEY), and the local model is not available: {reason}"


def _run_chat(
    chat_environment: _ChatEnvironment,
    connection: "ModelTarget",
    question: str | None,
    *,
    agent: str,
    max_tokens: int | None,
    as_json: bool,
    raw: bool,
) -> int:
    import asyncio

    options = ChatOptions(question=question, agent=agent, max_tokens=max_tokens, as_json=as_json, raw=raw)
    return asyncio.run(
        run_chat(
            options,
            chat_environment.chat_config,
            connection,
            environment=chat_environment.environment,
            home=chat_environment.home,
            start_local=chat_environment.start_local,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Without a question, the chat runs until the user ends it."""

    question: str | None
    agent: str
    max_tokens: int | None
    as_json: bool
    raw: bool


async def run_chat(
    options: ChatOptions,
    chat_config: "ChatConfig",
    connection: "ModelTarget",
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
    from foveate.chat.conversation import ChatConversation, ChatObserver
    from foveate.cli.chat.non_interactive import read_lines, run_non_interactive, single_message
    from foveate.cli.chat.slash_commands import CommandRunner
    from foveate.gateway.build import open_gateway
    from foveate.gateway.request import DEFAULT_AGENT

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
                return await run_non_interactive(
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
                return await run_non_interactive(
                    conversation,
                    commands,
                    messages,
                    as_json=options.as_json,
                    reads_commands=True,
                    raw=options.raw,
                )
            from foveate.cli.chat.answer_writer import can_render_markdown
            from foveate.cli.chat.terminal import HISTORY_FILE_NAME, run_terminal_chat

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
def _collect_warnings(observer: "ChatObserver") -> Iterator[None]:
    """Show warnings that are logged meanwhile with the next answer or at the end, not in the middle of one."""
    import logging

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
