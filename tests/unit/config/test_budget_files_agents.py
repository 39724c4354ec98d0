"""Budgets of agents, limited by what the operator allows."""

from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from foveate.budget import DEFAULT_BUDGET, Budget, Keep, Priority, SectionRule, budget_as_data
from foveate.budget.budget import clamp_budget
from foveate.config import load_agent_budget, load_budget, save_agent_budget
from tests.support.harness.example_limits import limit_examples
from tests.support.strategies.budgets import budgets, caps, leaves_room, names, rules, shares

# Rules for both sections everywhere, so that the agent's and the operator's rules meet.
few_names = st.sampled_from(["logs", "no"])
few_budgets = budgets(few_names, min_rules=2)

# Contents of an agent's file, mostly a budget or nearly one.
agent_files = st.one_of(
    few_budgets.map(lambda budget: yaml.safe_dump(budget_as_data(budget)).encode()),
    st.fixed_dictionaries(
        {},
        optional={
            "total_tokens": caps | st.none() | st.integers(),
            "output_reserve": caps | st.integers(),
            "sections": st.dictionaries(
                few_names,
                st.fixed_dictionaries(
                    {},
                    optional={
                        "priority": st.sampled_from([*map(str, Priority), None]),
                        "max_tokens": caps | st.none(),
                        "share": shares | st.none(),
                        "enabled": st.booleans() | st.none(),
                    },
                ),
            ),
        },
    ).map(lambda agent_file: yaml.safe_dump(agent_file).encode()),
    st.dictionaries(names, names).map(lambda agent_file: yaml.safe_dump(agent_file).encode()),
    st.binary(),
)


def test_values_above_what_is_allowed_are_clamped_and_reported(file: Path) -> None:
    file.write_text(
        "total_tokens: 1000000\noutput_reserve: 0\n"
        "sections:\n"
        "  logs: {max_tokens: 90, share: 0.5}\n"
        "  notes: {max_tokens: null}\n"
        "  free: {max_tokens: 9}\n",
        encoding="utf-8",
    )
    allowed = Budget(
        4000,
        500,
        sections={
            "logs": SectionRule(max_tokens=50, share=0.1),
            "notes": SectionRule(max_tokens=70),
            "more": SectionRule(share=0.2),
        },
    )
    agents = load_agent_budget(file, defaults=Budget(), allowed=allowed)

    assert agents.budget == Budget(
        4000,
        500,
        sections={
            "logs": SectionRule(max_tokens=50, share=0.1),
            "notes": SectionRule(max_tokens=70),
            "free": SectionRule(max_tokens=9),
            "more": SectionRule(share=0.2),
        },
    )
    assert agents.clamped == (
        "total_tokens: 1000000 with an output_reserve of 0 exceeds the allowed limit; using 4000 with 500",
        "sections.logs.max_tokens: 90 is not allowed; using 50",
        "sections.logs.share: 0.5 is not allowed; using 0.1",
        "sections.notes.max_tokens: no cap is not allowed; using 70",
        "sections.more.share: no cap is not allowed; using 0.2",
    )


def test_an_agent_cannot_change_what_the_operator_requires_or_switches(file: Path) -> None:
    file.write_text(
        "sections:\n"
        "  system: {enabled: false, priority: low, keep: ends, max_tokens: 0}\n"
        "  usual: {enabled: null}\n"
        "  closed: {enabled: true, priority: high}\n"
        "  open: {enabled: false, priority: low}\n"
        "  diary: {priority: required}\n"
        "  logs: {priority: required, enabled: false}\n",
        encoding="utf-8",
    )
    required = SectionRule(priority=Priority.REQUIRED)
    agents = load_agent_budget(
        file,
        defaults=Budget(sections={"usual": SectionRule(priority=Priority.REQUIRED, enabled=True)}),
        allowed=Budget(
            sections={
                "system": required,
                "usual": required,
                "closed": SectionRule(priority=Priority.REQUIRED, enabled=False),
                "open": SectionRule(enabled=True),
                "logs": SectionRule(priority=Priority.LOW),
            }
        ),
    )

    assert agents.budget.sections == {
        "system": SectionRule(priority=Priority.REQUIRED, keep=Keep.ENDS),
        "usual": SectionRule(priority=Priority.REQUIRED, enabled=True),
        "closed": SectionRule(priority=Priority.REQUIRED, enabled=False),
        "open": SectionRule(priority=Priority.LOW, enabled=True),
        "diary": SectionRule(priority=Priority.HIGH),
        "logs": SectionRule(priority=Priority.HIGH, enabled=False),
    }
    assert agents.clamped == (
        "sections.system.max_tokens: 0 is not allowed; using no cap",
        "sections.system.priority: low is not allowed; using required",
        "sections.system.enabled: false is not allowed; using the section's own",
        "sections.usual.enabled: the section's own is not allowed; using true",
        "sections.closed.priority: high is not allowed; using required",
        "sections.closed.enabled: true is not allowed; using false",
        "sections.open.enabled: false is not allowed; using true",
        "sections.logs.priority: required is not allowed; using high",
        "sections.diary.priority: required is not allowed; using high",
    )


