"""`foveate assemble`: sections joined to a prompt that fits, and a picture of what was cut.

A prompt as a picture: a bar for each section, what is left of it beside what was cut.

What is worth a word about a prompt: numbers that nobody set, and names that mean nothing.
"""

import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.cells import cell_len, set_cell_size

from foveate.budget.assemble import CAP_RUNG
from foveate.budget.budget import Budget
from foveate.budget.ladder import rung_label
from foveate.budget.prompt import (
    BUDGET_SECTION_NAME,
    Action,
    Cut,
    LimitSource,
    Prompt,
    SectionReport,
    is_near_cap,
)
from foveate.cli import console
from foveate.cli.console import Display, format_tokens
from foveate.cli.count import DEFAULT_MODEL
from foveate.cli.exit_codes import report_errors
from foveate.errors import BadOption, UnreadableInput

if TYPE_CHECKING:
    from foveate.budget import Budget, Prompt, Section
    from foveate.tokens import RequestCounter


_GAP = "  "
_NAME_CELLS, _MIN_NAME_CELLS = 28, 8
_BAR_CELLS, _MIN_BAR_CELLS = 40, 8
_MIN_REASON_CELLS = 32

_DIM, _BOLD, _RED, _GREEN, _YELLOW = "2", "1", "31", "32", "33"
_COLOURS = {Action.DROPPED: _RED, Action.DISABLED: _DIM}


@dataclass(frozen=True, slots=True, kw_only=True)
class _PromptGlyphs:
    kept: str
    cut: str
    arrow: str
    more: str


_BLOCKS = _PromptGlyphs(kept="█", cut="░", arrow="→", more="…")
_ASCII = _PromptGlyphs(kept="#", cut=".", arrow="->", more="..")


def draw_prompt(prompt: Prompt, *, model: str, display: Display, explain: bool) -> str:
    """How full the prompt is, a row for each section, and with `explain` every cut and its reason."""
    return "\n".join(_PromptChart(display, exact=prompt.count.exact).lines(prompt, model, explain=explain))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ColumnWidths:
    """How many cells each column has; one that has no place has 0."""

    name: int
    priority: int
    bar: int
    note: int


