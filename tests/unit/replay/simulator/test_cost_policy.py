"""Editing a recorded history when it pays: never more expensive than no edits, if the future is known."""

from collections.abc import Callable, Sequence
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.compaction.edit_timing import Moment
from foveate.compaction.forecast import Forecast, FutureRequests, SessionActivity
from foveate.compaction.plan import paying_threshold_tokens
from foveate.cost.pricing.price_book import PriceBook
from foveate.cost.pricing.rates import Rates
from foveate.model import CacheUsage, Ttl
from foveate.prompt_cache.rules import rules_for
from foveate.replay.outcomes import CostSum
from foveate.replay.recording import Recording
from foveate.replay.simulator.adaptive_run import DEFAULT_GATEWAY, AdaptiveRun
from foveate.replay.simulator.cost_policy import CostTrigger
from foveate.replay.simulator.editing_run import (
    NO_EDITS,
    ClearedResult,
    EditingMoment,
    EditingRun,
    EditPolicy,
    HistoryEdits,
)
from foveate.replay.simulator.prompts import AbbreviatedPrompts
from foveate.replay.simulator.reconstruct import ReconstructedCall, reconstruct_calls
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.recorded_sessions import PlannedTurn, make_recording

BOOK = PriceBook()
# Two of them have higher prices for long requests: above 100,000 and 272,000 tokens.
MODELS = (
    "claude-sonnet-4-6",
    "claude-opus-4-5",
    "claude-sonnet-5-5",
    "gpt-5.1",
    "claude-haiku-5-5",
    "gpt-5.4",
)


class NoEdits:
    def decide(self, moment: EditingMoment) -> HistoryEdits:
        return NO_EDITS


class EachMoment:
    """Compacts whenever something can be replaced."""

    def decide(self, moment: EditingMoment) -> HistoryEdits:
        if moment.moment is Moment.ARRIVAL:
            return NO_EDITS
        return HistoryEdits(
            moment.plan_compaction(paying_threshold_tokens(moment.call.input_tokens, moment.options))
        )


class CountedEdits:
    """A policy whose edits are counted, by moment, with the number of the request."""

    def __init__(self, policy: EditPolicy) -> None:
        self._policy = policy
        self.moments: list[Moment] = []
        self.requests: list[int] = []

    def decide(self, moment: EditingMoment) -> HistoryEdits:
        edits = self._policy.decide(moment)
        if edits.compaction is not None or edits.cleared:
            self.moments.append(moment.moment)
            self.requests.append(moment.requests)
        return edits


def find_rates(call: ReconstructedCall) -> Rates | None:
    return BOOK.rates(call.call.model, provider=call.rules.provider, at=call.call.at)


def know_future(
    calls: Sequence[ReconstructedCall],
) -> Callable[[EditingMoment, SessionActivity, Ttl | None], Forecast]:
    """A forecast of exactly the requests that follow."""
    places = {id(call): place for place, call in enumerate(calls)}

    def forecast(moment: EditingMoment, _: SessionActivity, ttl: Ttl | None) -> Forecast:
        ttl_seconds = (ttl or Ttl.FIVE_MINUTES).seconds
        place = places[id(moment.unedited)]
        later = calls[place + 1 :]
        before = [moment.unedited, *later]
        groups = tuple(
            FutureRequests(
                expected=1.0,
                grown_tokens=call.input_tokens - moment.unedited.input_tokens,
                cold_share=float(
                    call.recorded.read <= call.preamble.tokens or call.call.at - previous.call.at > ttl_seconds
                ),
            )
            for previous, call in zip(before, later, strict=False)
        )
        growth = groups[-1].grown_tokens / len(groups) if groups else 0.0
        return Forecast(requests=groups, growth_tokens=growth)

    return forecast


def simulate(calls: Sequence[ReconstructedCall], recording: Recording, policy: EditPolicy) -> Decimal:
    """The cost of a session under a policy, summaries included."""
    editing = EditingRun(
        AdaptiveRun(AbbreviatedPrompts(), DEFAULT_GATEWAY),
        policy,
        api_format=recording.format,
        window_tokens=1_000_000,
    )
    costs = CostSum(BOOK)

    def add(call: ReconstructedCall, usage: CacheUsage, output_tokens: int) -> None:
        costs.add(usage, output_tokens, model=call.call.model, provider=call.rules.provider, at=call.call.at)

    for call in calls:
        simulated = editing.simulate(call)
        add(call, simulated.usage, call.output_tokens)
        for summary in simulated.summaries:
            add(call, summary.usage, summary.output_tokens)
    for call, summary in editing.finish():
        add(call, summary.usage, summary.output_tokens)
    assert costs.dollars is not None
    return costs.dollars


