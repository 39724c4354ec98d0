"""The policies of the gateway: the client's breakpoints stay, and the configuration decides what is added."""

from dataclasses import replace
from decimal import Decimal

import pytest

from foveate.compaction.plan import CompactionOptions
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.options import AgentOptions
from foveate.replay.outcomes import Outcome, Policy
from foveate.replay.recording import Recording, RecordingSource
from foveate.replay.report import draw_conclusion
from foveate.replay.run import ReplayOptions, replay_recording
from tests.support.scenarios.recorded_sessions import PlannedTurn, make_recording

TURNS_WITH_PAUSES = [PlannedTurn(gap_seconds=400.0 if number % 5 == 4 else 20.0) for number in range(20)]


REPLACES_BREAKPOINTS = AgentOptions(replace_breakpoints=True)


def replay_outcomes(
    recording: Recording, gateway: AgentOptions | None = None, window: int | None = None
) -> dict[Policy, Outcome]:
    options = ReplayOptions(window_tokens=window, gateway=gateway or AgentOptions())
    return replay_recording(recording, PriceBook(), options).outcomes


def clear_policy(outcome: Outcome) -> Outcome:
    """Return an outcome without its policy."""
    return replace(outcome, policy=Policy.GATEWAY)


def without_breakpoints() -> Recording:
    """Build a session of an unknown client, which shows neither breakpoints nor usage."""
    return replace(make_recording(TURNS_WITH_PAUSES, has_usage=False), source=RecordingSource.MESSAGES)


def test_a_client_without_breakpoints_gets_those_of_foveate() -> None:
    outcomes = replay_outcomes(without_breakpoints())

    assert clear_policy(outcomes[Policy.GATEWAY]) == clear_policy(outcomes[Policy.ADAPTIVE])
    assert outcomes[Policy.GATEWAY].read > 0
    assert outcomes[Policy.RECORDED].read == 0


def test_the_breakpoints_of_a_client_stay() -> None:
    """The gateway also differs from Foveate's policy alone."""
    outcomes = replay_outcomes(make_recording(TURNS_WITH_PAUSES))
    gateway_dollars, recorded_dollars = outcomes[Policy.GATEWAY].dollars, outcomes[Policy.RECORDED].dollars

    assert gateway_dollars is not None
    assert recorded_dollars is not None
    assert outcomes[Policy.GATEWAY].written_5m > outcomes[Policy.ADAPTIVE].written_5m
    assert gateway_dollars <= recorded_dollars


def test_a_gateway_that_replaces_breakpoints_equals_the_adaptive_policy() -> None:
    outcomes = replay_outcomes(make_recording(TURNS_WITH_PAUSES), REPLACES_BREAKPOINTS)

    assert clear_policy(outcomes[Policy.GATEWAY]) == clear_policy(outcomes[Policy.ADAPTIVE])


@pytest.mark.parametrize(
    "recording",
    [make_recording(TURNS_WITH_PAUSES), without_breakpoints()],
    ids=["with breakpoints", "without breakpoints"],
)
def test_without_prompt_caching_the_gateway_equals_the_recorded_policy(recording: Recording) -> None:
    outcomes = replay_outcomes(recording, AgentOptions(prompt_cache=False))

    assert clear_policy(outcomes[Policy.GATEWAY]) == clear_policy(outcomes[Policy.RECORDED])


def test_compaction_follows_the_configuration() -> None:
    options = CompactionOptions(compact_at_pct=0.5, tail_keep_tokens=2_000, min_turns_between=1)
    recording = make_recording([PlannedTurn()] * 40)
    disabled = replay_outcomes(recording, AgentOptions(compaction_options=options), window=40_000)
    enabled = replay_outcomes(
        recording, AgentOptions(compaction_options=options, compaction=True), window=40_000
    )

    assert disabled[Policy.GATEWAY].folds == 0
    assert enabled[Policy.GATEWAY].folds > 0
    assert clear_policy(enabled[Policy.GATEWAY]) == clear_policy(enabled[Policy.GATEWAY_COMPACTION])
    assert enabled[Policy.GATEWAY].folds != enabled[Policy.ADAPTIVE_COMPACTION].folds  # with the defaults


def make_outcomes(**dollars: str) -> dict[Policy, Outcome]:
    costs = {Policy(name.replace("_", "-")): Decimal(cost) for name, cost in dollars.items()}
    return {policy: Outcome(policy=policy, dollars=cost) for policy, cost in costs.items()}


def test_a_setting_is_suggested_only_if_it_saves_more_than_the_configuration() -> None:
    small_saving = draw_conclusion(
        make_outcomes(recorded="40", gateway="38", gateway_compaction="37.9"), AgentOptions()
    )
    large_saving = draw_conclusion(
        make_outcomes(recorded="40", gateway="38", gateway_compaction="30"), AgentOptions()
    )
    already_enabled = draw_conclusion(
        make_outcomes(recorded="40", gateway="30", gateway_compaction="30"), AgentOptions(compaction=True)
    )

    assert small_saving is not None
    assert small_saving.suggestion is None
    assert large_saving is not None
    assert large_saving.suggestion is not None
    assert (large_saving.configured.share, large_saving.suggestion.saving.share) == (0.05, 0.25)
    assert large_saving.suggestion.yaml == "context_optimization:\n  compaction:\n    enabled: true\n"
    assert already_enabled is not None
    assert already_enabled.suggestion is None


def test_replacing_breakpoints_is_suggested_if_they_are_kept() -> None:
    costs = make_outcomes(recorded="40", gateway="40", gateway_compaction="39", adaptive="35", fold="35")

    keeps_breakpoints = draw_conclusion(costs, AgentOptions())
    replaces_breakpoints = draw_conclusion(costs, REPLACES_BREAKPOINTS)

    assert keeps_breakpoints is not None
    assert keeps_breakpoints.suggestion is not None
    assert keeps_breakpoints.suggestion.saving.policy is Policy.ADAPTIVE
    assert "client_breakpoints: replace" in keeps_breakpoints.suggestion.yaml
    assert replaces_breakpoints is not None
    assert replaces_breakpoints.suggestion is not None
    assert replaces_breakpoints.suggestion.saving.policy is Policy.GATEWAY_COMPACTION


def test_there_is_no_conclusion_without_a_price_or_without_the_gateway() -> None:
    unpriced = {policy: Outcome(policy=policy, dollars=None) for policy in Policy}

    assert draw_conclusion(unpriced, AgentOptions()) is None
    assert draw_conclusion(make_outcomes(recorded="4", fold="3"), AgentOptions()) is None


def test_a_compaction_after_the_last_request_is_listed_and_loses_the_price_of_its_summary() -> None:
    recording = make_recording([PlannedTurn(result_chars=6_000) for _ in range(60)])
    policies = (Policy.RECORDED, Policy.GATEWAY_COST)

    outcome = replay_recording(recording, PriceBook(), ReplayOptions(policies=policies)).outcomes[
        Policy.GATEWAY_COST
    ]

    (edit,) = outcome.edits
    assert (edit.request, edit.moment, edit.is_compaction) == (60, "expiry", True)
    assert edit.freed_tokens > 0
    assert edit.decision is not None
    assert edit.decision.gain_dollars > edit.decision.cost_dollars > 0
    assert (edit.saved_dollars, edit.later_requests) == (-outcome.fold_dollars, 0)
    assert outcome.folds == 1
    assert outcome.fold_dollars > 0
