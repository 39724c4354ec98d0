import pytest

from foveate import formats
from foveate.compaction.plan import CompactionCandidate, CompactionOptions, CompactionPlan, plan_compaction
from foveate.compaction.store import Compaction
from foveate.compaction.summarize import prompts
from foveate.compaction.summarize.extractive import summarize_by_rules, summary_limit_tokens
from foveate.model import Format, Request
from foveate.session.hash_chain import compute_chain
from foveate.tokens import counter_for
from tests.support.strategies.tool_conversations import Body, make_compaction_at

COUNTER = counter_for("gpt-4.1")
OPTIONS = CompactionOptions(tail_keep_tokens=40)


def text_message(role: str, words: str) -> Body:
    return {"role": role, "content": words}


def make_plan(
    request: Request, earlier: Compaction | None = None, window_tokens: int = 1_000
) -> CompactionPlan | None:
    candidate = CompactionCandidate(
        agent="a",
        session_id="s",
        original=request,
        chain=compute_chain(request),
        sent_request=request,
        sent_tokens=900,
        window_tokens=window_tokens,
        output_reserve=0,
        earlier_compaction=earlier,
    )
    return plan_compaction(candidate, COUNTER, OPTIONS)


def count_tokens(text: str) -> int:
    return COUNTER.text(text).tokens


def make_turns(*words: str) -> list[Body]:
    return [text_message(role, text) for text in words for role in ("user", "assistant")]


def test_a_second_summary_is_shorter_than_what_it_replaces() -> None:
    """Only the summary of a compacted head is sent, so only that and new messages can shrink."""
    request = formats.parse_request(
        {
            "model": "gpt-4.1",
            "messages": [
                *make_turns("a long story " * 400, "next " * 20, "last " * 60),
                text_message("user", "?"),
            ],
        },
        Format.CHAT,
    )
    first = make_plan(request)
    second = make_plan(request, make_compaction_at(request, 2, summary="It was told."))
    assert first is not None
    assert second is not None
    assert first.limit_tokens == summary_limit_tokens(first.head_tokens)
    assert (
        second.limit_tokens
        == second.summary_input.replaced_tokens // 2
        < summary_limit_tokens(second.head_tokens)
    )


@pytest.mark.slow
def test_a_summary_leaves_room_in_the_window_whatever_the_session_length() -> None:
    history = make_turns(*("a long story " * 400 for _ in range(40)))
    request = formats.parse_request(
        {"model": "gpt-4.1", "messages": [*history, text_message("user", "?")]}, Format.CHAT
    )
    plan = make_plan(request, window_tokens=8_000)
    assert plan is not None
    assert plan.head_tokens > 40_000
    assert plan.limit_tokens == 8_000 * 0.75 // 8


def test_a_request_that_continues_a_stored_conversation_is_not_compacted() -> None:
    items = [
        text_message("user", "a " * 200),
        text_message("assistant", "b " * 200),
        text_message("user", "c " * 200),
    ]
    body = {"model": "gpt-5", "input": items}
    assert make_plan(formats.parse_request(body, Format.RESPONSES)) is not None
    for stored in ({"previous_response_id": "resp_1"}, {"conversation": "conv_1"}):
        assert make_plan(formats.parse_request({**body, **stored}, Format.RESPONSES)) is None


def test_no_summary_is_planned_that_could_not_be_sent() -> None:
    signed = [{"type": "reasoning.text", "text": "hm", "signature": "s"}]
    calls = [{"id": "t", "type": "function", "function": {"name": "r", "arguments": "{}"}}]
    thoughtful = {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_details": signed}
    result = {"role": "tool", "tool_call_id": "t", "content": "x " * 50}
    messages = [*make_turns("a " * 200), text_message("user", "b"), thoughtful, result]
    assert make_plan(formats.parse_request({"model": "gpt-4.1", "messages": messages}, Format.CHAT)) is not None
    bound = {"model": "anthropic/claude-opus-5.5", "messages": messages}
    assert make_plan(formats.parse_request(bound, Format.CHAT)) is None


def test_a_summary_by_anthropic_is_read_as_a_user_message() -> None:
    """Regression: the block was shown as [compaction], and the constraints in it were lost."""
    summary_block = {"type": "compaction", "content": "A parser is wanted. You must never touch prod-db-7."}
    messages = [
        {"role": "assistant", "content": [summary_block, {"type": "text", "text": "I go on. " * 80}]},
        text_message("user", "Then?"),
        text_message("assistant", "So. " * 60),
        text_message("user", "And? " * 60),
    ]
    request = formats.parse_request(
        {"model": "claude-opus-4-8", "max_tokens": 9, "messages": messages}, Format.ANTHROPIC
    )
    plan = make_plan(request)
    assert plan is not None
    assert any("never touch prod-db-7" in fact for fact in plan.summary_input.facts)
    (chunk,) = prompts.split_messages(plan.summary_input.new_messages, chunk_tokens=5_000, count=count_tokens)
    assert "You must never touch prod-db-7." in chunk
    assert "I go on." in chunk
    assert "[compaction]" not in chunk
    assert (
        "never touch prod-db-7"
        in summarize_by_rules(plan.summary_input.head, limit_tokens=120, count=count_tokens).text
    )


def test_a_lone_summary_by_anthropic_is_one_message() -> None:
    summary_block = {"type": "compaction", "content": "A parser is wanted."}
    messages = [
        {"role": "assistant", "content": [summary_block]},
        text_message("user", "Then? " * 60),
        text_message("assistant", "So. " * 60),
        text_message("user", "And? " * 60),
    ]
    request = formats.parse_request(
        {"model": "claude-opus-4-8", "max_tokens": 9, "messages": messages}, Format.ANTHROPIC
    )
    plan = make_plan(request)
    assert plan is not None
    assert [message.role for message in plan.summary_input.head] == ["user", "user", "assistant"]
