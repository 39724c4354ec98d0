"""Assembly of prompts: joins, caps, errors, and the report."""

from typing import Any

import pytest

import foveate
from foveate.budget import Action, Budget, Section, SectionRule
from foveate.budget.sections import Keep, Priority
from foveate.errors import BadOption, BudgetExceeded, SectionSize
from foveate.model import TokenCount

WORDS = "one two three four five six seven eight nine ten "
LOGS = "\n".join(f"12:{minute:02d} something happened" for minute in range(60))


def actions(prompt: foveate.Prompt) -> dict[str, str]:
    return {section.name: section.action.value for section in prompt.sections}


def test_sections_are_joined_by_blank_lines_and_empty_ones_are_skipped() -> None:
    sections = [Section("a", "first"), Section("b", ""), Section("c", items=[]), Section("d", "last")]

    prompt = foveate.assemble(sections, Budget(total_tokens=100))

    assert prompt.text == "first\n\nlast"
    assert prompt.tokens == foveate.count("first\n\nlast").tokens
    assert prompt.cuts == ()


def test_a_prompt_without_sections_is_empty() -> None:
    prompt = foveate.assemble([], Budget(total_tokens=1))

    assert (prompt.text, prompt.tokens, prompt.sections) == ("", 0, ())


def test_a_disabled_section_takes_no_tokens() -> None:
    sections = [Section("a", WORDS, enabled=False, priority="required"), Section("b", "here")]

    prompt = foveate.assemble(sections, Budget(total_tokens=5))

    assert prompt.text == "here"
    assert actions(prompt) == {"a": "disabled", "b": "kept"}
    assert prompt.sections[0].before == 0


def test_caps_of_sections_apply_first() -> None:
    sections = [
        Section("high", WORDS * 20, priority="high", max_tokens=50),
        Section("low", WORDS * 20, priority="low", share=0.1),
    ]

    prompt = foveate.assemble(sections, Budget(total_tokens=1200, output_reserve=200))

    assert [cut.rung for cut in prompt.cuts] == ["cap", "cap"]
    assert [section.cap_tokens for section in prompt.sections] == [50, 100]
    assert 48 <= prompt.sections[0].after <= 50
    assert 97 <= prompt.sections[1].after <= 100
    assert prompt.cuts[0].reason == "its cap is 50 tokens"


def test_the_smaller_of_both_caps_applies() -> None:
    sections = Section("a", WORDS, max_tokens=50, share=0.01), Section("b", WORDS, max_tokens=5, share=0.5)

    prompt = foveate.assemble(sections, Budget(total_tokens=1000))

    assert [section.cap_tokens for section in prompt.sections] == [10, 5]


@pytest.mark.parametrize(
    ("share", "total", "cap"), [(0.29, 100, 29), (0.07, 100, 7), (1, 100, 100), (0, 100, 0)]
)
def test_a_share_is_computed_exactly(share: float, total: int, cap: int) -> None:
    prompt = foveate.assemble([Section("a", "words", share=share)], Budget(total_tokens=total))

    assert prompt.sections[0].cap_tokens == cap


def test_a_total_can_be_arbitrarily_large() -> None:
    prompt = foveate.assemble([Section("a", "words", share=0.5)], Budget(total_tokens=10**400))

    assert prompt.text == "words"


def test_the_limit_is_resolved_in_the_documented_order(monkeypatch: pytest.MonkeyPatch) -> None:
    call, agent, operator = Budget(total_tokens=10), Budget(total_tokens=20), Budget(total_tokens=30)
    monkeypatch.setenv("CONTEXT_MAX_TOKENS", "15")

    with_call = foveate.assemble([], call, agent=agent, configuration=operator)
    with_variable = foveate.assemble([], agent=agent, configuration=operator)
    monkeypatch.delenv("CONTEXT_MAX_TOKENS")
    with_agent = foveate.assemble([], agent=agent, configuration=operator)
    above_operator = foveate.assemble([], agent=Budget(total_tokens=99), configuration=operator)
    with_operator = foveate.assemble([], configuration=operator)
    with_nothing = foveate.assemble([], model="gpt-4o")
    prompts = [with_call, with_variable, with_agent, above_operator, with_operator, with_nothing]

    assert [prompt.limit_tokens for prompt in prompts] == [10, 15, 20, 30, 30, 128_000]
    assert [prompt.limit_source.value for prompt in prompts] == [
        "call",
        "environment",
        "agent",
        "configuration",
        "configuration",
        "window",
    ]


