
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from foveate import formats
from foveate.compaction.apply import build_compaction_edits
from foveate.compaction.store import Compaction
from foveate.compaction.thinking import OMITTED_THINKING, let_provider_drop_thinking, required_betas
from foveate.formats.json_text.parse import parse_json
from foveate.model import Format, Request, SetParameter
from foveate.sandbox import validate_request
from foveate.session.hash_chain import compute_chain
from tests.support.strategies.claude_requests import sign_as_sandbox
from tests.support.strategies.tool_conversations import Body, add_thinking_step, claude_turn, make_compaction_at


def edited(
    request: Request, *compactions: Compaction, unbound: Sequence[range] | None = None, model: str = ""
) -> Request:
    edits = build_compaction_edits(
        request, compute_chain(request), compactions, invalid_thinking_ranges=unbound, model=model
    )
    return formats.parse_request(formats.apply_edits(request, edits), request.format)


def contents(request: Request) -> list[Any]:
    return [parse_json(raw).get("content") for raw in request.messages]


def said(role: str, words: str) -> Body:
    return {"role": role, "content": words}


def kinds(request: Request) -> list[str]:
    blocks = [block for content in contents(request) if isinstance(content, list) for block in content]
    return [block["type"] for block in blocks]


ADAPTIVE = {"type": "adaptive"}
ENABLED = {"type": "enabled", "budget_tokens": 1024}


def test_thoughts_of_the_tail_are_left_out_on_models_that_bind_them() -> None:
    request = formats.parse_request(claude_turn("claude-opus-5-5", ADAPTIVE))
    sent = edited(request, make_compaction_at(request, 3))
    assert validate_request(sent) is None
    assert kinds(sent) == ["tool_use", "tool_result"]


def test_thoughts_of_the_tail_stay_on_models_that_do_not_bind_them() -> None:
    request = formats.parse_request(claude_turn("claude-sonnet-4-5", ENABLED))
    sent = edited(request, make_compaction_at(request, 3))
    assert validate_request(sent) is None
    assert kinds(sent) == ["thinking", "tool_use", "tool_result"]


def test_a_turn_that_must_begin_with_its_thought_keeps_it_and_the_provider_leaves_it_out() -> None:
    request = formats.parse_request(claude_turn("claude-opus-5-5", ENABLED))
    compaction = make_compaction_at(request, 3)
    edits = build_compaction_edits(request, compute_chain(request), [compaction])
    sent = edited(request, compaction)
    assert required_betas(edits) == ("thinking-binding-controls-2026-08-01",)
    assert validate_request(sent, betas=required_betas(edits)) is None
    assert validate_request(sent) is not None  # without the beta
    assert sent.messages[-2:] == request.messages[-2:]
    (asking,) = [edit for edit in edits if isinstance(edit, SetParameter)]
    assert asking.path == ("thinking", "block_binding", "prefix_mismatch_behavior")


def test_a_turn_that_is_over_need_not_begin_with_its_thought() -> None:
    body = claude_turn("claude-opus-5-5", ENABLED, steps=3)
    body["messages"] += [said("assistant", "So."), said("user", "Then?")]
    request = formats.parse_request(body)
    edits = build_compaction_edits(request, compute_chain(request), [make_compaction_at(request, 3)])
    sent = formats.parse_request(formats.apply_edits(request, edits))
    assert required_betas(edits) == ()
    assert validate_request(sent) is None
    assert "thinking" not in kinds(sent)


def test_a_message_that_called_no_tool_need_not_begin_with_its_thought() -> None:
    body = claude_turn("claude-opus-5-5", ENABLED, steps=2)
    thought = {"type": "thinking", "thinking": "hm", "signature": sign_as_sandbox(body, "hm")}
    words = {"type": "text", "text": "So."}
    body["messages"] += [{"role": "assistant", "content": [thought, words]}, said("user", "Then?")]
    request = formats.parse_request(body)
    sent = edited(request, make_compaction_at(request, 3))
    assert validate_request(sent) is None
    assert "thinking" not in kinds(sent)


