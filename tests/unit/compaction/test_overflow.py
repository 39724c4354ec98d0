import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foveate import formats
from foveate.compaction.apply import ACKNOWLEDGEMENT, CONTINUE_REQUEST, build_compaction_edits
from foveate.compaction.overflow import (
    OnOverflow,
    OverflowAction,
    OverflowOptions,
    OverflowPlan,
    lower_bound_tokens,
    plan_overflow,
)
from foveate.compaction.thinking import required_betas
from foveate.compaction.tool_results import build_truncation_edits
from foveate.errors import BadOption
from foveate.formats.json_text.parse import parse_json, to_json
from foveate.model import Request, TokenCount
from foveate.sandbox import validate_request
from foveate.session.hash_chain import compute_chain
from foveate.tokens import counter_for
from tests.support.strategies.claude_requests import claude_requests
from tests.support.strategies.tool_conversations import (
    Body,
    add_thinking_step,
    any_requests,
    claude_turn,
    find_cuts,
    make_compaction_at,
)

COMPACTS = OverflowOptions(compaction=True)
REJECTS = OverflowOptions(compaction=False)
REMOVES = OverflowOptions(compaction=False, on_overflow=OnOverflow.MAKE_ROOM)
PASSES = OverflowOptions(compaction=False, on_overflow=OnOverflow.PASS)


def exact_count(tokens: int) -> TokenCount:
    return TokenCount(tokens, True, tokens)


def estimated_count(tokens: int, upper: int) -> TokenCount:
    return TokenCount(tokens, False, upper)


