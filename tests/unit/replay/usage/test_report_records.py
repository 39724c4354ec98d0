"""Copies of calls are counted once, and so are calls that are in a log and in the ledger."""

from hypothesis import given
from hypothesis import strategies as st

from foveate.replay.usage.report import MAX_MATCH_SECONDS, UsageRecord, merge_ledger, remove_copies
from tests.support.scenarios.usage_logs import make_record


def test_the_copy_with_the_most_tokens_counts() -> None:
    first, last = make_record(output_tokens=1), make_record(output_tokens=70, at=1_001.0)
    assert remove_copies([last, first]) == remove_copies([first, last]) == [last]


def test_of_equal_copies_the_earliest_counts() -> None:
    original, copied = make_record(session="a"), make_record(session="b", at=2_000.0)
    assert remove_copies([copied, original]) == [original]


def test_equal_keys_of_different_agents_are_different_calls() -> None:
    assert len(remove_copies([make_record(), make_record(agent="codex")])) == 2


def test_a_call_through_the_gateway_counts_once_with_the_cost_of_the_ledger() -> None:
    logged = make_record(at=1_010.0, output_tokens=1, picodollars=5, has_logged_cost=True)
    charged = make_record("req_1", agent="key-1", session="hash", output_tokens=80, picodollars=900)
    (record,) = merge_ledger([logged], [charged])
    assert (record.agent, record.session, record.project) == ("claude-code", "s", "p")
    assert (record.output_tokens, record.picodollars, record.has_logged_cost) == (80, 900, False)


def test_an_unknown_price_in_the_ledger_keeps_the_price_of_the_log() -> None:
    (record,) = merge_ledger([make_record()], [make_record(picodollars=None)])
    assert record.picodollars == 100


def test_calls_with_other_tokens_or_at_another_time_are_different() -> None:
    logged = [make_record("a"), make_record("b", read=7)]
    charged = [make_record("x", at=1_001.0 + MAX_MATCH_SECONDS), make_record("y", read=8)]
    assert merge_ledger(logged, charged) == [*logged, *charged]


def test_each_logged_call_matches_one_charge_the_nearest_first() -> None:
    logged = [make_record("a", at=1_000.0), make_record("b", at=1_100.0)]
    charged = [make_record("x", at=1_099.0, picodollars=7), make_record("y", at=999.0, picodollars=8)]
    merged = merge_ledger(logged, [*charged, make_record("z", at=1_001.0)])
    assert [(record.key, record.picodollars) for record in merged] == [("a", 8), ("b", 7), ("z", 100)]


def test_calls_of_the_gateway_itself_are_never_matched() -> None:
    summary = make_record("req", category="compaction")
    assert merge_ledger([make_record()], [summary]) == [make_record(), summary]


_RECORDS = st.lists(
    st.builds(
        make_record,
        st.sampled_from("abc"),
        at=st.floats(0, 5_000),
        uncached=st.integers(0, 3),
        output_tokens=st.integers(0, 3),
    ),
    max_size=12,
)


@given(_RECORDS, _RECORDS)
def test_nothing_is_lost_and_nothing_is_counted_twice(
    logged: list[UsageRecord], charged: list[UsageRecord]
) -> None:
    unique = remove_copies(logged)
    assert {record.key for record in unique} == {record.key for record in logged}
    assert len(unique) == len({record.key for record in logged})
    merged = merge_ledger(unique, charged)
    assert max(len(unique), len(charged)) <= len(merged) <= len(unique) + len(charged)
    assert sum(record.uncached for record in merged) >= sum(record.uncached for record in unique)
