"""Commands that can be typed into a chat, such as `:cost`, and their output."""

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from time import time
from typing import TYPE_CHECKING

from foveate.chat.conversation import CallTotals, ChatConversation, RequestPreview, sum_charges_by_model
from foveate.chat.models import ChatConfig, find_closest_name
from foveate.chat.requests import ChatRole, ChatTurn, ModelTarget
from foveate.chat.tokenize import TokenizedText
from foveate.cli.cost.output import cap_lines
from foveate.cli.shared.console import Display, format_tokens
from foveate.cli.shared.tables import Column, Fit, format_dollar_column, format_table, style_text, wrap_text
from foveate.cli.shared.window_chart import WindowChartData, draw_window
from foveate.compaction.compact import CompactionResult
from foveate.compaction.store import CompactionOutcome
from foveate.config.load import LOCAL_UPSTREAM
from foveate.cost.caps import Cap, CapScope, CapStatus, CapUse, utc_day
from foveate.cost.ledger import Call, Category, Charge, Ledger
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
_COST_COLUMNS = (
    Column(heading="model", fit=Fit.SHORTEN),
    Column(heading="category"),
    Column(heading="calls", align="right"),
    Column(heading="prompt / completion", align="right"),
    Column(heading="dollars", align="right"),
)
_KEYS = {
    "Enter": "send the message",
    "Alt-Enter, or \\ at the end": "start a new line",
    "Up, Down": "go through earlier messages",
    "Tab": "complete a command",
    "Ctrl-C": "cancel the answer or clear the input; twice: end the chat",
    "Ctrl-D": "end the chat",
}
_COMMAND_RULE = (
    "Type / instead of : if you prefer. A line that starts with a path, such as /etc/hosts, is a message. To "
    "send a message that starts with a command, double its first character: //help sends /help."
)
_MAX_SHOWN_TOKENS = 2_000
_DIM = "2"


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
                output = context_lines(await self._conversation.preview(), self._display())
                if self._conversation.turns:
                    return output
                return [*output, "The conversation is empty: this shows a request with a short first message."]
            case ":memory":
                return memory_lines(
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
                return help_lines(COMMANDS, self._display())
            case name:
                raise BadOption(_describe_unknown_command(name))

    async def _switch_model(self, name: str) -> list[str]:
        if not name:
            return model_lines(self._conversation.target, self._chat_config.list_models(), self._display())
        if name == LOCAL_UPSTREAM and not self._chat_config.has_local:
            import asyncio

            await asyncio.to_thread(self._start_local)
        before = await self._preview()
        self._conversation.switch_model(name)
        after = await self._preview()
        output = [model_changed_line(self._conversation.target, after)]
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
            return cost_detail_lines(
                self._conversation.charges, await self._conversation.preview(), self._display()
            )
        return cost_lines(self._conversation.total_charges, self._conversation.main_charges)

    async def _show_budget(self) -> list[str]:
        preview, caps = await self._conversation.preview(), self._chat_config.current_config().cost.caps
        output = budget_lines(preview, self._display())
        if not caps:
            return [*output, "No spending caps are configured."]
        try:
            async with self._open_store() as store:
                statuses = await cap_statuses(store.ledger, caps, self._conversation, now=time())
        except FoveateError as error:
            return [*output, f"Cannot read the spending caps: {error}"]
        return [*output, *_cap_lines(statuses, self._display())]

    @asynccontextmanager
    async def _open_store(self) -> "AsyncIterator[Store]":
        from foveate.store import open_store

        async with await open_store(self._chat_config.current_config().settings.store.url) as store:
            yield store

    async def _compact(self) -> list[str]:
        before = await self._conversation.preview()
        compacted = await self._conversation.compact()
        return compaction_lines(compacted, before, await self._conversation.preview(), self._display())

    async def _tokenize(self, text: str) -> list[str]:
        if not text:
            raise BadOption(":tokenize needs a text, e.g. :tokenize How long is this?")
        from foveate.chat.tokenize import tokenize

        options = self._chat_config.current_config().agents(self._conversation.agent).counter
        preview = await self._conversation.preview()
        tokens = await tokenize(
            text, preview.model or self._conversation.target.model, self._conversation.target, options
        )
        return token_lines(tokens, preview.model, self._display())

    def _save(self, name: str) -> str:
        if not name:
            raise BadOption(":save needs a file name, e.g. :save chat.md")
        from pathlib import Path

        from foveate.config.files import open_replacement

        path = Path(name).expanduser()
        if path.exists():
            raise BadOption(f"{path} already exists: choose another name")
        with open_replacement(path, mode=0o600) as file:
            file.write(to_markdown(self._conversation.turns).encode("utf-8", "replace"))
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


def paint(text: str, colour: str, display: Display) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if text and display.colours else text


def describe_window_use(preview: RequestPreview) -> str:
    if preview.count is None:
        return "not counted (token_counter is off)"
    tokens = format_tokens(preview.tokens, preview.count.exact)
    if preview.window_tokens is None:
        return f"{tokens} tokens (context window unknown)"
    return f"{tokens} of {preview.window_tokens:,} tokens ({preview.tokens / preview.window_tokens:.0%})"


def format_spending(totals: CallTotals) -> str:
    """Calls of unknown price are counted separately, never as free."""
    if not totals.unknown_calls:
        return _format_dollars(totals.dollars)
    return _add_unknown_calls(_format_dollars(totals.dollars), totals)


def _format_dollars(amount: Decimal) -> str:
    return format_dollar_column([amount])[0]


def cost_lines(totals: CallTotals, answer_totals: CallTotals) -> list[str]:
    if not totals.calls:
        return ["No calls in this session yet."]
    ratio = answer_totals.hit_ratio or 0.0
    output = [
        f"{format_spending(totals)} for {_count(totals.calls, 'call')}: {totals.prompt_tokens:,} input tokens "
        f"({ratio:.0%} cached), {totals.completion_tokens:,} output tokens"
    ]
    if totals.partial_calls:
        output.append(
            f"{_count(totals.partial_calls, 'response')} ended early, so the reported usage may be incomplete."
        )
    return output


def summary_lines(message_count: int, totals: CallTotals) -> list[str]:
    if not totals.calls:
        return ["No calls were made."]
    cost, saved = format_dollar_column([totals.dollars, totals.saved_dollars])
    if totals.unknown_calls:
        cost += f" + {_count(totals.unknown_calls, 'call')} of unknown price"
    output = [
        f"{_count(message_count, 'message')}, {_count(totals.calls, 'call')}: "
        f"{totals.prompt_tokens:,} input tokens ({totals.read_tokens:,} cached), "
        f"{totals.completion_tokens:,} output tokens",
        f"Cost: {cost}",
    ]
    if totals.saved_dollars is not None:
        output[-1] += f", saved by Foveate: {saved}"
    return output


def cost_detail_lines(entries: Sequence[Charge], preview: RequestPreview, display: Display) -> list[str]:
    totals = sum_charges_by_model(entries)
    if not totals:
        return ["No calls in this session yet.", context_estimate_line(preview)]
    dollars = format_dollar_column([row.dollars for row in totals])
    rows = [
        (
            row.model,
            row.category,
            f"{row.calls:,}",
            f"{row.prompt_tokens:,} / {row.completion_tokens:,}",
            _add_unknown_calls(amount, row),
        )
        for row, amount in zip(totals, dollars, strict=True)
    ]
    return [*format_table(_COST_COLUMNS, rows, display), context_estimate_line(preview)]


def _add_unknown_calls(dollars: str, totals: CallTotals) -> str:
    if not totals.unknown_calls:
        return dollars
    unknown = f"{_count(totals.unknown_calls, 'call')} of unknown price"
    return f"{dollars} + {unknown}" if totals.dollars else unknown


def context_estimate_line(preview: RequestPreview) -> str:
    return (
        f"[estimated session ctx: {preview.tokens} tokens; token_budget={preview.token_budget} "
        f"({preview.share:.0%} used)]"
    )


def budget_lines(preview: RequestPreview, display: Display) -> list[str]:
    output = [
        f"{describe_window_use(preview)}; {preview.output_reserve:,} are reserved for the answer, "
        f"{_tokens_left(preview)} are left"
    ]
    if preview.sections_limit is None:
        return [*output, "No sections are injected for this agent."]
    used_tokens = sum(section.tokens for section in preview.sections)
    output.append(f"Injected sections: {used_tokens:,} of {preview.sections_limit:,} tokens")
    output += [f"- {display.escape(section.name)}: {section.tokens:,}" for section in preview.sections]
    return output + [f"  {display.escape(problem)}" for problem in preview.problems]


def _cap_lines(statuses: Sequence[CapStatus], display: Display) -> list[str]:
    return cap_lines(statuses, display) or ["No spending cap applies to this agent."]


def _tokens_left(preview: RequestPreview) -> str:
    return f"{max(0, preview.token_budget - preview.tokens):,}"


def context_lines(preview: RequestPreview, display: Display) -> list[str]:
    window = WindowChartData(
        sections=preview.parts,
        tokens=preview.tokens,
        exact=preview.count is not None and preview.count.exact,
        window_tokens=preview.window_tokens,
        reserved_tokens=preview.output_reserve,
    )
    return [
        *draw_window(window, display),
        *(paint(display.escape(problem), _DIM, display) for problem in preview.problems),
    ]


def memory_lines(preview: RequestPreview, agent: str, display: Display) -> list[str]:
    parts = [part for part in preview.sections if part.name in ("context", "awareness")]
    reasons = [
        paint(display.escape(problem), _DIM, display) for problem in preview.problems if "memory" in problem
    ]
    if not parts:
        no_memory = (
            f"The agent {agent} has no memory. To add one, set `sections: memory:` in the configuration."
        )
        return reasons or [no_memory]
    text = "\n\n".join(part.text for part in parts)
    output = [display.escape(line.expandtabs()) for line in text.splitlines()]
    tokens = sum(part.tokens for part in parts)
    return [*output, paint(f"{tokens:,} tokens of {agent}'s memory", _DIM, display), *reasons]


def compaction_lines(
    result: CompactionResult | None, before: RequestPreview, after: RequestPreview, display: Display
) -> list[str]:
    if result is None:
        return ["There is nothing to compact yet."]
    compaction, reason = result.compaction, display.escape(result.reason)
    if result.outcome is CompactionOutcome.NO_BOUNDARY:
        return ["There is nothing to compact yet: only the last exchange is left, and it is never compacted."]
    if result.outcome is not CompactionOutcome.OK or compaction is None:
        return [f"Nothing was compacted: {reason or result.outcome.value}"]
    cost = "unknown" if compaction.cost is None else _format_dollars(compaction.cost)
    saved = before.tokens - after.tokens
    saving = f"{saved:,} fewer" if saved > 0 else f"{-saved:,} more"
    output = [
        f"Compacted {compaction.messages} messages into a summary: from {before.tokens:,} to {after.tokens:,} "
        f"tokens ({saving}). The summary cost {cost}."
    ]
    return output + ([f"The summary is an extract, without a model: {reason}"] if reason else [])


def model_lines(connection: ModelTarget, models: Sequence[str], display: Display) -> list[str]:
    others = ", ".join(display.escape(name) for name in models if name != connection.model)
    current = display.escape(
        f"{connection.model} at {connection.upstream.name} ({connection.api_format.value})"
    )
    return [current, f"Other models: {others or 'none'}. Any other model works by NAME or UPSTREAM/NAME."]


def model_changed_line(connection: ModelTarget, preview: RequestPreview | None) -> str:
    if preview is None:
        return f"Now using {connection.model} at {connection.upstream.name}"
    accuracy = "exact" if preview.count is not None and preview.count.exact else "estimated"
    where = f"{connection.model} at {connection.upstream.name}"
    return f"Now using {where}: {describe_window_use(preview)}, {accuracy}"


def token_lines(tokens: TokenizedText, model: str, display: Display) -> list[str]:
    count = tokens.count
    accuracy = "exact" if count.exact else f"estimate, upper bound {count.upper:,}"
    size = f"{format_tokens(count.tokens, count.exact)} tokens"
    summary = f"{size}, {display.escape(model)}, {tokens.tokenizer}: {accuracy}"
    if tokens.pieces is None:
        return [summary]
    bar = "│" if display.can_show("│") else "|"
    pieces = bar.join(display.escape(_decode_piece(piece)) for piece in tokens.pieces[:_MAX_SHOWN_TOKENS])
    more = len(tokens.pieces) - _MAX_SHOWN_TOKENS
    return [pieces + (f" … and {more:,} more" if more > 0 else ""), summary]


def _decode_piece(piece: bytes) -> str:
    return piece.decode("utf-8", "backslashreplace")


def help_lines(commands: Mapping[str, tuple[str, str]], display: Display) -> list[str]:
    calls = [f"{name} {argument}".strip() for name, (argument, _) in commands.items()]
    descriptions = [description for _, description in commands.values()]
    width = max(map(len, (*calls, *_KEYS)))
    return [
        style_text("Commands", "bold", display),
        *_help_table(zip(calls, descriptions, strict=True), width, display),
        "",
        *(wrap_text(_COMMAND_RULE, display) if display.is_terminal else [_COMMAND_RULE]),
        "",
        style_text("Keys", "bold", display),
        *_help_table(_KEYS.items(), width, display),
    ]


def _help_table(rows: Iterable[tuple[str, str]], width: int, display: Display) -> list[str]:
    columns = (Column(), Column(fit=Fit.WRAP))
    return format_table(columns, [(name.ljust(width), text) for name, text in rows], display, indent=2)


def to_markdown(turns: Sequence[ChatTurn]) -> str:
    names = {ChatRole.USER: "You", ChatRole.ASSISTANT: "Answer"}
    return "\n".join(f"## {names[turn.role]}\n\n{turn.sent_text}\n" for turn in turns)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
