"""Assemble a prompt: cut every section to its own cap, then apply the ladder until the whole fits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from foveate.budget.budget import SectionRule
from foveate.budget.ladder import (
    BUILT_IN_LADDERS,
    Ladder,
    PromptFitting,
    SectionState,
    build_section_report,
    count_states,
    effective_cap,
    initial_state,
    join_parts,
    name_matches,
    parts_to_text,
    uncut_action,
)
from foveate.budget.prompt import (
    BUDGET_SECTION_NAME,
    SECTION_SEPARATOR,
    Action,
    Prompt,
    SectionReport,
    render_budget_section,
)
from foveate.budget.sections import Keep, Priority, Section
from foveate.budget.truncate import AvailableRoom, truncate, truncate_without_marker
from foveate.errors import BadOption, BudgetExceeded, SectionSize
from foveate.model import ZERO_TOKENS, TokenCount
from foveate.tokens.text_meter import MeasuredText, TextMeter

# Maximum attempts to make the reported numbers match, and to make room for the report.
_MAX_ATTEMPTS = 8
# Empty lines that may be added if no reported number matches the count otherwise.
_MAX_EMPTY_LINES = 3

CAP_RUNG = "cap"
"""The rung under which a cut to a section's own cap is recorded."""


def assemble_prompt(
    sections: Iterable[Section],
    *,
    limit_tokens: int,
    ladder: Ladder,
    meter: TextMeter,
    rules: Mapping[str, SectionRule] | None = None,
    show_budget: bool = False,
) -> Prompt:
    """Join sections by blank lines, and cut them so that the whole text fits in `limit_tokens`.

    `rules` override the settings of sections. `show_budget` adds a section that reports the budget.

    Raises:
        BudgetExceeded: what may not be cut does not fit; contains the size of every section.
        BadOption: two sections have the same name.
    """
    if isinstance(sections, Section):
        raise BadOption("sections must be a list, even for one section")
    sections = list(sections)
    _check_names(sections, reserved=BUDGET_SECTION_NAME if show_budget else None)
    with_rules = [
        rules[section.name].applied(section) if rules and section.name in rules else section
        for section in sections
    ]
    if show_budget:
        prompt = _assemble_with_report(with_rules, limit_tokens, ladder, meter)
    else:
        measured = _measure_sections(with_rules, limit_tokens, meter)
        prompt = _assemble_uncut(measured, limit_tokens, meter) or _assemble_cut(
            measured, limit_tokens, ladder, meter
        )
    unmatched = _unmatched_names([section.name for section in sections], rules or {}, ladder)
    return replace(prompt, unmatched=unmatched) if unmatched else prompt


def _unmatched_names(names: Sequence[str], rules: Mapping[str, SectionRule], ladder: Ladder) -> tuple[str, ...]:
    section_names = frozenset(names)
    unmatched = [name for name in rules if name not in section_names]
    if ladder.name not in BUILT_IN_LADDERS:
        patterns = [pattern for rung in ladder.rungs for pattern in rung.sections]
        unmatched += [pattern for pattern in patterns if not any(name_matches(pattern, name) for name in names)]
    return tuple(dict.fromkeys(unmatched))


MeasuredSections = list[tuple[Section, MeasuredText, int | None]]
"""Sections with their measured texts and caps."""


def _measure_sections(sections: Sequence[Section], limit_tokens: int, meter: TextMeter) -> MeasuredSections:
    measured_texts = meter.measure_many([section.text if section.enabled else "" for section in sections])
    caps = [effective_cap(section, limit_tokens) for section in sections]
    return list(zip(sections, measured_texts, caps, strict=True))


