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


def apply_compactions(
    request: Request, *compactions: Compaction, invalid_ranges: Sequence[range] | None = None, model: str = ""
) -> Request:
    edits = build_compaction_edits(
        request, compute_chain(request), compactions, invalid_thinking_ranges=invalid_ranges, model=model
    )
    return formats.parse_request(formats.apply_edits(request, edits), request.format)


def message_contents(request: Request) -> list[Any]:
    return [parse_json(raw).get("content") for raw in request.messages]


def text_message(role: str, words: str) -> Body:
    return {"role": role, "content": words}


def block_kinds(request: Request) -> list[str]:
    blocks = [block for content in message_contents(request) if isinstance(content, list) for block in content]
    return [block["type"] for block in blocks]


ADAPTIVE = {"type": "adaptive"}
ENABLED = {"type": "enabled", "budget_tokens": 1024}


def test_thinking_in_the_tail_is_dropped_for_models_that_bind_it() -> None:
    request = formats.parse_request(claude_turn("claude-opus-5-5", ADAPTIVE))
    compacted = apply_compactions(request, make_compaction_at(request, 3))
    assert validate_request(compacted) is None
    assert block_kinds(compacted) == ["tool_use", "tool_result"]


def test_thinking_in_the_tail_stays_for_other_models() -> None:
    request = formats.parse_request(claude_turn("claude-sonnet-4-5", ENABLED))
    compacted = apply_compactions(request, make_compaction_at(request, 3))
    assert validate_request(compacted) is None
    assert block_kinds(compacted) == ["thinking", "tool_use", "tool_result"]


def test_an_open_turn_keeps_its_thinking_and_the_provider_drops_it() -> None:
    request = formats.parse_request(claude_turn("claude-opus-5-5", ENABLED))
    compaction = make_compaction_at(request, 3)
    edits = build_compaction_edits(request, compute_chain(request), [compaction])
    compacted = apply_compactions(request, compaction)
    assert required_betas(edits) == ("thinking-binding-controls-2026-08-01",)
    assert validate_request(compacted, betas=required_betas(edits)) is None
    assert validate_request(compacted) is not None  # without the beta
    assert compacted.messages[-2:] == request.messages[-2:]
    (parameter,) = [edit for edit in edits if isinstance(edit, SetParameter)]
    assert parameter.path == ("thinking", "block_binding", "prefix_mismatch_behavior")


def test_a_finished_turn_need_not_start_with_thinking() -> None:
    body = claude_turn("claude-opus-5-5", ENABLED, steps=3)
    body["messages"] += [text_message("assistant", "So."), text_message("user", "Then?")]
    request = formats.parse_request(body)
    edits = build_compaction_edits(request, compute_chain(request), [make_compaction_at(request, 3)])
    compacted = formats.parse_request(formats.apply_edits(request, edits))
    assert required_betas(edits) == ()
    assert validate_request(compacted) is None
    assert "thinking" not in block_kinds(compacted)


def test_a_message_without_tool_calls_need_not_start_with_thinking() -> None:
    body = claude_turn("claude-opus-5-5", ENABLED, steps=2)
    thinking_block = {"type": "thinking", "thinking": "hm", "signature": sign_as_sandbox(body, "hm")}
    words = {"type": "text", "text": "So."}
    body["messages"] += [
        {"role": "assistant", "content": [thinking_block, words]},
        text_message("user", "Then?"),
    ]
    request = formats.parse_request(body)
    compacted = apply_compactions(request, make_compaction_at(request, 3))
    assert validate_request(compacted) is None
    assert "thinking" not in block_kinds(compacted)


