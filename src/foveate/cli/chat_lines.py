"""What a conversation shows beside its words: cost, window, budget, models, tokens, in lines for people."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from rich.cells import cell_len, set_cell_size

from foveate.chat.bills import Spent, spent_by_model
from foveate.chat.bodies import Speaking
from foveate.chat.looking import Look
from foveate.chat.tokenizing import Tokens
from foveate.chat.turns import Role, Turn
from foveate.cli.cost_lines import CapWriting
from foveate.cli.screen import Look as Screen
from foveate.cli.screen import number
from foveate.cli.window_bars import Window, window_lines
from foveate.cost.held import Held
from foveate.cost.ledger import Entry
from foveate.cost.money import in_words
from foveate.fold.folding import Folded
from foveate.fold.journal import Outcome

_GAP = "  "
_MOST_TOKENS = 2_000
_DIM, _BOLD = "2", "1"


def painted(text: str, colour: str, screen: Screen) -> str:
    """`text` in a colour, where there are any."""
    return f"\x1b[{colour}m{text}\x1b[0m" if text and screen.colours else text


def status(look: Look | None, model: str, spent: Spent, answers: Spent, screen: Screen) -> str:
    """The line below the prompt: model, window used, hit ratio, dollars; shorter where there is less room."""
    dot = " · " if screen.can_show("·") else " | "
    ratio = answers.hit_ratio
    ends = ("cache -" if ratio is None else f"cache {ratio:.0%}", _short_dollars(spent))
    fill = [] if look is None or look.count is None else [used(look), _short_used(look), ""]
    for window in fill or [""]:
        text = f" {dot.join(filter(None, (screen.plain(model), window, *ends)))} "
        if cell_len(text) <= screen.columns:
            return text
    return set_cell_size(text, screen.columns)


def _short_used(look: Look) -> str:
    return f"{look.tokens / look.window_tokens:.0%}" if look.window_tokens else f"{look.tokens:,}"


def _short_dollars(spent: Spent) -> str:
    return in_words(spent.dollars) + (" + ?" if spent.unknown_calls else "")


def used(look: Look) -> str:
    """How much of the window is used; of one that nobody knows, how many tokens there are."""
    if look.count is None:
        return "not counted (token_counter is off)"
    tokens = number(look.tokens, look.count.exact)
    if look.window_tokens is None:
        return f"{tokens} tokens (window unknown)"
    return f"{tokens} of {look.window_tokens:,} tokens ({look.tokens / look.window_tokens:.0%})"


def dollars(spent: Spent) -> str:
    """What calls cost; what nobody knows is never taken for nothing."""
    if not spent.unknown_calls:
        return in_words(spent.dollars)
    unknown = f"{_calls(spent.unknown_calls)} of unknown price"
    return f"{in_words(spent.dollars)} + {unknown}" if spent.dollars else unknown


def cost_lines(spent: Spent, answers: Spent) -> list[str]:
    """What a session has cost, in a line or two."""
    if not spent.calls:
        return ["nothing was billed in this session yet"]
    ratio = answers.hit_ratio or 0.0
    told = [
        f"{dollars(spent)} for {_calls(spent.calls)}: {spent.prompt_tokens:,} prompt tokens "
        f"({ratio:.0%} of the answers' read from the cache), {spent.completion_tokens:,} completion tokens"
    ]
    if spent.partial_calls:
        told.append(f"{_calls(spent.partial_calls)} broke off before the bill was whole")
    return told


def detail_lines(entries: Sequence[Entry], look: Look, screen: Screen) -> list[str]:
    """A row for each model and category, and how full the session is."""
    rows = [("model", "category", "calls", "prompt / completion", "dollars")]
    rows += [
        (
            screen.plain(row.model),
            row.category,
            f"{row.calls:,}",
            f"{row.prompt_tokens:,} / {row.completion_tokens:,}",
            dollars(row),
        )
        for row in spent_by_model(entries)
    ]
    told = list(_table(rows, left=2, screen=screen)) if len(rows) > 1 else ["nothing was billed yet"]
    return [*told, estimated(look)]


def estimated(look: Look) -> str:
    """How full the session is."""
    return (
        f"[estimated session ctx: {look.tokens} tokens; token_budget={look.token_budget} "
        f"({look.share:.0%} used)]"
    )


def budget_lines(look: Look, screen: Screen) -> list[str]:
    """What the next question may take of the window, and injected sections of that."""
    told = [f"{used(look)}; {look.output_reserve:,} are kept for the answer, {_left(look)} are left"]
    if look.sections_limit is None:
        return [*told, "no sections are injected for this agent"]
    taken = sum(section.tokens for section in look.sections)
    told.append(f"injected sections: {taken:,} of {look.sections_limit:,} tokens")
    told += [f"- {screen.plain(section.name)}: {section.tokens:,}" for section in look.sections]
    return told + [f"  {screen.plain(problem)}" for problem in look.problems]


def cap_lines(held: Sequence[Held], screen: Screen) -> list[str]:
    """How caps stand."""
    return list(CapWriting(screen).lines(held)) or ["no cap holds for this agent"]


def _left(look: Look) -> str:
    return f"{max(0, look.token_budget - look.tokens):,}"


def context_lines(look: Look, screen: Screen) -> list[str]:
    """What fills the window, as a bar and a row for each part."""
    window = Window(
        sections=look.parts,
        tokens=look.tokens,
        exact=look.count is not None and look.count.exact,
        window_tokens=look.window_tokens,
        reserved_tokens=look.output_reserve,
    )
    return [
        *window_lines(window, screen),
        *(painted(screen.plain(each), _DIM, screen) for each in look.problems),
    ]


def memory_lines(look: Look, agent: str, screen: Screen) -> list[str]:
    """What is seen of an agent's memory, as it would be sent."""
    seen = [part for part in look.sections if part.name in ("context", "awareness")]
    why = [painted(screen.plain(problem), _DIM, screen) for problem in look.problems if "memory" in problem]
    if not seen:
        none = f"the agent {agent} has no memory: `sections: memory:` in the configuration gives it one"
        return why or [none]
    text = "\n\n".join(part.text for part in seen)
    told = [screen.plain(line.expandtabs()) for line in text.splitlines()]
    tokens = sum(part.tokens for part in seen)
    return [*told, painted(f"{tokens:,} tokens of {agent}'s memory", _DIM, screen), *why]


