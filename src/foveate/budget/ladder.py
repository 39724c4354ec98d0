"""Ladders: what is cut, and in which order, if a prompt does not fit; applying their rungs until it fits."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any, Literal

from foveate.budget.prompt import SECTION_SEPARATOR, Action, Cut, SectionReport
from foveate.budget.sections import Priority, Section
from foveate.budget.truncate import OLDER_TRUNCATED, AvailableRoom, TextParts, TruncatableText, truncate
from foveate.errors import BadOption
from foveate.model import ZERO_TOKENS, TokenCount
from foveate.tokens.text_meter import MeasuredText, Segment, TextMeter, TextPart, TextSpan

LOWEST = "lowest"


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate sections as far as needed, even to nothing. Without names, the lowest priority first."""

    sections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop whole sections. Without names, the lowest priority first."""

    sections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LastLines:
    """Keep the newest `lines` of the named sections."""

    sections: tuple[str, ...]
    lines: int


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace the named sections by a line. `{items}` in it becomes the number of items removed."""

    sections: tuple[str, ...]
    text: str


Rung = Truncate | Drop | LastLines | Replace


@dataclass(frozen=True, slots=True)
class Ladder:
    """An ordered list of cuts that are applied until the prompt fits."""

    name: str
    rungs: tuple[Rung, ...]


LadderName = Literal["truncate_low_priority", "drop_low_priority", "progressive"]
LadderLike = LadderName | Ladder | Sequence[Rung | Mapping[str, object]]
"""A ladder as arguments accept it: its name, a `Ladder`, or its rungs as values or as in YAML."""

TRUNCATE_LOW_PRIORITY = Ladder("truncate_low_priority", (Truncate(),))
DROP_LOW_PRIORITY = Ladder("drop_low_priority", (Drop(),))
PROGRESSIVE = Ladder(
    "progressive",
    (
        LastLines(("logs", "log", "*_logs", "*_log"), 5),
        Drop(("mandates", "mandate", "*_mandates")),
        Replace(("context", "*_context"), "[Context trimmed: {items} items]"),
    ),
)
BUILT_IN_LADDERS = {ladder.name: ladder for ladder in (TRUNCATE_LOW_PRIORITY, DROP_LOW_PRIORITY, PROGRESSIVE)}

CUSTOM_LADDER_NAME = "own"
"""Name of a ladder that is given as a list of rungs."""


def parse_ladder(value: object) -> Ladder:
    """Return the ladder for a name or a list of rungs.

    Rungs are written as in YAML: `{truncate: lowest}`, `{drop: [mandates]}`, `{last_lines: 5, of: logs}`,
    `{replace: context, with: "[Context trimmed: {items} items]"}`. Names are case-insensitive globs.

    Raises:
        BadOption: neither; the message has the number of the wrong rung.
    """
    match value:
        case Ladder():
            return value
        case str() if value in BUILT_IN_LADDERS:
            return BUILT_IN_LADDERS[value]
        case str():
            raise BadOption(
                f"no ladder is named {value!r}; choose one of {', '.join(BUILT_IN_LADDERS)}, or list its rungs"
            )
        case Sequence() if value:
            return Ladder(
                CUSTOM_LADDER_NAME,
                tuple(_parse_rung(number, rung) for number, rung in enumerate(value, start=1)),
            )
        case _:
            raise BadOption(f"a ladder must be a name or a list of rungs, not {value!r}")


def rung_as_data(rung: Rung) -> dict[str, object]:
    """Return a rung as it is written in YAML. `parse_ladder` accepts it."""
    match rung:
        case Truncate(sections):
            return {"truncate": list(sections) or LOWEST}
        case Drop(sections):
            return {"drop": list(sections) or LOWEST}
        case LastLines(sections, lines):
            return {"last_lines": lines, "of": list(sections)}
        case Replace(sections, text):
            return {"replace": list(sections), "with": text}


def rung_label(ladder: Ladder, rung: Rung) -> str:
    """Label of a rung in reports: the ladder's name, and if it has several rungs, what this one does."""
    if len(ladder.rungs) == 1 and ladder.name in BUILT_IN_LADDERS:
        return ladder.name
    return f"{ladder.name}: {_describe_rung(rung)}"


def _describe_rung(rung: Rung) -> str:
    match rung:
        case Truncate(sections):
            return f"truncate {', '.join(sections[:1]) or LOWEST}"
        case Drop(sections):
            return f"drop {', '.join(sections[:1]) or LOWEST}"
        case LastLines(sections, lines):
            return f"last {lines} lines of {sections[0]}"
        case Replace(sections, _):
            return f"replace {sections[0]}"