def test_a_client_that_has_the_provider_leave_thoughts_out_keeps_them() -> None:
    drops = {**ADAPTIVE, "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    request = formats.parse_request(claude_turn("claude-opus-5-5", drops))
    sent = edited(request, make_compaction_at(request, 3))
    assert validate_request(sent, betas=["thinking-binding-controls-2026-08-01"]) is None
    assert sent.messages[-2:] == request.messages[-2:]


def test_a_message_that_is_nothing_but_a_thought_says_that_it_was_left_out() -> None:
    body = claude_turn("claude-opus-5-5", ADAPTIVE)
    body["messages"] += [said("user", "So?")]
    thought = {"type": "thinking", "thinking": "hm", "signature": sign_as_sandbox(body, "hm")}
    body["messages"] += [{"role": "assistant", "content": [thought]}, said("user", "Well?")]
    request = formats.parse_request(body)
    sent = edited(request, make_compaction_at(request, 5))
    assert validate_request(sent) is None
    assert contents(sent)[-2] == OMITTED_THINKING


def test_what_is_thought_after_the_summary_is_kept_with_each_later_request() -> None:
    body = claude_turn("claude-opus-5-5", ADAPTIVE, steps=3)
    request = formats.parse_request(body)
    compaction, first = make_compaction_at(request, 3), len(request.messages)
    for number in range(3, 6):
        as_sent = parse_json(edited(formats.parse_request(body), compaction, unbound=[range(first)]).body)
        later = {**body, "messages": []}
        add_thinking_step(
            as_sent, number
        )  # the model thinks after what it was sent, and the client appends the response
        later["messages"] = [*body["messages"], *as_sent["messages"][-2:]]
        body = later
        sent = edited(formats.parse_request(body), compaction, unbound=[range(first)])
        assert validate_request(sent) is None
        assert kinds(sent).count("thinking") == number - 2


def test_a_fold_that_is_undone_takes_the_thoughts_with_it_that_were_thought_after_its_summary() -> None:
    body = claude_turn("claude-opus-5-5", ADAPTIVE, steps=3)
    compaction = make_compaction_at(formats.parse_request(body), 5)
    as_sent = parse_json(edited(formats.parse_request(body), compaction).body)
    add_thinking_step(as_sent, 3)
    request = formats.parse_request({**body, "messages": [*body["messages"], *as_sent["messages"][-2:]]})
    refused = validate_request(request)
    assert refused is not None
    assert "prefix_mismatch" in refused.message
    sent = edited(request, replace(compaction, undone_at=2.0))
    assert validate_request(sent) is None
    assert sent.messages[:5] == request.messages[:5]
    assert len(sent.messages) == len(request.messages)


def test_thoughts_made_after_a_fold_that_was_undone_are_left_out_after_an_earlier_one_too() -> None:
    request = formats.parse_request(claude_turn("claude-opus-5-5", ADAPTIVE, steps=4))
    near, far = make_compaction_at(request, 3), make_compaction_at(request, 5)
    undone = replace(far, undone_at=2.0)
    assert kinds(edited(request, near, unbound=[range(5)])).count("thinking") == 2
    assert kinds(edited(request, near, undone, unbound=[range(5), range(7, 9)])).count("thinking") == 1
    assert "thinking" not in kinds(edited(request, near, undone))  # if the ranges are not known


CONVERSE: list[Body] = [
    {"role": "user", "content": [{"text": "a"}]},
    {"role": "assistant", "content": [{"text": "So."}]},
    {"role": "user", "content": [{"text": "b"}]},
    {
        "role": "assistant",
        "content": [
            {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}},
            {"text": "So."},
            {"cachePoint": {"type": "default"}},
        ],
    },
    {"role": "user", "content": [{"text": "c"}]},
]


def test_thoughts_are_left_out_of_converse_requests_too() -> None:
    body = {"modelId": "us.anthropic.claude-opus-5-5-v1:0", "messages": CONVERSE}
    request = formats.parse_request(body, Format.BEDROCK)
    sent = edited(request, make_compaction_at(request, 2))
    assert contents(sent)[3] == [{"text": "So."}, {"cachePoint": {"type": "default"}}]


def test_a_body_that_does_not_name_its_model_is_told_it() -> None:
    """Bedrock has the model in the path of the URL."""
    request = formats.parse_request({"messages": CONVERSE}, Format.BEDROCK)
    compaction = make_compaction_at(request, 2)
    assert b"reasoningContent" in edited(request, compaction).body
    assert (
        b"reasoningContent" not in edited(request, compaction, model="us.anthropic.claude-opus-5-5-v1:0").body
    )
    assert b"reasoningContent" in edited(request, compaction, model="us.anthropic.claude-opus-4-6-v1").body


CARRIERS: list[Body] = [
    {"reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s"}], "reasoning": "hm"},
    {"reasoning_details": [{"type": "reasoning.encrypted", "data": "s"}]},
    {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
]


def carried(model: str, *messages: Body) -> Request:
    """The way OpenRouter and LiteLLM pass thinking on."""
    return formats.parse_request(
        {"model": model, "messages": messages, "reasoning": {"enabled": True}}, Format.CHAT
    )


@pytest.mark.parametrize("carrier", CARRIERS)
def test_thoughts_that_chat_completions_carry_are_left_out(carrier: Body) -> None:
    thoughtful = {"role": "assistant", "content": "So.", **carrier}
    messages = [said("user", "Q"), thoughtful, said("user", "Then?"), thoughtful, said("user", "And?")]
    request = carried("anthropic/claude-opus-5.5", *messages)
    assert contents(edited(request, make_compaction_at(request, 2)))[2:] == ["Then?", "So.", "And?"]
    assert not any(
        name.encode() in edited(request, make_compaction_at(request, 2)).body
        for name in carrier
        if name != "reasoning"
    )
    other = carried("anthropic/claude-opus-4.6", *messages)
    assert edited(other, make_compaction_at(other, 2)).messages[2:] == other.messages[2:]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_chat_completion_whose_thoughts_cannot_be_left_out_goes_out_as_it_came(carrier: Body) -> None:
    calls = [{"id": "t", "type": "function", "function": {"name": "r", "arguments": "{}"}}]
    thoughtful = {"role": "assistant", "content": None, "tool_calls": calls, **carrier}
    result = {"role": "tool", "tool_call_id": "t", "content": "x"}
    messages = [said("user", "Q"), said("assistant", "A"), said("user", "Then?"), thoughtful, result]
    request = carried("anthropic/claude-opus-5.5", *messages)
    assert edited(request, make_compaction_at(request, 2)).body == request.body
    before = carried(
        "anthropic/claude-opus-5.5", *messages[:4], result, said("assistant", "B"), said("user", "C")
    )
    assert edited(before, make_compaction_at(before, 6)).body != before.body  # compacted messages are not sent


@pytest.mark.parametrize(("model", "is_asked"), [("claude-opus-5-5", True), ("claude-opus-4-5", False)])
def test_a_model_that_binds_no_thought_is_not_asked_to_leave_out_any(model: str, is_asked: bool) -> None:
    """Regression: it was told to, in a session continued from a model that binds thinking."""
    assert (
        bool(let_provider_drop_thinking(formats.parse_request(claude_turn(model, ADAPTIVE)), model)) is is_asked
    )
