"""`foveate assemble`: assemble sections into a prompt that fits its budget."""

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

from foveate.cli.count import DEFAULT_MODEL
from foveate.cli.shared import console
from foveate.cli.shared.console import Display, format_tokens
from foveate.cli.shared.errors import report_errors
from foveate.cli.shared.options import MODEL_METAVAR, TOKENIZER_HELP
from foveate.cli.shared.tables import GAP, BarPart, Cell, Column, Fit, Styled, draw_bar, format_table
from foveate.errors import BadOption, UnreadableInput

if TYPE_CHECKING:
    from foveate.budget import Budget, Prompt, Section
    from foveate.budget.prompt import Cut, SectionReport
    from foveate.tokens import RequestCounter

STANDARD_STREAM = "-"
"""Standard input for `--sections` or `--budget`, standard output for `--output`."""
_NAME_CELLS, _MIN_NAME_CELLS = 28, 8
_BAR_CELLS, _MIN_BAR_CELLS = 40, 8
# Narrower terminals show the reasons of cuts on lines of their own.
_MIN_REASON_COLUMNS = 64
_STYLES = {"dropped": "red", "disabled": "dim"}  # by Action
_NAME = Column(fit=Fit.SHORTEN, min_cells=_MIN_NAME_CELLS)
_SECTION_COLUMNS = (
    _NAME,
    Column(drop_order=1),  # priority
    Column(drop_order=2),  # bar
    Column(align="right"),
    Column(optional=True, drop_order=3),  # note
)
_CUT_COLUMNS = (_NAME, Column(align="right"), Column(fit=Fit.WRAP))
# Fuzzy comparison of more names takes longer than assembling; beyond this only case is ignored.
_MAX_COMPARISONS = 5_000


def command(
    sections: Annotated[
        str,
        typer.Option(
            "--sections",
            metavar="PATH",
            help="Sections of the prompt: a YAML or JSON file with a list, a folder with one file per section, "
            "or - for standard input.",
        ),
    ],
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="FILE",
            help="Token budget: a YAML file, or - for standard input. Instead of a file, you can give "
            "the way in which sections are cut: truncate_low_priority, drop_low_priority or progressive. "
            "If it has no total, the total is --total-tokens, else the environment variable "
            "CONTEXT_MAX_TOKENS, else the model's context window.",
        ),
    ] = None,
    total_tokens: Annotated[
        int | None,
        typer.Option(
            "--total-tokens",
            metavar="N",
            help="Maximum tokens of prompt and response together; overrides the total in --budget.",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", metavar=MODEL_METAVAR, help="Model whose tokenizer and context window apply."
        ),
    ] = DEFAULT_MODEL,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="FILE", help=TOKENIZER_HELP),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the prompt to this file. With -, write the prompt to standard output and the table to "
            "standard error. Default: print only the table.",
        ),
    ] = None,
    show_budget: Annotated[
        bool,
        typer.Option(
            "--show-budget", help="Add a section to the prompt that tells the model its token budget."
        ),
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="List every cut with its reason.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object, including the prompt.")
    ] = False,
) -> None:
    """Assemble sections into a prompt that fits a token budget, and show the tokens of each section.

    Sections with the lowest priority are cut first; priorities are set in the sections or in the budget. Among
    sections of equal priority, the last is cut first.

    Example: foveate assemble --sections parts/ --budget budget.yaml --explain
    """
    with report_errors(as_json=json):
        for option, name in (("--sections", sections), ("--budget", budget), ("--output", output)):
            if name == "":
                raise BadOption(f"{option} needs a file name")
        if json and output == STANDARD_STREAM:
            raise BadOption("--json already prints the prompt: leave out --output -, or give a file name")
        if sections == budget == STANDARD_STREAM:
            raise BadOption(
                "only one of --sections and --budget can be standard input: give a file for the other"
            )
        if total_tokens is not None and total_tokens < 1:
            raise BadOption(f"--total-tokens takes a number of tokens, 1 or more, not {total_tokens}")
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
    """Reject an output that would overwrite an input or become a section of the next run.

    Raises:
        BadOption: the output is one of the inputs, or lies in the folder of the sections.
    """
    inputs = {"--sections": sections, "--budget": budget, "--tokenizer": tokenizer}
    for option, name in inputs.items():
        if name is not None and _is_same(output, Path(name)):
            raise BadOption(f"--output {output} is also the input of {option}: choose another name")
    folder = Path(sections)
    with suppress(OSError, ValueError):  # reading the input reports the error
        parents = output.parent, Path(os.path.realpath(output)).parent
        is_inside = any(_is_same(parent, folder) for parent in parents)
        if is_inside or (folder.is_dir() and any(_is_same(output, file) for file in folder.iterdir())):
            raise BadOption(f"--output {output} is in the folder of the sections: choose another folder")


