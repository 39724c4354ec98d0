"""Where each section stands while a prompt is made to fit: what is left of it, and what could still be cut."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from foveate.budget.cutting import TextParts, TruncatableText
from foveate.budget.prompt import Action, SectionReport
from foveate.budget.sections import Priority, Section
from foveate.tokens.gauge import TextMeter, TextPart, TextSpan
from foveate.tokens.tape import MeasuredText, Segment
from foveate.values import ZERO_TOKENS, TokenCount

SECTION_SEPARATOR = "\n\n"

_FLOAT_ERROR = 1e-9
_MAX_TOKENS = 10**15


@dataclass(slots=True)
class SectionState:
    """A section on its way into a prompt: what is left of it, how much that is by itself, and what was done.

    `start` is where in its text it begins, for what may still be cut; None where it can only be left out.
    """

    section: Section
    measured_text: MeasuredText
    cap_tokens: int | None
    parts: TextParts
    count: TokenCount
    start: int | None = 0
    action: Action = Action.KEPT

    @property
    def is_required(self) -> bool:
        """Whether it may not be cut for want of room."""
        return self.section.priority is Priority.REQUIRED

    @property
    def is_whole(self) -> bool:
        """Whether nothing was cut of it."""
        return self.action is Action.KEPT

    def keep_only(self, parts: TextParts, action: Action, meter: TextMeter) -> None:
        """Leave only `parts` of it."""
        self.parts, self.action = parts, action
        self.count = meter.count(parts) if parts else ZERO_TOKENS

    def copy_from(self, other: "SectionState") -> None:
        """Leave of it what `other` has."""
        self.parts, self.count, self.start, self.action = other.parts, other.count, other.start, other.action

    def truncatable_text(self) -> TruncatableText | None:
        """What it can be cut from; None where it can only be left out."""
        if self.start is None:
            return None
        text, items = self.measured_text.text, self.section.items
        # Blank lines around it are not worth their tokens once something has to go.
        leading_chars = len(text) - len(text.lstrip())
        start, end = max(self.start, text.rfind("\n", 0, leading_chars) + 1), len(text.rstrip())
        if items is None:
            return TruncatableText(
                measured_text=self.measured_text, keep=self.section.keep, start=start, end=end
            )
        ends = list(accumulate(len(item.text) + 1 for item in items))
        spans = [(last - 1 - len(item.text), last - 1) for item, last in zip(items, ends, strict=True)]
        nonblank = [number for number, item in enumerate(items) if item.text.strip()]
        ranking = sorted(nonblank, key=lambda number: _rank_key(items[number].score), reverse=True)
        return TruncatableText(
            measured_text=self.measured_text,
            keep=self.section.keep,
            start=start,
            end=end,
            items=spans,
            ranking=ranking,
        )

    def report(self) -> SectionReport:
        """How it stands."""
        return build_section_report(
            self.section,
            self.measured_text,
            self.cap_tokens,
            parts_to_text(self.parts),
            self.count,
            self.action,
        )


def build_section_report(
    section: Section,
    measured_text: MeasuredText,
    cap_tokens: int | None,
    text: str,
    after: TokenCount,
    action: Action,
) -> SectionReport:
    """What became of a section, in a value of its own."""
    # By place and not by name: a call by name takes twice as long, and prompts have many sections.
    return SectionReport(
        section.name,
        section.priority,
        section.stability,
        measured_text.total.tokens,
        after.tokens,
        after.upper,
        cap_tokens,
        action,
        text,
    )


def initial_state(section: Section, measured_text: MeasuredText, cap_tokens: int | None) -> SectionState:
    """A section whole, before any cut; a disabled one takes nothing."""
    parts = (measured_text,) if measured_text.text else ()
    return SectionState(
        section, measured_text, cap_tokens, parts, measured_text.total, action=uncut_action(section)
    )


def uncut_action(section: Section) -> Action:
    """What became of a section that was not cut."""
    return Action.KEPT if section.enabled else Action.DISABLED


def join_parts(states: Iterable[SectionState]) -> list[TextPart]:
    """What is left of them, with a blank line between."""
    parts = [part for state in states if state.parts for part in (SECTION_SEPARATOR, *state.parts)]
    return parts[1:]


def count_states(states: Sequence[SectionState], meter: TextMeter) -> TokenCount:
    """How many tokens what is left of them is, joined and counted whole."""
    present = [state for state in states if state.parts]
    measured_texts = [state.measured_text for state in present if state.is_whole]
    if len(measured_texts) == len(present):
        return meter.count_joined(measured_texts, SECTION_SEPARATOR)
    return meter.count(join_parts(present))


def parts_to_text(parts: Iterable[TextPart]) -> str:
    """`parts` as the text that they are."""
    return "".join([part if isinstance(part, str) else _part_text(part) for part in parts])


def _part_text(part: TextSpan | MeasuredText | Segment) -> str:
    if isinstance(part, MeasuredText):
        return part.text
    if isinstance(part, TextSpan):
        return part.measured_text.text[part.start : part.end]
    raise TypeError("a run has given up its text")


def effective_cap(section: Section, limit_tokens: int) -> int | None:
    """A section's own cap: the smaller of its number and its share of the limit."""
    if section.share is None:
        return section.max_tokens
    # 0.29 of 100 is 28.999999999999996, and no float is as large as some numbers that can be written.
    share_tokens = int(section.share * min(limit_tokens, _MAX_TOKENS) + _FLOAT_ERROR)
    return share_tokens if section.max_tokens is None else min(section.max_tokens, share_tokens)


def _rank_key(score: float | None) -> tuple[bool, float]:
    """What ranks an item: its score; those without one come after all others, in their order."""
    return (False, 0.0) if score is None else (True, score)