def test_without_a_budget_of_the_call_the_agents_ladder_and_rules_apply() -> None:
    agent = Budget(100, 0, "progressive", sections={"logs": SectionRule(max_tokens=20)})
    sections = [
        Section("logs", LOGS),
        Section("mandates", WORDS * 3),
        Section("task", WORDS * 6, priority="high"),
    ]

    prompt = foveate.assemble(sections, agent=agent, configuration=Budget(500))

    assert actions(prompt) == {"logs": "truncated", "mandates": "dropped", "task": "kept"}


def test_a_budget_can_be_plain_data() -> None:
    prompt = foveate.assemble(
        [Section("logs", LOGS)], {"total_tokens": 500, "sections": {"logs": {"max_tokens": 30}}}
    )

    assert prompt.limit_tokens == 500
    assert prompt.sections[0].cap_tokens == 30


def test_for_estimates_the_agent_sees_upper_bounds() -> None:
    memory = Section("memory", "remember this fact. " * 400, max_tokens=800)

    prompt = foveate.assemble([memory], Budget(total_tokens=2000), "claude-sonnet-4-5", show_budget=True)
    report = prompt.sections[0]

    assert report.after < report.upper <= 800
    assert f"- memory: {report.upper}/800 (near limit!)" in prompt.text
    assert f"Using {prompt.count.upper}/2000 tokens" in prompt.text


def test_the_numbers_of_an_error_add_up_for_estimates() -> None:
    sections = [Section(name, WORDS * 20, priority="required") for name in ("system", "task")]

    with pytest.raises(BudgetExceeded, match="is estimated to take up to") as caught:
        foveate.assemble(sections, Budget(total_tokens=300), "claude-sonnet-4-5")

    assert abs(sum(size.after for size in caught.value.sections) - caught.value.tokens) <= 5


def test_without_a_total_the_context_window_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONTEXT_MAX_TOKENS", raising=False)

    assert foveate.assemble([], Budget(), "gpt-4o").limit_tokens == 128_000
    assert foveate.assemble([], Budget(output_reserve=8_000), "gpt-4o").limit_tokens == 120_000
    assert foveate.assemble([], Budget(), "nobody/knows-this").limit_tokens == 16_384


def test_required_sections_that_do_not_fit_are_an_error_with_all_sizes() -> None:
    sections = [
        Section("system", WORDS * 5, priority="required"),
        Section("task", WORDS * 5, priority="required", max_tokens=30),
        Section("logs", LOGS, priority="low"),
    ]

    with pytest.raises(BudgetExceeded) as caught:
        foveate.assemble(sections, Budget(total_tokens=60))

    error = caught.value
    assert error.limit_tokens == 60
    assert error.tokens > 60
    assert [(size.name, size.priority, size.before) for size in error.sections] == [
        ("system", "required", 51),
        ("task", "required", 51),
        ("logs", "low", 359),
    ]
    assert error.sections[1].after <= 30
    for name, number in (("system", "51"), ("task", str(error.sections[1].after)), ("logs", "359"), ("", "60")):
        assert name in str(error)
        assert number in str(error)


def test_a_required_section_that_its_cap_removes_completely_is_an_error() -> None:
    with pytest.raises(BudgetExceeded, match="system is required"):
        foveate.assemble(
            [Section("system", WORDS, priority="required", max_tokens=0)], Budget(total_tokens=100)
        )
    with pytest.raises(BudgetExceeded, match="system is required") as caught:
        foveate.assemble(
            [Section("system", WORDS, priority="required", max_tokens=9, keep="whole")],
            Budget(total_tokens=100),
        )

    assert caught.value.sections == (SectionSize("system", "required", 11, 11),)


