"""The assembled prompt, and what was done to make it fit."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from foveate.budget.sections import Priority, Stability
from foveate.model import TokenCount

BUDGET_SECTION_NAME = "context_budget"
"""The name of the section that shows the budget; it has no line of its own, but counts with the others."""


class LimitSource(StrEnum):
    """Who said how many tokens there are, the first of them that says something."""

    CALL = "call"
    ENVIRONMENT = "environment"
    AGENT = "agent"
    CONFIGURATION = "configuration"
    WINDOW = "window"
    DEFAULT = "default"


class Action(StrEnum):
    """What became of a section."""

    KEPT = "kept"
    TRUNCATED = "truncated"
    REPLACED = "replaced"
    DROPPED = "dropped"
    DISABLED = "disabled"


class SectionReport(msgspec.Struct, frozen=True):
    """A section as it stands in the prompt: its text, and its tokens before and after all cuts.

    `upper` is the bound of what it takes after all cuts, by which limit and caps are kept; with an exact
    counter it is the same as `after`. `cap_tokens` is its own cap, by number or by share, or None where it has
    none. Prompts can have thousands of these, so they are msgspec's, which are made faster than dataclasses.
    """

    name: str
    priority: Priority
    stability: Stability
    before: int
    after: int
    upper: int
    cap_tokens: int | None
    action: Action
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One cut: what was cut, by which rung (`cap` for a section's own cap), its tokens, and why."""

    section: str
    rung: str
    before: int
    after: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt that fits: its text, counted whole, and how it came about.

    `limit_source` says whose number the limit is. `unmatched` are names in the budget's rules, and in a ladder
    of one's own, that no section has: with a typo in its name a rule holds for nothing.
    """

    text: str
    count: TokenCount
    limit_tokens: int
    sections: tuple[SectionReport, ...]
    cuts: tuple[Cut, ...]
    limit_source: LimitSource = LimitSource.CALL
    unmatched: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """How many tokens the text is, counted whole."""
        return self.count.tokens

    @property
    def report(self) -> str:
        """What fills the prompt, as an agent can be shown it."""
        return render_budget_section(self.sections, tokens=self.count.upper, limit_tokens=self.limit_tokens)


def render_budget_section(sections: Iterable[SectionReport], *, tokens: int, limit_tokens: int) -> str:
    """The section `## Context Budget`: the whole, then a line for each section that is not disabled.

    Where tokens are estimated the numbers are bounds, since those are what limit and caps are kept by.
    """
    percent = round(100 * tokens / limit_tokens) if limit_tokens else 100
    lines = ["## Context Budget", f"Using {tokens}/{limit_tokens} tokens ({percent}%)"]
    lines += [
        _section_line(section)
        for section in sections
        if section.action is not Action.DISABLED and section.name != BUDGET_SECTION_NAME
    ]
    return "\n".join(lines)


def is_near_cap(section: SectionReport) -> bool:
    """Whether a section takes 95% of its cap or more; of a cap of nothing there is nothing to take."""
    cap_tokens = section.cap_tokens
    # In whole numbers, as no float is as large as some caps that can be written.
    return cap_tokens is not None and 20 * section.upper >= 19 * cap_tokens > 0


def _section_line(section: SectionReport) -> str:
    if section.cap_tokens is None:
        return f"- {section.name}: {section.upper}"
    near = " (near limit!)" if is_near_cap(section) else ""
    return f"- {section.name}: {section.upper}/{section.cap_tokens}{near}"
