"""Session logs of Codex: calls, their histories and their usage."""

import json
from pathlib import Path
from typing import Any

from foveate.cost.pricing.price_book import PriceBook
from foveate.model import CacheUsage
from foveate.replay.outcomes import Policy
from foveate.replay.recording import MissingPart, RecordedCall, Recording
from foveate.replay.recording_files import find_files, group_sessions, read_recordings, read_session
from foveate.replay.run import ReplayOptions, replay_recording
from tests.support.scenarios.agent_logs import (
    CODEX,
    Record,
    codex_call,
    codex_line,
    codex_message,
    codex_meta,
    codex_model,
    codex_result,
    codex_token_count,
)
from tests.support.scenarios.claude_code_log import write_log


def read_recording(folder: Path, *lines: Record, name: str = "rollout-1.jsonl") -> Recording:
    (recording,) = read_recordings(write_log(folder, *lines, name=name))
    return recording


def history_texts(call: RecordedCall) -> list[str]:
    """List the history of a call: the text, the tool call or the output of each item."""
    return [_item_text(json.loads(message.raw)) for message in call.last_message.history()]


def _item_text(item: Any) -> str:
    content = item.get("content")
    return str(content[0]["text"] if content else item.get("call_id") or item["type"])


def cache_usages(recording: Recording) -> list[CacheUsage | None]:
    return [call.usage.cache if call.usage is not None else None for call in recording.calls]


def test_a_response_is_charged_once_and_requested_with_everything_before_its_first_item(
    tmp_path: Path,
) -> None:
    recording = read_recording(tmp_path, *CODEX)

    assert recording.name == "session-1"
    assert recording.missing == {MissingPart.SYSTEM, MissingPart.TOOLS}
    assert cache_usages(recording) == [CacheUsage(uncached=12_000), CacheUsage(uncached=196, read=11_904)]
    assert [history_texts(call)[1:] for call in recording.calls] == [
        ["list the files"],
        ["list the files", "reasoning", "ls", "ls"],
    ]
    assert {call.model for call in recording.calls} == {"gpt-5.1-codex"}
    first = recording.calls[0]
    assert first.response_at - first.at == 2
    assert first.has_thinking


def test_results_of_parallel_calls_that_are_logged_early_do_not_divide_a_response(tmp_path: Path) -> None:
    recording = read_recording(
        tmp_path,
        codex_meta(),
        codex_model(1),
        codex_message(2, "user", "look"),
        codex_call(3, "one"),
        codex_result(4, "one"),
        codex_call(5, "two"),
        codex_result(6, "two"),
        codex_token_count(7, (5_000, 0, 40), (5_000, 0, 40)),
        codex_message(8, "assistant", "seen"),
        codex_token_count(9, (10_100, 4_864, 50), (5_100, 4_864, 10)),
    )

    assert [history_texts(call) for call in recording.calls] == [["look"], ["look", "one", "one", "two", "two"]]


def test_without_the_last_usage_the_growth_of_the_total_is_the_usage(tmp_path: Path) -> None:
    lines = [*CODEX[:4], codex_message(5, "assistant", "yes"), codex_token_count(6, (300, 0, 5), None)]
    next_turn = [
        codex_message(7, "user", "more"),
        codex_message(8, "assistant", "no"),
        codex_token_count(9, (700, 128, 9), None),
    ]

    recording = read_recording(tmp_path, *lines, *next_turn)

    assert cache_usages(recording) == [CacheUsage(uncached=300), CacheUsage(uncached=272, read=128)]
    assert [call.usage.output_tokens for call in recording.calls if call.usage] == [5, 4]


def test_an_estimate_after_a_compaction_is_not_usage(tmp_path: Path) -> None:
    estimate = codex_token_count(20, (24_100, 11_904, 60), (0, 0, 0))
    reset = codex_token_count(21, (0, 0, 0), (0, 0, 0))
    next_count = codex_token_count(31, (900, 0, 5), (900, 0, 5))

    recording = read_recording(
        tmp_path, *CODEX, estimate, reset, codex_message(30, "assistant", "x"), next_count
    )

    assert [call.usage.cache.input_tokens for call in recording.calls if call.usage] == [12_000, 12_100, 900]


