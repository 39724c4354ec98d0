"""Assembling a prompt: every section up to its own cap, then the ladder until the whole fits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from foveate.budget.budgets import SectionRule
from foveate.budget.climbing import Climb
from foveate.budget.cutting import Room, cut, unmarked
from foveate.budget.ladders import BUILT_IN, Ladder, meant
from foveate.budget.prompt import BUDGET_SECTION, Action, Prompt, SectionReport, context_budget
from foveate.budget.sections import Keep, Priority, Section
from foveate.budget.standing import (
    SEPARATOR,
    Standing,
    cap_of,
    count_of,
    joined,
    report,
    stand,
    text_of,
    untouched,
)
from foveate.errors import BadOption, BudgetExceeded, SectionSize
from foveate.tokens.gauge import Gauge
from foveate.tokens.tape import Tape
from foveate.values import NOTHING, TokenCount

# How often the numbers of the budget that is shown are written anew until they are right, and room is made anew
# for what that takes.
_TRIES = 8
# So many empty lines may make a number true that cannot be otherwise.
_EMPTY_LINES = 3

CAP = "cap"
"""The rung that a section's own cap is recorded as."""


def assemble(
    sections: Iterable[Section],
    *,
    limit_tokens: int,
    ladder: Ladder,
    gauge: Gauge,
    rules: Mapping[str, SectionRule] | None = None,
    show_budget: bool = False,
) -> Prompt:
    """The sections joined by blank lines and cut to fit in `limit_tokens`, counted whole.

    `rules` hold over what sections say of themselves; `show_budget` adds the section that shows the budget.

    Raises:
        BudgetExceeded: what may not be cut does not fit; carries every section's size.
        BadOption: two sections of one name.
    """
    if isinstance(sections, Section):
        raise BadOption("sections are a list, also where there is only one")
    sections = list(sections)
    _check_names(sections, reserved=BUDGET_SECTION if show_budget else None)
    ruled = [rules[s.name].applied(s) if rules and s.name in rules else s for s in sections]
    if show_budget:
        prompt = _with_budget(ruled, limit_tokens, ladder, gauge)
    else:
        measured = _measured(ruled, limit_tokens, gauge)
        prompt = _whole(measured, limit_tokens, gauge) or _cut(measured, limit_tokens, ladder, gauge)
    unmatched = _unmatched([section.name for section in sections], rules or {}, ladder)
    return replace(prompt, unmatched=unmatched) if unmatched else prompt


def _unmatched(names: Sequence[str], rules: Mapping[str, SectionRule], ladder: Ladder) -> tuple[str, ...]:
    """Names in rules, and in a ladder that is not built in, that no section has."""
    there = frozenset(names)
    found = [name for name in rules if name not in there]
    if ladder.name not in BUILT_IN:
        patterns = [pattern for rung in ladder.rungs for pattern in rung.sections]
        found += [pattern for pattern in patterns if not any(meant(pattern, name) for name in names)]
    return tuple(dict.fromkeys(found))


Measured = list[tuple[Section, Tape, int | None]]
"""Sections as they come, measured, and the cap of each."""


def _measured(sections: Sequence[Section], limit_tokens: int, gauge: Gauge) -> Measured:
    tapes = gauge.tapes([section.text if section.enabled else "" for section in sections])
    caps = [cap_of(section, limit_tokens) for section in sections]
    return list(zip(sections, tapes, caps, strict=True))


def _whole(measured: Measured, limit_tokens: int, gauge: Gauge) -> Prompt | None:
    """The prompt in which nothing is cut, where that fits: most prompts do, and need no more than this."""
    if any(cap is not None and tape.total.upper > cap for _, tape, cap in measured):
        return None
    count = gauge.count_joined([tape for _, tape, _ in measured if tape.text], SEPARATOR)
    if count.upper > limit_tokens:
        return None
    return Prompt(
        text=SEPARATOR.join([tape.text for _, tape, _ in measured if tape.text]),
        count=count,
        limit_tokens=limit_tokens,
        sections=tuple(
            [
                report(section, tape, cap, tape.text, tape.total, untouched(section))
                for section, tape, cap in measured
            ]
        ),
        cuts=(),
    )


def _cut(measured: Measured, limit_tokens: int, ladder: Ladder, gauge: Gauge) -> Prompt:
    climb = _capped(measured, limit_tokens, gauge)
    count = _climbed(climb, ladder)
    if count.upper > limit_tokens:
        raise _ended(climb, count, limit_tokens, ladder)
    return _prompt(climb, count, limit_tokens)


def _capped(measured: Measured, limit_tokens: int, gauge: Gauge) -> Climb:
    """The sections, each cut to its own cap."""
    climb = Climb(gauge, limit_tokens, [stand(section, tape, cap) for section, tape, cap in measured])
    for standing in climb.standings:
        if standing.cap_tokens is not None and standing.after.upper > standing.cap_tokens:
            _cap(climb, standing, standing.cap_tokens)
    return climb


def _climbed(climb: Climb, ladder: Ladder) -> TokenCount:
    """The count after the sections were cut to fit, or as far as the ladder goes."""
    count = climb.count()
    if count.upper > climb.limit_tokens:
        _check_required(climb)
        count = climb.climb(ladder, count)
    return count