def build_chat(turns: int, *, steps: int = 1) -> Request:
    messages: list[Body] = [{"role": "system", "content": "S"}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Q{turn}"})
        for step in range(steps):
            call_id = f"c{turn}_{step}"
            call = {"id": call_id, "type": "function", "function": {"name": "read", "arguments": "{}"}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": call_id, "content": "x" * 50})
        if turn < turns - 1:
            messages.append({"role": "assistant", "content": f"A{turn}"})
    return formats.parse_request({"model": "gpt-4.1", "messages": messages})


def make_plan(
    request: Request,
    limit: int,
    options: OverflowOptions = REMOVES,
    *,
    tokens_each: int = 1000,
    count: TokenCount | None = None,
    can_compact: bool = False,
) -> OverflowPlan:
    messages = [formats.parse_message(request.format, raw) for raw in request.messages]
    return plan_overflow(
        request,
        messages,
        [tokens_each] * len(messages),
        count or exact_count(tokens_each * len(messages)),
        limit_tokens=limit,
        options=options,
        can_compact=can_compact,
    )


def apply_plan(request: Request, plan: OverflowPlan) -> Request:
    return formats.parse_request(formats.apply_edits(request, plan.edits), request.format)


def test_a_request_that_fits_is_passed_unchanged() -> None:
    plan = make_plan(build_chat(2), 10**6, COMPACTS, can_compact=True)
    assert (plan.actions, plan.edits) == ((OverflowAction.PASS,), ())
    assert plan.final_action is OverflowAction.PASS


def test_a_request_that_probably_fits_is_passed() -> None:
    assert make_plan(build_chat(2), 1000, count=estimated_count(990, 1200)).actions == (OverflowAction.PASS,)


def test_compaction_comes_first_if_enabled_and_possible() -> None:
    assert make_plan(build_chat(3), 5000, COMPACTS, can_compact=True).actions == (OverflowAction.COMPACT,)
    assert make_plan(build_chat(3), 5000, REJECTS, can_compact=True).actions == (OverflowAction.REJECT,)


def test_stale_results_are_cleared_before_anything_is_evicted() -> None:
    request = build_chat(4)  # 16 messages
    plan = make_plan(request, 15_000, COMPACTS)
    assert plan.actions == (OverflowAction.CLEAR, OverflowAction.PASS)
    assert plan.tokens_after <= 15_000
    assert len(apply_plan(request, plan).messages) == len(request.messages)


def test_the_oldest_turns_are_evicted_if_clearing_is_not_enough() -> None:
    request = build_chat(4)
    plan = make_plan(request, 8_500)
    assert plan.actions == (OverflowAction.CLEAR, OverflowAction.EVICT, OverflowAction.PASS)
    shortened = apply_plan(request, plan)
    assert plan.tokens_after <= 8_500
    words = [parse_json(raw)["content"] for raw in shortened.messages]
    assert words[0] == "S"
    assert words[1] == "[left out: 8 earlier messages, 8,000 tokens]"
    assert words[2] == ACKNOWLEDGEMENT
    assert words[3] == "Q2"
    assert words[-3:] == ["Q3", None, "x" * 50]


def test_steps_of_the_open_turn_are_evicted_after_its_question() -> None:
    request = build_chat(1, steps=6)
    shortened = apply_plan(request, make_plan(request, 8_000))
    words = [parse_json(raw)["content"] for raw in shortened.messages]
    assert words[:2] == ["S", "Q0"]
    assert words[2].startswith("[left out: 8 earlier messages")
    assert words[3] == CONTINUE_REQUEST
    assert validate_request(shortened) is None


def test_the_same_messages_are_removed_from_many_consecutive_requests() -> None:
    """The remaining history stays the same prefix while a session grows, so that it is cached."""
    before = build_chat(1, steps=60)
    requests = [formats.parse_request(to_json(extend_request(before, steps))) for steps in range(2, 7)]
    prefixes = {apply_plan(request, make_plan(request, 100_000)).messages[:50] for request in requests}
    assert len(prefixes) == 1


def extend_request(request: Request, steps: int) -> Body:
    body: Body = parse_json(request.body)
    added: list[Body] = parse_json(build_chat(1, steps=100).body)["messages"][2 : 2 + 2 * steps]
    renamed = to_json(added).replace(b'"c0_', b'"d_')
    return {**body, "messages": [*body["messages"], *parse_json(renamed)]}


def test_a_request_that_cannot_fit_is_rejected_and_nothing_is_removed() -> None:
    plan = make_plan(build_chat(1), 500)
    assert (plan.actions, plan.edits, plan.tokens_after) == ((OverflowAction.REJECT,), (), 4000)
    assert "4,000 tokens" in plan.reason
    assert "the limit is 500" in plan.reason


def test_without_compaction_a_request_is_rejected_unless_the_policy_is_pass() -> None:
    assert make_plan(build_chat(4), 8_000, REJECTS).actions == (OverflowAction.REJECT,)
    assert make_plan(build_chat(4), 8_000, PASSES).actions == (OverflowAction.PASS,)
    assert make_plan(build_chat(4), 8_000, PASSES).edits == ()


def test_a_request_is_rejected_only_if_it_certainly_does_not_fit() -> None:
    assert make_plan(build_chat(4), 1000, REJECTS, count=estimated_count(1100, 1200)).actions == (
        OverflowAction.PASS,
    )
    assert make_plan(build_chat(4), 1000, REJECTS, count=estimated_count(1100, 1199)).actions == (
        OverflowAction.REJECT,
    )
    assert make_plan(build_chat(4), 1000, REJECTS, count=exact_count(1001)).actions == (OverflowAction.REJECT,)


def test_an_estimate_may_be_as_much_too_high_as_too_low() -> None:
    assert lower_bound_tokens(estimated_count(100, 130)) == 70
    assert lower_bound_tokens(estimated_count(100, 300)) == 0
    assert lower_bound_tokens(TokenCount(100, True, 104)) == 100


def test_room_is_made_for_the_upper_bound_of_an_estimate() -> None:
    request = build_chat(10)
    exact, estimated = (
        make_plan(request, 30_000),
        make_plan(request, 30_000, count=estimated_count(40_000, 60_000)),
    )
    assert estimated.tokens_after <= 20_000 < exact.tokens_after


def test_every_message_needs_a_token_count() -> None:
    request = build_chat(1)
    with pytest.raises(BadOption, match="4 messages"):
        plan_overflow(request, [], [], exact_count(10), limit_tokens=1, options=REJECTS, can_compact=False)


def test_thinking_after_removed_messages_is_dropped_if_the_model_binds_it() -> None:
    body = claude_turn("claude-opus-5-5", {"type": "adaptive"}, steps=4)
    body["messages"] += [{"role": "assistant", "content": "So."}, {"role": "user", "content": "Then?"}]
    add_thinking_step(body, 4)
    request = formats.parse_request(to_json(body))
    plan = make_plan(request, 12_500)
    shortened = apply_plan(request, plan)
    assert plan.actions == (OverflowAction.CLEAR, OverflowAction.PASS)
    assert validate_request(shortened) is None
    assert b"thinking" in shortened.messages[1]  # messages before the first change are unchanged
    assert b'"thinking"' not in b"".join(shortened.messages[3:])


STORED = [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}, {"conversation": {"id": "conv_1"}}]


@pytest.mark.parametrize("stored", STORED)
def test_nothing_is_evicted_from_a_request_that_continues_a_stored_conversation(stored: Body) -> None:
    """Regression: the result of a stored call was removed, which OpenAI rejects."""
    items: list[Body] = [{"type": "function_call_output", "call_id": "stored", "output": "x"}]
    for number in range(6):
        call_id = f"c{number}"
        items.append({"type": "function_call", "call_id": call_id, "name": "read", "arguments": "{}"})
        items.append({"type": "function_call_output", "call_id": call_id, "output": "x" * 50})
    body = {"model": "gpt-5", "input": [*items, {"role": "user", "content": "So?"}]}
    complete, continued = formats.parse_request(body), formats.parse_request({**body, **stored})
    assert make_plan(complete, 4_000, COMPACTS, can_compact=True).actions == (OverflowAction.COMPACT,)
    assert OverflowAction.EVICT in make_plan(complete, 4_000).actions
    for options in (COMPACTS, REMOVES):
        assert make_plan(continued, 4_000, options, can_compact=True).actions == (OverflowAction.REJECT,)
    assert make_plan(continued, 13_500).actions == (OverflowAction.CLEAR, OverflowAction.PASS)
    compaction = make_compaction_at(continued, 3)
    assert build_compaction_edits(complete, compute_chain(complete), [compaction])
    assert not build_compaction_edits(continued, compute_chain(continued), [compaction])


def test_a_result_without_a_visible_call_stays() -> None:
    body = parse_json(build_chat(3).body)
    body["messages"].insert(1, {"role": "tool", "tool_call_id": "elsewhere", "content": "y"})
    request = formats.parse_request(body)
    plan = make_plan(request, 6_000)
    assert OverflowAction.EVICT in plan.actions
    assert b"elsewhere" in apply_plan(request, plan).messages[1]  # cleared, but present


def test_nothing_is_removed_before_thinking_that_cannot_be_dropped() -> None:
    body = parse_json(build_chat(4).body)
    signed = [{"type": "reasoning.text", "text": "hm", "signature": "s"}]
    body["messages"][-2]["reasoning_details"] = signed
    free, bound = (
        formats.parse_request(body),
        formats.parse_request({**body, "model": "anthropic/claude-opus-5.5"}),
    )
    assert OverflowAction.EVICT in make_plan(free, 8_500).actions
    assert make_plan(bound, 8_500).actions == (OverflowAction.REJECT,)
    assert make_plan(bound, 8_500).edits == ()


@pytest.mark.slow
@given(st.one_of(any_requests(), claude_requests(max_calls=4)), st.integers(1, 12_000), st.booleans())
def test_providers_accept_requests_with_removed_messages(body: Body, limit: int, is_exact: bool) -> None:
    request = formats.parse_request(to_json(body))
    total = 1000 * len(request.messages)
    plan = make_plan(
        request, limit, count=exact_count(total) if is_exact else estimated_count(total, total + total // 5)
    )
    shortened = apply_plan(request, plan)
    assert validate_request(shortened, betas=required_betas(plan.edits)) is None
    if plan.final_action is OverflowAction.PASS and is_exact:
        assert plan.tokens_after <= limit
    if plan.edits:
        assert plan.tokens_after < plan.tokens_before
        assert b"[left out: " in shortened.body or b"[cleared: " in shortened.body
        assert all(edit.reason for edit in plan.edits)
        # The model answers the last message, which stays unchanged.
        assert shortened.messages[-1] == request.messages[-1]
    else:
        assert shortened.body == request.body


@pytest.mark.slow
@given(any_requests(), st.data(), st.integers(1, 12_000))
def test_more_is_removed_if_a_compacted_request_still_does_not_fit(
    body: Body, data: st.DataObject, limit: int
) -> None:
    """All actions on one request: truncate a result, compact the head, clear and evict."""
    original = formats.parse_request(to_json(body))
    cuts = find_cuts(original)
    assume(cuts)
    cut = data.draw(st.sampled_from(cuts))
    compaction_edits = build_compaction_edits(
        original, compute_chain(original), [make_compaction_at(original, cut)]
    )
    truncation_edits = build_truncation_edits(
        original, counter_for("gpt-4.1"), dict.fromkeys(range(cut, len(original.messages)), 30)
    )
    request = formats.parse_request(
        formats.apply_edits(original, (*compaction_edits, *truncation_edits)), original.format
    )
    betas = required_betas(compaction_edits)
    assert validate_request(request, betas=betas) is None
    plan = make_plan(request, limit)
    assert validate_request(apply_plan(request, plan), betas=(*betas, *required_betas(plan.edits))) is None


@given(any_requests(), st.integers(1, 12_000), st.integers(0, 20_000), st.integers(0, 5_000))
def test_a_request_that_could_fit_is_never_rejected(
    body: Body, limit: int, tokens: int, error_tokens: int
) -> None:
    request = formats.parse_request(to_json(body))
    count = estimated_count(tokens, tokens + error_tokens)
    for options in (REJECTS, REMOVES, PASSES, COMPACTS):
        plan = make_plan(request, limit, options, count=count)
        if plan.final_action is OverflowAction.REJECT:
            assert tokens - error_tokens > limit
            assert options is not PASSES
            assert not plan.edits