def test_thinking_stays_if_the_client_lets_the_provider_drop_it() -> None:
    thinking = {**ADAPTIVE, "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    request = formats.parse_request(claude_turn("claude-opus-5-5", thinking))
    compacted = apply_compactions(request, make_compaction_at(request, 3))
    assert validate_request(compacted, betas=["thinking-binding-controls-2026-08-01"]) is None
    assert compacted.messages[-2:] == request.messages[-2:]


def test_a_message_of_nothing_but_thinking_becomes_a_placeholder() -> None:
    body = claude_turn("claude-opus-5-5", ADAPTIVE)
    body["messages"] += [text_message("user", "So?")]
    thinking_block = {"type": "thinking", "thinking": "hm", "signature": sign_as_sandbox(body, "hm")}
    body["messages"] += [{"role": "assistant", "content": [thinking_block]}, text_message("user", "Well?")]
    request = formats.parse_request(body)
    compacted = apply_compactions(request, make_compaction_at(request, 5))
    assert validate_request(compacted) is None
    assert message_contents(compacted)[-2] == OMITTED_THINKING


def test_thinking_after_the_summary_is_kept_in_later_requests() -> None:
    body = claude_turn("claude-opus-5-5", ADAPTIVE, steps=3)
    request = formats.parse_request(body)
    compaction, first = make_compaction_at(request, 3), len(request.messages)
    for number in range(3, 6):
        compacted_body = parse_json(
            apply_compactions(formats.parse_request(body), compaction, invalid_ranges=[range(first)]).body
        )
        next_body = {**body, "messages": []}
        add_thinking_step(
            compacted_body, number
        )  # the model thinks after the compacted request, and the client appends the response
        next_body["messages"] = [*body["messages"], *compacted_body["messages"][-2:]]
        body = next_body
        compacted = apply_compactions(formats.parse_request(body), compaction, invalid_ranges=[range(first)])
        assert validate_request(compacted) is None
        assert block_kinds(compacted).count("thinking") == number - 2


def test_undoing_a_compaction_drops_the_thinking_after_its_summary() -> None:
    body = claude_turn("claude-opus-5-5", ADAPTIVE, steps=3)
    compaction = make_compaction_at(formats.parse_request(body), 5)
    compacted_body = parse_json(apply_compactions(formats.parse_request(body), compaction).body)
    add_thinking_step(compacted_body, 3)
    request = formats.parse_request({**body, "messages": [*body["messages"], *compacted_body["messages"][-2:]]})
    error = validate_request(request)
    assert error is not None
    assert "prefix_mismatch" in error.message
    undone = apply_compactions(request, replace(compaction, undone_at=2.0))
    assert validate_request(undone) is None
    assert undone.messages[:5] == request.messages[:5]
    assert len(undone.messages) == len(request.messages)


def test_thinking_after_an_undone_compaction_is_dropped_after_an_earlier_one_too() -> None:
    request = formats.parse_request(claude_turn("claude-opus-5-5", ADAPTIVE, steps=4))
    first, second = make_compaction_at(request, 3), make_compaction_at(request, 5)
    undone = replace(second, undone_at=2.0)
    assert block_kinds(apply_compactions(request, first, invalid_ranges=[range(5)])).count("thinking") == 2
    assert (
        block_kinds(apply_compactions(request, first, undone, invalid_ranges=[range(5), range(7, 9)])).count(
            "thinking"
        )
        == 1
    )
    assert "thinking" not in block_kinds(
        apply_compactions(request, first, undone)
    )  # if the ranges are not known


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


def test_thinking_is_dropped_from_converse_requests_too() -> None:
    body = {"modelId": "us.anthropic.claude-opus-5-5-v1:0", "messages": CONVERSE}
    request = formats.parse_request(body, Format.BEDROCK)
    compacted = apply_compactions(request, make_compaction_at(request, 2))
    assert message_contents(compacted)[3] == [{"text": "So."}, {"cachePoint": {"type": "default"}}]


def test_the_model_can_be_given_if_the_body_does_not_name_it() -> None:
    """Bedrock has the model in the path of the URL."""
    request = formats.parse_request({"messages": CONVERSE}, Format.BEDROCK)
    compaction = make_compaction_at(request, 2)
    assert b"reasoningContent" in apply_compactions(request, compaction).body
    assert (
        b"reasoningContent"
        not in apply_compactions(request, compaction, model="us.anthropic.claude-opus-5-5-v1:0").body
    )
    assert (
        b"reasoningContent"
        in apply_compactions(request, compaction, model="us.anthropic.claude-opus-4-6-v1").body
    )


CARRIERS: list[Body] = [
    {"reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s"}], "reasoning": "hm"},
    {"reasoning_details": [{"type": "reasoning.encrypted", "data": "s"}]},
    {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
]


def chat_request(model: str, *messages: Body) -> Request:
    """Build a request that carries thinking the way OpenRouter and LiteLLM do."""
    return formats.parse_request(
        {"model": model, "messages": messages, "reasoning": {"enabled": True}}, Format.CHAT
    )


@pytest.mark.parametrize("carrier", CARRIERS)
def test_thinking_in_chat_completions_is_dropped(carrier: Body) -> None:
    thoughtful = {"role": "assistant", "content": "So.", **carrier}
    messages = [
        text_message("user", "Q"),
        thoughtful,
        text_message("user", "Then?"),
        thoughtful,
        text_message("user", "And?"),
    ]
    request = chat_request("anthropic/claude-opus-5.5", *messages)
    assert message_contents(apply_compactions(request, make_compaction_at(request, 2)))[2:] == [
        "Then?",
        "So.",
        "And?",
    ]
    assert not any(
        name.encode() in apply_compactions(request, make_compaction_at(request, 2)).body
        for name in carrier
        if name != "reasoning"
    )
    other = chat_request("anthropic/claude-opus-4.6", *messages)
    assert apply_compactions(other, make_compaction_at(other, 2)).messages[2:] == other.messages[2:]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_chat_completion_whose_thinking_cannot_be_dropped_is_unchanged(carrier: Body) -> None:
    calls = [{"id": "t", "type": "function", "function": {"name": "r", "arguments": "{}"}}]
    thoughtful = {"role": "assistant", "content": None, "tool_calls": calls, **carrier}
    result = {"role": "tool", "tool_call_id": "t", "content": "x"}
    messages = [
        text_message("user", "Q"),
        text_message("assistant", "A"),
        text_message("user", "Then?"),
        thoughtful,
        result,
    ]
    request = chat_request("anthropic/claude-opus-5.5", *messages)
    assert apply_compactions(request, make_compaction_at(request, 2)).body == request.body
    before = chat_request(
        "anthropic/claude-opus-5.5",
        *messages[:4],
        result,
        text_message("assistant", "B"),
        text_message("user", "C"),
    )
    assert (
        apply_compactions(before, make_compaction_at(before, 6)).body != before.body
    )  # compacted messages are not sent


@pytest.mark.parametrize(("model", "expected"), [("claude-opus-5-5", True), ("claude-opus-4-5", False)])
def test_the_provider_is_not_asked_to_drop_thinking_that_is_not_bound(model: str, expected: bool) -> None:
    """Regression: the parameter was set in a session continued from a model that binds thinking."""
    assert (
        bool(let_provider_drop_thinking(formats.parse_request(claude_turn(model, ADAPTIVE)), model)) is expected
    )
