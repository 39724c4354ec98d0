"""Text output of chat commands: cost, window, budget, models and tokens."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from rich.cells import cell_len, set_cell_size

from foveate.chat.costs import CallTotals, sum_charges_by_model
from foveate.chat.preview import RequestPreview
from foveate.chat.requests import ChatRole, ChatTurn, ModelTarget
from foveate.chat.tokenize import TokenizedText
from foveate.cli.console import Display, format_tokens
from foveate.cli.cost import output as cost_output
from foveate.cli.window_chart import WindowChartData, draw_window
from foveate.compaction.compact import CompactionResult
from foveate.compaction.store import CompactionOutcome
from foveate.cost.cap_status import CapStatus
from foveate.cost.ledger import Charge
from foveate.cost.money import format_dollars

_GAP = "  "
_MAX_SHOWN_TOKENS = 2_000
_DIM, _BOLD = "2", "1"


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
    for window in window_texts or [""]:
        text = f" {dot.join(filter(None, (display.escape(model), window, *ends)))} "
        if cell_len(text) <= display.columns:
            return text
    return set_cell_size(text, display.columns)


def _short_window_use(preview: RequestPreview) -> str:
    return f"{preview.tokens / preview.window_tokens:.0%}" if preview.window_tokens else f"{preview.tokens:,}"


def _short_dollars(totals: CallTotals) -> str:
    return format_dollars(totals.dollars) + (" + ?" if totals.unknown_calls else "")


def describe_window_use(preview: RequestPreview) -> str:
    if preview.count is None:
        return "not counted (token_counter is off)"
    tokens = format_tokens(preview.tokens, preview.count.exact)
    if preview.window_tokens is None:
        return f"{tokens} tokens (window unknown)"
    return f"{tokens} of {preview.window_tokens:,} tokens ({preview.tokens / preview.window_tokens:.0%})"


def format_spending(totals: CallTotals) -> str:
    """Format the cost of calls. Calls of unknown price are named, never taken as free."""
    if not totals.unknown_calls:
        return format_dollars(totals.dollars)
    unknown = f"{_count_calls(totals.unknown_calls)} of unknown price"
    return f"{format_dollars(totals.dollars)} + {unknown}" if totals.dollars else unknown


def cost_lines(totals: CallTotals, answer_totals: CallTotals) -> list[str]:
    if not totals.calls:
        return ["nothing was billed in this session yet"]
    ratio = answer_totals.hit_ratio or 0.0
    output = [
        f"{format_spending(totals)} for {_count_calls(totals.calls)}: {totals.prompt_tokens:,} prompt tokens "
        f"({ratio:.0%} of the answers' read from the cache), {totals.completion_tokens:,} completion tokens"
    ]
    if totals.partial_calls:
        output.append(f"{_count_calls(totals.partial_calls)} broke off before the bill was whole")
    return output


def cost_detail_lines(entries: Sequence[Charge], preview: RequestPreview, display: Display) -> list[str]:
    rows = [("model", "category", "calls", "prompt / completion", "dollars")]
    rows += [
        (
            display.escape(row.model),
            row.category,
            f"{row.calls:,}",
            f"{row.prompt_tokens:,} / {row.completion_tokens:,}",
            format_spending(row),
        )
        for row in sum_charges_by_model(entries)
    ]
    output = (
        list(_table(rows, left_columns=2, display=display)) if len(rows) > 1 else ["nothing was billed yet"]
    )
    return [*output, context_estimate_line(preview)]


def context_estimate_line(preview: RequestPreview) -> str:
    return (
        f"[estimated session ctx: {preview.tokens} tokens; token_budget={preview.token_budget} "
        f"({preview.share:.0%} used)]"
    )


def budget_lines(preview: RequestPreview, display: Display) -> list[str]:
    output = [
        f"{describe_window_use(preview)}; {preview.output_reserve:,} are kept for the answer, "
        f"{_tokens_left(preview)} are left"
    ]
    if preview.sections_limit is None:
        return [*output, "no sections are injected for this agent"]
    used_tokens = sum(section.tokens for section in preview.sections)
    output.append(f"injected sections: {used_tokens:,} of {preview.sections_limit:,} tokens")
    output += [f"- {display.escape(section.name)}: {section.tokens:,}" for section in preview.sections]
    return output + [f"  {display.escape(problem)}" for problem in preview.problems]


def cap_lines(statuses: Sequence[CapStatus], display: Display) -> list[str]:
    return cost_output.cap_lines(statuses, display) or ["no cap holds for this agent"]


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
        no_memory = f"the agent {agent} has no memory: `sections: memory:` in the configuration gives it one"
        return reasons or [no_memory]
    text = "\n\n".join(part.text for part in parts)
    output = [display.escape(line.expandtabs()) for line in text.splitlines()]
    tokens = sum(part.tokens for part in parts)
    return [*output, paint(f"{tokens:,} tokens of {agent}'s memory", _DIM, display), *reasons]


def compaction_lines(
    result: CompactionResult | None, before: RequestPreview, after: RequestPreview, display: Display
) -> list[str]:
    if result is None:
        return ["there is nothing to fold yet"]
    compaction, reason = result.compaction, display.escape(result.reason)
    if result.outcome is CompactionOutcome.NO_BOUNDARY:
        return ["there is nothing to fold yet: a summary stands for all but the last exchange"]
    if result.outcome is not CompactionOutcome.OK or compaction is None:
        return [f"nothing was folded: {reason or result.outcome.value}"]
    cost = "unknown" if compaction.cost is None else format_dollars(compaction.cost)
    saved = before.tokens - after.tokens
    saving = f"saved {saved:,} tokens" if saved > 0 else f"saved nothing ({-saved:,} tokens more)"
    output = [
        f"folded {compaction.messages} messages into a summary: {before.tokens:,} tokens are "
        f"{after.tokens:,} now, "
        f"{saving}; it cost {cost}"
    ]
    return output + ([f"by rules, since {reason}"] if reason else [])


def model_lines(connection: ModelTarget, models: Sequence[str], display: Display) -> list[str]:
    others = ", ".join(display.escape(name) for name in models if name != connection.model)
    current = display.escape(
        f"{connection.model} at {connection.upstream.name} ({connection.api_format.value})"
    )
    return [current, f"others: {others or 'none'}; any other by its name, or as UPSTREAM/NAME"]


def model_changed_line(connection: ModelTarget, preview: RequestPreview | None) -> str:
    if preview is None:
        return f"now talking to {connection.model} at {connection.upstream.name}"
    accuracy = "exact" if preview.count is not None and preview.count.exact else "estimated"
    where = f"{connection.model} at {connection.upstream.name}"
    return f"now talking to {where}: {describe_window_use(preview)}, {accuracy}"


def token_lines(tokens: TokenizedText, model: str, display: Display) -> list[str]:
    count = tokens.count
    accuracy = "exact" if count.exact else f"estimate, at most {count.upper:,}"
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
    keys = {
        "Enter": "sends",
        "Alt-Enter, or \\ at the end": "a new line",
        "Up": "what was typed before",
        "Ctrl-C": "stops an answer, or clears what is typed",
        "Ctrl-D": "ends",
        "::": "begins a message with a colon",
    }
    rows = [*zip(calls, (description for _, description in commands.values()), strict=True), *keys.items()]
    width = max(len(name) for name, _ in rows)
    return [f"{paint(f'{name:<{width}}', _BOLD, display)}{_GAP}{description}" for name, description in rows]


def to_markdown(turns: Sequence[ChatTurn]) -> str:
    names = {ChatRole.USER: "You", ChatRole.ASSISTANT: "Answer"}
    return "\n".join(f"## {names[turn.role]}\n\n{turn.sent_text}\n" for turn in turns)


def _table(rows: Sequence[tuple[str, ...]], *, left_columns: int, display: Display) -> Iterator[str]:
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row_number, row in enumerate(rows):
        cells = []
        for column_number, (text, width) in enumerate(zip(row, widths, strict=True)):
            blanks = " " * (width - cell_len(text))
            cells.append(text + blanks if column_number < left_columns else blanks + text)
        line = _GAP.join(cells).rstrip()
        yield paint(line, _DIM, display) if not row_number else line


def _count_calls(count: int) -> str:
    return f"{count:,} call{'s' * (count != 1)}"


def dollars_json(amount: Decimal | None) -> str | None:
    """Format dollars for JSON without loss; None if unknown."""
    return None if amount is None else f"{amount:f}"
