"""Text and JSON output of `foveate replay`."""

import json
from dataclasses import replace
from decimal import Decimal

import pytest

from foveate.cli.replay import ReplayFormatter, report_object
from foveate.cli.shared.console import Display
from foveate.cost.pricing.price_book import PriceBook
from foveate.replay.outcomes import Outcome, Placeholders, Policy, ReplayedSession
from foveate.replay.recording import MissingPart
from foveate.replay.recording_files import SessionFiles
from foveate.replay.report import ReplayReport, build_report, compare_to_recorded
from foveate.replay.run import ReplayOptions, SessionResult, replay_recording
from tests.support.scenarios.recorded_sessions import PlannedTurn, make_recording

BOOK = PriceBook()


def replay_session(name: str = "session", calls: int = 6) -> ReplayedSession:
    return replay_recording(
        make_recording([PlannedTurn() for _ in range(calls)], name=name), BOOK, ReplayOptions()
    )


def make_report(*sessions: ReplayedSession) -> ReplayReport:
    return ReplayReport(
        policies=tuple(Policy), sessions=sessions, unpriced={}, unread=(), unreadable=(), repeated=0
    )


def report_lines(
    report: ReplayReport, columns: int = 100, encoding: str = "utf-8", *, each: bool = False
) -> list[str]:
    return list(ReplayFormatter(Display(columns=columns, encoding=encoding)).lines(report, each=each))


def test_edits_are_shown_with_what_was_expected_and_what_they_saved() -> None:
    recording = make_recording([PlannedTurn(result_chars=6_000) for _ in range(150)])
    policies = (Policy.RECORDED, Policy.GATEWAY, Policy.GATEWAY_COST)
    session = replay_recording(recording, BOOK, ReplayOptions(policies=policies))
    report = replace(make_report(session), policies=policies)

    (line,) = [line for line in report_lines(report, 300) if "edits of the history" in line]
    (shown,) = json.loads(json.dumps(report_object(report)))["sessions"]
    outcomes = {outcome["policy"]: outcome for outcome in shown["outcomes"]}
    edits = outcomes["gateway-cost"]["edits"]
    saved = sum(Decimal(edit["saved_dollars"]) for edit in edits)

    assert line.startswith(f"gateway-cost: {len(edits)} edits of the history, expected to save $")
    assert f"after all costs; saved ${saved:.2f}, summaries included" in line
    assert outcomes["gateway"]["edits"] == []
    assert {edit["kind"] for edit in edits} == {"compaction", "clearing"}
    for edit in edits:
        assert edit["expected_gain_dollars"] > edit["expected_cost_dollars"] >= 0
        assert edit["freed_tokens"] > 0
        assert edit["later_requests"] in (150 - edit["request"], 151 - edit["request"])
    # What the edits saved is the whole difference.
    difference = Decimal(outcomes["gateway"]["dollars"]) - Decimal(outcomes["gateway-cost"]["dollars"])
    assert saved == pytest.approx(difference)


@pytest.mark.parametrize("columns", [60, 72, 80, 100, 140])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    names = [f"a session with a long name, number {number}" for number in range(5)]
    report = make_report(*map(replay_session, names))

    assert max(map(len, report_lines(report, columns))) <= columns
    assert any("adaptive" in line for line in report_lines(report, columns))


def test_an_ascii_terminal_gets_ascii_only() -> None:
    report = make_report(
        replay_session("ein Gespräch über 👩‍👩‍👧‍👦 und mehr, das kein Ende nimmt, bis es abgeschnitten wird")
    )

    text = "\n".join(report_lines(report, encoding="ascii"))

    assert text.isascii()
    assert ".." in text


def test_control_characters_are_escaped() -> None:
    assert "\x1b" not in "\n".join(report_lines(make_report(replay_session("\x1b[31mred"))))


def test_a_policy_that_costs_more_has_a_negative_saving() -> None:
    outcomes = replay_session().outcomes
    saving = compare_to_recorded(outcomes[Policy.NONE], outcomes[Policy.RECORDED])

    assert saving is not None
    assert saving.dollars < 0
    assert saving.share is not None
    assert saving.share < 0


def test_there_is_no_saving_without_a_known_price() -> None:
    assert (
        compare_to_recorded(Outcome(policy=Policy.NONE, dollars=None), Outcome(policy=Policy.RECORDED)) is None
    )
    assert "unknown" in "\n".join(
        report_lines(
            make_report(
                replace(replay_session(), outcomes={p: Outcome(policy=p, dollars=None) for p in Policy})
            )
        )
    )