def rung_matches(rung: Rung, section: str) -> bool:
    return any(name_matches(pattern, section) for pattern in rung.sections)


def name_matches(pattern: str, section: str) -> bool:
    """`pattern` is a case-insensitive glob."""
    return fnmatchcase(section.casefold(), pattern.casefold())


def _parse_rung(number: int, value: Any) -> Rung:
    rung_name = f"rung {number} of the ladder"
    match value:
        case Truncate() | Drop() | LastLines() | Replace():
            return value
        case {"truncate": str() | Sequence() as sections, **rest} if not rest:
            return Truncate(_parse_section_names(sections, rung_name, lowest=True))
        case {"drop": str() | Sequence() as sections, **rest} if not rest:
            return Drop(_parse_section_names(sections, rung_name, lowest=True))
        case {"last_lines": int(lines), "of": str() | Sequence() as sections, **rest} if not rest:
            if isinstance(lines, bool) or lines < 1:
                raise BadOption(f"{rung_name}: last_lines must be a number of lines, 1 or more, not {lines!r}")
            return LastLines(_parse_section_names(sections, rung_name), lines)
        case {"replace": str() | Sequence() as sections, "with": str(text), **rest} if not rest:
            return Replace(_parse_section_names(sections, rung_name), text)
        case Mapping() | str():
            raise BadOption(
                f"{rung_name} must be {{truncate: SECTIONS}}, {{drop: SECTIONS}}, "
                f"{{last_lines: N, of: SECTIONS}} or {{replace: SECTIONS, with: TEXT}}, not {value!r}"
            )
        case _:
            raise BadOption(f"{rung_name} must be a mapping such as {{drop: lowest}}, not {value!r}")


def _parse_section_names(
    value: str | Sequence[object], rung_name: str, *, lowest: bool = False
) -> tuple[str, ...]:
    if lowest and value == LOWEST:
        return ()
    names = (value,) if isinstance(value, str) else tuple(value)
    if LOWEST in names:
        raise BadOption(
            f"{rung_name}: lowest is only valid alone, and only for truncate and drop, not {value!r}"
        )
    if not names or not all(isinstance(name, str) and name for name in names):
        raise BadOption(f"{rung_name}: name at least one section, not {value!r}")
    return tuple(map(str, names))


_FLOAT_ERROR = 1e-9
_MAX_TOKENS = 10**15
# The sizes of sections are a good guess, since joins change little. After so many wrong guesses, bisect.
_MAX_GUESSES = 8
_PRIORITY_RANKS = {priority: rank for rank, priority in enumerate(Priority)}


@dataclass(slots=True)
class SectionState:
    """A section while a prompt is fitted: the remaining parts, their count, and what was done.

    `start` is where the text that can still be cut begins. None if the section can only be dropped.
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
        return self.section.priority is Priority.REQUIRED

    @property
    def is_whole(self) -> bool:
        return self.action is Action.KEPT

    def keep_only(self, parts: TextParts, action: Action, meter: TextMeter) -> None:
        self.parts, self.action = parts, action
        self.count = meter.count(parts) if parts else ZERO_TOKENS

    def copy_from(self, other: "SectionState") -> None:
        self.parts, self.count, self.start, self.action = other.parts, other.count, other.start, other.action

    def truncatable_text(self) -> TruncatableText | None:
        """None if the section can only be dropped."""
        if self.start is None:
            return None
        text, items = self.measured_text.text, self.section.items
        # Once something has to be cut, leading and trailing blank lines go first.
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
    # Positional, since keyword arguments take twice as long, and prompts have many sections.
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
    """A disabled section is empty."""
    parts = (measured_text,) if measured_text.text else ()
    return SectionState(
        section, measured_text, cap_tokens, parts, measured_text.total, action=uncut_action(section)
    )


def uncut_action(section: Section) -> Action:
    return Action.KEPT if section.enabled else Action.DISABLED


def join_parts(states: Iterable[SectionState]) -> list[TextPart]:
    parts = [part for state in states if state.parts for part in (SECTION_SEPARATOR, *state.parts)]
    return parts[1:]


def count_states(states: Sequence[SectionState], meter: TextMeter) -> TokenCount:
    """Count the remaining parts of the sections as one text."""
    present = [state for state in states if state.parts]
    measured_texts = [state.measured_text for state in present if state.is_whole]
    if len(measured_texts) == len(present):
        return meter.count_joined(measured_texts, SECTION_SEPARATOR)
    return meter.count(join_parts(present))


def parts_to_text(parts: Iterable[TextPart]) -> str:
    return "".join([part if isinstance(part, str) else _part_text(part) for part in parts])


def _part_text(part: TextSpan | MeasuredText | Segment) -> str:
    if isinstance(part, MeasuredText):
        return part.text
    if isinstance(part, TextSpan):
        return part.measured_text.text[part.start : part.end]
    raise TypeError("a run has given up its text")


def effective_cap(section: Section, limit_tokens: int) -> int | None:
    """The smaller of `max_tokens` and the section's share of the limit."""
    if section.share is None:
        return section.max_tokens
    # 0.29 of 100 is 28.999999999999996, and an int can exceed the largest float.
    share_tokens = int(section.share * min(limit_tokens, _MAX_TOKENS) + _FLOAT_ERROR)
    return share_tokens if section.max_tokens is None else min(section.max_tokens, share_tokens)


