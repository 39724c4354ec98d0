"""The report of a budget for an agent."""

import pytest

import foveate
from foveate.budget import Budget, Section
from foveate.budget.prompt import is_near_cap
from foveate.model import TokenCount


class CharacterCounter:
    """One token per character."""

    def text(self, text: str) -> TokenCount:
        return TokenCount(len(text), True, len(text))


def near_cap_and_report_line(tokens: int, cap_tokens: int | None, total_tokens: int = 1000) -> tuple[bool, str]:
    """Return whether such a section is near its cap, and its line in the report."""
    section = Section("a", "x" * tokens, max_tokens=cap_tokens)
    prompt = foveate.assemble([section], Budget(total_tokens), CharacterCounter())
    return is_near_cap(prompt.sections[0]), prompt.report.splitlines()[-1]


@pytest.mark.parametrize(
    ("tokens", "cap_tokens", "near"),
    [
        (19, 20, True),
        (18, 20, False),
        (95, 100, True),
        (94, 100, False),
        (760, 800, True),
        (759, 800, False),
        (1, 1, True),
        (0, 1, False),
    ],
)
def test_a_section_is_near_its_cap_from_95_percent_on(tokens: int, cap_tokens: int, near: bool) -> None:
    line = f"- a: {tokens}/{cap_tokens}" + (" (near limit!)" if near else "")

    assert near_cap_and_report_line(tokens, cap_tokens) == (near, line)


def test_a_section_without_a_cap_or_with_a_cap_of_0_is_never_near_it() -> None:
    assert near_cap_and_report_line(999, None) == (False, "- a: 999")
    assert near_cap_and_report_line(0, 0) == (False, "- a: 0/0")


def test_a_cap_of_hundreds_of_digits_can_be_reported() -> None:
    """Regression: an OverflowError, since no float is as large."""
    assert near_cap_and_report_line(5, 10**400) == (False, f"- a: 5/{10**400}")

    sections = [Section("a", "x" * 500, max_tokens=10**400)]
    prompt = foveate.assemble(sections, Budget(10**400), CharacterCounter(), show_budget=True)
    assert f"{10**400} tokens (0%)\n- a: 500/{10**400}" in prompt.text
