"""What is worth a word about a prompt: numbers that nobody set, and names that mean nothing."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from foveate.budget.budgets import Budget
from foveate.budget.ladders import label
from foveate.budget.prompt import BUDGET_SECTION, Action, LimitSource, Prompt

# Comparing more names with each other takes longer than the prompt itself; but for case, all are compared.
_MOST_COMPARISONS = 5_000


def notes(prompt: Prompt, budget: Budget, *, model: str, explain: bool) -> Iterator[str]:
    """A line for each thing to be said of how `prompt` came about; with `explain`, on every unmatched name."""
    yield from _on_the_limit(prompt, budget, model)
    yield from _on_names(prompt, budget, explain=explain)
    if _is_cut_by_place(prompt, budget):
        yield "all sections have the same priority, so the last are cut first: give the budget priorities"


def _on_the_limit(prompt: Prompt, budget: Budget, model: str) -> Iterator[str]:
    if prompt.limit_source is LimitSource.DEFAULT:
        assumed = f"{prompt.limit_tokens + budget.output_reserve:,} tokens are assumed"
        yield f"the window of {model!r} is not known: {assumed}; say total_tokens in a budget"
    elif prompt.limit_source is LimitSource.WINDOW and not budget.output_reserve:
        yield "nothing of the window is reserved for the answer: set output_reserve in the budget"


def _on_names(prompt: Prompt, budget: Budget, *, explain: bool) -> Iterator[str]:
    sections = {section.name.casefold(): section.name for section in prompt.sections}
    # A section that has a rule does not wait for one with a typo in its name.
    without_rule = {folded: name for folded, name in sections.items() if name not in budget.sections}
    few = len(prompt.sections) * len(prompt.unmatched) <= _MOST_COMPARISONS
    others = []
    for name in prompt.unmatched:
        near = _nearest(name, without_rule if name in budget.sections else sections, only_case=not few)
        if near is None:
            others.append(name)
        else:
            yield f"the budget says something of {name!r}, and there is no such section: did you mean {near!r}?"
    if explain and others:
        none = "there is no such section" if len(others) == 1 else "there are no such sections"
        yield f"the budget says something of {', '.join(map(repr, others))}, and {none}"


def _nearest(name: str, sections: Mapping[str, str], *, only_case: bool) -> str | None:
    """The section that a name is probably meant for; `sections` are by their name in small letters."""
    folded = name.casefold()
    near = [folded] if only_case else get_close_matches(folded, sections, n=1)
    return sections.get(near[0]) if near else None


def _is_cut_by_place(prompt: Prompt, budget: Budget) -> bool:
    """Whether something went for want of room only because it stands last."""
    by_priority = {label(budget.ladder, rung) for rung in budget.ladder.rungs if not rung.sections}
    ranked = [
        section.priority
        for section in prompt.sections
        if section.action is not Action.DISABLED and section.name != BUDGET_SECTION
    ]
    return len(ranked) > 1 and len(set(ranked)) == 1 and any(cut.rung in by_priority for cut in prompt.cuts)
