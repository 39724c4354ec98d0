"""The demo's session as it is sent, and what its numbers are told as."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from foveate import formats
from foveate.cli.console import Display
from foveate.cli.demo_output import demo_lines, demo_object
from foveate.demo.recording import DemoRequest, DemoSession, add_client_breakpoints, load_session
from foveate.demo.run import MovableClock, Tallies, Tally, make_agent_options, run_session, temporary_folder
from foveate.errors import UnreadableInput, UnwritableFile
from foveate.model import Format

LOOK = {"type": "tool_use", "id": "t1", "name": "read", "input": {}}
SEEN = {"type": "tool_result", "tool_use_id": "t1", "content": "a line\n" * 2400}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "AAAA"}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "What is it? " * 200},
    {"role": "assistant", "content": [THOUGHT, LOOK]},
    {"role": "user", "content": [SEEN]},
    {"role": "assistant", "content": "A file."},
    {"role": "user", "content": "And then? 🙂"},
    {"role": "assistant", "content": [THOUGHT]},
    {"role": "user", "content": "Go on."},
    {"role": "assistant", "content": "It ends."},
]

OFF = Tally(
    requests=9,
    answered=5,
    refused=4,
    failed=0,
    uncached=1_000,
    read=0,
    written=0,
    output=50,
    refused_at=6,
    dollars=Decimal("0.5"),
    summary_dollars=Decimal(0),
    largest_context=300,
    folds=0,
    edits=0,
    added_ms=0.5,
    seconds=1.0,
)
ON = replace(OFF, answered=9, refused=0, uncached=100, read=800, written=100, dollars=Decimal("0.18"), folds=2)
SESSION = DemoSession(name="mine", model="claude-sonnet-4-5", format=Format.ANTHROPIC, requests=())


def tallies(off: Tally, on: Tally) -> Tallies:
    """What a session came to, with usual breakpoints for two fifths of what it costs without a cache."""
    usual = replace(off, uncached=50, read=900, written=50, dollars=off.dollars and off.dollars * 2 / 5)
    return Tallies(off=off, usual=usual, on=on)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"model": "claude-sonnet-4-5", "system": "Be brief.", "messages": MESSAGES}))
    return path


def test_each_request_has_the_full_history(recording: Path) -> None:
    session = load_session(recording)
    requests = [formats.parse_request(step.body) for step in session.requests]

    assert [len(request.messages) for request in requests] == [1, 3, 5, 7]
    assert {request.model for request in requests} == {"claude-sonnet-4-5"}
    assert [step.after_seconds for step in session.requests] == [0.0, 20.0, 120.0, 900.0]
    assert not session.has_times


def test_thinking_is_removed_and_used_tools_are_declared(
    recording: Path,
) -> None:
    session = load_session(recording)
    last = json.loads(session.requests[-1].body)

    assert session.is_thinking_removed
    assert not [step for step in session.requests if b"signature" in step.body]
    assert last["messages"][1]["content"] == [LOOK]
    assert last["messages"][5]["content"] == [{"type": "text", "text": "(thinking)"}]
    assert [tool["name"] for tool in last["tools"]] == ["read"]
    assert "tools" not in json.loads(session.requests[0].body)


def test_tool_results_follow_their_calls_and_missing_ones_are_replaced(
    tmp_path: Path,
) -> None:
    """A log has reminders between results, and lacks those of calls that somebody has stopped."""
    two = {**LOOK, "id": "t2"}
    reminder, seen = {"type": "text", "text": "Remember."}, {**SEEN, "content": "a line"}
    asked: list[dict[str, Any]] = [
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": [LOOK, two]},
        {"role": "user", "content": [reminder, seen]},
        {"role": "assistant", "content": [{**LOOK, "id": "t3"}]},
        {"role": "assistant", "content": "Stopped."},
        {"role": "user", "content": [{**seen, "tool_use_id": "t9"}]},
        {"role": "assistant", "content": "It ends."},
    ]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"model": "claude-sonnet-4-5", "messages": asked}))
    sent = json.loads(load_session(path).requests[-1].body)["messages"]

    assert [(one["type"], one.get("tool_use_id")) for one in sent[2]["content"]] == [
        ("tool_result", "t1"),
        ("tool_result", "t2"),
        ("text", None),
    ]
    assert [one.get("tool_use_id") for one in sent[4]["content"]] == ["t3"]
    assert [one["type"] for one in sent[-1]["content"]] == ["text"]


def test_a_model_unknown_to_the_sandbox_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    path.write_text(json.dumps({"model": "llama-9", "messages": chat}))

    assert load_session(path).model in ("gpt-5", "claude-sonnet-4-5")


def test_only_the_first_requests_of_a_long_session_are_sent(recording: Path) -> None:
    session = load_session(recording, max_steps=3)

    assert (len(session.requests), session.left_out) == (3, 1)


@pytest.mark.parametrize("text", ["", "nothing of the kind", "{}", "[]"])
def test_a_file_that_is_not_a_recording_is_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)

    with pytest.raises(UnreadableInput):
        load_session(path)


@pytest.mark.slow
async def test_the_provider_rejects_requests_that_foveate_makes_fit(recording: Path) -> None:
    """Through real gateways to a real sandbox, as short as can be."""
    session, done = load_session(recording), list[int]()
    off = await run_session(session, is_on=False, window_tokens=6_000, report_progress=done.append)
    on = await run_session(session, is_on=True, window_tokens=6_000)

    assert done == [1, 2, 3, 4]
    assert (off.requests, off.failed, on.failed) == (4, 0, 0)
    assert off.refused > on.refused == 0
    assert off.answered + off.refused == 4
    assert (off.folds, off.edits, off.read) == (0, 0, 0)
    assert on.dollars is not None
    assert on.largest_context <= 6_000


def test_all_features_are_off_in_the_baseline() -> None:
    options = make_agent_options(is_on=False, window_tokens=9)

    assert (options.prompt_cache, options.compaction, options.token_counter) == (False, False, False)
    assert make_agent_options(is_on=True, window_tokens=8_000).compaction_options.tail_keep_tokens == 2_000


def test_a_moved_clock_keeps_running() -> None:
    clock = MovableClock()
    before = clock()
    clock.advance(900.0)

    assert 900.0 <= clock() - before < 960.0


def test_variants_are_shown_side_by_side_with_conclusions() -> None:
    text = "\n".join(
        demo_lines(SESSION, tallies(OFF, ON), Display(columns=200), window_tokens=400, is_bundled=False)
    )

    assert "The session mine, with claude-sonnet-4-5." in text
    assert "a window of 400 tokens" in text
    assert ["requests answered", "5 of 9", "5 of 9", "9 of 9"] in [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()
    ]
    assert "ends at request 6: it and 3 more are refused as too long. With it 9 of 9 are answered." in text
    assert ["no cache", "usual breakpoints", "Foveate"] in [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()
    ]
    assert "costs 50% less than with the usual breakpoints, and 80% less than without a cache." in text
    assert "foveate replay ~/.claude/projects" in text
    assert "not answered otherwise" not in text


def test_unreadable_lines_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"role": "user", "content": "hi"}\nbroken\n{"role": "assistant", "content": "yo"}\n')
    session = load_session(path)
    shown = " ".join(
        demo_lines(session, tallies(OFF, ON), Display(columns=200), window_tokens=None, is_bundled=False)
    )

    assert session.broken_lines == 1
    assert "1 line of the recording could not be read" in shown


def test_the_first_rejected_request_marks_the_end_without_foveate() -> None:
    off, on = replace(OFF, answered=4, failed=1, refused_at=3), replace(ON, answered=8, refused=1)
    shown = " ".join(
        demo_lines(SESSION, tallies(off, on), Display(columns=200), window_tokens=None, is_bundled=False)
    )

    assert "ends at request 3: it and 3 more are refused as too long. With it 8 of 9 are answered." in shown


def test_failures_and_unknown_prices_are_shown() -> None:
    on = replace(ON, failed=2, failure="max_tokens: too many", dollars=None)
    session = replace(SESSION, left_out=7, is_thinking_removed=True)
    text = "\n".join(
        demo_lines(session, tallies(OFF, on), Display(columns=200), window_tokens=None, is_bundled=True)
    )

    assert "The sandbox takes 2 of the requests for wrong; the first: max_tokens: too many" in text
    assert "7 more are left out" in text
    assert "Thinking is left out" in text
    assert "unknown" in text
    assert "SmolLM2" in text


@pytest.mark.parametrize("columns", [20, 60, 80])
def test_text_is_wrapped_and_colours_are_optional(columns: int) -> None:
    printed = list(
        demo_lines(SESSION, tallies(OFF, ON), Display(columns=columns), window_tokens=400, is_bundled=True)
    )

    assert all(len(line) <= max(columns, 54) for line in printed)
    assert not any("\x1b" in line for line in printed)
    assert "\x1b[1m" in "\n".join(
        demo_lines(SESSION, tallies(OFF, ON), Display(colours=True), window_tokens=None, is_bundled=True)
    )


def test_the_demo_object_has_all_variants_and_money_as_strings() -> None:
    shown = demo_object(SESSION, tallies(OFF, ON), window_tokens=400, is_bundled=True)

    assert shown["overflows_prevented"] == 4
    off, on = shown["off"], shown["on"]
    assert isinstance(off, dict)
    assert isinstance(on, dict)
    assert (off["dollars"], on["dollars"]) == ("0.5", "0.18")
    assert isinstance(shown["usual"], dict)
    assert shown["usual"]["dollars"] == "0.2"
    assert on["hit_ratio"] == 0.8
    assert json.loads(json.dumps(shown)) == shown


def test_a_missing_temporary_folder_is_reported(tmp_path: Path) -> None:
    """Defect: standard output was blamed."""
    with pytest.raises(UnwritableFile, match=r"none.*TMPDIR"):
        temporary_folder(tmp_path / "none")


def test_client_breakpoints_are_on_the_system_prompt_and_the_last_two_user_messages(
    recording: Path,
) -> None:
    usual = add_client_breakpoints(load_session(recording))
    bodies = [json.loads(step.body) for step in usual.requests]

    assert all("cache_control" in body["system"][-1] for body in bodies)
    last = [message for message in bodies[-1]["messages"] if message["role"] == "user"]
    assert [json.dumps(message).count("cache_control") for message in last] == [0, 0, 1, 1]
    assert all(json.dumps(body).count("cache_control") <= 4 for body in bodies)


def test_without_a_system_prompt_the_tools_get_a_breakpoint_and_empty_texts_do_not() -> None:
    content = [{"type": "text", "text": "hi"}, {"type": "text", "text": " "}]
    body = {"tools": [{"name": "a"}, {"name": "b"}], "messages": [{"role": "user", "content": content}]}
    session = replace(SESSION, requests=[DemoRequest(json.dumps(body).encode(), 0.0)])
    (step,) = add_client_breakpoints(session).requests
    marked = json.loads(step.body)

    assert ["cache_control" in tool for tool in marked["tools"]] == [False, True]
    assert ["cache_control" in block for block in marked["messages"][0]["content"]] == [True, False]


def test_a_provider_with_automatic_caching_gets_no_breakpoints() -> None:
    session = replace(SESSION, format=Format.CHAT, requests=[DemoRequest(b'{"messages": []}', 0.0)])

    assert add_client_breakpoints(session) is session
    text = "\n".join(
        demo_lines(session, tallies(OFF, ON), Display(columns=200), window_tokens=None, is_bundled=False)
    )
    assert "caches unasked" in text
    assert "costs 80% less than without it." in text