class _PromptChart:
    def __init__(self, display: Display, *, exact: bool) -> None:
        self._display = display
        self._exact = exact
        self._glyphs = _BLOCKS if display.can_show("".join(astuple(_BLOCKS))) else _ASCII

    def lines(self, prompt: Prompt, model: str, *, explain: bool) -> Iterator[str]:
        heading = _heading(prompt, self._display.escape(model))
        yield from (self._paint(line, _BOLD) for line in self._wrap(heading, self._display.columns))
        yield from self._section_rows(prompt)
        if explain:
            yield ""
            yield from self._cut_lines(prompt.cuts)

    def _section_rows(self, prompt: Prompt) -> Iterator[str]:
        sections = prompt.sections
        capped = {cut.section for cut in prompt.cuts if cut.rung == CAP_RUNG}
        capped -= {cut.section for cut in prompt.cuts if cut.rung != CAP_RUNG}
        names = [self._display.escape(section.name) for section in sections]
        notes = [_section_note(section, capped=section.name in capped) for section in sections]
        sizes = self._align_sizes([(section.after, "of", section.before) for section in sections])
        largest = max((section.before for section in sections), default=0)
        wanted = _ColumnWidths(
            name=_max_width(names),
            priority=_max_width([section.priority for section in sections]),
            bar=_BAR_CELLS,
            note=_max_width(notes),
        )
        columns = _fit_columns(wanted, self._display.columns - _max_width(sizes))
        for section, name, size, note in zip(sections, names, sizes, notes, strict=True):
            cells = [self._fit(name, columns.name)]
            if columns.priority:
                cells.append(self._paint(f"{section.priority:<{columns.priority}}", _DIM))
            if columns.bar:
                cells.append(self._bar(section, largest, columns.bar))
            cells.append(size)
            if columns.note and note:
                cells.append(self._paint(note, _COLOURS.get(section.action, _YELLOW)))
            yield _GAP.join(cells)

    def _bar(self, section: SectionReport, largest: int, width: int) -> str:
        """As long as the section was, filled as far as it is kept; whatever is there at all can be seen."""
        bar_cells = max(round(width * section.before / largest), 1) if section.before else 0
        kept_cells = min(max(round(width * section.after / largest), 1), bar_cells) if section.after else 0
        if section.after < section.before and kept_cells == bar_cells > 1:
            kept_cells -= 1
        filled = self._paint(self._glyphs.kept * kept_cells, _GREEN)
        cut_part = self._paint(self._glyphs.cut * (bar_cells - kept_cells), _DIM)
        return filled + cut_part + " " * (width - bar_cells)

    def _cut_lines(self, cuts: Sequence[Cut]) -> Iterator[str]:
        if not cuts:
            yield "nothing was cut"
            return
        names = [self._display.escape(cut.section) for cut in cuts]
        sizes = self._align_sizes([(cut.before, self._glyphs.arrow, cut.after) for cut in cuts])
        cells_left_of_sizes = self._display.columns - _max_width(sizes) - len(_GAP)
        name_cells = max(min(_max_width(names), _NAME_CELLS, cells_left_of_sizes), 1)
        lead = name_cells + _max_width(sizes) + 2 * len(_GAP)
        is_reason_on_row = self._display.columns - lead >= _MIN_REASON_CELLS
        indent = " " * (lead if is_reason_on_row else 4)
        for cut, name, size in zip(cuts, names, sizes, strict=True):
            reason = self._display.escape(f"{cut.rung}: {self._reason(cut)}")
            first, *rest = self._wrap(reason, self._display.columns - len(indent))
            row = _GAP.join((self._fit(name, name_cells), size))
            if is_reason_on_row:
                yield _GAP.join((row, first))
            else:
                yield row
                yield indent + first
            yield from (indent + line for line in rest)

    def _reason(self, cut: Cut) -> str:
        """Why it was cut; an estimate that is well below a cap says what keeps it there."""
        is_bounded = cut.rung == CAP_RUNG and not self._exact
        return f"{cut.reason}, kept by the bound of an estimate" if is_bounded else cut.reason

    def _align_sizes(self, sizes: Sequence[tuple[int, str, int]]) -> list[str]:
        """Two numbers of tokens with a word between, in line with those above and below."""
        formatted = [
            (self._format_tokens(first), word, self._format_tokens(second)) for first, word, second in sizes
        ]
        left, right = (_max_width([size[side] for size in formatted]) for side in (0, 2))
        return [f"{first:>{left}} {word} {second:>{right}}" for first, word, second in formatted]

    def _format_tokens(self, tokens: int) -> str:
        return format_tokens(tokens, self._exact or not tokens)  # nothing is nothing, whoever counts

    def _fit(self, text: str, cells: int) -> str:
        """`text` in exactly so many cells."""
        if cell_len(text) <= cells:
            return set_cell_size(text, cells)
        more = self._glyphs.more[:cells]
        return set_cell_size(set_cell_size(text, cells - len(more)).rstrip() + more, cells)

    def _wrap(self, text: str, cells: int) -> list[str]:
        lines = [""]
        for word in text.split():
            fitting = word if cell_len(word) <= cells else self._fit(word, max(cells, 1))
            if lines[-1] and cell_len(f"{lines[-1]} {fitting}") > cells:
                lines.append(fitting)
            else:
                lines[-1] = f"{lines[-1]} {fitting}".lstrip()
        return lines

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if text and self._display.colours else text


def _heading(prompt: Prompt, model: str) -> str:
    count, limit = prompt.count, prompt.limit_tokens
    accuracy = "exact" if count.exact else "estimated"
    if count.upper != count.tokens:
        accuracy += f", at most {count.upper:,} ({_percent(count.upper, limit)})"
    tokens = format_tokens(count.tokens, count.exact)
    return f"{tokens} of {limit:,} tokens ({_percent(count.tokens, limit)}), {model}, {accuracy}"


