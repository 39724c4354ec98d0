"""The benchmark of edits: what its policies clear, and that hindsight is the cheapest of them."""

from benchmarks.bill import HINDSIGHT, RECORDED, _bill_session
from benchmarks.bill_policies import ClearByAge, ClearToolUses, NoEdits
from foveate.compaction.edit_timing import Moment
from foveate.cost.pricing.price_book import PriceBook
from foveate.replay.simulator.adaptive_run import DEFAULT_GATEWAY, AdaptiveRun
from foveate.replay.simulator.editing_run import EditingMoment, EditingRun, EditPolicy, HistoryEdits
from foveate.replay.simulator.prompts import AbbreviatedPrompts
from foveate.replay.simulator.reconstruct import reconstruct_calls
from tests.support.scenarios.recorded_sessions import PlannedTurn, make_recording


class Listed:
    """A policy, with the results that it has cleared by number of the request."""

    def __init__(self, policy: EditPolicy) -> None:
        self._policy = policy
        self.cleared: dict[int, int] = {}

    def decide(self, moment: EditingMoment) -> HistoryEdits:
        edits = self._policy.decide(moment)
        if moment.moment is Moment.ARRIVAL and edits.cleared:
            self.cleared[moment.requests] = len(edits.cleared)
        return edits


def list_cleared(policy: EditPolicy, turns: list[PlannedTurn]) -> dict[int, int]:
    recording, listed = make_recording(turns), Listed(policy)
    run = EditingRun(
        AdaptiveRun(AbbreviatedPrompts(), DEFAULT_GATEWAY),
        listed,
        api_format=recording.format,
        window_tokens=None,
    )
    for call in reconstruct_calls(recording):
        run.simulate(call)
    return listed.cleared


def test_results_are_cleared_by_age_once_the_cache_has_expired() -> None:
    turns = [PlannedTurn()] * 12 + [PlannedTurn(gap_seconds=4_000.0)] + [PlannedTurn()] * 3

    # The results of requests 2 to 7 were in more than five requests.
    assert list_cleared(ClearByAge(NoEdits(), 5), turns) == {13: 6}


def test_results_are_cleared_by_age_whenever_the_request_has_grown() -> None:
    cleared = list_cleared(ClearByAge(NoEdits(), 5, 20_000), [PlannedTurn(result_chars=9_000)] * 40)

    assert len(cleared) > 1
    assert all(number > 6 for number in cleared)


def test_peers_clear_in_each_request_above_their_trigger() -> None:
    turns = [PlannedTurn(result_chars=9_000)] * 40

    cleared = list_cleared(ClearToolUses(counts_preamble=True), turns)

    first = min(cleared)
    assert list(cleared) == list(range(first, 41))
    assert cleared[first] == first - 1 - 3  # all but the last three


def test_hindsight_is_the_cheapest_combination_of_the_session() -> None:
    recording = make_recording([PlannedTurn(result_chars=9_000) for _ in range(40)])

    bill = _bill_session(recording, PriceBook(), source="invented", prior=None, quick=True)

    dollars = {name: policy.dollars for name, policy in bill.policies.items()}
    assert dollars[HINDSIGHT] == min(dollars.values()) < dollars[RECORDED]
    assert " + " in bill.best_combination  # clearing pays here
    assert max(dollars.values()) > dollars[RECORDED]  # and a compaction at the wrong size does not
