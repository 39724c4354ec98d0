"""The assembled prompt, and what was done to make it fit."""

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from foveate.budget.sections import Priority, Stability
from foveate.values import TokenCount


class Action(StrEnum):
    """What became of a section."""

    KEPT = "kept"
    TRUNCATED = "truncated"
    REPLACED = "replaced"
    DROPPED = "dropped"
    DISABLED = "disabled"


class SectionReport(msgspec.Struct, frozen=True):
    """A section as it stands in the prompt: its text, and its tokens before and after all cuts.

    `cap_tokens` is its own cap, by number or by share, or None where it has none. Every prompt has one for each
    section, so they are msgspec's, which are made five times as fast as dataclasses.
    """

    name: str
    priority: Priority
    stability: Stability
    before: int
    after: int
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
    """A prompt that fits: its text, counted whole, and how it came about."""

    text: str
    count: TokenCount
    limit_tokens: int
    sections: tuple[SectionReport, ...]
    cuts: tuple[Cut, ...]

    @property
    def tokens(self) -> int:
        """How many tokens the text is, counted whole."""
        return self.count.tokens

    @property
    def report(self) -> str:
        """What fills the prompt, as an agent can be shown it."""
        from foveate.budget.report import report

        return report(self)
