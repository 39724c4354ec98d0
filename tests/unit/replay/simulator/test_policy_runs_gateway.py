"""The gateway with several configurations at once."""

from dataclasses import replace

from hypothesis import given, settings

from foveate.compaction.plan import CompactionOptions
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.options import AgentOptions, KeepAliveOptions
from foveate.model import CacheUsage
from foveate.replay.outcomes import Policy
from foveate.replay.recording import Recording
from foveate.replay.simulator.editing_run import SimulatedCall
from foveate.replay.simulator.policy_runs import start_gateway_runs, start_runs
from foveate.replay.simulator.reconstruct import reconstruct_calls
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.recorded_sessions import PlannedTurn, make_recording
from tests.support.strategies.planned_turns import turn_lists

# Compacts at 20,000 tokens of a window of 200,000.
COMPACTS_EARLY = AgentOptions(
    compaction=True, compaction_options=CompactionOptions(compact_at_pct=0.1, tail_keep_tokens=2_000)
)
CONFIGURATIONS = (
    AgentOptions(),
    AgentOptions(replace_breakpoints=True),
    COMPACTS_EARLY,
    replace(COMPACTS_EARLY, replace_breakpoints=True, keep_alive=KeepAliveOptions(enabled=True)),
    replace(COMPACTS_EARLY, tool_result_max_pct=0.001),
)


def simulate(
    recording: Recording, configurations: tuple[AgentOptions, ...]
) -> list[tuple[list[SimulatedCall], list[CacheUsage]]]:
    """Return the calls and the keep-alive requests of each configuration."""
    runs = start_gateway_runs(configurations, PriceBook(), api_format=recording.format)
    calls = [[run.simulate(call) for run in runs] for call in reconstruct_calls(recording)]
    return [
        ([simulated[number] for simulated in calls], [sent.usage for sent in run.finish()])
        for number, run in enumerate(runs)
    ]


@settings(max_examples=limit_examples(15))
@given(turns=turn_lists)
def test_a_configuration_never_depends_on_the_others(turns: list[PlannedTurn]) -> None:
    recording = make_recording(turns)

    together = simulate(recording, CONFIGURATIONS)

    assert together == [simulate(recording, (options,))[0] for options in CONFIGURATIONS]


@settings(max_examples=limit_examples(15))
@given(turns=turn_lists)
def test_a_configuration_always_equals_the_policy_of_the_gateway(turns: list[PlannedTurn]) -> None:
    recording = make_recording(turns)
    for options in CONFIGURATIONS[:3]:
        runs = start_runs(
            (Policy.GATEWAY,),
            PriceBook(),
            api_format=recording.format,
            window_tokens=None,
            is_as_sent=True,
            gateway=options,
        )
        by_policy = [runs[Policy.GATEWAY].simulate(call) for call in reconstruct_calls(recording)]

        assert simulate(recording, (options,))[0][0] == by_policy


def test_shorter_results_cost_fewer_tokens() -> None:
    recording = make_recording([PlannedTurn(result_chars=8_000) for _ in range(12)])

    (compacted, _), (truncated, _) = simulate(recording, (CONFIGURATIONS[2], CONFIGURATIONS[4]))

    assert sum(call.tokens for call in truncated) < sum(call.tokens for call in compacted)
