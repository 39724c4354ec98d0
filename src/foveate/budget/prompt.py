"""The assembled prompt, and a report of what was done to make it fit."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from foveate.budget.sections import Priority, Stability
from foveate.model import TokenCount

BUDGET_SECTION_NAME = "context_budget"
"""Name of the section that reports the budget. It counts, but has no line of its own in the report."""


class LimitSource(StrEnum):
    """Who set the limit. The first of these that is given applies."""

    CALL = "call"
    ENVIRONMENT = "environment"
    AGENT = "agent"
    CONFIGURATION = "configuration"
    WINDOW = "window"
    DEFAULT = "default"


class Action(StrEnum):
    KEPT = "kept"
    TRUNCATED = "truncated"
    REPLACED = "replaced"
    DROPPED = "dropped"
    DISABLED = "disabled"


class SectionReport(msgspec.Struct, frozen=True):
    """A section in the prompt: its text, and its tokens before and after all cuts.

    `upper` is the upper bound after all cuts, which limits and caps apply to; for exact counters it equals
    `after`. `cap_tokens` is the section's own cap, by number or share, or None. A struct of msgspec, since
    prompts can have thousands of these.
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
    """One cut: the section, the rung (`cap` for the section's own cap), tokens before and after, and the
    reason.
    """

    section: str
    rung: str
    before: int
    after: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt that fits: its text, the count of the whole text, and how it was made.

    `limit_source` tells who set the limit. `unmatched` are names in the rules and in a custom ladder that no
    section has, which are often typos.
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
        """Tokens of the whole text."""
        return self.count.tokens

    @property
    def report(self) -> str:
        """The budget as an agent can be shown it."""
        return render_budget_section(self.sections, tokens=self.count.upper, limit_tokens=self.limit_tokens)


def render_budget_section(sections: Iterable[SectionReport], *, tokens: int, limit_tokens: int) -> str:
    """Write the section `## Context Budget`: the total, then a line for each section that is not disabled.

    Estimates are shown as upper bounds, since limits and caps apply to those.
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
    """Return whether a section has reached 95% of its cap. A cap of 0 does not count."""
    cap_tokens = section.cap_tokens
    # Integers, since a cap can exceed the largest float.
    return cap_tokens is not None and 20 * section.upper >= 19 * cap_tokens > 0


def _section_line(section: SectionReport) -> str:
    if section.cap_tokens is None:
        return f"- {section.name}: {section.upper}"
    warning = " (near limit!)" if is_near_cap(section) else ""
    return f"- {section.name}: {section.upper}/{section.cap_tokens}{warning}"
