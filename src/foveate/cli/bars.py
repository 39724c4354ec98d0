"""A prompt as a picture: a bar for each section, what is left of it beside what was cut."""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace

from rich.cells import cell_len, set_cell_size

from foveate.budget.assembly import CAP
from foveate.budget.prompt import Action, Cut, Prompt, SectionReport, is_near
from foveate.cli.screen import Look, number

_GAP = "  "
_NAME_CELLS, _LEAST_NAME_CELLS = 28, 8
_BAR_CELLS, _LEAST_BAR_CELLS = 40, 8
_LEAST_REASON_CELLS = 32

_DIM, _BOLD, _RED, _GREEN, _YELLOW = "2", "1", "31", "32", "33"
_COLOURS = {Action.DROPPED: _RED, Action.DISABLED: _DIM}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Glyphs:
    kept: str
    cut: str
    arrow: str
    more: str


_BLOCKS = _Glyphs(kept="█", cut="░", arrow="→", more="…")
_ASCII = _Glyphs(kept="#", cut=".", arrow="->", more="..")


def drawn(prompt: Prompt, *, model: str, look: Look, explain: bool) -> str:
    """How full the prompt is, a row for each section, and with `explain` every cut and its reason."""
    return "\n".join(_Drawing(look, exact=prompt.count.exact).lines(prompt, model, explain=explain))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """How many cells each column has; one that has no place has 0."""

    name: int
    priority: int
    bar: int
    note: int


class _Drawing:
    def __init__(self, look: Look, *, exact: bool) -> None:
        self._look = look
        self._exact = exact
        self._glyphs = _BLOCKS if look.can_show("".join(astuple(_BLOCKS))) else _ASCII

    def lines(self, prompt: Prompt, model: str, *, explain: bool) -> Iterator[str]:
        heading = _heading(prompt, self._look.plain(model))
        yield from (self._painted(line, _BOLD) for line in self._wrapped(heading, self._look.columns))
        yield from self._rows(prompt)
        if explain:
            yield ""
            yield from self._cuts(prompt.cuts)

    def _rows(self, prompt: Prompt) -> Iterator[str]:
        sections = prompt.sections
        capped = {cut.section for cut in prompt.cuts if cut.rung == CAP}
        capped -= {cut.section for cut in prompt.cuts if cut.rung != CAP}
        names = [self._look.plain(section.name) for section in sections]
        notes = [_note(section, capped=section.name in capped) for section in sections]
        sizes = self._sizes([(section.after, "of", section.before) for section in sections])
        largest = max((section.before for section in sections), default=0)
        wanted = _Columns(
            name=_widest(names),
            priority=_widest([section.priority for section in sections]),
            bar=_BAR_CELLS,
            note=_widest(notes),
        )
        columns = _fitting(wanted, self._look.columns - _widest(sizes))
        for section, name, size, note in zip(sections, names, sizes, notes, strict=True):
            cells = [self._fitted(name, columns.name)]
            if columns.priority:
                cells.append(self._painted(f"{section.priority:<{columns.priority}}", _DIM))
            if columns.bar:
                cells.append(self._bar(section, largest, columns.bar))
            cells.append(size)
            if columns.note and note:
                cells.append(self._painted(note, _COLOURS.get(section.action, _YELLOW)))
            yield _GAP.join(cells)

    def _bar(self, section: SectionReport, largest: int, width: int) -> str:
        """As long as the section was, filled as far as it is kept; whatever is there at all can be seen."""
        whole = max(round(width * section.before / largest), 1) if section.before else 0
        kept = min(max(round(width * section.after / largest), 1), whole) if section.after else 0
        if section.after < section.before and kept == whole > 1:
            kept -= 1
        filled = self._painted(self._glyphs.kept * kept, _GREEN)
        light = self._painted(self._glyphs.cut * (whole - kept), _DIM)
        return filled + light + " " * (width - whole)

    def _cuts(self, cuts: Sequence[Cut]) -> Iterator[str]:
        if not cuts:
            yield "nothing was cut"
            return
        names = [self._look.plain(cut.section) for cut in cuts]
        sizes = self._sizes([(cut.before, self._glyphs.arrow, cut.after) for cut in cuts])
        beside_sizes = self._look.columns - _widest(sizes) - len(_GAP)
        name_cells = max(min(_widest(names), _NAME_CELLS, beside_sizes), 1)
        lead = name_cells + _widest(sizes) + 2 * len(_GAP)
        beside = self._look.columns - lead >= _LEAST_REASON_CELLS
        indent = " " * (lead if beside else 4)
        for cut, name, size in zip(cuts, names, sizes, strict=True):
            reason = self._look.plain(f"{cut.rung}: {self._reason(cut)}")
            first, *rest = self._wrapped(reason, self._look.columns - len(indent))
            row = _GAP.join((self._fitted(name, name_cells), size))
            if beside:
                yield _GAP.join((row, first))
            else:
                yield row
                yield indent + first
            yield from (indent + line for line in rest)

    def _reason(self, cut: Cut) -> str:
        """Why it was cut; an estimate that is well below a cap says what keeps it there."""
        bounded = cut.rung == CAP and not self._exact
        return f"{cut.reason}, kept by the bound of an estimate" if bounded else cut.reason

    def _sizes(self, sizes: Sequence[tuple[int, str, int]]) -> list[str]:
        """Two numbers of tokens with a word between, in line with those above and below."""
        shown = [(self._number(one), word, self._number(two)) for one, word, two in sizes]
        left, right = (_widest([size[side] for size in shown]) for side in (0, 2))
        return [f"{one:>{left}} {word} {two:>{right}}" for one, word, two in shown]

    def _number(self, tokens: int) -> str:
        return number(tokens, self._exact or not tokens)  # nothing is nothing, whoever counts

    def _fitted(self, text: str, cells: int) -> str:
        """`text` in exactly so many cells."""
        if cell_len(text) <= cells:
            return set_cell_size(text, cells)
        more = self._glyphs.more[:cells]
        return set_cell_size(set_cell_size(text, cells - len(more)).rstrip() + more, cells)

    def _wrapped(self, text: str, cells: int) -> list[str]:
        lines = [""]
        for word in text.split():
            fitting = word if cell_len(word) <= cells else self._fitted(word, max(cells, 1))
            if lines[-1] and cell_len(f"{lines[-1]} {fitting}") > cells:
                lines.append(fitting)
            else:
                lines[-1] = f"{lines[-1]} {fitting}".lstrip()
        return lines

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if text and self._look.colours else text


