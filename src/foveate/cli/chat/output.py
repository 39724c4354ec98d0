"""Text output of chat commands: cost, window, budget, models and tokens."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from rich.cells import cell_len, set_cell_size

from foveate.chat.conversation import CallTotals, RequestPreview, sum_charges_by_model
from foveate.chat.requests import ChatRole, ChatTurn, ModelTarget
from foveate.chat.tokenize import TokenizedText
from foveate.cli.cost import output as cost_output
from foveate.cli.shared.console import Display, format_tokens
from foveate.cli.shared.tables import Column, Fit, format_dollar_column, format_table, style_text, wrap_text
from foveate.cli.shared.window_chart import WindowChartData, draw_window
from foveate.compaction.compact import CompactionResult
from foveate.compaction.store import CompactionOutcome
from foveate.cost.caps import CapStatus
from foveate.cost.ledger import Charge

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


def paint(text: str, colour: str, display: Display) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if text and display.colours else text


def status_line(
    preview: RequestPreview | None,
    model: str,
    totals: CallTotals,
    answer_totals: CallTotals,
    display: Display,
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
    return _format_dollars(totals.dollars) + (" + ?" if totals.unknown_calls else "")


def describe_window_use(preview: RequestPreview) -> str:
    if preview.count is None:
        return "not counted (token_counter is off)"
    tokens = format_tokens(preview.tokens, preview.count.exact)
    if preview.window_tokens is None:
        return f"{tokens} tokens (context window unknown)"
    return f"{tokens} of {preview.window_tokens:,} tokens ({preview.tokens / preview.window_tokens:.0%})"


def format_spending(totals: CallTotals) -> str:
    """Format the cost of calls. Calls of unknown price are counted separately, never as free."""
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
    """Summarize a whole chat. All dollars have the same precision."""
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


def cap_lines(statuses: Sequence[CapStatus], display: Display) -> list[str]:
    return cost_output.cap_lines(statuses, display) or ["No spending cap applies to this agent."]


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


def dollars_json(amount: Decimal | None) -> str | None:
    """Format dollars for JSON without loss; None if unknown."""
    return None if amount is None else f"{amount:f}"