def _is_same(path: Path, other: Path) -> bool:
    """Missing paths are never the same."""
    try:
        return path.samefile(other)
    except (OSError, ValueError):  # ValueError: the name contains a null byte
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
    """If the file does not exist, accept the name of a built-in ladder."""
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
            return Budget(ladder=BUILT_IN_LADDERS[name])
        reason = f"{error.reason}, and it is not a ladder ({', '.join(BUILT_IN_LADDERS)})"
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
    from foveate.tokens.offline_counters import offline_counter_factory

    vocabulary = None if tokenizer is None else Path(tokenizer)
    return offline_counter_factory(CounterOptions(vocabulary=vocabulary))(model)


def _write_prompt(text: str, name: str) -> None:
    from foveate.config.files import replace_file
    from foveate.tokens.tokenizers.bpe import replace_surrogates

    # The tokens were counted without surrogates too.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _PromptGlyphs:
    filled: str
    cut: str
    arrow: str


_BLOCKS = _PromptGlyphs(filled="█", cut="░", arrow="→")
_ASCII = _PromptGlyphs(filled="#", cut=".", arrow="->")


def draw_prompt(prompt: "Prompt", *, model: str, display: Display, explain: bool) -> str:
    return "\n".join(_PromptChart(display, exact=prompt.count.exact).lines(prompt, model, explain=explain))


class _PromptChart:
    def __init__(self, display: Display, *, exact: bool) -> None:
        self._display = display
        self._exact = exact
        self._glyphs = _BLOCKS if display.can_show("".join(astuple(_BLOCKS))) else _ASCII

    def lines(self, prompt: "Prompt", model: str, *, explain: bool) -> Iterator[str]:
        yield from self._wrap(Styled(_heading(prompt, model), "bold"))
        yield from self._section_rows(prompt)
        if explain:
            yield ""
            yield from self._cut_lines(prompt.cuts)

    def _section_rows(self, prompt: "Prompt") -> Iterator[str]:
        from foveate.budget.assemble import CAP_RUNG

        sections = prompt.sections
        if not sections:
            return
        capped = {cut.section for cut in prompt.cuts if cut.rung == CAP_RUNG}
        capped -= {cut.section for cut in prompt.cuts if cut.rung != CAP_RUNG}
        sizes = self._format_sizes([(section.after, "of", section.before) for section in sections])
        notes = [_section_note(section, capped=section.name in capped) for section in sections]
        names, priorities = [section.name for section in sections], [section.priority for section in sections]
        bar_cells = self._bar_cells(names, priorities, sizes, notes)
        largest = max(section.before for section in sections)
        rows: list[list[Cell]] = [
            [
                section.name,
                Styled(section.priority, "dim"),
                self._bar(section, largest, bar_cells),
                size,
                Styled(note, _STYLES.get(section.action, "yellow")),
            ]
            for section, size, note in zip(sections, sizes, notes, strict=True)
        ]
        yield from format_table(_SECTION_COLUMNS, rows, self._display)

    def _bar_cells(self, names: Sequence[str], *other_columns: Sequence[str]) -> int:
        from rich.cells import cell_len

        if not self._display.is_terminal:
            return _BAR_CELLS
        name_cells = min(max(cell_len(self._display.escape(name)) for name in names), _NAME_CELLS)
        widths = [name_cells, *(max(map(cell_len, column)) for column in other_columns)]
        room = self._display.columns - sum(GAP + width for width in widths if width)
        return min(max(room, _MIN_BAR_CELLS), _BAR_CELLS)

    def _bar(self, section: "SectionReport", largest: int, cells: int) -> list[Styled]:
        """Draw the original size of a section, filled up to what is kept."""
        kept = BarPart(size=section.after, glyph=self._glyphs.filled, style="green")
        cut = BarPart(size=section.before - section.after, glyph=self._glyphs.cut, style="dim")
        return draw_bar([kept, cut], cells=cells, full=largest)

    def _cut_lines(self, cuts: "Sequence[Cut]") -> Iterator[str]:
        if not cuts:
            yield "no cuts"
            return
        sizes = self._format_sizes([(cut.before, self._glyphs.arrow, cut.after) for cut in cuts])
        reasons = [f"{cut.rung}: {self._reason(cut)}" for cut in cuts]
        rows = [(cut.section, size, reason) for cut, size, reason in zip(cuts, sizes, reasons, strict=True)]
        if not self._display.is_terminal or self._display.columns >= _MIN_REASON_COLUMNS:
            yield from format_table(_CUT_COLUMNS, rows, self._display)
            return
        lines = format_table(_CUT_COLUMNS[:2], [row[:2] for row in rows], self._display)
        for line, reason in zip(lines, reasons, strict=True):
            yield line
            yield from self._wrap(Styled(reason), indent=2)

    def _reason(self, cut: "Cut") -> str:
        """Say why it was cut; a cap on an estimate also names the upper bound as the reason."""
        from foveate.budget.assemble import CAP_RUNG

        is_bounded = cut.rung == CAP_RUNG and not self._exact
        return f"{cut.reason}; applied to the upper bound of the estimate" if is_bounded else cut.reason

    def _format_sizes(self, sizes: Sequence[tuple[int, str, int]]) -> list[str]:
        formatted = [
            (self._format_tokens(first), word, self._format_tokens(second)) for first, word, second in sizes
        ]
        width = max(len(second) for _, _, second in formatted)
        return [f"{first} {word} {second:>{width}}" for first, word, second in formatted]

    def _format_tokens(self, tokens: int) -> str:
        return format_tokens(tokens, self._exact or not tokens)  # zero is exact even in an estimate

    def _wrap(self, text: Styled, *, indent: int = 0) -> list[str]:
        """Break words that are too long."""
        return format_table((Column(fit=Fit.WRAP),), [[text]], self._display, indent=indent)


