"""What is worth a word about a prompt: numbers that nobody set, and names that mean nothing."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from foveate.budget.budgets import Budget
from foveate.budget.ladders import rung_label
from foveate.budget.prompt import BUDGET_SECTION_NAME, Action, LimitSource, Prompt

# Comparing more names with each other takes longer than the prompt itself; but for case, all are compared.
_MAX_COMPARISONS = 5_000


def prompt_notes(prompt: Prompt, budget: Budget, *, model: str, explain: bool) -> Iterator[str]:
    """A line for each thing to be said of how `prompt` came about; with `explain`, on every unmatched name."""
    yield from _limit_notes(prompt, budget, model)
    yield from _name_notes(prompt, budget, explain=explain)
    if _is_cut_by_position(prompt, budget):
        yield "all sections have the same priority, so the last are cut first: give the budget priorities"


def _limit_notes(prompt: Prompt, budget: Budget, model: str) -> Iterator[str]:
    if prompt.limit_source is LimitSource.DEFAULT:
        assumed = f"{prompt.limit_tokens + budget.output_reserve:,} tokens are assumed"
        yield f"the window of {model!r} is not known: {assumed}; say total_tokens in a budget"
    elif prompt.limit_source is LimitSource.WINDOW and not budget.output_reserve:
        yield "nothing of the window is reserved for the answer: set output_reserve in the budget"


def _name_notes(prompt: Prompt, budget: Budget, *, explain: bool) -> Iterator[str]:
    sections = {section.name.casefold(): section.name for section in prompt.sections}
    # A section that has a rule does not wait for one with a typo in its name.
    without_rule = {lowered: name for lowered, name in sections.items() if name not in budget.sections}
    is_small = len(prompt.sections) * len(prompt.unmatched) <= _MAX_COMPARISONS
    others = []
    for name in prompt.unmatched:
        near = _nearest(name, without_rule if name in budget.sections else sections, only_case=not is_small)
        if near is None:
            others.append(name)
        else:
            yield f"the budget says something of {name!r}, and there is no such section: did you mean {near!r}?"
    if explain and others:
        none = "there is no such section" if len(others) == 1 else "there are no such sections"
        yield f"the budget says something of {', '.join(map(repr, others))}, and {none}"


def _nearest(name: str, sections: Mapping[str, str], *, only_case: bool) -> str | None:
    """The section that a name is probably meant for; `sections` are by their name in small letters."""
    lowered = name.casefold()
    near = [lowered] if only_case else get_close_matches(lowered, sections, n=1)
    return sections.get(near[0]) if near else None


def _is_cut_by_position(prompt: Prompt, budget: Budget) -> bool:
    """Whether something went for want of room only because it stands last."""
    by_priority = {rung_label(budget.ladder, rung) for rung in budget.ladder.rungs if not rung.sections}
    ranked = [
        section.priority
        for section in prompt.sections
        if section.action is not Action.DISABLED and section.name != BUDGET_SECTION_NAME
    ]
    return len(ranked) > 1 and len(set(ranked)) == 1 and any(cut.rung in by_priority for cut in prompt.cuts)
