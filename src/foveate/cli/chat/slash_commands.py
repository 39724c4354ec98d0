"""Commands that can be typed into a chat, such as `:cost`."""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING

from foveate.chat.conversation import ChatConversation, RequestPreview
from foveate.chat.models import ChatConfig, find_closest_name
from foveate.cli.chat import output as lines
from foveate.cli.shared.console import Display
from foveate.config.load import LOCAL_UPSTREAM
from foveate.cost.caps import Cap, CapScope, CapStatus, CapUse, utc_day
from foveate.cost.ledger import Call, Category, Ledger
from foveate.errors import BadOption, FoveateError

if TYPE_CHECKING:
    from foveate.store import Store

COMMANDS: Mapping[str, tuple[str, str]] = {
    ":model": ("[NAME]", "switch to another model; without a name, list the models"),
    ":cost": ("[detail]", "show the cost of this session; detail: by model and category"),
    ":budget": ("", "show what is left of the context window, the section budget and the spending caps"),
    ":context": ("", "show what fills the context window"),
    ":memory": ("[FOCUS]", "show the part of the agent's memory that the model sees"),
    ":compact": ("", "replace all but the last exchange with a summary"),
    ":tokenize": ("TEXT", "split a text into tokens and count them"),
    ":save": ("FILE", "save the conversation to a new Markdown file"),
    ":reset": ("", "start a new, empty session"),
    ":help": ("", "list commands and keys"),
    ":quit": ("", "end the chat, like Ctrl-D, exit or quit"),
}
"""Argument and description of each command."""

QUIT_COMMANDS = frozenset((":quit", ":q", ":exit"))
"""Commands that end a chat. The loop that reads lines handles them."""

