from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foveate import formats
from foveate.compaction.apply import (
    ACKNOWLEDGEMENT,
    CONTINUE_REQUEST,
    build_compaction_edits,
    describe_non_text,
    find_active_compaction,
    placeholder_messages,
    summary_text,
)
from foveate.compaction.store import Compaction, CompactionOutcome
from foveate.compaction.thinking import OMITTED_THINKING, required_betas
from foveate.formats.json_text.parse import parse_json, to_json
from foveate.model import Document, Format, Image, MediaSource, Opaque, Request, Text
from foveate.prompt_cache.rules import rules_for
from foveate.sandbox import validate_request
from foveate.session.hash_chain import compute_chain
from tests.support.strategies.claude_requests import claude_requests
from tests.support.strategies.tool_conversations import (
    COMPACTION,
    Body,
    any_requests,
    claude_tool_loops,
    find_cuts,
    make_compaction_at,
)


def apply_compactions(request: Request, *compactions: Compaction) -> Request:
    edits = build_compaction_edits(request, compute_chain(request), compactions)
    return formats.parse_request(formats.apply_edits(request, edits), request.format)


def roles(request: Request) -> list[str]:
    return [formats.parse_message(request.format, raw).role for raw in request.messages]


def contents(request: Request) -> list[Any]:
    return [parse_json(raw).get("content") for raw in request.messages]


def parse_chat(*messages: Body) -> Request:
    return formats.parse_request({"model": "gpt-4.1", "messages": list(messages)}, Format.CHAT)


def text_message(role: str, words: str) -> Body:
    return {"role": role, "content": words}


def tool_step(call_id: str) -> list[Body]:
    calls = [{"id": call_id, "type": "function", "function": {"name": "read", "arguments": "{}"}}]
    return [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": call_id, "content": "done"},
    ]


def test_the_head_becomes_two_messages_and_the_tail_is_unchanged() -> None:
    request = parse_chat(
        text_message("system", "S"),
        text_message("user", "a"),
        text_message("assistant", "b"),
        text_message("user", "c"),
    )
    compacted = apply_compactions(request, make_compaction_at(request, 3))
    assert roles(compacted) == ["system", "user", "assistant", "user"]
    assert contents(compacted)[1:3] == [summary_text(make_compaction_at(request, 3)), ACKNOWLEDGEMENT]
    assert compacted.messages[-1] == request.messages[-1]


def test_a_tail_that_starts_with_the_model_keeps_its_question() -> None:
    request = parse_chat(
        text_message("user", "old"),
        text_message("assistant", "b"),
        text_message("user", "Q"),
        *tool_step("a"),
        *tool_step("b"),
    )
    compacted = apply_compactions(request, make_compaction_at(request, 5))
    assert roles(compacted) == ["user", "assistant", "user", "assistant", "tool"]
    assert compacted.messages[2:] == (request.messages[2], *request.messages[5:])


def test_an_open_question_at_the_start_comes_after_the_summary() -> None:
    request = parse_chat(text_message("user", "Q"), *tool_step("a"), *tool_step("b"))
    compacted = apply_compactions(request, make_compaction_at(request, 3))
    assert roles(compacted) == ["user", "assistant", "user", "assistant", "tool"]
    assert contents(compacted)[2] == "Q"


def test_without_a_question_the_summary_is_a_single_user_message() -> None:
    request = parse_chat(*tool_step("a"), *tool_step("b"))
    assert roles(apply_compactions(request, make_compaction_at(request, 2))) == ["user", "assistant", "tool"]


def test_the_longest_compaction_is_applied_and_of_two_equal_ones_the_later() -> None:
    request = parse_chat(*(text_message(role, f"{n}") for n in range(4) for role in ("user", "assistant")))
    shorter, longer = make_compaction_at(request, 2, id="near"), make_compaction_at(request, 4, id="far")
    newer = replace(longer, id="newer", compacted_at=2.0)
    assert find_active_compaction(compute_chain(request), [shorter, longer]) == longer
    assert find_active_compaction(compute_chain(request), [newer, longer, shorter]) == newer