# Long enough that edits are tempting, with pauses that let the cache expire.
sessions = st.builds(
    lambda turns, repeats: turns * repeats,
    st.lists(
        st.builds(
            PlannedTurn,
            result_chars=st.sampled_from((500, 4_000, 9_000, 20_000, 60_000)),
            is_question=st.sampled_from((False, False, False, True)),
            gap_seconds=st.sampled_from((0.5, 10.0, 10.0, 40.0, 299.0, 320.0, 2_000.0, 4_000.0)),
            changes_system=st.sampled_from((False,) * 9 + (True,)),
            reads_again=st.sampled_from((False, False, True)),
            thinks=st.sampled_from((False, False, False, True)),
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 6),
)


@pytest.mark.slow
@settings(max_examples=limit_examples(15))
@given(
    turns=sessions,
    model=st.sampled_from(MODELS),
    clears=st.booleans(),
    ttl=st.sampled_from((Ttl.FIVE_MINUTES, Ttl.ONE_HOUR)),
)
def test_a_plan_that_knows_the_future_never_costs_more_than_no_edits(
    turns: list[PlannedTurn], model: str, clears: bool, ttl: Ttl
) -> None:
    edited_requests = check_costs_no_more(turns, model, clears=clears, ttl=ttl)

    # Also if it had ended with an edited request, or with the one after it.
    for end in sorted({end for request in edited_requests for end in (request, request + 1)}):
        check_costs_no_more(turns[:end], model, clears=clears, ttl=ttl)


def check_costs_no_more(turns: Sequence[PlannedTurn], model: str, *, clears: bool, ttl: Ttl) -> Sequence[int]:
    """Check that edits cost no more than none if the future is known; return the edited requests."""
    known_ttl = ttl if ttl in rules_for(model).ttls else Ttl.FIVE_MINUTES
    recording = make_recording(turns, model=model, ttl=known_ttl)
    calls = reconstruct_calls(recording)
    policy = CountedEdits(
        CostTrigger(find_rates, clears=clears, limits_losses=False, forecast=know_future(calls))
    )

    assert simulate(calls, recording, policy) <= simulate(calls, recording, NoEdits())
    return policy.requests


def test_a_long_session_is_compacted_and_costs_less() -> None:
    recording = make_recording([PlannedTurn(result_chars=6_000) for _ in range(200)])
    calls = reconstruct_calls(recording)
    policy = CountedEdits(CostTrigger(find_rates, clears=False))

    edited, unedited = simulate(calls, recording, policy), simulate(calls, recording, NoEdits())
    with_clearing = simulate(calls, recording, CostTrigger(find_rates))

    assert Moment.RESPONSE in policy.moments
    assert edited < Decimal("0.8") * unedited
    assert with_clearing < Decimal("0.7") * unedited


def test_an_idle_session_is_not_compacted_again_after_a_compaction() -> None:
    """It would be the same one, and its summary would be paid for twice."""
    turns = [PlannedTurn(result_chars=9_000)] * 30 + [PlannedTurn(result_chars=9_000, gap_seconds=2_000.0)]
    recording = make_recording(turns)
    calls = reconstruct_calls(recording)
    policy = CountedEdits(EachMoment())

    simulate(calls, recording, policy)

    assert Moment.EXPIRY not in policy.moments


def test_a_short_session_is_left_alone() -> None:
    recording = make_recording([PlannedTurn(result_chars=6_000) for _ in range(12)])
    calls = reconstruct_calls(recording)
    policy = CountedEdits(CostTrigger(find_rates))

    edited, unedited = simulate(calls, recording, policy), simulate(calls, recording, NoEdits())

    assert not policy.moments
    assert edited == unedited


def test_old_results_are_cleared_when_a_session_returns_to_a_cold_cache() -> None:
    turns = [PlannedTurn(result_chars=9_000) for _ in range(24)]
    turns += [PlannedTurn(result_chars=500, gap_seconds=4_000.0), PlannedTurn(result_chars=500)]
    recording = make_recording(turns)
    calls = reconstruct_calls(recording)
    policy = CountedEdits(CostTrigger(find_rates, compacts=False))

    edited, unedited = simulate(calls, recording, policy), simulate(calls, recording, NoEdits())

    assert policy.moments == [Moment.ARRIVAL]
    assert edited < unedited


def test_an_idle_session_that_returns_is_compacted_before_its_cache_expires() -> None:
    turns = [PlannedTurn(result_chars=9_000, is_question=number % 5 == 0) for number in range(60)]
    turns += [PlannedTurn(result_chars=500, gap_seconds=4_000.0)] * 3
    recording = make_recording(turns)
    calls = reconstruct_calls(recording)
    future = know_future(calls)

    def surprised(moment: EditingMoment, session: SessionActivity, ttl: Ttl | None) -> Forecast:
        """Know that the session goes on only when it is idle."""
        if moment.moment is Moment.EXPIRY:
            return future(moment, session, ttl)
        return Forecast(requests=(), growth_tokens=0.0)

    policy = CountedEdits(CostTrigger(find_rates, clears=False, forecast=surprised))

    edited, unedited = simulate(calls, recording, policy), simulate(calls, recording, NoEdits())

    assert Moment.EXPIRY in policy.moments
    assert edited < unedited


def test_old_results_are_cleared_as_soon_as_a_request_exceeds_a_price_step() -> None:
    """It was last judged below the step, and has grown by less than what judging again takes elsewhere."""
    turns = [PlannedTurn(result_chars=9_000)] * 36 + [PlannedTurn(result_chars=500)] * 12
    recording = make_recording(turns, model="claude-haiku-5-5")
    calls = reconstruct_calls(recording)
    policy = CountedEdits(CostTrigger(find_rates, compacts=False, forecast=know_future(calls)))
    above = next(number for number, call in enumerate(calls, 1) if call.input_tokens > 100_000)

    edited, unedited = simulate(calls, recording, policy), simulate(calls, recording, NoEdits())

    assert above in policy.requests
    assert edited < Decimal("0.9") * unedited


def test_results_before_thinking_that_is_bound_to_them_stay() -> None:
    turns = [PlannedTurn(result_chars=9_000, thinks=True) for _ in range(24)]
    turns += [PlannedTurn(result_chars=500, gap_seconds=4_000.0, thinks=True)] * 2
    for model, clears in (("claude-sonnet-4-6", True), ("claude-opus-5-5", False)):
        recording = make_recording(turns, model=model)
        calls = reconstruct_calls(recording)
        policy = CountedEdits(CostTrigger(find_rates, compacts=False, forecast=know_future(calls)))

        simulate(calls, recording, policy)

        assert bool(policy.moments) is clears


def test_a_client_that_compacts_by_itself_is_left_alone_from_then_on() -> None:
    turns = [PlannedTurn(result_chars=9_000) for _ in range(80)]
    by_client = [*turns[:40], PlannedTurn(result_chars=9_000, compacts=True), *turns[41:]]
    edited_requests = []
    for planned in (turns, by_client):
        recording = make_recording(planned)
        policy = CountedEdits(CostTrigger(find_rates, limits_losses=False))
        simulate(reconstruct_calls(recording), recording, policy)
        edited_requests.append(policy.requests)

    assert max(edited_requests[0]) > 60
    assert 0 < max(edited_requests[1]) <= 40


class CompactsAndClears:
    """Compacts before one request, and then clears what is left."""

    def __init__(self, *, clears: bool) -> None:
        self._clears = clears

    def decide(self, moment: EditingMoment) -> HistoryEdits:
        if moment.moment is not Moment.ARRIVAL or moment.requests != 60:
            return NO_EDITS
        if moment.earlier_compaction is None:
            return HistoryEdits(moment.plan_compaction(60_000))
        return HistoryEdits(
            cleared=[ClearedResult(result, 20) for result in moment.results()[:5] if self._clears]
        )


def test_what_a_compaction_leaves_can_be_cleared_before_the_same_request() -> None:
    recording = make_recording([PlannedTurn(result_chars=9_000) for _ in range(64)])
    calls = reconstruct_calls(recording)

    cleared, compacted = (
        simulate(calls, recording, CompactsAndClears(clears=clears)) for clears in (True, False)
    )

    assert cleared < compacted
