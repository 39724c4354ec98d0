"""The policies of the gateway: the client's breakpoints stay, and the configuration decides what is added."""

from dataclasses import replace
from decimal import Decimal

import pytest

from foveate.compaction.plan import CompactionOptions
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.options import AgentOptions
from foveate.replay.outcomes import Outcome
from foveate.replay.policies import Policy
from foveate.replay.recording import Recording, RecordingSource
from foveate.replay.report import draw_conclusion
from foveate.replay.run import ReplayOptions, replay_recording
from tests.support.scenarios.recorded_sessions import PlannedTurn, make_recording

PAUSES = [PlannedTurn(gap_seconds=400.0 if number % 5 == 4 else 20.0) for number in range(20)]


REPLACING = AgentOptions(replace_breakpoints=True)


def outcomes(
    recording: Recording, gateway: AgentOptions | None = None, window: int | None = None
) -> dict[Policy, Outcome]:
    options = ReplayOptions(window_tokens=window, gateway=gateway or AgentOptions())
    return replay_recording(recording, PriceBook(), options).outcomes


def sums(outcome: Outcome) -> Outcome:
    """An outcome without its policy."""
    return replace(outcome, policy=Policy.GATEWAY)


def without_breakpoints() -> Recording:
    """A session of an unknown client, which shows neither breakpoints nor usage."""
    return replace(make_recording(PAUSES, has_usage=False), source=RecordingSource.MESSAGES)


def test_a_client_without_breakpoints_gets_those_of_foveate() -> None:
    found = outcomes(without_breakpoints())

    assert sums(found[Policy.GATEWAY]) == sums(found[Policy.ADAPTIVE])
    assert found[Policy.GATEWAY].read > 0
    assert found[Policy.RECORDED].read == 0


def test_the_breakpoints_of_a_client_stay() -> None:
    """The gateway does something else than Foveate's policy alone."""
    found = outcomes(make_recording(PAUSES))
    gateway, recorded_cost = found[Policy.GATEWAY].dollars, found[Policy.RECORDED].dollars

    assert gateway is not None
    assert recorded_cost is not None
    assert found[Policy.GATEWAY].written_5m > found[Policy.ADAPTIVE].written_5m
    assert gateway <= recorded_cost


def test_a_gateway_that_replaces_them_does_what_foveate_does_alone() -> None:
    found = outcomes(make_recording(PAUSES), REPLACING)

    assert sums(found[Policy.GATEWAY]) == sums(found[Policy.ADAPTIVE])


@pytest.mark.parametrize(
    "recording", [make_recording(PAUSES), without_breakpoints()], ids=["marked", "unmarked"]
)
def test_without_prompt_caching_the_gateway_does_what_the_client_did(recording: Recording) -> None:
    found = outcomes(recording, AgentOptions(prompt_cache=False))

    assert sums(found[Policy.GATEWAY]) == sums(found[Policy.RECORDED])


def test_compaction_follows_the_configuration() -> None:
    early = CompactionOptions(compact_at_pct=0.5, tail_keep_tokens=2_000, min_turns_between=1)
    recording = make_recording([PlannedTurn()] * 40)
    off = outcomes(recording, AgentOptions(compaction_options=early), window=40_000)
    on = outcomes(recording, AgentOptions(compaction_options=early, compaction=True), window=40_000)

    assert off[Policy.GATEWAY].folds == 0
    assert on[Policy.GATEWAY].folds > 0
    assert sums(on[Policy.GATEWAY]) == sums(on[Policy.GATEWAY_COMPACTION])
    assert on[Policy.GATEWAY].folds != on[Policy.ADAPTIVE_COMPACTION].folds  # with the defaults


def priced(**dollars: str) -> dict[Policy, Outcome]:
    costs = {Policy(name.replace("_", "-")): Decimal(cost) for name, cost in dollars.items()}
    return {policy: Outcome(policy=policy, dollars=cost) for policy, cost in costs.items()}


def test_a_setting_is_suggested_only_if_it_saves_more_than_the_configuration() -> None:
    little = draw_conclusion(priced(recorded="40", gateway="38", gateway_compaction="37.9"), AgentOptions())
    much = draw_conclusion(priced(recorded="40", gateway="38", gateway_compaction="30"), AgentOptions())
    is_on = draw_conclusion(
        priced(recorded="40", gateway="30", gateway_compaction="30"), AgentOptions(compaction=True)
    )

    assert little is not None
    assert little.suggestion is None
    assert much is not None
    assert much.suggestion is not None
    assert (much.configured.share, much.suggestion.saving.share) == (0.05, 0.25)
    assert much.suggestion.yaml == "context_optimization:\n  compaction:\n    enabled: true\n"
    assert is_on is not None
    assert is_on.suggestion is None


def test_replacing_breakpoints_is_suggested_if_they_are_kept() -> None:
    costs = priced(recorded="40", gateway="40", gateway_compaction="39", adaptive="35", fold="35")

    keeping = draw_conclusion(costs, AgentOptions())
    replacing = draw_conclusion(costs, REPLACING)

    assert keeping is not None
    assert keeping.suggestion is not None
    assert keeping.suggestion.saving.policy is Policy.ADAPTIVE
    assert "client_breakpoints: replace" in keeping.suggestion.yaml
    assert replacing is not None
    assert replacing.suggestion is not None
    assert replacing.suggestion.saving.policy is Policy.GATEWAY_COMPACTION


def test_there_is_no_conclusion_without_a_price_or_without_the_gateway() -> None:
    unknown = {policy: Outcome(policy=policy, dollars=None) for policy in Policy}

    assert draw_conclusion(unknown, AgentOptions()) is None
    assert draw_conclusion(priced(recorded="4", fold="3"), AgentOptions()) is None
