"""Where each section stands while a prompt is made to fit: what is left of it, and what could still be cut."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from foveate.budget.cutting import Body, Parts
from foveate.budget.prompt import Action, SectionReport
from foveate.budget.sections import Priority, Section
from foveate.tokens.gauge import Gauge, Part, Span
from foveate.tokens.tape import Run, Tape
from foveate.values import NOTHING, TokenCount

SEPARATOR = "\n\n"

_FLOAT_ERROR = 1e-9
_MOST_TOKENS = 10**15


@dataclass(slots=True)
class Standing:
    """A section on its way into a prompt: what is left of it, how much that is by itself, and what was done.

    `start` is where in its text it begins, for what may still be cut; None where it can only be left out.
    """

    section: Section
    tape: Tape
    cap_tokens: int | None
    parts: Parts
    after: TokenCount
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

    def leave(self, parts: Parts, action: Action, gauge: Gauge) -> None:
        """Leave only `parts` of it."""
        self.parts, self.action = parts, action
        self.after = gauge.count(parts) if parts else NOTHING

    def become(self, other: "Standing") -> None:
        """Leave of it what `other` has."""
        self.parts, self.after, self.start, self.action = other.parts, other.after, other.start, other.action

    def body(self) -> Body | None:
        """What it can be cut from; None where it can only be left out."""
        if self.start is None:
            return None
        text, items = self.tape.text, self.section.items
        # Blank lines around it are not worth their tokens once something has to go.
        blank = len(text) - len(text.lstrip())
        start, end = max(self.start, text.rfind("\n", 0, blank) + 1), len(text.rstrip())
        if items is None:
            return Body(tape=self.tape, keep=self.section.keep, start=start, end=end)
        ends = list(accumulate(len(item.text) + 1 for item in items))
        spans = [(last - 1 - len(item.text), last - 1) for item, last in zip(items, ends, strict=True)]
        worth = [number for number, item in enumerate(items) if item.text.strip()]
        ranking = sorted(worth, key=lambda number: _rank(items[number].score), reverse=True)
        return Body(tape=self.tape, keep=self.section.keep, start=start, end=end, items=spans, ranking=ranking)

    def report(self) -> SectionReport:
        """How it stands."""
        return report(self.section, self.tape, self.cap_tokens, text_of(self.parts), self.after, self.action)


def report(
    section: Section, tape: Tape, cap_tokens: int | None, text: str, after: TokenCount, action: Action
) -> SectionReport:
    """What became of a section, in a value of its own."""
    # By place and not by name: a call by name takes twice as long, and prompts have many sections.
    return SectionReport(
        section.name,
        section.priority,
        section.stability,
        tape.total.tokens,
        after.tokens,
        after.upper,
        cap_tokens,
        action,
        text,
    )


def stand(section: Section, tape: Tape, cap_tokens: int | None) -> Standing:
    """A section whole, before any cut; a disabled one takes nothing."""
    parts = (tape,) if tape.text else ()
    return Standing(section, tape, cap_tokens, parts, tape.total, action=untouched(section))


def untouched(section: Section) -> Action:
    """What became of a section that was not cut."""
    return Action.KEPT if section.enabled else Action.DISABLED


def joined(standings: Iterable[Standing]) -> list[Part]:
    """What is left of them, with a blank line between."""
    parts = [part for standing in standings if standing.parts for part in (SEPARATOR, *standing.parts)]
    return parts[1:]


def count_of(standings: Sequence[Standing], gauge: Gauge) -> TokenCount:
    """How many tokens what is left of them is, joined and counted whole."""
    there = [standing for standing in standings if standing.parts]
    tapes = [standing.tape for standing in there if standing.is_whole]
    if len(tapes) == len(there):
        return gauge.count_joined(tapes, SEPARATOR)
    return gauge.count(joined(there))


def text_of(parts: Iterable[Part]) -> str:
    """`parts` as the text that they are."""
    return "".join([part if isinstance(part, str) else _text(part) for part in parts])


def _text(part: Span | Tape | Run) -> str:
    if isinstance(part, Tape):
        return part.text
    if isinstance(part, Span):
        return part.tape.text[part.start : part.end]
    raise TypeError("a run has given up its text")


def cap_of(section: Section, limit_tokens: int) -> int | None:
    """A section's own cap: the smaller of its number and its share of the limit."""
    if section.share is None:
        return section.max_tokens
    # 0.29 of 100 is 28.999999999999996, and no float is as large as some numbers that can be written.
    share_tokens = int(section.share * min(limit_tokens, _MOST_TOKENS) + _FLOAT_ERROR)
    return share_tokens if section.max_tokens is None else min(section.max_tokens, share_tokens)


def _rank(score: float | None) -> tuple[bool, float]:
    """What ranks an item: its score; those without one come after all others, in their order."""
    return (False, 0.0) if score is None else (True, score)
