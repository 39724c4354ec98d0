"""The agent's own view of its budget: a section that says what fills the prompt."""

from collections.abc import Iterable

from foveate.budget.prompt import Action, Prompt, SectionReport

BUDGET_SECTION = "context_budget"
"""The name of the section that shows the budget; it has no line of its own, but counts with the others."""


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


def is_near(section: SectionReport) -> bool:
    """Whether a section takes 95% of its cap or more; of a cap of nothing there is nothing to take."""
    cap_tokens = section.cap_tokens
    # In whole numbers, as no float is as large as some caps that can be written.
    return cap_tokens is not None and 20 * section.upper >= 19 * cap_tokens > 0


def _line(section: SectionReport) -> str:
    if section.cap_tokens is None:
        return f"- {section.name}: {section.upper}"
    near = " (near limit!)" if is_near(section) else ""
    return f"- {section.name}: {section.upper}/{section.cap_tokens}{near}"