def _assemble_uncut(measured: MeasuredSections, limit_tokens: int, meter: TextMeter) -> Prompt | None:
    """Return the prompt without cuts if it fits. Most prompts do, and need nothing else."""
    if any(cap is not None and measured_text.total.upper > cap for _, measured_text, cap in measured):
        return None
    count = meter.count_joined(
        [measured_text for _, measured_text, _ in measured if measured_text.text], SECTION_SEPARATOR
    )
    if count.upper > limit_tokens:
        return None
    return Prompt(
        text=SECTION_SEPARATOR.join(
            [measured_text.text for _, measured_text, _ in measured if measured_text.text]
        ),
        count=count,
        limit_tokens=limit_tokens,
        sections=tuple(
            [
                build_section_report(
                    section, measured_text, cap, measured_text.text, measured_text.total, uncut_action(section)
                )
                for section, measured_text, cap in measured
            ]
        ),
        cuts=(),
    )


def _assemble_cut(measured: MeasuredSections, limit_tokens: int, ladder: Ladder, meter: TextMeter) -> Prompt:
    fitting = _apply_caps(measured, limit_tokens, meter)
    count = _apply_ladder(fitting, ladder)
    if count.upper > limit_tokens:
        raise _ladder_exhausted_error(fitting, count, limit_tokens, ladder)
    return _build_prompt(fitting, count, limit_tokens)


def _apply_caps(measured: MeasuredSections, limit_tokens: int, meter: TextMeter) -> PromptFitting:
    fitting = PromptFitting(
        meter,
        limit_tokens,
        [initial_state(section, measured_text, cap) for section, measured_text, cap in measured],
    )
    for state in fitting.states:
        if state.cap_tokens is not None and state.count.upper > state.cap_tokens:
            _apply_cap(fitting, state, state.cap_tokens)
    return fitting


def _apply_ladder(fitting: PromptFitting, ladder: Ladder) -> TokenCount:
    count = fitting.count()
    if count.upper > fitting.limit_tokens:
        _check_required(fitting)
        count = fitting.apply_ladder(ladder, count)
    return count


def _apply_cap(fitting: PromptFitting, state: SectionState, cap_tokens: int) -> None:
    """Cut a section to its own cap; a required one without a marker if there is no room for it.

    Raises:
        BudgetExceeded: nothing would be left of a required section.
    """
    body, room = state.truncatable_text(), AvailableRoom(fitting.meter, cap_tokens)
    parts = None if body is None else truncate(body, room)
    if parts is None and state.is_required:
        parts = None if body is None or body.keep is Keep.WHOLE else truncate_without_marker(body, room)
        if parts is None:
            subject = f"section {state.section.name} is required, but its cap leaves nothing of it: it"
            raise _budget_exceeded(fitting.states, subject, state.count.upper, cap_tokens, "raise its cap")
    before = state.count.tokens
    state.keep_only(parts or (), Action.DROPPED if parts is None else Action.TRUNCATED, fitting.meter)
    fitting.record_cut(state, CAP_RUNG, before, f"its cap is {cap_tokens:,} tokens")


def _check_required(fitting: PromptFitting) -> None:
    """Check that the required sections fit.

    Raises:
        BudgetExceeded: they do not.
    """
    upper = _count_required(fitting).upper
    if upper > fitting.limit_tokens:
        remedy = "raise the limit, or give a required section a cap"
        raise _budget_exceeded(fitting.states, "the required content", upper, fitting.limit_tokens, remedy)


def _count_required(fitting: PromptFitting) -> TokenCount:
    return count_states([state for state in fitting.states if state.is_required], fitting.meter)


def _ladder_exhausted_error(
    fitting: PromptFitting, count: TokenCount, limit_tokens: int, ladder: Ladder
) -> BudgetExceeded:
    subject = f"after all rungs of the ladder {ladder.name}, the prompt"
    remedy = "raise the limit, or end the ladder with {truncate: lowest}"
    return _budget_exceeded(fitting.states, subject, count.upper, limit_tokens, remedy)