def test_an_undone_or_failed_compaction_leaves_the_request_unchanged() -> None:
    request = parse_chat(text_message("user", "a"), text_message("assistant", "b"), text_message("user", "c"))
    compaction = make_compaction_at(request, 2)
    assert apply_compactions(request, compaction).body != request.body
    for other in (replace(compaction, undone_at=2.0), replace(compaction, outcome=CompactionOutcome.FAILED)):
        assert apply_compactions(request, other).body == request.body


def test_a_request_with_an_edited_history_is_unchanged() -> None:
    request = parse_chat(text_message("user", "a"), text_message("assistant", "b"), text_message("user", "c"))
    other = parse_chat(text_message("user", "A"), text_message("assistant", "b"), text_message("user", "c"))
    assert apply_compactions(other, make_compaction_at(request, 2)).body == other.body


def test_a_request_that_ends_in_the_compacted_head_is_unchanged() -> None:
    request = parse_chat(
        text_message("user", "a"),
        text_message("assistant", "b"),
        text_message("user", "c"),
        text_message("assistant", "d"),
    )
    shorter = parse_chat(text_message("user", "a"), text_message("assistant", "b"))
    assert apply_compactions(shorter, make_compaction_at(request, 2)).body == shorter.body


def test_a_fork_that_answers_a_compacted_call_is_unchanged() -> None:
    call, result = tool_step("a")
    request = parse_chat(
        text_message("user", "x"),
        text_message("assistant", "y"),
        text_message("user", "q"),
        call,
        text_message("user", "stop"),
    )
    fork = parse_chat(
        text_message("user", "x"), text_message("assistant", "y"), text_message("user", "q"), call, result
    )
    assert apply_compactions(fork, make_compaction_at(request, 4)).body == fork.body


def test_another_system_prompt_does_not_prevent_a_compaction() -> None:
    request = parse_chat(text_message("user", "a"), text_message("assistant", "b"), text_message("user", "c"))
    other = parse_chat(
        text_message("system", "noon"),
        text_message("user", "a"),
        text_message("assistant", "b"),
        text_message("user", "c"),
    )
    assert roles(apply_compactions(other, make_compaction_at(request, 2))) == [
        "system",
        "user",
        "assistant",
        "user",
    ]


def test_carried_facts_are_listed_unless_the_summary_contains_them() -> None:
    compaction = replace(COMPACTION, messages=1200, carried=("a parser", "/srv/app.py"))
    text = summary_text(compaction)
    assert "1,200 messages" in text
    assert text.endswith("Also named there:\n- /srv/app.py")
    assert summary_text(replace(compaction, carried=())).endswith(compaction.summary)


def test_the_edits_have_a_reason_and_count_savings_once() -> None:
    request = parse_chat(
        text_message("user", "Q"),
        *tool_step("a"),
        text_message("system", "noon"),
        *tool_step("b"),
        *tool_step("c"),
    )
    edits = build_compaction_edits(request, compute_chain(request), [make_compaction_at(request, 6)])
    assert sum(edit.saved_tokens for edit in edits) == 800
    assert all("a summary replaces" in edit.reason for edit in edits)


@pytest.mark.parametrize("after_user", [True, False])
@pytest.mark.parametrize("before_model", [True, False])
def test_roles_alternate_around_placeholder_messages(after_user: bool, before_model: bool) -> None:
    messages = placeholder_messages("x", Format.CHAT, after_user=after_user, before_model=before_model)
    roles_before = ["user" if after_user else "assistant", *(message.role for message in messages[0])]
    roles_after = [*(message.role for message in messages[1]), "assistant" if before_model else "user"]
    assert all(message != other for message, other in pairwise([*roles_before, *roles_after]))
    assert (roles_before[-1], roles_after[0]) == ("user", "assistant")  # a system message in between is valid


