"""Fits all injected sections in one pass by priority, and groups them by where they are placed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from foveate.budget.assemble import CAP_RUNG, assemble_prompt
from foveate.budget.budget import Budget
from foveate.budget.ladder import (
    DROP_LOW_PRIORITY,
    TRUNCATE_LOW_PRIORITY,
    Drop,
    Ladder,
    Truncate,
    effective_cap,
)
from foveate.budget.prompt import Action, Prompt, SectionReport
from foveate.budget.sections import Priority, Section, Stability
from foveate.caching import hash_bytes
from foveate.errors import BudgetExceeded
from foveate.model import ZERO_TOKENS, TokenCount
from foveate.prompt_cache.stable_order import InjectedBlock, find_layer, order_blocks
from foveate.tokens.text_meter import TextMeter

# Framing of a block, at most.
BLOCK_TOKENS = 4
# A truncated stable section gets a multiple of an eighth of the limit, below that a half of it, a quarter and
# so on. So the prefix stays the same for many requests while the history and the sections of a turn vary.
_SIZE_STEPS = 8
_MAX_HALVES = 9

TURN_HEADING = "[Foveate: context for this turn, not written by the user.]"
"""Precedes the sections of a turn, since they are part of a user message."""

TURN_HEADING_TOKENS = 32
"""Upper bound of its tokens, with the blank line after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSection:
    name: str
    text: str
    tokens: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionGroup:
    """Sections that are placed together, in order, their tokens, and what was left out.

    `version` identifies their texts.
    """

    version: bytes = b""
    sections: tuple[FittedSection, ...] = ()
    count: TokenCount = ZERO_TOKENS
    reports: tuple[SectionReport, ...] = ()
    left_out: tuple[str, ...] = ()


EMPTY_GROUP = SectionGroup()


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSections:
    stable: SectionGroup = EMPTY_GROUP
    turn: SectionGroup = EMPTY_GROUP

    @property
    def count(self) -> TokenCount:
        """The tokens of both groups, with the heading of the turn."""
        heading = TURN_HEADING_TOKENS if self.turn.sections else 0
        return self.stable.count + self.turn.count + TokenCount(heading, False, heading)

    @property
    def is_complete(self) -> bool:
        """False if a section was truncated or left out."""
        reports = (*self.stable.reports, *self.turn.reports)
        return not (self.stable.left_out or self.turn.left_out) and all(
            report.action is Action.KEPT for report in reports
        )


NO_SECTIONS = FittedSections()


def find_additions(before: SectionGroup, after: SectionGroup) -> list[tuple[str, str]]:
    """The names of sections, and the lines that were added to their ends; new sections are whole. Empty if
    anything else has changed.

    A text that was changed or removed must not be sent any longer: it may be private now.
    """
    texts = {section.name: section.text for section in before.sections}
    if not texts or not texts.keys() <= {section.name for section in after.sections}:
        return []
    additions = []
    for section in after.sections:
        text = texts.get(section.name, "")
        if section.text == text:
            continue
        if text and not section.text.startswith(f"{text}\n"):
            return []
        additions.append((section.name, section.text[len(text) :].strip("\n")))
    return additions


def round_stable_size(tokens: int, limit_tokens: int) -> int:
    """Round the size of a stable section down to one of few sizes."""
    step = limit_tokens // _SIZE_STEPS
    if step and tokens >= step:
        return tokens // step * step
    return next((step >> halves for halves in range(_MAX_HALVES) if step >> halves <= tokens), 0)


def prepare_sections(sections: Sequence[Section], budget: Budget, total_tokens: int) -> list[Section]:
    """Apply the budget's rules to sections with text, and sort them, most stable first."""
    ruled_sections = [
        _apply_rule(section, budget, total_tokens) for section in sections if section.text.strip()
    ]
    blocks = [
        InjectedBlock(name=section.name, layer=find_layer(section.name, section.stability), text="")
        for section in ruled_sections
    ]
    rank = {block.name: place for place, block in enumerate(order_blocks(blocks))}
    return sorted(ruled_sections, key=lambda section: rank[section.name])


def fit_sections(
    sections: Sequence[Section], ladder: Ladder, *, limit_tokens: int, meter: TextMeter
) -> FittedSections:
    """Reduce prepared sections by the ladder until all fit, and group them by stability.

    Raises:
        BudgetExceeded: the required sections do not fit, or the ladder ends before all sections fit.
    """
    if not sections:
        return NO_SECTIONS
    try:
        return _fit_once(sections, ladder, limit_tokens, meter)
    except BudgetExceeded as error:
        cuts_anything = any(isinstance(rung, Truncate | Drop) and not rung.sections for rung in ladder.rungs)
        if not cuts_anything:
            raise
        try:  # blocks of sections that are left out take nothing
            return fit_required(sections, limit_tokens=limit_tokens, meter=meter)
        except BudgetExceeded:
            raise error from None  # this error names all sections


def fit_required(sections: Sequence[Section], *, limit_tokens: int, meter: TextMeter) -> FittedSections:
    """Fit the required sections, and leave out the others.

    Raises:
        BudgetExceeded: they do not fit.
    """
    required = [section for section in sections if section.priority is Priority.REQUIRED]
    others = [section for section in sections if section.priority is not Priority.REQUIRED]
    fitted = _fit_once(required, DROP_LOW_PRIORITY, limit_tokens, meter) if required else NO_SECTIONS
    return _with_left_out(fitted, others, meter)