def test_a_required_section_is_cut_without_a_marker_if_its_cap_has_no_room_for_it() -> None:
    section = Section("system", WORDS, priority="required", max_tokens=3)

    assert foveate.assemble([section], Budget(total_tokens=100)).text == "one two three"


def test_without_a_marker_the_preferred_part_of_a_section_is_kept() -> None:
    log = Section("log", items=[f"entry {number}" for number in range(50)], priority="required", max_tokens=5)
    memories = Section(
        "found", items=[("low", 0), ("best", 9)], keep="relevant", priority="required", max_tokens=2
    )

    assert foveate.assemble([log], Budget(total_tokens=100)).text == "entry 49"
    assert foveate.assemble([memories], Budget(total_tokens=100)).text == "best"


def test_rules_of_a_budget_override_settings_of_a_section() -> None:
    rules = {
        "a": SectionRule(priority=Priority.LOW, max_tokens=30, keep=Keep.NEWEST),
        "b": SectionRule(enabled=False),
        "gone": SectionRule(max_tokens=1),
    }
    sections = [
        Section("a", LOGS, priority="required", max_tokens=40),
        Section("b", WORDS),
        Section("c", WORDS),
    ]

    prompt = foveate.assemble(sections, Budget(total_tokens=1000, sections=rules))

    assert actions(prompt) == {"a": "truncated", "b": "disabled", "c": "kept"}
    assert prompt.sections[0].priority is Priority.LOW
    assert prompt.sections[0].cap_tokens == 30
    assert prompt.sections[0].text.endswith("[...older entries truncated]")


def test_an_agent_can_see_its_own_budget() -> None:
    sections = [
        Section("working_memory", WORDS * 78, max_tokens=800),
        Section("notes", "Nothing yet.", max_tokens=100),
        Section("task", "Go on."),
        Section("off", "off", enabled=False),
    ]

    prompt = foveate.assemble(sections, Budget(total_tokens=4000), show_budget=True)

    assert prompt.text.split("\n\n")[-1].splitlines() == [
        "## Context Budget",
        f"Using {prompt.tokens}/4000 tokens ({round(prompt.tokens / 40)}%)",
        "- working_memory: 781/800 (near limit!)",
        "- notes: 3/100",
        "- task: 3",
    ]
    assert prompt.sections[-1].name == "context_budget"
    assert prompt.report == prompt.sections[-1].text


@pytest.mark.parametrize("tokens", [*range(95, 106), *range(990, 1011)])
def test_the_reported_total_includes_the_report(tokens: int) -> None:
    """Around 100 and 1,000 the reported number gets another digit, and the prompt may get longer."""
    sections = [Section("fill", "a " * tokens)]

    prompt = foveate.assemble(sections, Budget(total_tokens=4000), show_budget=True)

    assert f"Using {prompt.tokens}/4000" in prompt.text
    assert prompt.tokens == foveate.count(prompt.text).tokens


def test_room_is_made_for_the_report() -> None:
    sections = [Section(f"part_{number}", WORDS * 20) for number in range(10)]

    prompt = foveate.assemble(sections, Budget(total_tokens=1000), show_budget=True)

    assert 990 <= prompt.tokens <= 1000
    assert f"Using {prompt.tokens}/1000" in prompt.text


@pytest.mark.parametrize("model", ["gpt-4o", "claude-sonnet-4-5", "claude-opus-4-7"])
def test_a_prompt_with_a_report_is_within_every_limit(model: str) -> None:
    sections = [Section(f"part_{number}", "some words here. " * 40) for number in range(4)]

    for limit_tokens in range(110, 400, 3):
        prompt = foveate.assemble(sections, Budget(limit_tokens), model, show_budget=True)

        assert prompt.count.upper <= limit_tokens
        assert f"Using {prompt.count.upper}/{limit_tokens} tokens" in prompt.report


@pytest.mark.parametrize("model", ["gpt-4o", "claude-sonnet-4-5", "gemini-2.5-flash"])
def test_a_small_excess_causes_a_small_cut_with_a_report_too(model: str) -> None:
    """Regression: all optional sections were dropped, since too little room was made for the report."""
    sections = [Section(f"part_{number}", "some words in it. " * 90, max_tokens=300) for number in range(8)]
    whole = foveate.assemble(sections, Budget(10_000), model, show_budget=True).count.upper

    for over in (1, 2, 3, 5, 9, 40):
        prompt = foveate.assemble(sections, Budget(whole - over), model, show_budget=True)

        assert prompt.count.upper >= 0.98 * (whole - over)
        assert f"over the limit of {whole - over:,}" in prompt.cuts[-1].reason