def _heading(prompt: Prompt, model: str) -> str:
    count, limit = prompt.count, prompt.limit_tokens
    trust = "exact" if count.exact else "estimated"
    if count.upper != count.tokens:
        trust += f", at most {count.upper:,} ({_percent(count.upper, limit)})"
    tokens = number(count.tokens, count.exact)
    return f"{tokens} of {limit:,} tokens ({_percent(count.tokens, limit)}), {model}, {trust}"


def _percent(tokens: int, limit_tokens: int) -> str:
    return f"{round(100 * tokens / limit_tokens)}%"


def _note(section: SectionReport, *, capped: bool) -> str:
    if section.action is not Action.KEPT:
        return "capped" if capped and section.action is Action.TRUNCATED else str(section.action)
    return "near cap" if is_near(section) else ""


def _fitting(wanted: _Columns, room: int) -> _Columns:
    """What there is room for beside the numbers: first the bar shrinks, then the names; then columns go."""
    least = replace(wanted, bar=_LEAST_BAR_CELLS)
    without_priority = replace(least, priority=0)
    without_bar = replace(without_priority, bar=0)
    without_note = replace(without_bar, note=0)
    for columns in (least, without_priority, without_bar, without_note):
        beside = sum(cells + len(_GAP) for cells in (columns.priority, columns.bar, columns.note) if cells)
        left = room - len(_GAP) - beside
        if left >= min(wanted.name, _LEAST_NAME_CELLS):
            break
    # Names have all the room beyond a bar that is long enough.
    longest = max(_NAME_CELLS, left - (_BAR_CELLS - _LEAST_BAR_CELLS))
    name = max(min(wanted.name, left, longest), 1)
    bar = min(columns.bar + left - name, wanted.bar) if columns.bar else 0
    return replace(columns, name=name, bar=bar)


def _widest(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts), default=0)
