"""All injected sections fitted in one pass by priority, then parted by where they stand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from foveate.budget.assembly import CAP, assemble
from foveate.budget.budgets import Budget
from foveate.budget.ladders import DROP_LOW_PRIORITY, TRUNCATE_LOW_PRIORITY, Drop, Ladder, Truncate
from foveate.budget.prompt import Action, Prompt, SectionReport
from foveate.budget.sections import Priority, Section, Stability
from foveate.budget.standing import cap_of
from foveate.cache.stability import InjectedBlock, layer_of, ordered
from foveate.engine.injecting.telling import HEADING_TOKENS
from foveate.errors import BudgetExceeded
from foveate.tokens.gauge import Gauge
from foveate.tokens.memo import digest
from foveate.values import NOTHING, TokenCount

# What a block takes around its text, at most.
BLOCK_TOKENS = 4
# A stable section that is cut gets a multiple of an eighth of the limit, and below that a half of it, a quarter
# and so on. So the prefix stays the same for many requests while the history and the sections of a turn vary.
_STEPS = 8
_MAX_HALVES = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A section as it is sent: its text, how many tokens that is, and in words why it is there."""

    name: str
    text: str
    tokens: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The sections that stand together, in their order, how many tokens they take, and what had to go.

    `version` tells their texts from all others.
    """

    version: bytes = b""
    sections: tuple[Fitted, ...] = ()
    count: TokenCount = NOTHING
    reports: tuple[SectionReport, ...] = ()
    left_out: tuple[str, ...] = ()


NO_PART = Part()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The sections behind the system prompt, and those behind the history."""

    stable: Part = NO_PART
    turn: Part = NO_PART

    @property
    def count(self) -> TokenCount:
        """The tokens of both, with the line before those of a turn."""
        heading = HEADING_TOKENS if self.turn.sections else 0
        return self.stable.count + self.turn.count + TokenCount(heading, False, heading)

    @property
    def is_whole(self) -> bool:
        """Whether nothing was cut or left out."""
        reports = (*self.stable.reports, *self.turn.reports)
        return not (self.stable.left_out or self.turn.left_out) and all(
            report.action is Action.KEPT for report in reports
        )


NO_FIT = Fit()


def stable_size(tokens: int, limit_tokens: int) -> int:
    """Round the tokens that a stable section can have down to one of few sizes."""
    step = limit_tokens // _STEPS
    if step and tokens >= step:
        return tokens // step * step
    return next((step >> halves for halves in range(_MAX_HALVES) if step >> halves <= tokens), 0)


def prepare_sections(sections: Sequence[Section], budget: Budget, total_tokens: int) -> list[Section]:
    """Apply the budget's rules to the sections that have a text, and sort them most stable first."""
    asked = [_ruled(section, budget, total_tokens) for section in sections if section.text.strip()]
    blocks = [
        InjectedBlock(name=section.name, layer=layer_of(section.name, section.stability), text="")
        for section in asked
    ]
    rank = {block.name: place for place, block in enumerate(ordered(blocks))}
    return sorted(asked, key=lambda section: rank[section.name])


def fit(sections: Sequence[Section], ladder: Ladder, *, limit_tokens: int, gauge: Gauge) -> Fit:
    """Cut prepared sections by the ladder until all of them fit, and part them by stability.

    Raises:
        BudgetExceeded: the required sections do not fit, or the ladder ends before all sections fit.
    """
    if not sections:
        return NO_FIT
    try:
        return _fit(sections, ladder, limit_tokens, gauge)
    except BudgetExceeded as error:
        cuts_anything = any(isinstance(rung, Truncate | Drop) and not rung.sections for rung in ladder.rungs)
        if not cuts_anything:
            raise
        try:  # blocks of sections that are left out take nothing
            return fit_required(sections, limit_tokens=limit_tokens, gauge=gauge)
        except BudgetExceeded:
            raise error from None  # it names all sections


def fit_required(sections: Sequence[Section], *, limit_tokens: int, gauge: Gauge) -> Fit:
    """Fit the required ones of prepared sections, and leave out the others.

    Raises:
        BudgetExceeded: they do not fit.
    """
    required = [section for section in sections if section.priority is Priority.REQUIRED]
    others = [section for section in sections if section.priority is not Priority.REQUIRED]
    found = _fit(required, DROP_LOW_PRIORITY, limit_tokens, gauge) if required else NO_FIT
    return _with_left_out(found, others, gauge)