def test_geminis_model_role_is_used() -> None:
    messages, _ = placeholder_messages("x", Format.GEMINI, after_user=True, before_model=True)
    assert [message.role for message in messages] == ["model", "user"]
    assert messages[1].parts == (Text(CONTINUE_REQUEST),)


def test_images_and_documents_are_described_by_their_metadata() -> None:
    assert (
        describe_non_text(Image(source=MediaSource.INLINE, width=640, height=480)) == "[image: 640x480 pixels]"
    )
    assert describe_non_text(Image(source=MediaSource.URL)) == "[image: url]"
    pdf = Document(source=MediaSource.INLINE, media_type="application/pdf", text="plan.pdf", pages=12)
    assert describe_non_text(pdf) == "[document: plan.pdf, application/pdf, 12 pages]"
    assert describe_non_text(Document(source=MediaSource.FILE, media_type="")) == "[document: file]"
    assert describe_non_text(Opaque("video", b"{}")) == "[video]"
    assert describe_non_text(Text("words")) is None


def strip_thinking(raws: Sequence[bytes]) -> list[Any]:
    stripped = []
    for message in map(parse_json, raws):
        if isinstance(message.get("content"), list) and message.get("role") == "assistant":
            blocks = [
                block for block in message["content"] if block["type"] not in ("thinking", "redacted_thinking")
            ]
            message = {**message, "content": blocks or OMITTED_THINKING}
        stripped.append(message)
    return stripped


@pytest.mark.slow
@given(st.one_of(any_requests(), claude_requests(max_calls=4)), st.data())
def test_providers_accept_any_compacted_request(body: Body, data: st.DataObject) -> None:
    request = formats.parse_request(to_json(body))
    assert validate_request(request) is None
    assume(find_cuts(request))
    cut = data.draw(st.sampled_from(find_cuts(request)))
    compaction = make_compaction_at(request, cut)
    compacted = apply_compactions(request, compaction)
    assert (
        validate_request(
            compacted,
            betas=required_betas(build_compaction_edits(request, compute_chain(request), [compaction])),
        )
        is None
    )
    tail = request.messages[cut:]
    if compacted.messages[-len(tail) :] != tail:
        assert rules_for(body["model"]).binds_thinking
        messages = [parse_json(raw) for raw in compacted.messages[-len(tail) :]]
        assert messages == strip_thinking(tail)


@pytest.mark.slow
@given(claude_tool_loops(), st.data())
def test_a_later_compaction_replaces_the_earlier_one(body: Body, data: st.DataObject) -> None:
    request = formats.parse_request(to_json(body))
    assume(len(find_cuts(request)) > 1)
    first_cut, second_cut = sorted(
        data.draw(st.lists(st.sampled_from(find_cuts(request)), min_size=2, max_size=2, unique=True))
    )
    later = make_compaction_at(request, second_cut, summary="Both.")
    assert (
        apply_compactions(request, make_compaction_at(request, first_cut), later).body
        == apply_compactions(request, later).body
    )


@pytest.mark.slow
@given(any_requests(), st.data())
def test_a_compaction_gives_the_same_bytes_in_every_later_request(body: Body, data: st.DataObject) -> None:
    request = formats.parse_request(to_json(body))
    assume(find_cuts(request) and not rules_for(body["model"]).binds_thinking)
    compaction = make_compaction_at(request, data.draw(st.sampled_from(find_cuts(request))))
    field = "input" if "input" in body else "messages"
    longer = formats.parse_request(
        to_json(
            {**body, field: [*body[field], text_message("assistant", "Yes."), text_message("user", "Then?")]}
        )
    )
    compacted, later = apply_compactions(request, compaction), apply_compactions(longer, compaction)
    assert later.messages[: len(compacted.messages)] == compacted.messages
