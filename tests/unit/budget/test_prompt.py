"""The report of a budget for an agent."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveate
from foveate import formats
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


SECTIONS = [
    Section("rules", "Answer in one word.", priority="required", stability="static"),
    Section("notes", items=[f"<b>note {number}</b>" for number in range(50)], priority="low"),
    Section("user", "She is called Ana.", stability="session"),
    Section("off", "unused", enabled=False),
    Section("question", "What is the capital of France?", priority="required"),
]
SYSTEM = "Answer in one word.\n\nShe is called Ana."


@pytest.mark.parametrize(
    ("api_format", "expected"),
    [
        (
            "openai-chat",
            {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "USER"}]},
        ),
        ("openai-responses", {"instructions": SYSTEM, "input": [{"role": "user", "content": "USER"}]}),
        ("anthropic", {"system": SYSTEM, "messages": [{"role": "user", "content": "USER"}]}),
        (
            "gemini",
            {
                "system_instruction": {"parts": [{"text": SYSTEM}]},
                "contents": [{"role": "user", "parts": [{"text": "USER"}]}],
            },
        ),
        (
            "bedrock",
            {"system": [{"text": SYSTEM}], "messages": [{"role": "user", "content": [{"text": "USER"}]}]},
        ),
    ],
)
def test_stable_sections_become_the_system_prompt_and_others_a_user_message(
    api_format: foveate.ApiFormat, expected: dict[str, Any]
) -> None:
    prompt = foveate.assemble(SECTIONS, Budget(total_tokens=60))
    user = "\n\n".join(prompt.sections[position].text for position in (1, 4))
    request = prompt.as_messages(api_format=api_format)

    assert user.endswith("What is the capital of France?")
    assert repr(request) == repr(expected).replace("'USER'", repr(user))
    assert formats.parse_request(request).format.value == api_format
    assert foveate.count_request(request, model="gpt-4o").total.tokens >= prompt.tokens - 2


@given(
    texts=st.lists(
        st.tuples(st.sampled_from(("", "one", "two words")), st.sampled_from(("static", "session", "turn"))),
        max_size=5,
    )
)
def test_every_section_is_in_exactly_one_part(texts: list[tuple[str, foveate.StabilityName]]) -> None:
    sections = [
        Section(f"s{number}", f"{text} s{number}" if text else "", stability=stability)
        for number, (text, stability) in enumerate(texts)
    ]
    prompt = foveate.assemble(sections, Budget(total_tokens=1000), show_budget=True)
    messages = prompt.as_messages()["messages"]
    parts = [part for message in messages for part in message["content"].split("\n\n")]

    assert sorted(parts) == sorted(prompt.text.split("\n\n"))


def test_an_unknown_format_is_rejected() -> None:
    wrong: Any = "openai"
    with pytest.raises(foveate.BadOption, match="api_format must be one of anthropic, openai-chat"):
        foveate.assemble(SECTIONS).as_messages(api_format=wrong)


def test_a_prompt_is_shown_by_its_size_and_as_bars_in_notebooks() -> None:
    prompt = foveate.assemble([Section("<i>", "word " * 50), *SECTIONS], Budget(total_tokens=60))
    html = prompt._repr_html_()

    assert repr(prompt) == f"<Prompt: {prompt.tokens} of 60 tokens, 6 sections, {len(prompt.cuts)} cuts>"
    assert repr(prompt.sections[1]) == "<SectionReport 'rules': kept, 5 of 5 tokens>"
    assert "&lt;i&gt;" in html
    assert "<i>" not in html
    assert "required" in html
    assert html.count("<tr>") == 6
    assert "note 1" not in html + repr(prompt)