def _cap(climb: Climb, standing: Standing, cap_tokens: int) -> None:
    """Cut a section to its own cap; a required one without a marker, where there is no room for it.

    Raises:
        BudgetExceeded: not even so is anything left of a required one.
    """
    body, room = standing.body(), Room(climb.gauge, cap_tokens)
    parts = None if body is None else cut(body, room)
    if parts is None and standing.is_required:
        parts = None if body is None or body.keep is Keep.WHOLE else unmarked(body, room)
        if parts is None:
            what = f"section {standing.section.name} is required, but its own cap leaves nothing of it: it"
            raise _exceeded(climb.standings, what, standing.after.upper, cap_tokens, "raise its cap")
    before = standing.after.tokens
    standing.leave(parts or (), Action.DROPPED if parts is None else Action.TRUNCATED, climb.gauge)
    climb.record(standing, CAP, before, f"its own cap is {cap_tokens:,} tokens")


def _check_required(climb: Climb) -> None:
    """Required sections are whole, up to their own caps.

    Raises:
        BudgetExceeded: they alone do not fit.
    """
    upper = _required(climb).upper
    if upper > climb.limit_tokens:
        remedy = "raise the limit, or give a required section a cap"
        raise _exceeded(climb.standings, "what is required", upper, climb.limit_tokens, remedy)


def _required(climb: Climb) -> TokenCount:
    return count_of([standing for standing in climb.standings if standing.is_required], climb.gauge)


def _ended(climb: Climb, count: TokenCount, limit_tokens: int, ladder: Ladder) -> BudgetExceeded:
    what = f"the ladder {ladder.name} has ended, and the prompt"
    remedy = "raise the limit, or end the ladder with {truncate: lowest}"
    return _exceeded(climb.standings, what, count.upper, limit_tokens, remedy)


def _exceeded(
    standings: Sequence[Standing], what: str, tokens: int, limit_tokens: int, remedy: str
) -> BudgetExceeded:
    """The error with every number; where tokens are estimated, with every bound."""
    sizes = tuple(
        SectionSize(s.section.name, s.section.priority.value, s.tape.total.upper, s.after.upper)
        for s in standings
    )
    exact = all(standing.after.exact for standing in standings)
    takes = "takes" if exact else "is estimated, and can take"
    problem = f"{what} {takes} {tokens:,} of {limit_tokens:,} tokens"
    return BudgetExceeded(problem, remedy, limit_tokens=limit_tokens, tokens=tokens, sections=sizes)


def _prompt(climb: Climb, count: TokenCount, limit_tokens: int) -> Prompt:
    return Prompt(
        text=text_of(joined(climb.standings)),
        count=count,
        limit_tokens=limit_tokens,
        sections=tuple(standing.report() for standing in climb.standings),
        cuts=tuple(climb.cuts),
    )


def _with_budget(sections: Sequence[Section], limit_tokens: int, ladder: Ladder, gauge: Gauge) -> Prompt:
    """A prompt that ends with a section on what fills it, itself among it.

    How long that section is depends on the numbers in it, and they on how much is left beside it. So room is
    made for the shortest that it can be; where it turns out longer, that much more, until it fits.
    """
    capped = _capped(_measured(sections, limit_tokens, gauge), limit_tokens, gauge)
    least = [standing.report() if standing.is_required else _gone(standing) for standing in capped.standings]
    shortest = gauge.tape(context_budget(least, tokens=limit_tokens, limit_tokens=limit_tokens))
    own = Section(BUDGET_SECTION, shortest.text, priority=Priority.REQUIRED)
    room_tokens = limit_tokens
    for tried in range(1, _TRIES + 1):
        climb = capped.beside(stand(own, shortest, None), room_tokens)
        least_tokens = _required(climb).upper
        fitted = _climbed(climb, ladder)
        count = _written(climb, fitted, limit_tokens)
        if count.upper <= limit_tokens:
            return _prompt(climb, count, limit_tokens)
        longer = count.upper - fitted.upper
        # With room for no more than what is required, the section is as short as it can be.
        room_tokens = max(min(room_tokens - 1, limit_tokens - longer), least_tokens)
        if tried == _TRIES - 1:
            room_tokens = least_tokens
    raise _ended(climb, count, limit_tokens, ladder)


def _written(climb: Climb, count: TokenCount, limit_tokens: int) -> TokenCount:
    """The count of the prompt after its last section was written with that count in it."""
    *others, own = climb.standings
    reports = [standing.report() for standing in others]
    # One token more or less can change how many tokens the number is. An empty line more then makes it true.
    for empty_lines in range(_EMPTY_LINES):
        for _ in range(_TRIES):
            tokens = count.upper
            shown = context_budget(reports, tokens=tokens, limit_tokens=limit_tokens) + "\n" * empty_lines
            own.tape = climb.gauge.tape(shown)
            own.leave((own.tape,), Action.KEPT, climb.gauge)
            count = climb.count()
            if count.upper == tokens:
                return count
    return count


def _gone(standing: Standing) -> SectionReport:
    """A section's report where nothing is left of it."""
    return report(
        standing.section, standing.tape, standing.cap_tokens, "", NOTHING, untouched(standing.section)
    )


def _check_names(sections: Sequence[Section], reserved: str | None) -> None:
    names: set[str] = set() if reserved is None else {reserved}
    for section in sections:
        if not isinstance(section, Section):
            raise BadOption(f"sections are values of foveate.Section, not {type(section).__name__}")
        if section.name in names:
            taken = "the section on the budget" if section.name == reserved else "another section"
            raise BadOption(f"section {section.name!r}: {taken} has that name; give it one of its own")
        names.add(section.name)
