"""What an agent is told of its own budget."""

import pytest

import foveate
from foveate.budget import Budget, Section
from foveate.budget.prompt import is_near_cap
from foveate.model import TokenCount


class Letters:
    """A token a letter."""

    def text(self, text: str) -> TokenCount:
        return TokenCount(len(text), True, len(text))


def told(tokens: int, cap_tokens: int | None, total_tokens: int = 1000) -> tuple[bool, str]:
    """Of a section of so many tokens with such a cap: whether it is near it, and its line."""
    section = Section("a", "x" * tokens, max_tokens=cap_tokens)
    prompt = foveate.assemble([section], Budget(total_tokens), Letters())
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

    assert told(tokens, cap_tokens) == (near, line)


def test_a_section_without_a_cap_or_with_a_cap_of_0_is_never_near_it() -> None:
    assert told(999, None) == (False, "- a: 999")
    assert told(0, 0) == (False, "- a: 0/0")


def test_a_cap_of_hundreds_of_digits_can_be_reported() -> None:
    """Was: an OverflowError, since no float is as large."""
    assert told(5, 10**400) == (False, f"- a: 5/{10**400}")

    sections = [Section("a", "x" * 500, max_tokens=10**400)]
    prompt = foveate.assemble(sections, Budget(10**400), Letters(), show_budget=True)
    assert f"{10**400} tokens (0%)\n- a: 500/{10**400}" in prompt.text