def _rank_key(score: float | None) -> tuple[bool, float]:
    """Items without a score come last, in their order."""
    return (False, 0.0) if score is None else (True, score)


@dataclass(slots=True)
class PromptFitting:
    meter: TextMeter
    limit_tokens: int
    states: Sequence[SectionState]
    cuts: list[Cut] = field(default_factory=list)
    reported_limit_tokens: int | None = None
    """The limit named in reasons, if these sections have less."""

    def with_section(self, other: SectionState, limit_tokens: int) -> "PromptFitting":
        states = [*map(replace, self.states), other]
        reported_limit_tokens = (
            self.limit_tokens if self.reported_limit_tokens is None else self.reported_limit_tokens
        )
        return PromptFitting(self.meter, limit_tokens, states, list(self.cuts), reported_limit_tokens)

    def count(self) -> TokenCount:
        return count_states(self.states, self.meter)

    def apply_ladder(self, ladder: Ladder, count: TokenCount) -> TokenCount:
        """Apply rungs until the prompt fits, and return its count. It is too large if no rung helped.

        Each rung continues from what the previous one left.
        """
        for rung in ladder.rungs:
            if count.upper <= self.limit_tokens:
                break
            candidates = self._find_candidates(rung)
            if isinstance(rung, Truncate | Drop):
                self._drop_sections(candidates, rung, rung_label(ladder, rung), count.upper - self.limit_tokens)
            else:
                self._shorten_sections(
                    candidates, rung, rung_label(ladder, rung), count.upper - self.limit_tokens
                )
            count = self.count()
        return count

    def _find_candidates(self, rung: Rung) -> list[SectionState]:
        """Sections that a rung may cut: lowest priority first, then later ones first. Never required ones."""
        candidates = [
            state
            for state in reversed(self.states)
            if state.parts
            and not state.is_required
            and (not rung.sections or rung_matches(rung, state.section.name))
        ]
        return sorted(candidates, key=lambda state: _PRIORITY_RANKS[state.section.priority], reverse=True)

    def _drop_sections(
        self, candidates: Sequence[SectionState], rung: Truncate | Drop, name: str, excess_tokens: int
    ) -> None:
        """Drop as many sections as needed. A truncating rung then restores what fits of the last one."""
        emptied = [
            replace(candidate, parts=(), count=ZERO_TOKENS, action=Action.DROPPED) for candidate in candidates
        ]
        dropped = candidates[: self._count_needed(candidates, emptied, excess_tokens)]
        before = [candidate.count.tokens for candidate in dropped]
        for candidate, empty in zip(dropped, emptied, strict=False):
            candidate.copy_from(empty)
        if isinstance(rung, Truncate) and dropped:
            self._restore_partially(dropped[-1])
        reason = self._describe_excess(excess_tokens)
        for candidate, tokens in zip(dropped, before, strict=True):
            lowest = f"lowest priorities are cut first, and this section is {candidate.section.priority}"
            self.record_cut(
                candidate,
                name,
                tokens,
                f"{reason}; {'the ladder names this section' if rung.sections else lowest}",
            )

    def _shorten_sections(
        self, candidates: Sequence[SectionState], rung: LastLines | Replace, name: str, excess_tokens: int
    ) -> None:
        cuts = [(candidate, _shorten_state(candidate, rung, self.meter)) for candidate in candidates]
        shorter = [(candidate, short) for candidate, short in cuts if short.count.upper < candidate.count.upper]
        needed_count = self._count_needed(
            [candidate for candidate, _ in shorter], [short for _, short in shorter], excess_tokens
        )
        reason = self._describe_excess(excess_tokens)
        for candidate, short in shorter[:needed_count]:
            before = candidate.count.tokens
            candidate.copy_from(short)
            self.record_cut(candidate, name, before, reason)

    def _count_needed(
        self, candidates: Sequence[SectionState], replacements: Sequence[SectionState], excess_tokens: int
    ) -> int:
        """Return how many of `candidates` must be replaced for the prompt to fit; all if that is not enough.

        The sizes of sections give the first guess, and the error of each guess corrects the next.
        """
        order = {id(candidate): number for number, candidate in enumerate(candidates)}
        saved = [
            candidate.count.upper + 1 - remaining.count.upper
            for candidate, remaining in zip(candidates, replacements, strict=True)
        ]
        cumulative_saved = list(accumulate(saved))
        low, high, attempts = 0, len(candidates), 0
        while high - low > 1:
            guess = (
                bisect_left(cumulative_saved, excess_tokens) + 1
                if attempts < _MAX_GUESSES
                else (low + high) // 2
            )
            cut = min(max(guess, low + 1), high - 1)
            remaining = [
                replacements[number] if (number := order.get(id(state), high)) < cut else state
                for state in self.states
            ]
            left_over = count_states(remaining, self.meter).upper - self.limit_tokens
            low, high = (cut, high) if left_over > 0 else (low, cut)
            excess_tokens = cumulative_saved[cut - 1] + left_over
            attempts += 1
        return high

    def _restore_partially(self, state: SectionState) -> None:
        body, cap_tokens = state.truncatable_text(), state.cap_tokens
        parts = None if body is None else truncate(body, self._room_for(state))
        # A piece of the size of its cap did not fit here, so this one is smaller, except for what joins add.
        if parts is not None and (cap_tokens is None or self.meter.count(parts).upper <= cap_tokens):
            state.keep_only(parts, Action.TRUNCATED, self.meter)

    def _room_for(self, state: SectionState) -> AvailableRoom:
        index = next(position for position, other in enumerate(self.states) if other is state)
        before, after = join_parts(self.states[:index]), join_parts(self.states[index + 1 :])
        sides = (*before, SECTION_SEPARATOR) if before else (), (SECTION_SEPARATOR, *after) if after else ()
        around = self.meter.join_closed(sides[0]), self.meter.join_closed(sides[1])
        if self.meter.has_safe_boundaries:
            return AvailableRoom(self.meter, self.limit_tokens, around, around)
        approximate = self.meter.join(sides[0], approximate=True), self.meter.join(sides[1], approximate=True)
        return AvailableRoom(self.meter, self.limit_tokens, around, approximate)

    def _describe_excess(self, tokens: int) -> str:
        exact = all(state.measured_text.total.exact for state in self.states)
        limit_tokens = self.limit_tokens if self.reported_limit_tokens is None else self.reported_limit_tokens
        text = f"{tokens:,} tokens over the limit of {limit_tokens:,}"
        return text if exact else f"{text} by the upper bound of the estimate"

    def record_cut(self, state: SectionState, rung: str, before: int, reason: str) -> None:
        self.cuts.append(
            Cut(
                section=state.section.name,
                rung=rung,
                before=before,
                after=state.count.tokens,
                reason=reason,
            )
        )