def _percent(tokens: int, limit_tokens: int) -> str:
    return f"{round(100 * tokens / limit_tokens)}%"


def _section_note(section: SectionReport, *, capped: bool) -> str:
    if section.action is not Action.KEPT:
        return "capped" if capped and section.action is Action.TRUNCATED else str(section.action)
    return "near cap" if is_near_cap(section) else ""


def _fit_columns(wanted: _ColumnWidths, room: int) -> _ColumnWidths:
    """What there is room for beside the numbers: first the bar shrinks, then the names; then columns go."""
    minimal = replace(wanted, bar=_MIN_BAR_CELLS)
    without_priority = replace(minimal, priority=0)
    without_bar = replace(without_priority, bar=0)
    without_note = replace(without_bar, note=0)
    for columns in (minimal, without_priority, without_bar, without_note):
        other_cells = sum(cells + len(_GAP) for cells in (columns.priority, columns.bar, columns.note) if cells)
        free_cells = room - len(_GAP) - other_cells
        if free_cells >= min(wanted.name, _MIN_NAME_CELLS):
            break
    # Names have all the room beyond a bar that is long enough.
    max_name_cells = max(_NAME_CELLS, free_cells - (_BAR_CELLS - _MIN_BAR_CELLS))
    name = max(min(wanted.name, free_cells, max_name_cells), 1)
    bar = min(columns.bar + free_cells - name, wanted.bar) if columns.bar else 0
    return replace(columns, name=name, bar=bar)


def _max_width(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts), default=0)


# Comparing more names with each other takes longer than the prompt itself; but for case, all are compared.
_MAX_COMPARISONS = 5_000


def prompt_notes(prompt: Prompt, budget: Budget, *, model: str, explain: bool) -> Iterator[str]:
    """A line for each thing to be said of how `prompt` came about; with `explain`, on every unmatched name."""
    yield from _limit_notes(prompt, budget, model)
    yield from _name_notes(prompt, budget, explain=explain)
    if _is_cut_by_position(prompt, budget):
        yield "all sections have the same priority, so the last are cut first: give the budget priorities"


def _limit_notes(prompt: Prompt, budget: Budget, model: str) -> Iterator[str]:
    if prompt.limit_source is LimitSource.DEFAULT:
        assumed = f"{prompt.limit_tokens + budget.output_reserve:,} tokens are assumed"
        yield f"the window of {model!r} is not known: {assumed}; say total_tokens in a budget"
    elif prompt.limit_source is LimitSource.WINDOW and not budget.output_reserve:
        yield "nothing of the window is reserved for the answer: set output_reserve in the budget"


def _name_notes(prompt: Prompt, budget: Budget, *, explain: bool) -> Iterator[str]:
    sections = {section.name.casefold(): section.name for section in prompt.sections}
    # A section that has a rule does not wait for one with a typo in its name.
    without_rule = {lowered: name for lowered, name in sections.items() if name not in budget.sections}
    is_small = len(prompt.sections) * len(prompt.unmatched) <= _MAX_COMPARISONS
    others = []
    for name in prompt.unmatched:
        near = _nearest(name, without_rule if name in budget.sections else sections, only_case=not is_small)
        if near is None:
            others.append(name)
        else:
            yield f"the budget says something of {name!r}, and there is no such section: did you mean {near!r}?"
    if explain and others:
        none = "there is no such section" if len(others) == 1 else "there are no such sections"
        yield f"the budget says something of {', '.join(map(repr, others))}, and {none}"


def _nearest(name: str, sections: Mapping[str, str], *, only_case: bool) -> str | None:
    """The section that a name is probably meant for; `sections` are by their name in small letters."""
    lowered = name.casefold()
    near = [lowered] if only_case else get_close_matches(lowered, sections, n=1)
    return sections.get(near[0]) if near else None


