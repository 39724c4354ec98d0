from collections import Counter
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foveate import formats
from foveate.compaction.apply import ACKNOWLEDGEMENT, PROGRESS_NOTE, build_compaction_edits, summary_text
from foveate.compaction.boundary import TurnStructure
from foveate.compaction.thinking import required_betas
from foveate.formats.json_text.parse import parse_json, to_json
from foveate.model import Format, Request
from foveate.sandbox import validate_request
from foveate.session.hash_chain import compute_chain
from tests.support.strategies.tool_conversations import Body, any_requests, find_cuts, make_compaction_at

TOOLS = [{"name": "read", "input_schema": {"type": "object"}}]


def text_message(role: str, words: str) -> Body:
    return {"role": role, "content": words}


def tool_step(call_id: str) -> list[Body]:
    call = {"type": "tool_use", "id": call_id, "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": call_id, "content": "done"}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def claude_request(*messages: Body) -> Request:
    request = formats.parse_request(
        {"model": "claude-opus-4-8", "max_tokens": 64, "tools": TOOLS, "messages": list(messages)},
        Format.ANTHROPIC,
    )
    assert validate_request(request) is None
    return request


def apply_compaction(request: Request, cut: int) -> Request:
    edits = build_compaction_edits(request, compute_chain(request), [make_compaction_at(request, cut)])
    return formats.parse_request(formats.apply_edits(request, edits), request.format)


def message_lines(request: Request) -> list[str]:
    """List roles, with the texts that are neither calls nor results."""
    messages: list[dict[str, Any]] = [parse_json(raw) for raw in request.messages]
    return [
        f"{message['role']}: {message['content']}" if isinstance(message["content"], str) else message["role"]
        for message in messages
    ]


def test_system_messages_of_the_head_are_between_summary_and_reply() -> None:
    request = claude_request(
        text_message("user", "old"),
        text_message("system", "noon"),
        text_message("assistant", "b"),
        text_message("user", "c"),
        text_message("system", "one"),
        text_message("assistant", "d"),
        text_message("user", "e"),
    )
    compacted = apply_compaction(request, 6)
    assert message_lines(compacted) == [
        f"user: {summary_text(make_compaction_at(request, 6))}",
        "system: noon",
        "system: one",
        f"assistant: {ACKNOWLEDGEMENT}",
        "user: e",
    ]
    assert validate_request(compacted) is None


def test_system_messages_after_the_open_question_stay_after_it() -> None:
    """Recent Claude Code sends one after the first question."""
    request = claude_request(
        text_message("user", "old"),
        text_message("system", "noon"),
        *tool_step("a"),
        text_message("assistant", "b"),
        text_message("user", "Q"),
        text_message("system", "one"),
        *tool_step("b"),
        text_message("system", "two"),
        *tool_step("c"),
    )
    compacted = apply_compaction(request, 10)
    assert message_lines(compacted)[1:] == [
        "system: noon",
        f"assistant: {ACKNOWLEDGEMENT}",
        "user: Q",
        "system: one",
        "system: two",
        "assistant",
        "user",
    ]
    assert validate_request(compacted) is None


@pytest.mark.parametrize("system", [[], [text_message("system", "one")]])
def test_a_fork_between_two_steps_keeps_the_open_question(system: list[Body]) -> None:
    """Regression: a user who interrupted between two steps lost the question with its constraints."""
    open_turn = [
        text_message("user", "Port it. Never touch db-prod-7."),
        *system,
        *tool_step("a"),
        *tool_step("b"),
    ]
    compaction = make_compaction_at(claude_request(*open_turn, *tool_step("c")), len(open_turn))
    fork = claude_request(*open_turn, text_message("user", "Stop. How far are you?"))
    compacted = formats.parse_request(
        formats.apply_edits(fork, build_compaction_edits(fork, compute_chain(fork), [compaction])), fork.format
    )
    assert message_lines(compacted) == [
        f"user: {summary_text(compaction)}",
        f"assistant: {ACKNOWLEDGEMENT}",
        "user: Port it. Never touch db-prod-7.",
        *(f"system: {message['content']}" for message in system),
        f"assistant: {PROGRESS_NOTE}",
        "user: Stop. How far are you?",
    ]
    assert validate_request(compacted) is None


@pytest.mark.slow
@given(any_requests(), st.data())
def test_nothing_is_replaced_that_the_summary_does_not_cover(body: Body, data: st.DataObject) -> None:
    request = formats.parse_request(to_json(body))
    assume(find_cuts(request))
    cut = data.draw(st.sampled_from(find_cuts(request)))
    history = TurnStructure([formats.parse_message(request.format, raw) for raw in request.messages])
    field = "input" if "input" in body else "messages"
    fork = formats.parse_request(
        to_json({**body, field: [*body[field][:cut], text_message("user", "Stop.")]}), request.format
    )
    assume(validate_request(fork) is None)
    edits = build_compaction_edits(fork, compute_chain(fork), [make_compaction_at(request, cut)])
    compacted = formats.parse_request(formats.apply_edits(fork, edits), fork.format)
    assert validate_request(compacted, betas=required_betas(edits)) is None
    unsummarized = Counter(
        raw for index, raw in enumerate(request.messages[:cut]) if index not in history.replaced_messages(cut)
    )
    assert unsummarized <= Counter(compacted.messages)
