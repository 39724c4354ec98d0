"""The agent's own view of its budget: a section that says what fills the prompt."""

from collections.abc import Iterable

from foveate.budget.prompt import Action, Prompt, SectionReport

BUDGET_SECTION = "context_budget"
"""The name of the section that shows the budget; it has no line of its own, but counts with the others."""

NEAR_LIMIT = 0.95
"""From this part of its cap on, a section is near it."""


def report(prompt: Prompt) -> str:
    """What fills `prompt`."""
    return context_budget(prompt.sections, tokens=prompt.count.upper, limit_tokens=prompt.limit_tokens)


def context_budget(sections: Iterable[SectionReport], *, tokens: int, limit_tokens: int) -> str:
    """The section `## Context Budget`: the whole, then a line for each section that is not disabled.

    Where tokens are estimated the numbers are bounds, since those are what limit and caps are kept by.
    """
    percent = round(100 * tokens / limit_tokens) if limit_tokens else 100
    lines = ["## Context Budget", f"Using {tokens}/{limit_tokens} tokens ({percent}%)"]
    lines += [
        _line(section)
        for section in sections
        if section.action is not Action.DISABLED and section.name != BUDGET_SECTION
    ]
    return "\n".join(lines)


def _line(section: SectionReport) -> str:
    if section.cap_tokens is None:
        return f"- {section.name}: {section.upper}"
    near = " (near limit!)" if section.upper >= NEAR_LIMIT * section.cap_tokens else ""
    return f"- {section.name}: {section.upper}/{section.cap_tokens}{near}"