_QUIT_WORDS = frozenset(("exit", "quit"))
_DETAIL = "detail"
_PREFIXES = (":", "/")
_COMMAND_WORD = re.compile(r"[:/][A-Za-z]*")
_ESCAPED_MESSAGE = re.compile(r"(?:::|//)\w")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command with a colon, such as `:cost`; an unknown one as it was typed."""

    name: str
    argument: str = ""

    @property
    def is_quit(self) -> bool:
        return self.name in QUIT_COMMANDS and not self.argument


def parse_line(line: str) -> CommandLine | str:
    """Parse a line as a command or a message.

    A command is `:` or `/` and letters, followed by a blank or nothing: `/etc/hosts` and `:-)` start messages.
    An unknown command with further words is a message too, unless it resembles a command. A doubled prefix
    escapes: `//cost` is the message `/cost`. `exit` and `quit` alone end the chat.
    """
    text = line.strip()
    if text.casefold() in _QUIT_WORDS:
        return CommandLine(":quit")
    if _ESCAPED_MESSAGE.match(text):
        return text[1:]
    first, *rest = text.split(maxsplit=1) or [""]
    argument = rest[0] if rest else ""
    if not _COMMAND_WORD.fullmatch(first):
        return text
    name = f":{first[1:].casefold()}"
    if name in COMMANDS or name in QUIT_COMMANDS:
        return CommandLine(name, argument)
    if argument and _find_closest_command(first) is None:
        return text
    return CommandLine(first, argument)


def _find_closest_command(typed: str) -> str | None:
    """Return the command that a typed word resembles, with the typed prefix."""
    closest = find_closest_name(typed[1:], [name[1:] for name in COMMANDS])
    return None if closest is None else f"{typed[:1]}{closest}"


def completions(text: str, models: Sequence[str]) -> list[tuple[str, int, str]]:
    """Complete a partial line: candidate words, how many characters each replaces, and a description."""
    if not text.startswith(_PREFIXES) or "\n" in text:
        return []
    name, space, rest = text.partition(" ")
    if not space:
        return [
            (f"{name[0]}{word[1:]}", len(text), description)
            for word, (_, description) in COMMANDS.items()
            if word[1:].startswith(name[1:])
        ]
    words = {"model": models, "cost": (_DETAIL,)}.get(name[1:], ())
    return [(word, len(rest), "") for word in words if word.startswith(rest)]


class CommandRunner:
    def __init__(
        self,
        conversation: ChatConversation,
        chat_config: ChatConfig,
        display: Callable[[], Display],
        start_local: Callable[[], None],
    ) -> None:
        self._conversation = conversation
        self._chat_config = chat_config
        self._display = display
        self._start_local = start_local

    async def run(self, line: CommandLine) -> list[str]:
        """Run a command and return its output lines.

        Raises:
            FoveateError: the command cannot be executed; the message says why.
        """
        try:
            return await self._dispatch(line)
        except FoveateError:
            raise
        except Exception as error:  # outermost border of a command: a failure must not end the chat
            raise BadOption(f"{line.name:.40} failed: {type(error).__name__}: {error}") from error

    async def _dispatch(self, line: CommandLine) -> list[str]:
        takes_argument = bool(COMMANDS.get(line.name, ("",))[0])
        if line.argument and not takes_argument and (line.name in COMMANDS or line.name in QUIT_COMMANDS):
            raise BadOption(
                f"{line.name} takes no argument; to send this as a message, start it with :{line.name}"
            )
        match line.name:
            case ":model":
                return await self._switch_model(line.argument)
            case ":cost":
                return await self._show_cost(line.argument)
            case ":budget":
                return await self._show_budget()
            case ":context":
                output = lines.context_lines(await self._conversation.preview(), self._display())
                if self._conversation.turns:
                    return output
                return [*output, "The conversation is empty: this shows a request with a short first message."]
            case ":memory":
                return lines.memory_lines(
                    await self._conversation.preview(focus=line.argument),
                    self._conversation.agent,
                    self._display(),
                )
            case ":compact":
                return await self._compact()
            case ":tokenize":
                return await self._tokenize(line.argument)
            case ":save":
                return [self._save(line.argument)]
            case ":reset":
                self._conversation.reset()
                return ["Started a new session. Earlier messages are not sent any more."]
            case ":help":
                return lines.help_lines(COMMANDS, self._display())
            case name:
                raise BadOption(_describe_unknown_command(name))

    async def _switch_model(self, name: str) -> list[str]:
        if not name:
            return lines.model_lines(
                self._conversation.target, self._chat_config.list_models(), self._display()
            )
        if name == LOCAL_UPSTREAM and not self._chat_config.has_local:
            import asyncio

            await asyncio.to_thread(self._start_local)
        before = await self._preview()
        self._conversation.switch_model(name)
        after = await self._preview()
        output = [lines.model_changed_line(self._conversation.target, after)]
        if before is not None and after is not None and before.is_compacted and not after.is_compacted:
            output.append(
                "Messages that were compacted for the previous model are sent in full to this one: "
                ":compact compacts them again."
            )
        return output

    async def _preview(self) -> RequestPreview | None:
        """Preview the next request; None if it would be rejected, which the next question reports."""
        try:
            return await self._conversation.preview()
        except FoveateError:
            return None

    async def _show_cost(self, argument: str) -> list[str]:
        if argument not in ("", _DETAIL):
            raise BadOption(f":cost takes no argument or detail, not {argument:.40}")
        if argument == _DETAIL:
            return lines.cost_detail_lines(
                self._conversation.charges, await self._conversation.preview(), self._display()
            )
        return lines.cost_lines(self._conversation.total_charges, self._conversation.main_charges)

    async def _show_budget(self) -> list[str]:
        preview, caps = await self._conversation.preview(), self._chat_config.current_config().cost.caps
        output = lines.budget_lines(preview, self._display())
        if not caps:
            return [*output, "No spending caps are configured."]
        try:
            async with self._open_store() as store:
                statuses = await cap_statuses(store.ledger, caps, self._conversation, now=time())
        except FoveateError as error:
            return [*output, f"Cannot read the spending caps: {error}"]
        return [*output, *lines.cap_lines(statuses, self._display())]

    @asynccontextmanager
    async def _open_store(self) -> "AsyncIterator[Store]":
        from foveate.store import open_store

        async with await open_store(self._chat_config.current_config().settings.store.url) as store:
            yield store

    async def _compact(self) -> list[str]:
        before = await self._conversation.preview()
        compacted = await self._conversation.compact()
        return lines.compaction_lines(compacted, before, await self._conversation.preview(), self._display())

    async def _tokenize(self, text: str) -> list[str]:
        if not text:
            raise BadOption(":tokenize needs a text, e.g. :tokenize How long is this?")
        from foveate.chat.tokenize import tokenize

        options = self._chat_config.current_config().agents(self._conversation.agent).counter
        preview = await self._conversation.preview()
        tokens = await tokenize(
            text, preview.model or self._conversation.target.model, self._conversation.target, options
        )
        return lines.token_lines(tokens, preview.model, self._display())

    def _save(self, name: str) -> str:
        if not name:
            raise BadOption(":save needs a file name, e.g. :save chat.md")
        from pathlib import Path

        from foveate.config.files import open_replacement

        path = Path(name).expanduser()
        if path.exists():
            raise BadOption(f"{path} already exists: choose another name")
        with open_replacement(path, mode=0o600) as file:
            file.write(lines.to_markdown(self._conversation.turns).encode("utf-8", "replace"))
        return f"Saved {len(self._conversation.turns)} messages to {path}."


def _describe_unknown_command(name: str) -> str:
    prefix, closest = name[:1], _find_closest_command(name)
    hint = f"did you mean {closest}?" if closest else f"{prefix}help lists all commands."
    escape = f" To send it as a message, type {prefix}{name:.40}" if name[1:] else ""
    return f"unknown command {name:.40}: {hint}{escape}"


async def cap_statuses(
    ledger: Ledger, caps: Sequence[Cap], conversation: ChatConversation, *, now: float
) -> list[CapStatus]:
    call = Call(
        id="",
        agent=conversation.agent,
        session_id=conversation.session_id,
        provider=conversation.target.upstream.provider,
        model=conversation.target.model,
        category=Category.MAIN,
        at=now,
    )
    applicable = [cap for cap in caps if cap.applies_to(call)]
    accounts = {cap: account for cap in applicable if (account := cap.find_account(call)) is not None}
    balances = await ledger.get_balances(sorted(set(accounts.values())), now=now) if accounts else {}
    unpriced_calls = conversation.total_charges.unknown_calls
    statuses = []
    for cap in applicable:
        balance = balances.get(accounts.get(cap, ""))
        if cap.scope is CapScope.CALL or balance is None:
            statuses.append(CapStatus(cap=cap))
            continue
        use = CapUse(
            cap=cap,
            agent=None
            if cap.scope is CapScope.TOTAL and cap.agent is None
            else cap.agent or _charged_agent(cap, conversation),
            session_id=conversation.session_id if cap.scope is CapScope.SESSION else None,
            day=utc_day(now) if cap.scope is CapScope.DAY else None,
            balance=balance,
            unknown_calls=unpriced_calls if cap.scope is CapScope.SESSION else 0,
        )
        statuses.append(CapStatus(cap=cap, uses=(use,)))
    return statuses


def _charged_agent(cap: Cap, conversation: ChatConversation) -> str | None:
    """Return the agent whose account a cap uses; None for a daily cap on all agents."""
    return None if cap.scope is CapScope.DAY else conversation.agent
