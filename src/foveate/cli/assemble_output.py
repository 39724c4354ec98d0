"""Output of `foveate assemble`: a bar for each section, the cuts, and notes about the budget."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from difflib import get_close_matches

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
from foveate.cli.shared.console import Display, format_tokens
from foveate.cli.shared.tables import GAP, BarPart, Cell, Column, Fit, Styled, draw_bar, format_table

_NAME_CELLS, _MIN_NAME_CELLS = 28, 8
_BAR_CELLS, _MIN_BAR_CELLS = 40, 8
# Narrower terminals show the reasons of cuts on lines of their own.
_MIN_REASON_COLUMNS = 64
_STYLES = {Action.DROPPED: "red", Action.DISABLED: "dim"}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _PromptGlyphs:
    filled: str
    cut: str
    arrow: str


_BLOCKS = _PromptGlyphs(filled="█", cut="░", arrow="→")
_ASCII = _PromptGlyphs(filled="#", cut=".", arrow="->")


def draw_prompt(prompt: Prompt, *, model: str, display: Display, explain: bool) -> str:
    return "\n".join(_PromptChart(display, exact=prompt.count.exact).lines(prompt, model, explain=explain))


class _PromptChart:
    def __init__(self, display: Display, *, exact: bool) -> None:
        self._display = display
        self._exact = exact
        self._glyphs = _BLOCKS if display.can_show("".join(astuple(_BLOCKS))) else _ASCII

    def lines(self, prompt: Prompt, model: str, *, explain: bool) -> Iterator[str]:
        yield from self._wrap(Styled(_heading(prompt, model), "bold"))
        yield from self._section_rows(prompt)
        if explain:
            yield ""
            yield from self._cut_lines(prompt.cuts)

    def _section_rows(self, prompt: Prompt) -> Iterator[str]:
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
        """Return the width of the bars, which take what the other columns leave."""
        from rich.cells import cell_len

        if not self._display.is_terminal:
            return _BAR_CELLS
        name_cells = min(max(cell_len(self._display.escape(name)) for name in names), _NAME_CELLS)
        widths = [name_cells, *(max(map(cell_len, column)) for column in other_columns)]
        room = self._display.columns - sum(GAP + width for width in widths if width)
        return min(max(room, _MIN_BAR_CELLS), _BAR_CELLS)

    def _bar(self, section: SectionReport, largest: int, cells: int) -> list[Styled]:
        """Draw the original size of a section, filled up to what is kept."""
        kept = BarPart(size=section.after, glyph=self._glyphs.filled, style="green")
        cut = BarPart(size=section.before - section.after, glyph=self._glyphs.cut, style="dim")
        return draw_bar([kept, cut], cells=cells, full=largest)

    def _cut_lines(self, cuts: Sequence[Cut]) -> Iterator[str]:
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

    def _reason(self, cut: Cut) -> str:
        """Say why it was cut; a cap on an estimate also names the upper bound as the reason."""
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
        """Wrap a text on a terminal. Words that are too long are broken."""
        return format_table((Column(fit=Fit.WRAP),), [[text]], self._display, indent=indent)


def _heading(prompt: Prompt, model: str) -> str:
    count, limit = prompt.count, prompt.limit_tokens
    accuracy = "exact" if count.exact else "estimated"
    if count.upper != count.tokens:
        accuracy += f", upper bound {count.upper:,} ({_percent(count.upper, limit)})"
    tokens = format_tokens(count.tokens, count.exact)
    return f"{tokens} of {limit:,} tokens ({_percent(count.tokens, limit)}), {model}, {accuracy}"


def _percent(tokens: int, limit_tokens: int) -> str:
    return f"{round(100 * tokens / limit_tokens)}%"


def _section_note(section: SectionReport, *, capped: bool) -> str:
    if section.action is not Action.KEPT:
        return "capped" if capped and section.action is Action.TRUNCATED else str(section.action)
    return "near cap" if is_near_cap(section) else ""


def prompt_notes(prompt: Prompt, budget: Budget, *, model: str, explain: bool) -> Iterator[str]:
    yield from _limit_notes(prompt, budget, model)
    yield from _name_notes(prompt, budget, explain=explain)
    if _is_cut_by_position(prompt, budget):
        yield "all sections have the same priority, so the last are cut first: set priorities in the budget"


def _limit_notes(prompt: Prompt, budget: Budget, model: str) -> Iterator[str]:
    if prompt.limit_source is LimitSource.DEFAULT:
        assumption = f"{prompt.limit_tokens + budget.output_reserve:,} tokens"
        yield f"the window of {model!r} is unknown, assuming {assumption}: set total_tokens in the budget"
    elif prompt.limit_source is LimitSource.WINDOW and not budget.output_reserve:
        yield "no tokens are reserved for the response: set output_reserve in the budget"


def _name_notes(prompt: Prompt, budget: Budget, *, explain: bool) -> Iterator[str]:
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


def _is_cut_by_position(prompt: Prompt, budget: Budget) -> bool:
    """Check whether something was cut only because it comes last among equal priorities."""
    by_priority = {rung_label(budget.ladder, rung) for rung in budget.ladder.rungs if not rung.sections}
    ranked = [
        section.priority
        for section in prompt.sections
        if section.action is not Action.DISABLED and section.name != BUDGET_SECTION_NAME
    ]
    return len(ranked) > 1 and len(set(ranked)) == 1 and any(cut.rung in by_priority for cut in prompt.cuts)
