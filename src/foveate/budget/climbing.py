"""Climbing a ladder: its cuts one after the other, until the prompt fits."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from foveate.budget.cutting import OLDER_TRUNCATED, Parts, Room, cut
from foveate.budget.ladders import Drop, Ladder, LastLines, Replace, Rung, Truncate, label, names
from foveate.budget.prompt import Action, Cut
from foveate.budget.sections import Priority
from foveate.budget.standing import SEPARATOR, Standing, count_of, joined
from foveate.tokens.gauge import Gauge, Span
from foveate.values import NOTHING, TokenCount

# Sizes are a good guide, as what meets where sections meet is little. Where they are not, halving is sure.
_GUESSES = 8

_RANKS = {priority: rank for rank, priority in enumerate(Priority)}


@dataclass(slots=True)
class Climb:
    """A prompt that is being made to fit: its sections as they stand, and what was cut so far."""

    gauge: Gauge
    limit_tokens: int
    standings: Sequence[Standing]
    cuts: list[Cut] = field(default_factory=list)
    said_tokens: int | None = None
    """The limit that reasons name, where less is free for these sections."""

    def beside(self, other: Standing, limit_tokens: int) -> "Climb":
        """A climb of its own from here, with another section at the end, within a limit that may be lower."""
        standings = [*map(replace, self.standings), other]
        said = self.limit_tokens if self.said_tokens is None else self.said_tokens
        return Climb(self.gauge, limit_tokens, standings, list(self.cuts), said)

    def count(self) -> TokenCount:
        """How many tokens the prompt is now, counted whole."""
        return count_of(self.standings, self.gauge)

    def climb(self, ladder: Ladder, count: TokenCount) -> TokenCount:
        """How many tokens of `count` are left after as many rungs as it takes; too many where none helped.

        Each rung cuts what the one below has left.
        """
        for rung in ladder.rungs:
            if count.upper <= self.limit_tokens:
                break
            victims = self._victims(rung)
            if isinstance(rung, Truncate | Drop):
                self._leave_out(victims, rung, label(ladder, rung), count.upper - self.limit_tokens)
            else:
                self._shorten(victims, rung, label(ladder, rung), count.upper - self.limit_tokens)
            count = self.count()
        return count

    def _victims(self, rung: Rung) -> list[Standing]:
        """Whom a rung may cut, the lowest priority first, of equals the later; never one that is required."""
        found = [
            standing
            for standing in reversed(self.standings)
            if standing.parts
            and not standing.is_required
            and (not rung.sections or names(rung, standing.section.name))
        ]
        return sorted(found, key=lambda standing: _RANKS[standing.section.priority], reverse=True)

    def _leave_out(self, victims: Sequence[Standing], rung: Truncate | Drop, name: str, over: int) -> None:
        """Leave out as many as it takes, and put back what fits of the last where it may be truncated."""
        gone = [replace(victim, parts=(), after=NOTHING, action=Action.DROPPED) for victim in victims]
        leaving = victims[: self._needed(victims, gone, over)]
        before = [victim.after.tokens for victim in leaving]
        for victim, left in zip(leaving, gone, strict=False):
            victim.become(left)
        if isinstance(rung, Truncate) and leaving:
            self._put_back(leaving[-1])
        reason = self._over(over)
        for victim, tokens in zip(leaving, before, strict=True):
            lowest = f"lowest priority first, and this is {victim.section.priority}"
            self.record(victim, name, tokens, f"{reason}; {'the ladder names it' if rung.sections else lowest}")

    def _shorten(self, victims: Sequence[Standing], rung: LastLines | Replace, name: str, over: int) -> None:
        """Cut as many as it takes as the rung says, of those that get shorter by it."""
        cuts = [(victim, _shortened(victim, rung, self.gauge)) for victim in victims]
        shorter = [(victim, short) for victim, short in cuts if short.after.upper < victim.after.upper]
        needed = self._needed([victim for victim, _ in shorter], [short for _, short in shorter], over)
        reason = self._over(over)
        for victim, short in shorter[:needed]:
            before = victim.after.tokens
            victim.become(short)
            self.record(victim, name, before, reason)

    def _needed(self, victims: Sequence[Standing], instead: Sequence[Standing], over: int) -> int:
        """How many of `victims` must give way to what stands `instead` of them; all where that does not do.

        The sizes of sections tell how many to try. What a try is off by is known then, and corrects the next.
        """
        turn = {id(victim): number for number, victim in enumerate(victims)}
        saved = [
            victim.after.upper + 1 - left.after.upper for victim, left in zip(victims, instead, strict=True)
        ]
        sums = list(accumulate(saved))
        low, high, tried = 0, len(victims), 0
        while high - low > 1:
            guess = bisect_left(sums, over) + 1 if tried < _GUESSES else (low + high) // 2
            cut = min(max(guess, low + 1), high - 1)
            left = [
                instead[number] if (number := turn.get(id(each), high)) < cut else each
                for each in self.standings
            ]
            left_over = count_of(left, self.gauge).upper - self.limit_tokens
            low, high = (cut, high) if left_over > 0 else (low, cut)
            over = sums[cut - 1] + left_over
            tried += 1
        return high

    def _put_back(self, standing: Standing) -> None:
        """Put back the largest piece that fits of a section that was left out."""
        body, cap_tokens = standing.body(), standing.cap_tokens
        parts = None if body is None else cut(body, self._place(standing))
        # What its cap allows did not fit here, so this is less, but for what meets at its ends.
        if parts is not None and (cap_tokens is None or self.gauge.count(parts).upper <= cap_tokens):
            standing.leave(parts, Action.TRUNCATED, self.gauge)

    def _place(self, standing: Standing) -> Room:
        """The room between what stands before and what stands after a section."""
        at = next(i for i, each in enumerate(self.standings) if each is standing)
        before, after = joined(self.standings[:at]), joined(self.standings[at + 1 :])
        sides = (*before, SEPARATOR) if before else (), (SEPARATOR, *after) if after else ()
        around = self.gauge.closed(sides[0]), self.gauge.closed(sides[1])
        if self.gauge.has_seams:
            return Room(self.gauge, self.limit_tokens, around, around)
        nearly = self.gauge.run(sides[0], guess=True), self.gauge.run(sides[1], guess=True)
        return Room(self.gauge, self.limit_tokens, around, nearly)

    def _over(self, tokens: int) -> str:
        exact = all(standing.tape.total.exact for standing in self.standings)
        limit_tokens = self.limit_tokens if self.said_tokens is None else self.said_tokens
        said = f"{tokens:,} tokens over the limit of {limit_tokens:,}"
        return said if exact else f"by the bound of an estimate, {said}"

    def record(self, standing: Standing, rung: str, before: int, reason: str) -> None:
        """Remember what was cut, and why."""
        self.cuts.append(
            Cut(
                section=standing.section.name,
                rung=rung,
                before=before,
                after=standing.after.tokens,
                reason=reason,
            )
        )


def _shortened(standing: Standing, rung: LastLines | Replace, gauge: Gauge) -> Standing:
    """A section as the rung leaves it."""
    if isinstance(rung, LastLines):
        parts, start = _last_lines(standing, rung.lines)
        short = replace(standing, start=start)
    else:
        parts = _line(standing, rung.text)
        short = replace(standing, start=None)
    action = Action.TRUNCATED if isinstance(rung, LastLines) else Action.REPLACED
    short.leave(parts, action if parts else Action.DROPPED, gauge)
    return short


def _last_lines(standing: Standing, lines: int) -> tuple[Parts, int | None]:
    """The newest lines of a section with the marker, and where they start."""
    if standing.start is None:
        return standing.parts, None
    text = standing.tape.text
    end = at = len(text.rstrip())
    for _ in range(lines):
        at = text.rfind("\n", standing.start, at)
        if at < 0:
            return standing.parts, standing.start
    return (Span(standing.tape, at + 1, end), f"\n{OLDER_TRUNCATED}"), at + 1


def _line(standing: Standing, text: str) -> Parts:
    """The line that stands for a section, with how many items it had: of a text, lines that are not blank."""
    items = standing.section.items
    lines = standing.section.text.splitlines() if items is None else items
    count = sum(1 for line in lines if not isinstance(line, str) or line.strip())
    line = text.replace("{items}", str(count))
    return (line,) if line and count else ()