def fit_in_room(
    sections: Sequence[Section], ladder: Ladder, *, limit_tokens: int, room_tokens: int, gauge: Gauge
) -> Fit:
    """Fit prepared sections in the room that the window has, which may be less than their limit.

    If the window is what is too small for all that the ladder leaves, the lowest priorities are left out. The
    required sections are there in any case.

    Raises:
        BudgetExceeded: the sections do not fit in their own limit.
    """
    if room_tokens >= limit_tokens:
        return fit(sections, ladder, limit_tokens=limit_tokens, gauge=gauge)
    try:
        return fit(sections, ladder, limit_tokens=room_tokens, gauge=gauge)
    except BudgetExceeded:
        fit(sections, ladder, limit_tokens=limit_tokens, gauge=gauge)
    try:
        return fit(sections, DROP_LOW_PRIORITY, limit_tokens=room_tokens, gauge=gauge)
    except BudgetExceeded:
        return fit_required(sections, limit_tokens=limit_tokens, gauge=gauge)


def _fit(sections: Sequence[Section], ladder: Ladder, limit_tokens: int, gauge: Gauge) -> Fit:
    around = BLOCK_TOKENS * len(sections) + (0 if all(map(_is_stable, sections)) else HEADING_TOKENS)
    prompt = assemble(sections, limit_tokens=max(0, limit_tokens - around), ladder=ladder, gauge=gauge)
    reports = _in_few_sizes(sections, prompt, limit_tokens, gauge) if prompt.cuts else prompt.sections
    why = {cut.section: f"{cut.rung}: {cut.reason}" for cut in prompt.cuts}
    stable = sum(map(_is_stable, sections))
    before, behind = _part(reports[:stable], why), _part(reports[stable:], why)
    # The bounds of parts are rounded each, and together can be more than that of the whole.
    over = max(0, before.count.upper + behind.count.upper - prompt.count.upper - BLOCK_TOKENS * len(sections))
    upper = max(behind.count.tokens, behind.count.upper - over)
    return Fit(stable=before, turn=replace(behind, count=TokenCount(behind.count.tokens, False, upper)))


def _in_few_sizes(
    sections: Sequence[Section], prompt: Prompt, limit_tokens: int, gauge: Gauge
) -> tuple[SectionReport, ...]:
    """Cut stable sections that were cut for want of room a little further, to one of few sizes."""
    wanting = {cut.section for cut in prompt.cuts if cut.rung != CAP}
    found = []
    for section, report in zip(sections, prompt.sections, strict=True):
        if _is_stable(section) and report.action is Action.TRUNCATED and report.name in wanting:
            size = stable_size(report.upper, limit_tokens)
            capped = replace(section, max_tokens=size, share=None)
            cut = assemble([capped], limit_tokens=size, ladder=TRUNCATE_LOW_PRIORITY, gauge=gauge).sections[0]
            found.append(structs.replace(cut, cap_tokens=report.cap_tokens, before=report.before))
        else:
            found.append(report)
    return tuple(found)


def _part(reports: Sequence[SectionReport], why: dict[str, str]) -> Part:
    kept = tuple(
        Fitted(name=one.name, text=one.text, tokens=one.after, reason=_reason(one, why))
        for one in reports
        if one.text.strip()
    )
    gone = [one for one in reports if not one.text.strip() and one.action is not Action.DISABLED]
    left_out = tuple(_gone(one, why) for one in gone)
    if not kept:
        return Part(left_out=left_out)
    tokens = sum(one.after for one in reports) + BLOCK_TOKENS * len(kept)
    upper = sum(one.upper for one in reports) + BLOCK_TOKENS * len(kept)
    return Part(
        version=digest(*(one.text.encode("utf-8", "surrogatepass") for one in kept)),
        sections=kept,
        count=TokenCount(tokens, False, upper),
        reports=tuple(reports),
        left_out=left_out,
    )


def _with_left_out(found: Fit, sections: Sequence[Section], gauge: Gauge) -> Fit:
    gone: dict[bool, list[str]] = {True: [], False: []}
    for section in sections:
        if section.enabled:
            tokens = gauge.tape(section.text).total.tokens
            said = f"{section.name}: left out, {tokens:,} tokens (there is only room for what is required)"
            gone[_is_stable(section)].append(said)
    return Fit(
        stable=replace(found.stable, left_out=(*found.stable.left_out, *gone[True])),
        turn=replace(found.turn, left_out=(*found.turn.left_out, *gone[False])),
    )


def _ruled(section: Section, budget: Budget, total_tokens: int) -> Section:
    """Apply the budget's rule for a section, with its share as a number of tokens."""
    rule = budget.sections.get(section.name)
    ruled = section if rule is None else rule.applied(section)
    return ruled if ruled.share is None else replace(ruled, share=None, max_tokens=cap_of(ruled, total_tokens))


def _is_stable(section: Section) -> bool:
    return section.stability is not Stability.TURN


def _reason(report: SectionReport, why: dict[str, str]) -> str:
    said = f"section {report.name}, {report.after:,} tokens"
    if report.action is Action.KEPT:
        return said
    return f"{said} of {report.before:,} ({why.get(report.name, report.action.value)})"


def _gone(report: SectionReport, why: dict[str, str]) -> str:
    return f"{report.name}: left out, {report.before:,} tokens ({why.get(report.name, report.action.value)})"
