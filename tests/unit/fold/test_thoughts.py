"""Thoughts that a model binds to what it read before are left out after a fold, by us or by the provider."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from foveate import wire
from foveate.fold.journal import Fold
from foveate.fold.replacing import folded_edits
from foveate.fold.thoughts import NO_THOUGHT, betas_of, left_to_provider
from foveate.sandbox import accept
from foveate.session.chain import chain_of
from foveate.values import Format, Request, SetParameter
from foveate.wire.body import value
from tests.claude_bodies import sealed
from tests.unit.fold.talks import Body, claude_turn, fold_at, think


def edited(request: Request, *folds: Fold, unbound: Sequence[range] | None = None, model: str = "") -> Request:
    edits = folded_edits(request, chain_of(request), folds, unbound=unbound, model=model)
    return wire.read(wire.write(request, edits), request.format)


def contents(request: Request) -> list[Any]:
    return [value(raw).get("content") for raw in request.messages]


def said(role: str, words: str) -> Body:
    return {"role": role, "content": words}


def kinds(request: Request) -> list[str]:
    blocks = [block for content in contents(request) if isinstance(content, list) for block in content]
    return [block["type"] for block in blocks]


ADAPTIVE = {"type": "adaptive"}
ENABLED = {"type": "enabled", "budget_tokens": 1024}


def test_thoughts_of_the_tail_are_left_out_on_models_that_bind_them() -> None:
    request = wire.read(claude_turn("claude-opus-5-5", ADAPTIVE))
    sent = edited(request, fold_at(request, 3))
    assert accept(sent) is None
    assert kinds(sent) == ["tool_use", "tool_result"]


def test_thoughts_of_the_tail_stay_on_models_that_do_not_bind_them() -> None:
    request = wire.read(claude_turn("claude-sonnet-4-5", ENABLED))
    sent = edited(request, fold_at(request, 3))
    assert accept(sent) is None
    assert kinds(sent) == ["thinking", "tool_use", "tool_result"]


def test_a_turn_that_must_begin_with_its_thought_keeps_it_and_the_provider_leaves_it_out() -> None:
    request = wire.read(claude_turn("claude-opus-5-5", ENABLED))
    fold = fold_at(request, 3)
    edits = folded_edits(request, chain_of(request), [fold])
    sent = edited(request, fold)
    assert betas_of(edits) == ("thinking-binding-controls-2026-08-01",)
    assert accept(sent, betas=betas_of(edits)) is None
    assert accept(sent) is not None  # without the beta
    assert sent.messages[-2:] == request.messages[-2:]
    (asking,) = [edit for edit in edits if isinstance(edit, SetParameter)]
    assert asking.path == ("thinking", "block_binding", "prefix_mismatch_behavior")


def test_a_turn_that_is_over_need_not_begin_with_its_thought() -> None:
    body = claude_turn("claude-opus-5-5", ENABLED, steps=3)
    body["messages"] += [said("assistant", "So."), said("user", "Then?")]
    request = wire.read(body)
    edits = folded_edits(request, chain_of(request), [fold_at(request, 3)])
    sent = wire.read(wire.write(request, edits))
    assert betas_of(edits) == ()
    assert accept(sent) is None
    assert "thinking" not in kinds(sent)


def test_a_message_that_called_no_tool_need_not_begin_with_its_thought() -> None:
    body = claude_turn("claude-opus-5-5", ENABLED, steps=2)
    thought = {"type": "thinking", "thinking": "hm", "signature": sealed(body, "hm")}
    words = {"type": "text", "text": "So."}
    body["messages"] += [{"role": "assistant", "content": [thought, words]}, said("user", "Then?")]
    request = wire.read(body)
    sent = edited(request, fold_at(request, 3))
    assert accept(sent) is None
    assert "thinking" not in kinds(sent)


def test_a_client_that_has_the_provider_leave_thoughts_out_keeps_them() -> None:
    drops = {**ADAPTIVE, "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    request = wire.read(claude_turn("claude-opus-5-5", drops))
    sent = edited(request, fold_at(request, 3))
    assert accept(sent, betas=["thinking-binding-controls-2026-08-01"]) is None
    assert sent.messages[-2:] == request.messages[-2:]


def test_a_message_that_is_nothing_but_a_thought_says_that_it_was_left_out() -> None:
    body = claude_turn("claude-opus-5-5", ADAPTIVE)
    body["messages"] += [said("user", "So?")]
    thought = {"type": "thinking", "thinking": "hm", "signature": sealed(body, "hm")}
    body["messages"] += [{"role": "assistant", "content": [thought]}, said("user", "Well?")]
    request = wire.read(body)
    sent = edited(request, fold_at(request, 5))
    assert accept(sent) is None
    assert contents(sent)[-2] == NO_THOUGHT


def test_what_is_thought_after_the_summary_is_kept_with_each_later_request() -> None:
    body = claude_turn("claude-opus-5-5", ADAPTIVE, steps=3)
    request = wire.read(body)
    fold, first = fold_at(request, 3), len(request.messages)
    for number in range(3, 6):
        as_sent = value(edited(wire.read(body), fold, unbound=[range(first)]).body)
        later = {**body, "messages": []}
        think(as_sent, number)  # the model thinks after what it was sent; the client appends its answer
        later["messages"] = [*body["messages"], *as_sent["messages"][-2:]]
        body = later
        sent = edited(wire.read(body), fold, unbound=[range(first)])
        assert accept(sent) is None
        assert kinds(sent).count("thinking") == number - 2


def test_a_fold_that_is_undone_takes_the_thoughts_with_it_that_were_thought_after_its_summary() -> None:
    body = claude_turn("claude-opus-5-5", ADAPTIVE, steps=3)
    fold = fold_at(wire.read(body), 5)
    as_sent = value(edited(wire.read(body), fold).body)
    think(as_sent, 3)
    request = wire.read({**body, "messages": [*body["messages"], *as_sent["messages"][-2:]]})
    refused = accept(request)
    assert refused is not None
    assert "prefix_mismatch" in refused.message
    sent = edited(request, replace(fold, undone_at=2.0))
    assert accept(sent) is None
    assert sent.messages[:5] == request.messages[:5]
    assert len(sent.messages) == len(request.messages)


def test_thoughts_made_after_a_fold_that_was_undone_are_left_out_after_an_earlier_one_too() -> None:
    request = wire.read(claude_turn("claude-opus-5-5", ADAPTIVE, steps=4))
    near, far = fold_at(request, 3), fold_at(request, 5)
    undone = replace(far, undone_at=2.0)
    assert kinds(edited(request, near, unbound=[range(5)])).count("thinking") == 2
    assert kinds(edited(request, near, undone, unbound=[range(5), range(7, 9)])).count("thinking") == 1
    assert "thinking" not in kinds(edited(request, near, undone))  # where nobody knows


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
    request = wire.read(body, Format.BEDROCK)
    sent = edited(request, fold_at(request, 2))
    assert contents(sent)[3] == [{"text": "So."}, {"cachePoint": {"type": "default"}}]


def test_a_body_that_does_not_name_its_model_is_told_it() -> None:
    """Bedrock has the model in the path of the request."""
    request = wire.read({"messages": CONVERSE}, Format.BEDROCK)
    fold = fold_at(request, 2)
    assert b"reasoningContent" in edited(request, fold).body
    assert b"reasoningContent" not in edited(request, fold, model="us.anthropic.claude-opus-5-5-v1:0").body
    assert b"reasoningContent" in edited(request, fold, model="us.anthropic.claude-opus-4-6-v1").body


CARRIERS: list[Body] = [
    {"reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s"}], "reasoning": "hm"},
    {"reasoning_details": [{"type": "reasoning.encrypted", "data": "s"}]},
    {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
]


def carried(model: str, *messages: Body) -> Request:
    """As OpenRouter and LiteLLM hand thoughts on."""
    return wire.read({"model": model, "messages": messages, "reasoning": {"enabled": True}}, Format.CHAT)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_thoughts_that_chat_completions_carry_are_left_out(carrier: Body) -> None:
    thoughtful = {"role": "assistant", "content": "So.", **carrier}
    messages = [said("user", "Q"), thoughtful, said("user", "Then?"), thoughtful, said("user", "And?")]
    request = carried("anthropic/claude-opus-5.5", *messages)
    assert contents(edited(request, fold_at(request, 2)))[2:] == ["Then?", "So.", "And?"]
    assert not any(
        name.encode() in edited(request, fold_at(request, 2)).body for name in carrier if name != "reasoning"
    )
    other = carried("anthropic/claude-opus-4.6", *messages)
    assert edited(other, fold_at(other, 2)).messages[2:] == other.messages[2:]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_chat_completion_whose_thoughts_cannot_be_left_out_goes_out_as_it_came(carrier: Body) -> None:
    calls = [{"id": "t", "type": "function", "function": {"name": "r", "arguments": "{}"}}]
    thoughtful = {"role": "assistant", "content": None, "tool_calls": calls, **carrier}
    result = {"role": "tool", "tool_call_id": "t", "content": "x"}
    messages = [said("user", "Q"), said("assistant", "A"), said("user", "Then?"), thoughtful, result]
    request = carried("anthropic/claude-opus-5.5", *messages)
    assert edited(request, fold_at(request, 2)).body == request.body
    before = carried(
        "anthropic/claude-opus-5.5", *messages[:4], result, said("assistant", "B"), said("user", "C")
    )
    assert edited(before, fold_at(before, 6)).body != before.body  # what is folded is not sent


@pytest.mark.parametrize(("model", "is_asked"), [("claude-opus-5-5", True), ("claude-opus-4-5", False)])
def test_a_model_that_binds_no_thought_is_not_asked_to_leave_out_any(model: str, is_asked: bool) -> None:
    """Was asked to, in a session that had gone on from one that does."""
    assert bool(left_to_provider(wire.read(claude_turn(model, ADAPTIVE)), model)) is is_asked
