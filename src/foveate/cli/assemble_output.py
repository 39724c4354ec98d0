"""Output of `foveate assemble`: a bar for each section, the cuts, and notes about the budget."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from difflib import get_close_matches

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
from foveate.cli.console import Display, format_tokens

_GAP = "  "
_NAME_CELLS, _MIN_NAME_CELLS = 28, 8
_BAR_CELLS, _MIN_BAR_CELLS = 40, 8
_MIN_REASON_CELLS = 32

_DIM, _BOLD, _RED, _GREEN, _YELLOW = "2", "1", "31", "32", "33"
_COLOURS = {Action.DROPPED: _RED, Action.DISABLED: _DIM}
# Fuzzy comparison of more names takes longer than assembling; beyond this only case is ignored.
_MAX_COMPARISONS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _PromptGlyphs:
    filled: str
    cut: str
    arrow: str
    more: str


_BLOCKS = _PromptGlyphs(filled="█", cut="░", arrow="→", more="…")
_ASCII = _PromptGlyphs(filled="#", cut=".", arrow="->", more="..")


def draw_prompt(prompt: Prompt, *, model: str, display: Display, explain: bool) -> str:
    return "\n".join(_PromptChart(display, exact=prompt.count.exact).lines(prompt, model, explain=explain))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ColumnWidths:
    """Width of each column in cells; 0 if the column is left out."""

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
        full_widths = _ColumnWidths(
            name=_max_width(names),
            priority=_max_width([section.priority for section in sections]),
            bar=_BAR_CELLS,
            note=_max_width(notes),
        )
        columns = _fit_columns(full_widths, self._display.columns - _max_width(sizes))
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
        """Draw the original size of a section, filled up to what is kept.

        Non-empty parts take at least one cell.
        """
        bar_cells = max(round(width * section.before / largest), 1) if section.before else 0
        kept_cells = min(max(round(width * section.after / largest), 1), bar_cells) if section.after else 0
        if section.after < section.before and kept_cells == bar_cells > 1:
            kept_cells -= 1
        kept_part = self._paint(self._glyphs.filled * kept_cells, _GREEN)
        cut_part = self._paint(self._glyphs.cut * (bar_cells - kept_cells), _DIM)
        return kept_part + cut_part + " " * (width - bar_cells)

    def _cut_lines(self, cuts: Sequence[Cut]) -> Iterator[str]:
        if not cuts:
            yield "no cuts"
            return
        names = [self._display.escape(cut.section) for cut in cuts]
        sizes = self._align_sizes([(cut.before, self._glyphs.arrow, cut.after) for cut in cuts])
        cells_left_of_sizes = self._display.columns - _max_width(sizes) - len(_GAP)
        name_cells = max(min(_max_width(names), _NAME_CELLS, cells_left_of_sizes), 1)
        reason_column = name_cells + _max_width(sizes) + 2 * len(_GAP)
        is_reason_on_row = self._display.columns - reason_column >= _MIN_REASON_CELLS
        indent = " " * (reason_column if is_reason_on_row else 4)
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
        """Say why it was cut; a cap on an estimate also names the upper bound as the reason."""
        is_bounded = cut.rung == CAP_RUNG and not self._exact
        return f"{cut.reason}; applied to the upper bound of the estimate" if is_bounded else cut.reason

    def _align_sizes(self, sizes: Sequence[tuple[int, str, int]]) -> list[str]:
        formatted = [
            (self._format_tokens(first), word, self._format_tokens(second)) for first, word, second in sizes
        ]
        left, right = (_max_width([size[side] for size in formatted]) for side in (0, 2))
        return [f"{first:>{left}} {word} {second:>{right}}" for first, word, second in formatted]

    def _format_tokens(self, tokens: int) -> str:
        return format_tokens(tokens, self._exact or not tokens)  # zero is exact even in an estimate

    def _fit(self, text: str, cells: int) -> str:
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
        accuracy += f", upper bound {count.upper:,} ({_percent(count.upper, limit)})"
    tokens = format_tokens(count.tokens, count.exact)
    return f"{tokens} of {limit:,} tokens ({_percent(count.tokens, limit)}), {model}, {accuracy}"


def _percent(tokens: int, limit_tokens: int) -> str:
    return f"{round(100 * tokens / limit_tokens)}%"


def _section_note(section: SectionReport, *, capped: bool) -> str:
    if section.action is not Action.KEPT:
        return "capped" if capped and section.action is Action.TRUNCATED else str(section.action)
    return "near cap" if is_near_cap(section) else ""


def _fit_columns(full_widths: _ColumnWidths, room: int) -> _ColumnWidths:
    """Fit the columns next to the sizes: shrink the bar first, then the names, then drop columns."""
    minimal = replace(full_widths, bar=_MIN_BAR_CELLS)
    without_priority = replace(minimal, priority=0)
    without_bar = replace(without_priority, bar=0)
    without_note = replace(without_bar, note=0)
    for columns in (minimal, without_priority, without_bar, without_note):
        other_cells = sum(cells + len(_GAP) for cells in (columns.priority, columns.bar, columns.note) if cells)
        free_cells = room - len(_GAP) - other_cells
        if free_cells >= min(full_widths.name, _MIN_NAME_CELLS):
            break
    # Names get the space that is left once the bar is long enough.
    max_name_cells = max(_NAME_CELLS, free_cells - (_BAR_CELLS - _MIN_BAR_CELLS))
    name = max(min(full_widths.name, free_cells, max_name_cells), 1)
    bar = min(columns.bar + free_cells - name, full_widths.bar) if columns.bar else 0
    return replace(columns, name=name, bar=bar)


def _max_width(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts), default=0)


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