def _is_cut_by_position(prompt: Prompt, budget: Budget) -> bool:
    """Whether something went for want of room only because it stands last."""
    by_priority = {rung_label(budget.ladder, rung) for rung in budget.ladder.rungs if not rung.sections}
    ranked = [
        section.priority
        for section in prompt.sections
        if section.action is not Action.DISABLED and section.name != BUDGET_SECTION_NAME
    ]
    return len(ranked) > 1 and len(set(ranked)) == 1 and any(cut.rung in by_priority for cut in prompt.cuts)


STANDARD_STREAM = "-"
"""Standard input for `--sections` or `--budget`, standard output for `--output`."""


def command(
    sections: Annotated[
        str,
        typer.Option(
            "--sections",
            metavar="FILE_OR_DIR",
            help="A YAML or JSON list of sections, or a folder with one file a section; - is standard input.",
        ),
    ],
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="FILE",
            help="A budget (YAML; - is standard input), or a built-in ladder: truncate_low_priority, "
            "drop_low_priority, progressive. Without one, CONTEXT_MAX_TOKENS or the model's window.",
        ),
    ] = None,
    total_tokens: Annotated[
        int | None,
        typer.Option(
            "--total-tokens",
            metavar="N",
            help="How many tokens there are for prompt and answer, whatever the budget says.",
        ),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="The model that the prompt is for.")
    ] = DEFAULT_MODEL,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A tokenizer.json or .tiktoken file to count with."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the prompt there; - is standard output, and the picture goes to standard error.",
        ),
    ] = None,
    show_budget: Annotated[
        bool, typer.Option("--show-budget", help="Add a section in which the agent sees its budget.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="List every cut and its reason.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, the text in it.")] = False,
) -> None:
    """Put sections together to a prompt that fits its budget, and show what each section got.

    Priorities come from the sections file or the budget; of equals, the last section is cut first.

    Example: foveate assemble --sections parts/ --budget budget.yaml --explain
    """
    with report_errors(as_json=json):
        for option, name in (("--sections", sections), ("--budget", budget), ("--output", output)):
            if name == "":
                raise BadOption(f"{option} needs the name of a file")
        if json and output == STANDARD_STREAM:
            raise BadOption("the prompt is in what --json prints: leave out --output -, or name a file")
        if sections == budget == STANDARD_STREAM:
            raise BadOption("standard input is either the sections or the budget: name a file for the other")
        if total_tokens is not None and total_tokens < 1:
            raise BadOption(f"--total-tokens is a number of tokens, 1 or more, not {total_tokens}")
        if output is not None and output != STANDARD_STREAM:
            _check_output(Path(output), sections, budget, tokenizer)
        with console.show_progress("assembling"):
            import foveate

            loaded_sections, loaded_budget = _load_sections(sections), _load_budget(budget, total_tokens)
            counter = _make_counter(model, tokenizer)
            prompt = foveate.assemble(loaded_sections, loaded_budget, counter, show_budget=show_budget)
        if output is not None:
            _write_prompt(prompt.text, output)
        if json:
            console.print_object(_prompt_object(prompt, model))
        else:
            _print_chart(prompt, model, to_stderr=output == STANDARD_STREAM, explain=explain)
            _print_notes(prompt, loaded_budget, model, explain=explain)


def _check_output(output: Path, sections: str, budget: str | None, tokenizer: str | None) -> None:
    """Refuse to write over what is read, also by another name, or where it would be read the next time.

    Raises:
        BadOption: the output is one of the inputs, or lies in the folder of the sections.
    """
    inputs = {"--sections": sections, "--budget": budget, "--tokenizer": tokenizer}
    for option, name in inputs.items():
        if name is not None and _is_same(output, Path(name)):
            raise BadOption(f"--output {output} is what {option} reads: choose another name")
    folder = Path(sections)
    with suppress(OSError, ValueError):  # whoever reads it will say why
        parents = output.parent, Path(os.path.realpath(output)).parent
        is_inside = any(_is_same(parent, folder) for parent in parents)
        if is_inside or (folder.is_dir() and any(_is_same(output, file) for file in folder.iterdir())):
            raise BadOption(f"--output {output} is in the folder of the sections: choose another folder")


def _is_same(path: Path, other: Path) -> bool:
    """Whether both are one file or folder; what is not there is like nothing else."""
    try:
        return path.samefile(other)
    except (OSError, ValueError):  # ValueError: a name with a zero byte in it
        return False


def _load_sections(name: str) -> "tuple[Section, ...]":
    from foveate.config import load_sections, parse_sections

    if name == STANDARD_STREAM:
        return parse_sections(console.read_standard_input(), "standard input")
    return load_sections(Path(name))


def _load_budget(name: str | None, total_tokens: int | None) -> "Budget":
    from foveate.budget import Budget

    budget = Budget() if name is None else _load_named_budget(name)
    return budget if total_tokens is None else replace(budget, total_tokens=total_tokens)


def _load_named_budget(name: str) -> "Budget":
    """The budget in a file; where there is no such file, the name can be a ladder's."""
    from foveate.budget import Budget
    from foveate.budget.ladder import BUILT_IN_LADDERS
    from foveate.config import load_budget

    if name == STANDARD_STREAM:
        return _parse_budget(console.read_standard_input())
    try:
        return load_budget(Path(name))
    except UnreadableInput as error:
        if error.reason != os.strerror(errno.ENOENT):
            raise
        if name in BUILT_IN_LADDERS:
            return Budget(ladder=name)
        reason = f"{error.reason}, nor is it a ladder ({', '.join(BUILT_IN_LADDERS)})"
        raise UnreadableInput(error.source, reason) from None


def _parse_budget(data: bytes) -> "Budget":
    from foveate.budget import budget_from_data
    from foveate.config.document import parse_document

    document = parse_document(data, "standard input")
    try:
        return budget_from_data(document.data)
    except BadOption as error:
        raise document.error(str(error), error.path) from None


def _make_counter(model: str, tokenizer: str | None) -> "RequestCounter":
    from foveate.tokens import CounterOptions
    from foveate.tokens.options import offline_counter_factory

    vocabulary = None if tokenizer is None else Path(tokenizer)
    return offline_counter_factory(CounterOptions(vocabulary=vocabulary))(model)


def _write_prompt(text: str, name: str) -> None:
    from foveate.config.files import replace_file
    from foveate.tokens.tokenizers.bpe import replace_surrogates

    # It was counted so as well.
    data = replace_surrogates(text).encode()
    if name == STANDARD_STREAM:
        console.print_raw(data)
    else:
        replace_file(Path(name), data)


def _prompt_object(prompt: "Prompt", model: str) -> dict[str, object]:
    return {
        "limit_tokens": prompt.limit_tokens,
        "tokens": prompt.tokens,
        "text": prompt.text,
        "sections": [
            {
                "name": section.name,
                "priority": section.priority,
                "before": section.before,
                "after": section.after,
                "action": section.action,
            }
            for section in prompt.sections
        ],
        "cuts": [asdict(cut) for cut in prompt.cuts],
        "count": asdict(prompt.count),
        "model": model,
        "limit_source": prompt.limit_source,
        "unmatched": prompt.unmatched,
    }


def _print_chart(prompt: "Prompt", model: str, *, to_stderr: bool, explain: bool) -> None:

    display = console.display_for(sys.stderr if to_stderr else sys.stdout)
    chart = draw_prompt(prompt, model=model, display=display, explain=explain)
    if to_stderr:
        console.print_to_stderr(chart)
    else:
        console.print_text(chart)


def _print_notes(prompt: "Prompt", budget: "Budget", model: str, *, explain: bool) -> None:

    for note in prompt_notes(prompt, budget, model=model, explain=explain):
        console.print_note(note)