def _shorten_state(state: SectionState, rung: LastLines | Replace, meter: TextMeter) -> SectionState:
    if isinstance(rung, LastLines):
        parts, start = _keep_last_lines(state, rung.lines)
        short = replace(state, start=start)
    else:
        parts = _replacement_line(state, rung.text)
        short = replace(state, start=None)
    action = Action.TRUNCATED if isinstance(rung, LastLines) else Action.REPLACED
    short.keep_only(parts, action if parts else Action.DROPPED, meter)
    return short


def _keep_last_lines(state: SectionState, lines: int) -> tuple[TextParts, int | None]:
    """Return the newest lines with the marker, and where they start."""
    if state.start is None:
        return state.parts, None
    text = state.measured_text.text
    end = line_start = len(text.rstrip())
    for _ in range(lines):
        line_start = text.rfind("\n", state.start, line_start)
        if line_start < 0:
            return state.parts, state.start
    return (TextSpan(state.measured_text, line_start + 1, end), f"\n{OLDER_TRUNCATED}"), line_start + 1


def _replacement_line(state: SectionState, text: str) -> TextParts:
    items = state.section.items
    lines = state.section.text.splitlines() if items is None else items
    count = sum(1 for line in lines if not isinstance(line, str) or line.strip())
    line = text.replace("{items}", str(count))
    return (line,) if line and count else ()
