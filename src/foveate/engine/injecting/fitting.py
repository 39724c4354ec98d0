"""Sections made to fit: what is stable first, since a cut of it costs all that is cached behind it."""

from collections.abc import Sequence
from dataclasses import dataclass

from foveate.budget.assembly import assemble
from foveate.budget.budgets import Budget
from foveate.budget.prompt import Action, SectionReport
from foveate.budget.sections import Section
from foveate.cache.stability import InjectedBlock, layer_of, ordered
from foveate.errors import BudgetExceeded
from foveate.tokens.gauge import Gauge
from foveate.tokens.memo import digest
from foveate.values import NOTHING, TokenCount

# What a block takes around its text, at most.
BLOCK_TOKENS = 4
# How often the limit of what is stable is halved until it is left out: each time its prefix may be another one.
_MOST_HALVES = 9


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


def stable_limit(total_tokens: int, room_tokens: int | None) -> int:
    """How many tokens the stable sections may have: all, or so many halvings of it as there is room for.

    They are cut in few steps and not as far as it takes, so that the prefix stays the same for many requests
    while a history grows.
    """
    if room_tokens is None:
        return total_tokens
    for halves in range(_MOST_HALVES + 1):
        if total_tokens >> halves <= room_tokens:
            return total_tokens >> halves
    return 0


def fit(sections: Sequence[Section], budget: Budget, *, limit_tokens: int, gauge: Gauge) -> Part:
    """The sections most stable first, cut by the budget's ladder until they fit; what does not is left out.

    Where not even what is required fits, none is there.
    """
    asked = [section for section in sections if section.text.strip()]
    if not asked:
        return NO_PART
    blocks = [
        InjectedBlock(name=section.name, layer=layer_of(section.name, section.stability), text="")
        for section in asked
    ]
    rank = {block.name: place for place, block in enumerate(ordered(blocks))}
    asked.sort(key=lambda section: rank[section.name])
    around = BLOCK_TOKENS * len(asked)
    names = {section.name for section in asked}
    rules = {name: rule for name, rule in budget.sections.items() if name in names}
    try:
        prompt = assemble(
            asked, limit_tokens=max(0, limit_tokens - around), ladder=budget.ladder, gauge=gauge, rules=rules
        )
    except BudgetExceeded as error:
        return Part(left_out=(f"{', '.join(sorted(names))}: {error}",))
    why = {cut.section: f"{cut.rung}: {cut.reason}" for cut in prompt.cuts}
    kept = tuple(
        Fitted(name=one.name, text=one.text, tokens=one.after, reason=_reason(one, why))
        for one in prompt.sections
        if one.text.strip()
    )
    gone = [one for one in prompt.sections if not one.text.strip() and one.action is not Action.DISABLED]
    if not kept:
        return Part(left_out=tuple(_gone(one, why) for one in gone))
    count = prompt.count + TokenCount(BLOCK_TOKENS * len(kept), False, BLOCK_TOKENS * len(kept))
    return Part(
        version=digest(*(one.text.encode("utf-8", "surrogatepass") for one in kept)),
        sections=kept,
        count=count,
        reports=prompt.sections,
        left_out=tuple(_gone(one, why) for one in gone),
    )


def _reason(report: SectionReport, why: dict[str, str]) -> str:
    said = f"section {report.name}, {report.after:,} tokens"
    if report.action is Action.KEPT:
        return said
    return f"{said} of {report.before:,} ({why.get(report.name, report.action.value)})"


def _gone(report: SectionReport, why: dict[str, str]) -> str:
    return f"{report.name}: left out, {report.before:,} tokens ({why.get(report.name, report.action.value)})"