def _budget_exceeded(
    states: Sequence[SectionState], subject: str, tokens: int, limit_tokens: int, remedy: str
) -> BudgetExceeded:
    """Build the error with the sizes of all sections; for estimates, with their upper bounds."""
    sizes = tuple(
        SectionSize(
            state.section.name,
            state.section.priority.value,
            state.measured_text.total.upper,
            state.count.upper,
        )
        for state in states
    )
    exact = all(state.count.exact for state in states)
    verb = "takes" if exact else "is estimated to take up to"
    problem = f"{subject} {verb} {tokens:,} tokens, but the limit is {limit_tokens:,}"
    return BudgetExceeded(problem, remedy, limit_tokens=limit_tokens, tokens=tokens, sections=sizes)


def _build_prompt(fitting: PromptFitting, count: TokenCount, limit_tokens: int) -> Prompt:
    return Prompt(
        text=parts_to_text(join_parts(fitting.states)),
        count=count,
        limit_tokens=limit_tokens,
        sections=tuple(state.report() for state in fitting.states),
        cuts=tuple(fitting.cuts),
    )


def _assemble_with_report(
    sections: Sequence[Section], limit_tokens: int, ladder: Ladder, meter: TextMeter
) -> Prompt:
    """Assemble a prompt that ends with a section about its own budget.

    The length of that section depends on the numbers in it, and they depend on the room that it leaves. So room
    is made for the shortest report. If the report turns out longer, more room is made until everything fits.
    """
    base = _apply_caps(_measure_sections(sections, limit_tokens, meter), limit_tokens, meter)
    minimal_reports = [state.report() if state.is_required else _dropped_report(state) for state in base.states]
    shortest = meter.measure(
        render_budget_section(minimal_reports, tokens=limit_tokens, limit_tokens=limit_tokens)
    )
    report_section = Section(BUDGET_SECTION_NAME, shortest.text, priority=Priority.REQUIRED)
    room_tokens = limit_tokens
    for attempt in range(1, _MAX_ATTEMPTS + 1):
        fitting = base.with_section(initial_state(report_section, shortest, None), room_tokens)
        required_tokens = _count_required(fitting).upper
        fitted = _apply_ladder(fitting, ladder)
        count = _write_report_section(fitting, fitted, limit_tokens)
        if count.upper <= limit_tokens:
            return _build_prompt(fitting, count, limit_tokens)
        extra_tokens = count.upper - fitted.upper
        # If there is only room for the required sections, the report is as short as possible.
        room_tokens = max(min(room_tokens - 1, limit_tokens - extra_tokens), required_tokens)
        if attempt == _MAX_ATTEMPTS - 1:
            room_tokens = required_tokens
    raise _ladder_exhausted_error(fitting, count, limit_tokens, ladder)  # pyrefly: ignore[unbound-name]


def _write_report_section(fitting: PromptFitting, count: TokenCount, limit_tokens: int) -> TokenCount:
    *others, report_state = fitting.states
    reports = [state.report() for state in others]
    # A number can change its own number of tokens. An additional empty line then makes it match.
    for empty_lines in range(_MAX_EMPTY_LINES):
        for _ in range(_MAX_ATTEMPTS):
            tokens = count.upper
            report_text = (
                render_budget_section(reports, tokens=tokens, limit_tokens=limit_tokens) + "\n" * empty_lines
            )
            report_state.measured_text = fitting.meter.measure(report_text)
            report_state.keep_only((report_state.measured_text,), Action.KEPT, fitting.meter)
            count = fitting.count()
            if count.upper == tokens:
                return count
    return count


def _dropped_report(state: SectionState) -> SectionReport:
    return build_section_report(
        state.section, state.measured_text, state.cap_tokens, "", ZERO_TOKENS, uncut_action(state.section)
    )


def _check_names(sections: Sequence[Section], reserved: str | None) -> None:
    names: set[str] = set() if reserved is None else {reserved}
    for section in sections:
        if not isinstance(section, Section):
            raise BadOption(f"sections must be foveate.Section values, not {type(section).__name__}")
        if section.name in names:
            owner = "the section on the budget" if section.name == reserved else "another section"
            raise BadOption(f"section {section.name!r}: {owner} already has this name; choose another name")
        names.add(section.name)