def test_a_compaction_replaces_the_history(tmp_path: Path) -> None:
    replacement = [
        codex_message(0, "user", "the task")["payload"],
        codex_message(0, "user", "a summary")["payload"],
    ]
    compacted = codex_line("compacted", 20, {"message": "a summary", "replacement_history": replacement})
    old_line = codex_line("compacted", 20, {"message": "a summary"})
    next_turn = [
        codex_message(30, "assistant", "x"),
        codex_token_count(31, (30_000, 11_904, 70), (5_900, 0, 10)),
    ]

    new_log = read_recording(tmp_path, *CODEX, compacted, *next_turn)
    old_log = read_recording(tmp_path, *CODEX, old_line, *next_turn)

    assert history_texts(new_log.calls[-1]) == ["the task", "a summary"]
    assert history_texts(old_log.calls[-1]) == ["list the files", "a summary"]


def test_turns_that_are_rolled_back_are_not_sent_again(tmp_path: Path) -> None:
    rollback = codex_line("event_msg", 20, {"type": "thread_rolled_back", "num_turns": 1})
    next_turn = [codex_message(21, "user", "instead"), codex_message(22, "assistant", "x")]

    recording = read_recording(
        tmp_path, *CODEX, rollback, *next_turn, codex_token_count(23, (36_000, 11_904, 70), (11_900, 0, 10))
    )

    assert history_texts(recording.calls[-1])[1:] == ["instead"]


def test_calls_that_a_fork_copied_keep_their_ids(tmp_path: Path) -> None:
    copied = [{**line, "timestamp": "2026-06-06T00:00:00Z"} for line in CODEX]
    fork = codex_meta(600, "session-2", forked_from_id="session-1")
    next_turn = [codex_message(601, "user", "go on"), codex_message(602, "assistant", "done")]
    write_log(tmp_path, *CODEX, name="2026/06/05/rollout-1.jsonl")
    write_log(
        tmp_path, fork, *copied, *next_turn, codex_token_count(603, (36_400, 23_000, 75), (12_300, 12_032, 15)),
        name="2026/06/06/rollout-2.jsonl",
    )  # fmt: skip
    sessions, _ = group_sessions(find_files([tmp_path]).files)
    first, second = (recording for session in sessions for recording in read_session(session))

    call_ids = [call.id for call in second.calls]
    assert call_ids[:2] == [call.id for call in first.calls]
    assert len(set(call_ids)) == 3


def test_equal_first_calls_of_two_sessions_are_two_calls(tmp_path: Path) -> None:
    other_lines = [codex_meta(0, "session-9"), *CODEX[1:]]

    first, second = read_recording(tmp_path, *CODEX), read_recording(tmp_path, *other_lines)

    assert {call.id for call in first.calls}.isdisjoint(call.id for call in second.calls)


def test_a_log_without_token_counts_has_its_calls_without_usage(tmp_path: Path) -> None:
    lines = [line for line in CODEX if line["payload"].get("type") != "token_count"]

    recording = read_recording(tmp_path, *lines)

    assert cache_usages(recording) == [None, None]
    assert MissingPart.USAGE in recording.missing


def test_logs_of_the_first_versions_contain_bare_items(tmp_path: Path) -> None:
    head = {"id": "old-1", "timestamp": "2025-06-01T10:00:00Z", "instructions": "Be brief."}
    items = [line["payload"] for line in CODEX if line["type"] == "response_item"]

    recording = read_recording(tmp_path, head, {"record_type": "state"}, *items)

    assert (recording.name, len(recording.calls)) == ("old-1", 2)
    assert {MissingPart.TIME, MissingPart.USAGE, MissingPart.MODEL} <= recording.missing


def test_the_simulated_cost_is_close_to_the_charged_cost(tmp_path: Path) -> None:
    replayed = replay_recording(
        read_recording(tmp_path, *CODEX), PriceBook(), ReplayOptions(policies=(Policy.RECORDED,))
    )

    assert replayed.check.relative_error is not None
    assert abs(replayed.check.relative_error) < 0.03