def _heading(prompt: "Prompt", model: str) -> str:
    count, limit = prompt.count, prompt.limit_tokens
    accuracy = "exact" if count.exact else "estimated"
    if count.upper != count.tokens:
        accuracy += f", upper bound {count.upper:,} ({_percent(count.upper, limit)})"
    tokens = format_tokens(count.tokens, count.exact)
    return f"{tokens} of {limit:,} tokens ({_percent(count.tokens, limit)}), {model}, {accuracy}"


def _percent(tokens: int, limit_tokens: int) -> str:
    return f"{round(100 * tokens / limit_tokens)}%"


def _section_note(section: "SectionReport", *, capped: bool) -> str:
    from foveate.budget.prompt import Action, is_near_cap

    if section.action is not Action.KEPT:
        return "capped" if capped and section.action is Action.TRUNCATED else str(section.action)
    return "near cap" if is_near_cap(section) else ""


def prompt_notes(prompt: "Prompt", budget: "Budget", *, model: str, explain: bool) -> Iterator[str]:
    yield from _limit_notes(prompt, budget, model)
    yield from _name_notes(prompt, budget, explain=explain)
    if _is_cut_by_position(prompt, budget):
        yield "all sections have the same priority, so the last are cut first: set priorities in the budget"


def _limit_notes(prompt: "Prompt", budget: "Budget", model: str) -> Iterator[str]:
    from foveate.budget.prompt import LimitSource

    if prompt.limit_source is LimitSource.DEFAULT:
        assumption = f"{prompt.limit_tokens + budget.output_reserve:,} tokens"
        yield f"the window of {model!r} is unknown, assuming {assumption}: set total_tokens in the budget"
    elif prompt.limit_source is LimitSource.WINDOW and not budget.output_reserve:
        yield "no tokens are reserved for the response: set output_reserve in the budget"


def _name_notes(prompt: "Prompt", budget: "Budget", *, explain: bool) -> Iterator[str]:
    sections = {section.name.casefold(): section.name for section in prompt.sections}
    # A section that has a rule of its own is not suggested for a misspelt one.
    without_rule = {lowered: name for lowered, name in sections.items() if name not in budget.sections}
    is_small = len(prompt.sections) * len(prompt.unmatched) <= _MAX_COMPARISONS
    others = []
    for name in prompt.unmatched:
        suggestion = _suggest_name(
            name, without_rule if name in budget.sections else sections, only_case=not is_small
        )
        if suggestion is None:
            others.append(name)
        else:
            yield (
                f"the budget has a rule for {name!r}, but no such section exists: did you mean {suggestion!r}?"
            )
    if explain and others:
        problem = "no such section exists" if len(others) == 1 else "no such sections exist"
        yield f"the budget has rules for {', '.join(map(repr, others))}, but {problem}"


def _suggest_name(name: str, sections: Mapping[str, str], *, only_case: bool) -> str | None:
    """Find the section that a name is probably meant for. `sections` maps case-folded names to names."""
    lowered = name.casefold()
    matches = [lowered] if only_case else get_close_matches(lowered, sections, n=1)
    return sections.get(matches[0]) if matches else None


def _is_cut_by_position(prompt: "Prompt", budget: "Budget") -> bool:
    """Check whether something was cut only because it comes last among equal priorities."""
    from foveate.budget.ladder import rung_label
    from foveate.budget.prompt import BUDGET_SECTION_NAME, Action

    by_priority = {rung_label(budget.ladder, rung) for rung in budget.ladder.rungs if not rung.sections}
    ranked = [
        section.priority
        for section in prompt.sections
        if section.action is not Action.DISABLED and section.name != BUDGET_SECTION_NAME
    ]
    return len(ranked) > 1 and len(set(ranked)) == 1 and any(cut.rung in by_priority for cut in prompt.cuts)