def fit_in_room(
    sections: Sequence[Section], ladder: Ladder, *, limit_tokens: int, room_tokens: int, meter: TextMeter
) -> FittedSections:
    """Fit prepared sections in the room of the window, which may be less than their limit.

    If the window is too small for what the ladder leaves, the lowest priorities are left out. The required
    sections are never left out.

    Raises:
        BudgetExceeded: the sections do not fit in their own limit.
    """
    if room_tokens >= limit_tokens:
        return fit_sections(sections, ladder, limit_tokens=limit_tokens, meter=meter)
    try:
        return fit_sections(sections, ladder, limit_tokens=room_tokens, meter=meter)
    except BudgetExceeded:
        fit_sections(sections, ladder, limit_tokens=limit_tokens, meter=meter)
    try:
        return fit_sections(sections, DROP_LOW_PRIORITY, limit_tokens=room_tokens, meter=meter)
    except BudgetExceeded:
        return fit_required(sections, limit_tokens=limit_tokens, meter=meter)


def _fit_once(
    sections: Sequence[Section], ladder: Ladder, limit_tokens: int, meter: TextMeter
) -> FittedSections:
    framing_tokens = BLOCK_TOKENS * len(sections) + (
        0 if all(map(_is_stable, sections)) else TURN_HEADING_TOKENS
    )
    prompt = assemble_prompt(
        sections, limit_tokens=max(0, limit_tokens - framing_tokens), ladder=ladder, meter=meter
    )
    reports = _round_stable_sizes(sections, prompt, limit_tokens, meter) if prompt.cuts else prompt.sections
    cut_reasons = {cut.section: f"{cut.rung}: {cut.reason}" for cut in prompt.cuts}
    stable_count = sum(map(_is_stable, sections))
    stable_group = _group_sections(reports[:stable_count], cut_reasons)
    turn_group = _group_sections(reports[stable_count:], cut_reasons)
    # Bounds are rounded per group, so that their sum may exceed the bound of the whole.
    excess_tokens = max(
        0, stable_group.count.upper + turn_group.count.upper - prompt.count.upper - BLOCK_TOKENS * len(sections)
    )
    upper = max(turn_group.count.tokens, turn_group.count.upper - excess_tokens)
    return FittedSections(
        stable=stable_group, turn=replace(turn_group, count=TokenCount(turn_group.count.tokens, False, upper))
    )


def _round_stable_sizes(
    sections: Sequence[Section], prompt: Prompt, limit_tokens: int, meter: TextMeter
) -> tuple[SectionReport, ...]:
    """Truncate stable sections further, to one of few sizes, if they were truncated for lack of room."""
    cut_names = {cut.section for cut in prompt.cuts if cut.rung != CAP_RUNG}
    rounded = []
    for section, report in zip(sections, prompt.sections, strict=True):
        if _is_stable(section) and report.action is Action.TRUNCATED and report.name in cut_names:
            size = round_stable_size(report.upper, limit_tokens)
            capped = replace(section, max_tokens=size, share=None)
            cut = assemble_prompt(
                [capped], limit_tokens=size, ladder=TRUNCATE_LOW_PRIORITY, meter=meter
            ).sections[0]
            rounded.append(structs.replace(cut, cap_tokens=report.cap_tokens, before=report.before))
        else:
            rounded.append(report)
    return tuple(rounded)


def _group_sections(reports: Sequence[SectionReport], cut_reasons: dict[str, str]) -> SectionGroup:
    sections = tuple(
        FittedSection(
            name=report.name,
            text=report.text,
            tokens=report.after,
            reason=_describe_section(report, cut_reasons),
        )
        for report in reports
        if report.text.strip()
    )
    removed = [report for report in reports if not report.text.strip() and report.action is not Action.DISABLED]
    left_out = tuple(_describe_left_out(report, cut_reasons) for report in removed)
    if not sections:
        return SectionGroup(left_out=left_out)
    tokens = sum(report.after for report in reports) + BLOCK_TOKENS * len(sections)
    upper = sum(report.upper for report in reports) + BLOCK_TOKENS * len(sections)
    return SectionGroup(
        version=hash_bytes(*(report.text.encode("utf-8", "surrogatepass") for report in sections)),
        sections=sections,
        count=TokenCount(tokens, False, upper),
        reports=tuple(reports),
        left_out=left_out,
    )


def _with_left_out(fitted: FittedSections, sections: Sequence[Section], meter: TextMeter) -> FittedSections:
    left_out: dict[bool, list[str]] = {True: [], False: []}
    for section in sections:
        if section.enabled:
            tokens = meter.measure(section.text).total.tokens
            reason = f"{section.name}: left out, {tokens:,} tokens (only required sections fit)"
            left_out[_is_stable(section)].append(reason)
    return FittedSections(
        stable=replace(fitted.stable, left_out=(*fitted.stable.left_out, *left_out[True])),
        turn=replace(fitted.turn, left_out=(*fitted.turn.left_out, *left_out[False])),
    )


def _apply_rule(section: Section, budget: Budget, total_tokens: int) -> Section:
    rule = budget.sections.get(section.name)
    changed = section if rule is None else rule.applied(section)
    return (
        changed
        if changed.share is None
        else replace(changed, share=None, max_tokens=effective_cap(changed, total_tokens))
    )


def _is_stable(section: Section) -> bool:
    return section.stability is not Stability.TURN


def _describe_section(report: SectionReport, cut_reasons: dict[str, str]) -> str:
    description = f"section {report.name}, {report.after:,} tokens"
    if report.action is Action.KEPT:
        return description
    return f"{description} of {report.before:,} ({cut_reasons.get(report.name, report.action.value)})"


def _describe_left_out(report: SectionReport, cut_reasons: dict[str, str]) -> str:
    reason = cut_reasons.get(report.name, report.action.value)
    return f"{report.name}: left out, {report.before:,} tokens ({reason})"
