"""Which rules apply in `foveate.assemble`. An agent cannot exceed what its operator allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foveate
from foveate.budget import Budget, Keep, Priority, Prompt, Section, SectionRule
from foveate.errors import BadOption, BudgetExceeded
from tests.support.strategies.budgets import budgets

_few_names = st.sampled_from(["logs", "notes"])
_few_budgets = budgets(_few_names, min_rules=2)
SECTIONS = [Section("logs", "a line of the log\n" * 40), Section("notes", "remember the milk. " * 40)]


def _assemble_or_none(agent: Budget | None, configuration: Budget | None) -> Prompt | None:
    try:
        return foveate.assemble(SECTIONS, agent=agent, configuration=configuration)
    except (BadOption, BudgetExceeded):
        return None


def test_an_agent_is_limited_to_the_operators_caps_and_switches() -> None:
    operator = Budget(4_000, sections={"logs": SectionRule(max_tokens=20), "notes": SectionRule(enabled=False)})
    agent = Budget(10**6, sections={"notes": SectionRule(enabled=True)})

    prompt = foveate.assemble(SECTIONS, agent=agent, configuration=operator)

    assert prompt.limit_tokens == 4_000
    assert [section.cap_tokens for section in prompt.sections] == [20, None]
    assert prompt.sections[1].action == "disabled"


@pytest.mark.slow
@given(agent=_few_budgets, configuration=_few_budgets)
def test_an_agent_never_gets_more_than_its_operator_allows(agent: Budget, configuration: Budget) -> None:
    limited, operator_only = _assemble_or_none(agent, configuration), _assemble_or_none(None, configuration)
    if limited is None:
        return

    if operator_only is not None:
        assert limited.limit_tokens <= operator_only.limit_tokens
    for section in limited.sections:
        rule = configuration.sections[section.name]
        assert rule.max_tokens is None or section.upper <= rule.max_tokens
        assert rule.enabled is not False or section.after == 0
        if rule.priority == "required":
            assert section.priority == "required"


def test_a_ladder_alone_keeps_the_operators_rules_and_limits() -> None:
    operator = Budget(120, 20, sections={"logs": SectionRule(max_tokens=30, priority=Priority.HIGH)})

    prompt = foveate.assemble(SECTIONS, "drop_low_priority", configuration=operator)

    assert prompt.limit_tokens == 100
    assert prompt.sections[0].cap_tokens == 30
    assert [cut.rung for cut in prompt.cuts if cut.section == "notes"] == ["drop_low_priority"]


def test_fields_that_an_agent_does_not_set_keep_the_operators_values() -> None:
    operator = Budget(400, sections={"logs": SectionRule(priority=Priority.LOW, keep=Keep.NEWEST)})

    prompt = foveate.assemble(SECTIONS, agent=Budget(100), configuration=operator)

    assert prompt.sections[0].priority is Priority.LOW
    assert prompt.sections[0].action in ("dropped", "truncated")


def test_a_rule_of_the_call_is_merged_over_the_agents_field_by_field() -> None:
    agent = Budget(500, sections={"logs": SectionRule(max_tokens=30, keep=Keep.NEWEST)})
    call = Budget(sections={"logs": SectionRule(max_tokens=50), "notes": SectionRule(enabled=False)})

    prompt = foveate.assemble(SECTIONS, call, agent=agent)
    logs, notes = prompt.sections

    assert logs.cap_tokens == 50
    assert logs.text.endswith("[...older entries truncated]")
    assert notes.action == "disabled"