def test_notes_below_the_table_name_what_is_missing() -> None:
    session = replace(
        replay_session(),
        missing=frozenset((MissingPart.SYSTEM, MissingPart.TOOLS, MissingPart.TIME, MissingPart.USAGE)),
        placeholders=Placeholders(calls=3, tokens=1_234, dollars=Decimal("0.02")),
    )
    report = replace(make_report(session), repeated=7, model="claude-opus-4-8")

    text = " ".join(report_lines(report))

    assert "taken from the usage of the first call (14," in text
    assert "which is an estimate" in text
    assert "so that no cache entry expires" in text
    assert "1,234 output tokens ($0.02)" in text
    assert "7 calls occur in two files" in text
    assert "claude-opus-4-8" in text


def test_the_json_object_has_exact_amounts_and_is_deterministic() -> None:
    report = make_report(replay_session("a"), replay_session("b"))

    encoded = json.dumps(report_object(report))

    assert encoded == json.dumps(report_object(make_report(replay_session("a"), replay_session("b"))))
    decoded = json.loads(encoded)
    total = sum(Decimal(row["outcomes"][0]["dollars"]) for row in decoded["sessions"])
    assert Decimal(decoded["total"][0]["dollars"]) == total
    assert [row["policy"] for row in decoded["total"]] == list(Policy)
    assert decoded["check"]["off"] == pytest.approx(0, abs=0.005)


def test_a_session_of_one_call_without_tokens_is_shown() -> None:
    empty = replace(replay_session(), outcomes={policy: Outcome(policy=policy) for policy in Policy})

    assert report_lines(make_report(empty))
    assert report_object(make_report(empty))


def test_models_of_unknown_price_are_distinguished_from_the_requested_one() -> None:
    session = replace(replay_session(), unpriced={"nobody-knows": 2})
    result = SessionResult(session=SessionFiles(files=(), source=None), replayed=(session,))

    assert build_report([result], tuple(Policy)).model is None
    assert build_report([result], tuple(Policy), model="gpt-4o").model == "gpt-4o"


def test_every_policy_is_explained_in_a_line() -> None:
    text = " ".join(report_lines(make_report(replay_session())))

    for policy in Policy:
        assert f"{policy}: {policy.meaning}" in text


def test_sending_without_a_cache_is_not_shown_as_a_loss() -> None:
    none_row = next(line for line in report_lines(make_report(replay_session())) if line.startswith("none "))

    assert "-" not in none_row


def test_merged_sub_agents_are_mentioned() -> None:
    text = " ".join(report_lines(make_report(replace(replay_session(), sub_agents=2))))

    assert "The calls of 2 sub-agents are included in the session that started them" in text


def test_the_output_ends_with_a_conclusion_and_the_yaml_to_apply() -> None:
    costs = {Policy.RECORDED: "40", Policy.GATEWAY: "38.07", Policy.GATEWAY_COMPACTION: "31.38"}
    outcomes = {
        policy: Outcome(policy=policy, dollars=Decimal(costs.get(policy, "50")), calls=1) for policy in Policy
    }

    lines = report_lines(make_report(replace(replay_session(), outcomes=outcomes)))

    assert lines[-7:] == [
        "Through the gateway with its default configuration, this session would have cost $1.93 (5%) less.",
        "With compaction, it would have cost $8.62 (22%) less.",
        "To apply this, add to foveate.yaml:",
        "",
        "  context_optimization:",
        "    compaction:",
        "      enabled: true",
    ]


def test_the_best_policy_of_a_session_is_one_that_the_gateway_can_follow() -> None:
    costs = {
        Policy.RECORDED: "40",
        Policy.GATEWAY: "38",
        Policy.GATEWAY_COMPACTION: "36",
        Policy.MARKERS: "20",
    }
    outcomes = {
        policy: Outcome(policy=policy, dollars=Decimal(costs.get(policy, "50")), calls=1) for policy in Policy
    }
    sessions = [replace(replay_session(name), outcomes=outcomes) for name in "abcd"]

    rows = [line for line in report_lines(make_report(*sessions)) if line.endswith("10%") and "2026" in line]

    assert len(rows) == 4
    assert all(" gateway-compaction " in row for row in rows)