def test_required_defaults_stay_if_only_numbers_are_allowed(file: Path) -> None:
    save_agent_budget(file, DEFAULT_BUDGET)
    agents = load_agent_budget(file, defaults=DEFAULT_BUDGET, allowed=Budget(4000))

    assert agents.budget == DEFAULT_BUDGET
    assert agents.clamped == ()


@pytest.mark.parametrize(
    ("requested", "effective"),
    [
        ((4000, 0), (4000, 500)),  # the output reserve is not the agent's to change
        ((5000, 1600), (4000, 1600)),
        ((3000, 0), (3000, 500)),
        ((None, 900), (4000, 900)),
        ((None, 100), (4000, 500)),
        ((10_000, 3000), (4000, 3000)),
    ],
)
def test_the_allowed_total_is_an_upper_and_the_allowed_reserve_a_lower_bound(
    file: Path, requested: tuple[int | None, int], effective: tuple[int, int]
) -> None:
    file.write_text(yaml.safe_dump(budget_as_data(Budget(*requested))), encoding="utf-8")
    budget = load_agent_budget(file, defaults=Budget(), allowed=Budget(4000, 500)).budget

    assert (budget.total_tokens, budget.output_reserve) == effective


def test_the_reserve_stays_if_only_the_window_limits_the_total(file: Path) -> None:
    file.write_text("output_reserve: 0\n", encoding="utf-8")
    budget = load_agent_budget(file, defaults=Budget(), allowed=Budget(None, 500)).budget

    assert (budget.total_tokens, budget.output_reserve) == (None, 500)


def check_rule(effective: SectionRule, allowed_rule: SectionRule, default_rule: SectionRule) -> None:
    """Fail if an agent got a rule that the operator's rule, on top of the default, does not allow."""
    for value, allowed_value in (
        (effective.max_tokens, allowed_rule.max_tokens),
        (effective.share, allowed_rule.share),
    ):
        assert allowed_value is None or (value is not None and value <= allowed_value)
    if allowed_rule.priority is Priority.REQUIRED:
        assert effective.priority is Priority.REQUIRED
        assert effective.enabled is not False or allowed_rule.enabled is False
        assert effective.enabled is not None or default_rule.enabled is not True
        assert (effective.max_tokens, effective.share) == (allowed_rule.max_tokens, allowed_rule.share)
    if effective.priority is Priority.REQUIRED:
        assert Priority.REQUIRED in (allowed_rule.priority, default_rule.priority)
    assert allowed_rule.enabled in (None, effective.enabled)


@given(requested=rules, allowed_rule=rules, default_rule=rules)
def test_no_rule_exceeds_what_is_allowed(
    requested: SectionRule, allowed_rule: SectionRule, default_rule: SectionRule
) -> None:
    budget, allowed, defaults = (
        Budget(sections={"logs": rule}) for rule in (requested, allowed_rule, default_rule)
    )
    effective, clamped = clamp_budget(budget, allowed, defaults=defaults)

    check_rule(effective.sections["logs"], allowed_rule, default_rule)
    assert (effective == budget) is (clamped == ())
    assert clamp_budget(effective, allowed, defaults=defaults) == (effective, ())


@pytest.mark.slow
@given(agent_file=agent_files, defaults=few_budgets, allowed=few_budgets)
def test_an_agent_never_gets_more_than_is_allowed(
    lasting_file: Path, agent_file: bytes, defaults: Budget, allowed: Budget
) -> None:
    lasting_file.write_bytes(agent_file)
    agents = load_agent_budget(lasting_file, defaults=defaults, allowed=allowed)
    budget = agents.budget

    assert budget.output_reserve >= allowed.output_reserve
    if allowed.total_tokens is not None:
        assert budget.total_tokens is not None
        assert budget.total_tokens <= allowed.total_tokens
    for name in {*allowed.sections, *budget.sections}:
        check_rule(*(source.sections.get(name, SectionRule()) for source in (budget, allowed, defaults)))
    if agents.problem is None:
        requested = load_budget(lasting_file, defaults=defaults)
        assert budget == requested or agents.clamped
        assert budget.ladder == requested.ladder
        assert all(budget.sections[name].keep is rule.keep for name, rule in requested.sections.items())


@pytest.mark.slow
@given(
    agent_file=agent_files,
    defaults=few_budgets.filter(leaves_room),
    allowed=st.none() | few_budgets.filter(leaves_room),
)
def test_an_agent_budget_always_leaves_room_for_a_prompt_if_the_defaults_do(
    lasting_file: Path, agent_file: bytes, defaults: Budget, allowed: Budget | None
) -> None:
    lasting_file.unlink(missing_ok=True)
    assume(leaves_room(load_agent_budget(lasting_file, defaults=defaults, allowed=allowed).budget))
    lasting_file.write_bytes(agent_file)

    assert leaves_room(load_agent_budget(lasting_file, defaults=defaults, allowed=allowed).budget)


@settings(max_examples=limit_examples(50))
@given(agent_file=agent_files, defaults=few_budgets)
def test_a_file_applies_completely_or_not_at_all(
    lasting_file: Path, agent_file: bytes, defaults: Budget
) -> None:
    lasting_file.write_bytes(agent_file)
    agents = load_agent_budget(lasting_file, defaults=defaults, allowed=None)

    assert agents.clamped == ()
    if agents.problem is None:
        assert agents.budget == load_budget(lasting_file, defaults=defaults)
    else:
        assert agents.budget == defaults