def folded_lines(folded: Folded | None, before: Look, after: Look, screen: Screen) -> list[str]:
    """What a fold that was asked for has saved, or why there is none."""
    if folded is None:
        return ["there is nothing to fold yet"]
    fold, reason = folded.fold, screen.plain(folded.reason)
    if folded.outcome is Outcome.NO_BOUNDARY:
        return ["there is nothing to fold yet: a summary stands for all but the last exchange"]
    if folded.outcome is not Outcome.OK or fold is None:
        return [f"nothing was folded: {reason or folded.outcome.value}"]
    cost = "unknown" if fold.cost is None else in_words(fold.cost)
    saved = before.tokens - after.tokens
    what = f"saved {saved:,} tokens" if saved > 0 else f"saved nothing ({-saved:,} tokens more)"
    told = [
        f"folded {fold.messages} messages into a summary: {before.tokens:,} tokens are {after.tokens:,} now, "
        f"{what}; it cost {cost}"
    ]
    return told + ([f"by rules, since {reason}"] if reason else [])


def model_lines(speaking: Speaking, models: Sequence[str], screen: Screen) -> list[str]:
    """Which model is talked to, and which others there are."""
    others = ", ".join(screen.plain(name) for name in models if name != speaking.model)
    where = screen.plain(f"{speaking.model} at {speaking.upstream.name} ({speaking.spoken.value})")
    return [where, f"others: {others or 'none'}; any other by its name, or as UPSTREAM/NAME"]


def model_line(speaking: Speaking, look: Look | None) -> str:
    """What it means to talk to a model from now on."""
    if look is None:
        return f"now talking to {speaking.model} at {speaking.upstream.name}"
    exact = "exact" if look.count is not None and look.count.exact else "estimated"
    return f"now talking to {speaking.model} at {speaking.upstream.name}: {used(look)}, {exact}"


def token_lines(found: Tokens, model: str, screen: Screen) -> list[str]:
    """The tokens of a text, apart, and how many they are."""
    count = found.count
    sure = "exact" if count.exact else f"estimate, at most {count.upper:,}"
    told = f"{number(count.tokens, count.exact)} tokens, {screen.plain(model)}, {found.by}: {sure}"
    if found.pieces is None:
        return [told]
    bar = "│" if screen.can_show("│") else "|"
    shown = bar.join(screen.plain(_spelled(piece)) for piece in found.pieces[:_MOST_TOKENS])
    more = len(found.pieces) - _MOST_TOKENS
    return [shown + (f" … and {more:,} more" if more > 0 else ""), told]


def _spelled(piece: bytes) -> str:
    return piece.decode("utf-8", "backslashreplace")


def help_lines(commands: Mapping[str, tuple[str, str]], screen: Screen) -> list[str]:
    """Every command and key, and what it does."""
    calls = [f"{name} {after}".strip() for name, (after, _) in commands.items()]
    keys = {
        "Enter": "sends",
        "Alt-Enter, or \\ at the end": "a new line",
        "Up": "what was typed before",
        "Ctrl-C": "stops an answer, or clears what is typed",
        "Ctrl-D": "ends",
        "::": "begins a message with a colon",
    }
    rows = [*zip(calls, (told for _, told in commands.values()), strict=True), *keys.items()]
    wide = max(len(name) for name, _ in rows)
    return [f"{painted(f'{name:<{wide}}', _BOLD, screen)}{_GAP}{told}" for name, told in rows]


def markdown(turns: Sequence[Turn]) -> str:
    """A conversation as a page."""
    names = {Role.USER: "You", Role.ASSISTANT: "Answer"}
    return "\n".join(f"## {names[turn.role]}\n\n{turn.sent}\n" for turn in turns)


def _table(rows: Sequence[tuple[str, ...]], *, left: int, screen: Screen) -> Iterator[str]:
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for place, row in enumerate(rows):
        cells = []
        for at, (text, width) in enumerate(zip(row, widths, strict=True)):
            blanks = " " * (width - cell_len(text))
            cells.append(text + blanks if at < left else blanks + text)
        line = _GAP.join(cells).rstrip()
        yield painted(line, _DIM, screen) if not place else line


def _calls(count: int) -> str:
    return f"{count:,} call{'s' * (count != 1)}"


def answer_dollars(amount: Decimal | None) -> str | None:
    """Dollars as JSON can say them without losing any; null where they are not known."""
    return None if amount is None else f"{amount:f}"
