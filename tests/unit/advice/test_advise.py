"""Advice on files: what is counted, what is simulated, and what fails."""

import json
from decimal import Decimal
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from foveate.advice.advise import Advice, RecordingSpend, give_advice, select_recordings
from foveate.advice.session_costs import Period
from foveate.config.settings import Settings
from foveate.replay.recording_files import find_files, group_sessions

EXAMPLE = Path(__file__).parents[3] / "examples" / "session.jsonl"
ALWAYS = Period(0.0, 1e12)


def advise(*files: Path, period: Period = ALWAYS) -> Advice:
    sessions, _ = group_sessions(find_files(files).files)
    return give_advice(sessions, Settings(), period)


def test_the_example_session_is_explained_to_the_cent() -> None:
    advice = advise(EXAMPLE)

    simulation = advice.simulation
    assert simulation is not None
    assert advice.spend.total.dollars == simulation.charged == Decimal("0.34980885")
    parts = sum(part.dollars for part in simulation.breakdown.parts.values())
    assert abs(parts - float(simulation.charged)) < 1e-9
    assert list(simulation.breakdown.misses) == ["expired"]
    assert simulation.breakdown.misses["expired"].misses == 2
    assert [result.candidate.changes for result in simulation.chosen][:1] == [
        {("context_optimization", "prompt_cache", "client_breakpoints"): "replace"}
    ]


def test_the_best_set_never_costs_more_than_any_setting_alone() -> None:
    simulation = advise(EXAMPLE).simulation

    assert simulation is not None
    assert simulation.combination is not None
    assert simulation.combination.cost is not None
    for result in simulation.chosen:
        assert result.cost is not None
        assert simulation.combination.cost.dollars <= result.cost.dollars


def test_a_call_in_two_files_is_counted_once(tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(EXAMPLE.read_bytes())

    once, twice = advise(EXAMPLE), advise(EXAMPLE, copy)

    assert twice.spend.total == once.spend.total
    assert twice.spend.repeated_calls == once.spend.total.calls
    assert twice.simulation is not None
    assert once.simulation is not None
    assert twice.simulation.breakdown.dollars == once.simulation.breakdown.dollars


def test_a_session_that_cannot_be_read_stops_none(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text("no json\n", encoding="utf-8")

    advice = advise(EXAMPLE, broken)

    assert advice.spend.total.calls == 14
    assert [name for name, _ in advice.unread] == [str(broken)]


def test_corrupt_lines_are_counted_and_skipped(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(EXAMPLE.read_bytes() + b'{"type":\n\xff\xfe\n')

    advice = advise(log)

    assert advice.spend.total.calls == 14
    assert advice.spend.unreadable_lines == 2


def test_an_earlier_period_has_no_calls() -> None:
    advice = advise(EXAMPLE, period=Period(1.0, 2.0))

    assert advice.spend.total.calls == 0
    assert advice.simulation is None


def test_models_of_unknown_price_are_named(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    lines = [json.loads(line) for line in EXAMPLE.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        if line.get("message", {}).get("model"):
            line["message"]["model"] = "nobody-knows-1"
    log.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")

    advice = advise(log)

    assert advice.simulation is None
    assert dict(advice.spend.unpriced) == {"nobody-knows-1": 14}
    assert advice.spend.total.unpriced_calls == advice.spend.total.calls == 14


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 600)), max_size=40),
)
def test_the_selected_recordings_always_cover_the_money_or_reach_the_limit(
    sizes: list[tuple[int, int]],
) -> None:
    entries = [
        RecordingSpend(session=number, place=0, calls=calls, dollars=Decimal(dollars))
        for number, (dollars, calls) in enumerate(sizes)
    ]

    selected = select_recordings(entries, cores=4)

    short = [entry for entry in entries if entry.calls <= 400]
    total, covered, in_short = (sum(entry.dollars for entry in group) for group in (entries, selected, short))
    calls = sum(entry.calls for entry in selected)
    candidates = short if in_short >= total / 2 else entries
    assert len(selected) <= 1 or calls <= 1_600
    assert bool(selected) == (total > 0)
    assert all(entry in candidates for entry in selected)
    if covered < Decimal("0.9") * total:
        left = [entry for entry in candidates if entry.dollars and entry not in selected]
        assert all(calls + entry.calls > 1_600 for entry in left)


def test_a_long_recording_is_simulated_only_if_it_has_most_of_the_money() -> None:
    """Defect: one core simulated the longest session for 16 seconds, while the others had nothing to do."""
    short = RecordingSpend(session=0, place=0, calls=100, dollars=Decimal(5))
    long = RecordingSpend(session=1, place=0, calls=1_600, dollars=Decimal(4))
    longer = RecordingSpend(session=2, place=0, calls=2_000, dollars=Decimal(9))

    assert select_recordings([short, long], cores=2) == [short]
    assert select_recordings([short, long, longer], cores=2) == [longer]