def test_the_report_never_makes_a_fitting_prompt_fail() -> None:
    names = [f"part_{number}" for number in range(12)]
    rules = Section("rules", WORDS * 3, priority="required")
    sections = [rules, *(Section(name, WORDS * 90) for name in names)]
    lines = [f"- rules: {foveate.count(rules.text).tokens}", *(f"- {name}: 0" for name in names)]

    def shortest_prompt(limit_tokens: int) -> str:
        using = f"Using {limit_tokens}/{limit_tokens} tokens (100%)"
        return "\n".join([rules.text, "", "## Context Budget", using, *lines])

    min_tokens = next(
        tokens for tokens in range(500) if foveate.count(shortest_prompt(tokens)).tokens <= tokens
    )
    prompt = foveate.assemble(sections, Budget(min_tokens), show_budget=True)

    assert prompt.text == shortest_prompt(min_tokens)
    with pytest.raises(BudgetExceeded, match="context_budget"):
        foveate.assemble(sections, Budget(min_tokens - 1), show_budget=True)


def test_two_sections_of_one_name_are_rejected() -> None:
    with pytest.raises(BadOption, match="'a': another section already has this name"):
        foveate.assemble([Section("a", "1"), Section("a", "2")], Budget(total_tokens=10))
    with pytest.raises(BadOption, match="the section on the budget already has this name"):
        foveate.assemble([Section("context_budget", "1")], Budget(total_tokens=10), show_budget=True)


def test_sections_can_be_an_iterator_and_must_be_sections() -> None:
    prompt = foveate.assemble((Section(name, name) for name in "ab"), Budget(total_tokens=10))

    assert prompt.text == "a\n\nb"
    with pytest.raises(BadOption, match="not dict"):
        foveate.assemble([{"name": "a", "text": "b"}], Budget(total_tokens=10))  # pyrefly: ignore[bad-argument-type]


@pytest.mark.parametrize(("budget", "model"), [(4000, "gpt-4o"), (Budget(), 5), ({"total": 5}, "gpt-4o")])
def test_invalid_budgets_and_models_are_rejected(budget: Any, model: Any) -> None:
    with pytest.raises(BadOption):
        foveate.assemble([], budget, model)


def test_a_counter_that_returns_no_token_count_is_rejected() -> None:
    class IntegerCounter:
        def text(self, text: str) -> int:
            return len(text)

    with pytest.raises(BadOption, match="must return a TokenCount, not int"):
        foveate.assemble([Section("a", "b")], Budget(total_tokens=10), IntegerCounter())  # pyrefly: ignore[bad-argument-type]


def test_a_single_section_instead_of_a_list_is_rejected() -> None:
    with pytest.raises(BadOption, match="a list"):
        foveate.assemble(Section("a", "b"), Budget(total_tokens=10))  # pyrefly: ignore[bad-argument-type]


def test_a_counter_is_accepted_instead_of_a_model() -> None:
    class CharacterCounter:
        def text(self, text: str) -> TokenCount:
            return TokenCount(len(text), True, len(text))

    prompt = foveate.assemble([Section("a", "words " * 20)], Budget(total_tokens=60), CharacterCounter())

    assert prompt.text == "words words words words words words words wor\n[...truncated]"
    assert prompt.count == TokenCount(60, True, 60)


@pytest.mark.slow
def test_a_section_of_a_hundred_thousand_items_is_cut() -> None:
    items = [(f"item {number}", number % 1000) for number in range(100_000)]

    for keep in ("newest", "relevant", "head", "ends"):
        prompt = foveate.assemble([Section("items", items=items, keep=keep)], Budget(total_tokens=10_000))
        assert 9_900 <= prompt.tokens <= 10_000
        assert prompt.sections[0].action is Action.TRUNCATED
